//! Tunables and counters under Lustre's names (`lctl get_param`, `set_param`).
//!
//! Lustre: `lustre/llite/lproc_llite.c`, `lustre/ldlm/ldlm_resource.c`. Absent: everything not listed in [`Tunables::params`].

use std::sync::Arc;
use std::time::Duration;

use coral_ldlm::ClientNamespace;

use super::budget::Spent;
use super::cache::Cache;
use super::connections::Connections;
use super::covers::Covers;
use super::drains::Drains;
use super::servers::Servers;
use crate::error::{Error, Refusal};
use crate::osc::Osc;

/// Most RPCs to an OST at once (`OSC_MAX_RIF_MAX`, lustre/include/obd.h).
const IN_FLIGHT_MAX: usize = 256;
const IN_FLIGHT: &str = "1 to 256 RPCs";
/// Most dirty bytes of an OST that can be asked for, MiB.
const DIRTY_MAX_MB: u64 = 2000;
const DIRTY: &str = "1 to 2000 MiB";
const MIB: usize = 1 << 20;
/// Longest time without use before an OST is left (`CONNECTION_SWITCH_MAX`), seconds.
const IDLE_TIMEOUT_MAX_S: u64 = 50;
const IDLE_TIMEOUT: &str = "0 (never) to 50 seconds";
const ACTIVE: &str = "0 or 1";
const LRU_SIZE: &str = "a number of locks, 0 (the budget decides) or more, or clear";
/// The kernel's page, bytes.
const PAGE_BYTES: usize = 4096;

/// Shows and sets parameters.
pub(super) struct Tunables {
    pub servers: Arc<Servers>,
    pub cache: Arc<Cache>,
    pub covers: Arc<Covers>,
    pub drains: Arc<Drains>,
    pub connections: Arc<Connections>,
}

impl Tunables {
    /// This mount's part in names, as `1234567890abcdef`.
    fn id(&self) -> String {
        self.connections
            .client_uuid()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect()
    }

    /// Names devices of a kind by their targets' uuids: `coral-OST0000-osc-1234567890abcdef`.
    fn device_names(&self, kind: &str) -> impl Fn(&str) -> String {
        let end = format!("-{kind}-{}", self.id());
        move |uuid| format!("{}{end}", uuid.trim_end_matches("_UUID"))
    }

    /// Lock namespaces with their names.
    fn namespaces(&self) -> Vec<(String, Arc<ClientNamespace>)> {
        let (mdc, osc) = (self.device_names("mdc"), self.device_names("osc"));
        let mdts = self
            .servers
            .lmv
            .mdcs()
            .into_iter()
            .map(|m| (mdc(m.uuid()), m.namespace().clone()));
        let osts = self
            .servers
            .lov
            .oscs()
            .into_iter()
            .map(|o| (osc(o.uuid()), o.namespace().clone()));
        mdts.chain(osts).collect()
    }

    /// OSTs with their names.
    fn osc_names(&self) -> Vec<(String, Arc<Osc>)> {
        let name = self.device_names("osc");
        self.servers
            .lov
            .oscs()
            .into_iter()
            .map(|o| (name(o.uuid()), o))
            .collect()
    }

    /// OSTs of the configuration, deactivated ones too.
    fn ost_names(&self) -> Vec<(u32, String)> {
        let name = self.device_names("osc");
        self.servers
            .config
            .borrow()
            .osts
            .iter()
            .map(|(i, c)| (*i, name(&c.uuid)))
            .collect()
    }

    /// What the memory budget was spent on.
    pub fn spent(&self) -> Spent {
        let locks = self.namespaces().iter().map(|(_, ns)| ns.counts().0).sum();
        let dirty_bytes = self
            .servers
            .lov
            .oscs()
            .iter()
            .map(|o| o.grant().dirty() as usize)
            .sum();
        let of_mdts: usize = self
            .servers
            .lmv
            .mdcs()
            .iter()
            .map(|m| m.data().kept_bytes())
            .sum();
        let kept_bytes = of_mdts
            + self
                .servers
                .lov
                .oscs()
                .iter()
                .map(|o| o.kept_bytes())
                .sum::<usize>();
        Spent {
            dirty_bytes,
            kept_bytes,
            locks,
            covered: self.covers.covered(),
            ..self.cache.spent()
        }
    }

