//! What a `<fs>-client` configuration log says, record by record.
//!
//! Lustre: `class_process_config` in `lustre/obdclass/obd_config.c`, `lov_process_config_base`, `lmv_process_config`.

use std::collections::BTreeMap;

use coral_wire::cfg::{ConfigRecord, LCFG_REQUIRED, Lcfg, LustreCfg};
use coral_wire::nid::Nid;

/// One target as the configuration names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetConf {
    /// Target uuid, `coral-OST0000_UUID`.
    pub uuid: String,
    /// NIDs it may be found at, in order (first node, then failover nodes).
    pub nids: Vec<Nid>,
    /// Generation of the index.
    pub generation: u32,
    /// Deactivated by the administrator.
    pub inactive: bool,
}

/// What a `<fs>-client` log says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// File system name.
    pub fsname: String,
    /// Metadata targets by index.
    pub mdts: BTreeMap<u32, TargetConf>,
    /// Object storage targets by index.
    pub osts: BTreeMap<u32, TargetConf>,
    /// Parameters, `llite.max_read_ahead_mb` -> `64`, in log order.
    pub params: Vec<(String, String)>,
    /// Pools: name -> OST uuids.
    pub pools: BTreeMap<String, Vec<String>>,
    /// Index of the last record read.
    pub last_index: u32,
}

/// What is being put together while records come: devices and node uuids by name.
#[derive(Debug, Default)]
pub(super) struct ConfigBuilder {
    config: Config,
    /// Node uuid -> NIDs.
    nodes: BTreeMap<String, Vec<Nid>>,
    /// Target uuid -> NIDs of its nodes so far.
    targets: BTreeMap<String, Vec<Nid>>,
    /// Device name -> target uuid.
    devices: BTreeMap<String, String>,
}

