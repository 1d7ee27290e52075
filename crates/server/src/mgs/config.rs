//! The `<fs>-client` log: what a client must set up to mount a file system (`lustre/mgs/mgs_llog.c`).
//!
//! Records in the order a real MGS writes them: LOV, LMV, mount options, then each target as it registered: for an MDT its
//! NIDs, the mdc device and its place in the LMV; for an OST the same with osc and LOV. Each action stands between two
//! markers. A target only adds to the end, so indices seen by a mounted client stay what they were as long as no target
//! changes the number of its NIDs.

use coral_wire::Wire;
use coral_wire::cfg::{
    CfgMarker, ConfigLogWriter, LOV_DESC_MAGIC, Lcfg, LmvDesc, LovDesc, LustreCfg, cm,
};
use coral_wire::connect::release;
use coral_wire::layout::pattern;
use coral_wire::llog::{Llog, LlogFull};
use coral_wire::nid::Nid;
use coral_wire::raw::c_array;

use super::registry::target_name;
use super::table::{StoredKind, StoredTarget};

/// Release whose log format this is.
const RELEASE: u32 = release(2, 17, 57, 0);
/// Default stripe of a file system in bytes (`LOV_DESC_STRIPE_SIZE_DEFAULT`).
const STRIPE_SIZE: u64 = 4 << 20;
/// How old space figures may be, in seconds (`LOV_DESC_QOS_MAXAGE_DEFAULT`).
const QOS_MAXAGE: u32 = 5;

/// Makes the log of these targets, given in order of registration.
pub fn client_log(fsname: &str, targets: &[&StoredTarget]) -> Llog {
    let time = targets.first().map_or(0, |t| t.registered);
    let mut w = Writer {
        log: ConfigLogWriter::new(time),
        fsname,
        step: 0,
        time,
    };
    // a log holds some ten thousand records, hundreds of targets more than Lustre's own limits allow
    if w.write(targets).is_err() {
        tracing::error!(
            fsname,
            targets = targets.len(),
            "the client log is full: the last targets are not in it"
        );
    }
    w.log.finish()
}

struct Writer<'a> {
    log: ConfigLogWriter,
    fsname: &'a str,
    step: u32,
    time: i64,
}