    /// All parameters: name and value; a value of several lines ends with a newline.
    pub fn params(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for (name, ns) in self.namespaces() {
            let (granted, unused) = ns.counts();
            let mut add = |what: &str, value: String| {
                out.push((format!("ldlm.namespaces.{name}.{what}"), value))
            };
            add("lock_count", granted.to_string());
            add("lock_unused_count", unused.to_string());
            add("lru_max_age", ns.lru_max_age().as_millis().to_string());
            add("lru_size", ns.lru_size().to_string());
        }
        for (name, osc) in self.osc_names() {
            let mut add = |what: &str, value: u64| {
                out.push((format!("osc.{name}.{what}"), value.to_string()))
            };
            add("cur_dirty_bytes", osc.grant().dirty());
            add("cur_grant_bytes", osc.grant().held());
            add("max_dirty_mb", osc.grant().max_dirty() >> 20);
            add("idle_timeout", osc.import().idle_timeout().as_secs());
            add("max_rpcs_in_flight", osc.import().max_in_flight().into());
            add("max_pages_per_rpc", (osc.rpc_bytes() / PAGE_BYTES) as u64);
            let kept = osc.kept_bytes();
            let value = format!(
                "unstable_pages: {}\nunstable_mb: {}\n",
                kept.div_ceil(PAGE_BYTES),
                kept / MIB
            );
            out.push((format!("osc.{name}.unstable_stats"), value));
        }
        for (index, name) in self.ost_names() {
            out.push((
                format!("osc.{name}.active"),
                u8::from(self.servers.lov.osc(index).is_ok()).to_string(),
            ));
        }
        let (spent, instance) = (
            self.spent(),
            format!("{}-{}", self.servers.opts.fsname, self.id()),
        );
        let (max, used) = (
            self.servers.opts.cache_mb as usize,
            spent.bytes().div_ceil(MIB),
        );
        let lines = [
            ("max_cached_mb", max),
            ("used_mb", used),
            ("unused_mb", max.saturating_sub(used)),
        ];
        let text = |lines: &[(&str, usize)]| {
            lines
                .iter()
                .map(|(n, v)| format!("{n}: {v}\n"))
                .collect::<String>()
        };
        out.push((
            format!("llite.{instance}.cache_usage"),
            text(&spent.lines()),
        ));
        out.push((format!("llite.{instance}.max_cached_mb"), text(&lines)));
        out
    }

    /// Changes a parameter: `osc.NAME.max_dirty_mb` to a number of MiB, 1 to 2000 (until a server joins or leaves);
    /// `osc.NAME.max_rpcs_in_flight` to a number of RPCs, 1 to 256 (until a server joins or leaves);
    /// `osc.NAME.active` to 0, so that the OST is left and what needs it fails, or 1;
    /// `osc.NAME.idle_timeout` to seconds without use after which the OST is left, 0 (never) to 50;
    /// `ldlm.namespaces.NAME.lru_size` to a number of locks, 0 (the budget decides again), or `clear` (all unused locks
    /// are given back, cached pages first). EINVAL for another value, EPERM for another parameter, ENOENT when there is none
    /// of that name.
    pub async fn set_param(&self, name: &str, value: &str) -> Result<(), Error> {
        if let Some((_, osc)) = self
            .osc_names()
            .into_iter()
            .find(|(n, _)| name == format!("osc.{n}.max_dirty_mb"))
        {
            let mb = value
                .parse::<u64>()
                .ok()
                .filter(|mb| (1..=DIRTY_MAX_MB).contains(mb))
                .ok_or(Refusal::BadParam(DIRTY))?;
            osc.grant().set_max_dirty(mb << 20);
            return Ok(());
        }
        if let Some((_, osc)) = self
            .osc_names()
            .into_iter()
            .find(|(n, _)| name == format!("osc.{n}.max_rpcs_in_flight"))
        {
            let n = value
                .parse::<usize>()
                .ok()
                .filter(|n| (1..=IN_FLIGHT_MAX).contains(n))
                .ok_or(Refusal::BadParam(IN_FLIGHT))?;
            osc.import().set_max_in_flight(n);
            return Ok(());
        }
        if let Some((_, osc)) = self
            .osc_names()
            .into_iter()
            .find(|(n, _)| name == format!("osc.{n}.idle_timeout"))
        {
            let s = value
                .parse::<u64>()
                .ok()
                .filter(|s| *s <= IDLE_TIMEOUT_MAX_S)
                .ok_or(Refusal::BadParam(IDLE_TIMEOUT))?;
            osc.import().set_idle_timeout(Duration::from_secs(s));
            return Ok(());
        }
        if let Some((index, _)) = self
            .ost_names()
            .into_iter()
            .find(|(_, n)| name == format!("osc.{n}.active"))
        {
            let active = value
                .parse::<u8>()
                .ok()
                .filter(|v| *v <= 1)
                .ok_or(Refusal::BadParam(ACTIVE))?
                == 1;
            self.connections.set_active(index, active).await;
            return Ok(());
        }
        let all = self.namespaces();
        let lru_size = |n: &str| {
            name.strip_prefix("ldlm.namespaces.")?
                .strip_suffix(".lru_size")
                .map(|have| have == n)
        };
        let Some((found, ns)) = all.into_iter().find(|(n, _)| lru_size(n) == Some(true)) else {
            return Err(if self.params().iter().any(|(n, _)| n == name) {
                Refusal::ReadOnlyParam.into()
            } else {
                Refusal::NoParam.into()
            });
        };
        match (value, value.parse::<usize>()) {
            ("clear", _) => {
                self.drains.drop_all().await;
                ns.cancel_unused().await;
            }
            (_, Ok(0)) => (self.connections).share_locks_with(&ns, found.contains("-mdc-")),
            (_, Ok(n)) => ns.set_lru_size(n),
            _ => return Err(Refusal::BadParam(LRU_SIZE).into()),
        }
        Ok(())
    }
}