impl ConfigBuilder {
    pub(super) fn new(fsname: &str) -> Self {
        Self {
            config: Config {
                fsname: fsname.to_owned(),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    /// Takes one record; `Err` when it demands something this client does not know.
    pub(super) fn take(&mut self, r: &ConfigRecord) -> Result<(), String> {
        self.config.last_index = r.index;
        let c = &r.cfg;
        match c.command {
            Lcfg::ADD_UUID => self.add_uuid(c)?,
            Lcfg::SETUP if !c.str(2).is_empty() => {
                self.devices
                    .insert(c.str(0).to_owned(), c.str(1).to_owned());
                self.targets
                    .insert(c.str(1).to_owned(), self.nids_of(c.str(2)));
            }
            Lcfg::ADD_CONN => {
                let more = self.nids_of(c.str(1));
                if let Some(nids) = self
                    .devices
                    .get(c.str(0))
                    .and_then(|t| self.targets.get_mut(t))
                {
                    nids.extend(more);
                }
            }
            Lcfg::DEL_CONN => {}
            Lcfg::ADD_MDC => {
                let t = self.target(c)?;
                self.config.mdts.insert(t.0, t.1);
            }
            Lcfg::LOV_ADD_OBD | Lcfg::LOV_ADD_INA => {
                let (index, mut t) = self.target(c)?;
                t.inactive = c.command == Lcfg::LOV_ADD_INA;
                self.config.osts.insert(index, t);
            }
            Lcfg::LOV_DEL_OBD => {
                if let Ok(i) = c.str(2).parse::<u32>() {
                    self.config.osts.remove(&i);
                }
            }
            Lcfg::POOL_NEW => drop(self.config.pools.entry(c.str(2).to_owned()).or_default()),
            Lcfg::POOL_ADD => self
                .config
                .pools
                .entry(c.str(2).to_owned())
                .or_default()
                .push(c.str(3).to_owned()),
            Lcfg::POOL_REM => {
                if let Some(p) = self.config.pools.get_mut(c.str(2)) {
                    p.retain(|o| o != c.str(3));
                }
            }
            Lcfg::POOL_DEL => drop(self.config.pools.remove(c.str(2))),
            Lcfg::PARAM | Lcfg::SET_PARAM => {
                self.params(c);
                self.activation(c);
            }
            Lcfg::ATTACH
            | Lcfg::SETUP
            | Lcfg::MOUNTOPT
            | Lcfg::DEL_MOUNTOPT
            | Lcfg::MARKER
            | Lcfg::DETACH
            | Lcfg::CLEANUP => {}
            Lcfg::DEL_UUID | Lcfg::SET_TIMEOUT => {}
            other if other.0 & LCFG_REQUIRED != 0 && other.name().is_none() => {
                return Err(format!(
                    "record {} holds command {:#x}, which this client must know but does not",
                    r.index, other.0
                ));
            }
            other => {
                tracing::debug!(index = r.index, command = ?other, "configuration record ignored")
            }
        }
        Ok(())
    }

    fn add_uuid(&mut self, c: &LustreCfg) -> Result<(), String> {
        let nid = if c.nid.0 != 0 {
            c.nid
        } else {
            let text = if c.str(2).is_empty() {
                c.str(1)
            } else {
                c.str(2)
            };
            text.parse().map_err(|_| format!("'{text}' is no NID"))?
        };
        let nids = self.nodes.entry(c.str(1).to_owned()).or_default();
        if !nids.contains(&nid) {
            nids.push(nid);
        }
        Ok(())
    }

    /// NIDs of a node uuid; the uuid itself may be a NID.
    fn nids_of(&self, node: &str) -> Vec<Nid> {
        match self.nodes.get(node) {
            Some(n) => n.clone(),
            None => node.parse().into_iter().collect(),
        }
    }

    /// {target uuid, index, generation} of a record that puts a target into its place.
    fn target(&self, c: &LustreCfg) -> Result<(u32, TargetConf), String> {
        let uuid = c.str(1);
        let index = c
            .str(2)
            .parse()
            .map_err(|_| format!("target {uuid} has index '{}'", c.str(2)))?;
        let generation = c.str(3).parse().unwrap_or(1);
        let nids = self.targets.get(uuid).cloned().unwrap_or_default();
        Ok((
            index,
            TargetConf {
                uuid: uuid.to_owned(),
                nids,
                generation,
                inactive: false,
            },
        ))
    }

    fn params(&mut self, c: &LustreCfg) {
        for i in 1..c.bufs.len() {
            if let Some((key, value)) = c.str(i).split_once('=') {
                self.config.params.push((key.to_owned(), value.to_owned()));
            }
        }
    }

    /// `osc.active=0` or `=1` for the device of an OST.
    fn activation(&mut self, c: &LustreCfg) {
        let Some(uuid) = self.devices.get(c.str(0)) else {
            return;
        };
        let Some(ost) = self.config.osts.values_mut().find(|o| o.uuid == *uuid) else {
            return;
        };
        for i in 1..c.bufs.len() {
            if let Some(value) = c.str(i).strip_prefix("osc.active=") {
                ost.inactive = value == "0";
            }
        }
    }

    pub(super) fn finish(self) -> Config {
        self.config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(b: &mut ConfigBuilder, cmd: Lcfg, texts: &[&str]) -> Result<(), String> {
        let index = b.config.last_index + 1;
        b.take(&ConfigRecord {
            index,
            cfg: LustreCfg::new(cmd, texts),
        })
    }

    #[test]
    fn a_client_log() {
        let mut b = ConfigBuilder::new("lfs");
        let mut uuid = LustreCfg::new(Lcfg::ADD_UUID, &["", "10.77.0.2@tcp"]);
        uuid.nid = "10.77.0.2@tcp".parse().unwrap();
        b.take(&ConfigRecord {
            index: 1,
            cfg: uuid,
        })
        .unwrap();
        feed(
            &mut b,
            Lcfg::ATTACH,
            &["lfs-MDT0000-mdc", "mdc", "lfs-clilmv_UUID"],
        )
        .unwrap();
        feed(
            &mut b,
            Lcfg::SETUP,
            &["lfs-MDT0000-mdc", "lfs-MDT0000_UUID", "10.77.0.2@tcp"],
        )
        .unwrap();
        feed(&mut b, Lcfg::ADD_UUID, &["", "10.77.0.9@tcp"]).unwrap();
        feed(
            &mut b,
            Lcfg::ADD_CONN,
            &["lfs-MDT0000-mdc", "10.77.0.9@tcp"],
        )
        .unwrap();
        feed(
            &mut b,
            Lcfg::ADD_MDC,
            &["lfs-clilmv", "lfs-MDT0000_UUID", "0", "1", "x"],
        )
        .unwrap();
        feed(
            &mut b,
            Lcfg::SETUP,
            &["lfs-OST0003-osc", "lfs-OST0003_UUID", "10.77.0.2@tcp"],
        )
        .unwrap();
        feed(
            &mut b,
            Lcfg::LOV_ADD_OBD,
            &["lfs-clilov", "lfs-OST0003_UUID", "3", "1"],
        )
        .unwrap();
        feed(
            &mut b,
            Lcfg::PARAM,
            &["lfs-client", "llite.stats_track_pid=7"],
        )
        .unwrap();
        let c = b.finish();
        let nid = |s: &str| s.parse::<Nid>().unwrap();
        assert_eq!(
            c.mdts[&0].nids,
            [nid("10.77.0.2@tcp"), nid("10.77.0.9@tcp")]
        );
        assert_eq!(
            (c.osts[&3].uuid.as_str(), c.osts[&3].inactive),
            ("lfs-OST0003_UUID", false)
        );
        assert_eq!(
            c.params,
            [("llite.stats_track_pid".to_owned(), "7".to_owned())]
        );
    }

    #[test]
    fn an_ost_is_deactivated_and_activated() {
        let mut b = ConfigBuilder::new("lfs");
        feed(
            &mut b,
            Lcfg::SETUP,
            &["lfs-OST0003-osc", "lfs-OST0003_UUID", "10.77.0.2@tcp"],
        )
        .unwrap();
        feed(
            &mut b,
            Lcfg::LOV_ADD_INA,
            &["lfs-clilov", "lfs-OST0003_UUID", "3", "1"],
        )
        .unwrap();
        let mut inactive = Vec::new();
        for param in ["osc.active=1", "osc.max_dirty_mb=4", "osc.active=0"] {
            inactive.push(b.config.osts[&3].inactive);
            feed(&mut b, Lcfg::PARAM, &["lfs-OST0003-osc", param]).unwrap();
        }
        inactive.push(b.config.osts[&3].inactive);
        assert_eq!(inactive, [true, false, false, true]);
    }

    #[test]
    fn pools_come_and_go() {
        let mut b = ConfigBuilder::new("lfs");
        feed(&mut b, Lcfg::POOL_NEW, &["lfs-clilov", "lfs", "flash"]).unwrap();
        feed(&mut b, Lcfg::POOL_NEW, &["lfs-clilov", "lfs", "slow"]).unwrap();
        for ost in ["lfs-OST0000_UUID", "lfs-OST0002_UUID"] {
            feed(&mut b, Lcfg::POOL_ADD, &["lfs-clilov", "lfs", "flash", ost]).unwrap();
        }
        feed(
            &mut b,
            Lcfg::POOL_REM,
            &["lfs-clilov", "lfs", "flash", "lfs-OST0000_UUID"],
        )
        .unwrap();
        feed(&mut b, Lcfg::POOL_DEL, &["lfs-clilov", "lfs", "slow"]).unwrap();
        assert_eq!(
            b.finish().pools,
            [("flash".to_owned(), vec!["lfs-OST0002_UUID".to_owned()])].into()
        );
    }

    #[test]
    fn an_unknown_command_that_is_required_is_refused() {
        let mut b = ConfigBuilder::new("lfs");
        assert!(feed(&mut b, Lcfg(0xcf0ff | LCFG_REQUIRED), &["", ""]).is_err());
    }
}