impl Writer<'_> {
    fn write(&mut self, targets: &[&StoredTarget]) -> Result<(), LlogFull> {
        self.lov(targets)?;
        self.lmv()?;
        self.mount_options()?;
        for t in targets {
            self.time = t.registered;
            match t.kind {
                StoredKind::Mdt => self.mdc(t)?,
                StoredKind::Ost => self.osc(t)?,
            }
        }
        Ok(())
    }

    /// Records of one action between its markers.
    fn action(
        &mut self,
        target: &str,
        comment: &str,
        records: &[LustreCfg],
    ) -> Result<(), LlogFull> {
        self.step += 1;
        let marker = |flags| {
            LustreCfg::marker(&CfgMarker::new(
                self.step, flags, RELEASE, self.time, target, comment,
            ))
        };
        let (start, end) = (marker(cm::START), marker(cm::END));
        self.log.push(&start)?;
        for r in records {
            self.log.push(r)?;
        }
        self.log.push(&end)?;
        Ok(())
    }

    fn lov_name(&self) -> String {
        format!("{}-clilov", self.fsname)
    }

    fn lmv_name(&self) -> String {
        format!("{}-clilmv", self.fsname)
    }

    fn lov(&mut self, targets: &[&StoredTarget]) -> Result<(), LlogFull> {
        let (name, uuid) = (self.lov_name(), format!("{}_UUID", self.lov_name()));
        // the last target formatted with such a parameter decides
        let param = |key: &str| {
            targets
                .iter()
                .rev()
                .find_map(|t| t.param(key)?.parse::<i64>().ok())
        };
        let desc = LovDesc {
            active_tgt_count: LOV_DESC_MAGIC,
            default_stripe_count: param("lov.stripecount").unwrap_or(1) as u32,
            pattern: pattern::RAID0,
            default_stripe_size: param("lov.stripesize")
                .filter(|s| *s > 0)
                .unwrap_or(STRIPE_SIZE as i64) as u64,
            default_stripe_offset: param("lov.stripeoffset").unwrap_or(-1) as u64,
            qos_maxage: QOS_MAXAGE,
            uuid: c_array(uuid.as_bytes()),
            ..Default::default()
        };
        self.action(
            &name,
            "lov setup",
            &device(&name, "lov", &uuid, desc.to_bytes()),
        )
    }

    fn lmv(&mut self) -> Result<(), LlogFull> {
        let (name, uuid) = (self.lmv_name(), format!("{}_UUID", self.lmv_name()));
        let desc = LmvDesc {
            uuid: c_array(uuid.as_bytes()),
            ..Default::default()
        };
        self.action(
            &name,
            "lmv setup",
            &device(&name, "lmv", &uuid, desc.to_bytes()),
        )
    }

    fn mount_options(&mut self) -> Result<(), LlogFull> {
        let profile = format!("{}-client", self.fsname);
        let r = LustreCfg::new(
            Lcfg::MOUNTOPT,
            &["", &profile, &self.lov_name(), &self.lmv_name()],
        );
        self.action(&profile, "mount opts", &[r])
    }

    fn mdc(&mut self, t: &StoredTarget) -> Result<(), LlogFull> {
        let (name, lmv) = (target_name(self.fsname, t.kind, t.index), self.lmv_name());
        let dev = format!("{name}-mdc");
        let mut records = client_device(&dev, "mdc", &format!("{lmv}_UUID"), &name, t);
        let texts = [
            lmv,
            format!("{name}_UUID"),
            t.index.to_string(),
            "1".into(),
            format!("{dev}_UUID"),
        ];
        records.push(LustreCfg::new(
            Lcfg::ADD_MDC,
            &texts.each_ref().map(String::as_str),
        ));
        self.action(&name, "add mdc", &records)
    }

    fn osc(&mut self, t: &StoredTarget) -> Result<(), LlogFull> {
        let (name, lov) = (target_name(self.fsname, t.kind, t.index), self.lov_name());
        let dev = format!("{name}-osc");
        let mut records = client_device(&dev, "osc", &format!("{lov}_UUID"), &name, t);
        let texts = [lov, format!("{name}_UUID"), t.index.to_string(), "1".into()];
        records.push(LustreCfg::new(
            Lcfg::LOV_ADD_OBD,
            &texts.each_ref().map(String::as_str),
        ));
        self.action(&name, "add osc", &records)
    }
}

/// A device set up by a descriptor.
fn device(name: &str, ty: &str, uuid: &str, desc: bytes::Bytes) -> Vec<LustreCfg> {
    let mut setup = LustreCfg::new(Lcfg::SETUP, &[name]);
    setup.bufs.push(desc);
    vec![LustreCfg::new(Lcfg::ATTACH, &[name, ty, uuid]), setup]
}

/// A device that connects to a target: NIDs of the node, which is named by its first NID, then the device; then each failover
/// node, which is tried when the first does not answer (`mgs_write_log_failnids` in `lustre/mgs/mgs_llog.c`).
fn client_device(
    dev: &str,
    ty: &str,
    above: &str,
    target: &str,
    t: &StoredTarget,
) -> Vec<LustreCfg> {
    let nids = t.nids();
    let node = nids.first().map(Nid::to_string).unwrap_or_default();
    let add = |n: &Nid| LustreCfg {
        nid: *n,
        ..LustreCfg::new(Lcfg::ADD_UUID, &["", &node])
    };
    let mut out: Vec<LustreCfg> = nids.iter().map(add).collect();
    out.push(LustreCfg::new(Lcfg::ATTACH, &[dev, ty, above]));
    out.push(LustreCfg::new(
        Lcfg::SETUP,
        &[dev, &format!("{target}_UUID"), &node],
    ));
    for other in t.failover().into_iter().filter(|n| !nids.contains(n)) {
        let name = other.to_string();
        out.push(LustreCfg {
            nid: other,
            ..LustreCfg::new(Lcfg::ADD_UUID, &["", &name])
        });
        out.push(LustreCfg::new(Lcfg::ADD_CONN, &[dev, &name]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::llog::parse_chunk;

    /// The log a real MGS (2.17.57) wrote for 2 MDTs and 2 OSTs: the answer to NEXT_BLOCK in captures/mount.pcap.
    const REAL: &[u8] = include_bytes!("../../tests/data/client-log-chunk.bin");

    /// Step numbers count the actions of all logs of a real MGS, so they differ, and behind the names in its markers stands
    /// what its buffer held before ("mdtlov"); everything else is the same.
    fn comparable(mut c: LustreCfg) -> LustreCfg {
        if let Some(mut m) = c.as_marker() {
            m.step = 0;
            m.tgtname = c_array(coral_wire::raw::c_str(&m.tgtname));
            m.comment = c_array(coral_wire::raw::c_str(&m.comment));
            c.bufs[1] = <CfgMarker as Wire>::to_bytes(&m);
        }
        c
    }

    #[test]
    fn record_by_record_as_a_real_mgs() {
        let nid: Nid = "10.77.0.2@tcp".parse().unwrap();
        let t = |kind, index, time| StoredTarget::new(kind, index, &[nid], time, vec![]);
        let targets = [
            t(StoredKind::Mdt, 0, 1795217611),
            t(StoredKind::Mdt, 1, 1795217612),
            t(StoredKind::Ost, 0, 1795217612),
            t(StoredKind::Ost, 1, 1795217613),
        ];
        let log = client_log("lfs", &targets.iter().collect::<Vec<_>>());
        let real = parse_chunk(&bytes::Bytes::from_static(REAL)).unwrap();
        let ours = log.records();
        assert_eq!((ours.len(), real.len()), (35, 35));
        for (o, r) in ours.iter().zip(&real) {
            assert!(o.1, "record {} is live", o.0.index);
            assert_eq!((o.0.index, o.0.r#type, o.0.id), (r.index, r.r#type, r.id));
            let decode = |b| comparable(LustreCfg::decode(b).unwrap());
            let (ours, real) = (decode(&o.0.payload), decode(&r.payload));
            assert_eq!(ours, real, "record {}", r.index);
            assert_eq!(ours.encode(), real.encode());
        }
        let h = log.header();
        assert_eq!((h.count, h.size, h.flags, h.tail.index), (36, 80, 4, 35));
        assert_eq!(log.chunk_of(1).unwrap().1, 13864);
    }

    #[test]
    fn a_new_target_only_appends() {
        let nid: Nid = "10.0.0.1@tcp".parse().unwrap();
        let all: Vec<StoredTarget> = (0..200)
            .map(|i| {
                StoredTarget::new(
                    if i == 0 {
                        StoredKind::Mdt
                    } else {
                        StoredKind::Ost
                    },
                    i,
                    &[nid],
                    i as i64,
                    vec![],
                )
            })
            .collect();
        let refs: Vec<&StoredTarget> = all.iter().collect();
        let long = client_log("coral", &refs).records();
        for n in [1, 2, 50, 199] {
            let short = client_log("coral", &refs[..n]).records();
            assert_eq!(short[..], long[..short.len()]);
        }
    }

    #[test]
    fn default_stripe_of_the_format_command() {
        let nid: Nid = "10.0.0.1@tcp".parse().unwrap();
        let params = vec![
            "lov.stripesize=1048576".to_string(),
            "lov.stripecount=-1".to_string(),
        ];
        let t = StoredTarget::new(StoredKind::Mdt, 0, &[nid], 0, params);
        let log = client_log("coral", &[&t]);
        let setup = LustreCfg::decode(&log.records()[2].0.payload).unwrap();
        let d = LovDesc::decode(&setup.bufs[1]).unwrap();
        assert_eq!(
            (d.default_stripe_size, d.default_stripe_count),
            (1 << 20, u32::MAX)
        );
    }
}
