//! The file systems an MGS knows, in memory: registration and what follows from it (`lustre/mgs/mgs_handler.c`, `mgs_target_reg`).
//! A plain value: no lock, no I/O; changes come out as a batch to be stored.

use std::collections::BTreeMap;

use coral_osd::{Batch, Kv, OsdError};
use coral_wire::llog::Llog;
use coral_wire::mgs::{MgsTargetInfo, ldd};
use coral_wire::nid::Nid;
use coral_wire::raw::{c_array, c_str};
use coral_wire::{Errno, Wire};

use super::config;
use super::nidtbl::NidTable;
use super::table::{self, StoredKind, StoredRegistration, StoredTarget};

/// Longest name of a file system (`LUSTRE_MAXFSNAME`).
const FSNAME_MAX: usize = 8;
/// Greatest index of a target.
const INDEX_MAX: u32 = 0xffff;
/// Most file systems of an MGS.
const FILESYSTEMS_MAX: usize = 1024;
/// Most NIDs of a target.
const NIDS_MAX: usize = 64;

/// One file system.
#[derive(Clone, Debug, Default)]
struct Fs {
    /// In order of registration, with that order.
    targets: Vec<(u32, StoredTarget)>,
    nids: NidTable,
    /// The `<fs>-client` log, made anew when a target changes.
    log: Option<Llog>,
}

/// All file systems.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    filesystems: BTreeMap<String, Fs>,
}

/// What a Coral target says of itself beside what Lustre's say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Who<'a> {
    /// Tells formattings of one target apart; empty when unknown.
    pub identity: &'a str,
    /// Its registrations so far.
    pub count: Option<Count>,
}

/// How a Coral target counts its registrations ([`crate::target::Registration`]).
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// One more than the last that was accepted, as far as it knows.
    pub number: u32,
    /// Tells it from any other with the same number.
    pub cookie: u64,
    /// That it goes back to an older state is known and wanted.
    pub older: bool,
    /// Nothing is to be kept: it asks whether it may be served.
    pub asks: bool,
}

impl<'a> From<&'a str> for Who<'a> {
    fn from(identity: &'a str) -> Who<'a> {
        Who {
            identity,
            count: None,
        }
    }
}

/// What a registration did.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The file system.
    pub fsname: String,
    /// The answer: index and names as registered.
    pub reply: MgsTargetInfo,
    /// The `<fs>-client` log is another now.
    pub log_changed: bool,
    /// The nid table is another now.
    pub nids_changed: bool,
}

/// A target as shown to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// `coral-OST0000`.
    pub name: String,
    /// Its NIDs, primary first.
    pub nids: Vec<Nid>,
    /// Number of its start when it registered last; 0 when not since the MGS started.
    pub instance: u32,
    /// Seconds since 1970 at its first registration.
    pub registered: i64,
}

/// `coral-MDT0000`.
pub(super) fn target_name(fsname: &str, kind: StoredKind, index: u32) -> String {
    format!("{fsname}-{}{index:04x}", kind.text())
}

fn text(field: &[u8]) -> Result<&str, Errno> {
    std::str::from_utf8(c_str(field)).map_err(|_| Errno::EINVAL)
}

/// A name of up to eight letters, digits, `_` and `-` (`server_name2fsname` and mkfs's check).
fn check_fsname(name: &str) -> Result<(), Errno> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > FSNAME_MAX || !name.chars().all(good) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn kind_of(info: &MgsTargetInfo) -> Result<StoredKind, Errno> {
    match (
        info.flags & ldd::SV_TYPE_MDT != 0,
        info.flags & ldd::SV_TYPE_OST != 0,
    ) {
        (true, false) => Ok(StoredKind::Mdt),
        (false, true) => Ok(StoredKind::Ost),
        _ => Err(Errno::EINVAL),
    }
}

/// NIDs of a registration: the list of texts behind it when there is one, else the short NIDs in it.
fn nids_of(info: &MgsTargetInfo, texts: &[u8]) -> Vec<Nid> {
    // `mgs_target_nidlist`: flags, count, then texts of 64 bytes
    const TEXT: usize = 64;
    let listed = texts
        .get(8..)
        .unwrap_or(&[])
        .chunks(TEXT)
        .filter_map(|t| text(t).ok()?.parse().ok());
    let mut nids: Vec<Nid> = listed.take(NIDS_MAX).collect();
    if nids.is_empty() {
        nids = info.nids[..(info.nid_count as usize).min(info.nids.len())].to_vec();
    }
    nids.retain(|n| n.0 != 0);
    nids
}

impl Registry {
    /// What is stored.
    pub fn load(kv: &dyn Kv) -> Result<Registry, OsdError> {
        let mut r = Registry::default();
        for (name, order, s) in table::load(kv)? {
            r.filesystems
                .entry(name)
                .or_default()
                .targets
                .push((order, s));
        }
        for (name, fs) in &mut r.filesystems {
            fs.log = Some(config::client_log(name, &fs.stored()));
        }
        Ok(r)
    }

    /// Names of the file systems.
    pub fn filesystems(&self) -> Vec<String> {
        self.filesystems.keys().cloned().collect()
    }

    /// Targets of a file system in order of registration.
    pub fn targets(&self, fsname: &str) -> Vec<TargetInfo> {
        let Some(fs) = self.filesystems.get(fsname) else {
            return Vec::new();
        };
        let info = |s: &StoredTarget| TargetInfo {
            name: target_name(fsname, s.kind, s.index),
            nids: s.nids(),
            instance: fs.nids.instance(s.kind, s.index),
            registered: s.registered,
        };
        fs.targets.iter().map(|(_, s)| info(s)).collect()
    }

    /// Where MDTs run.
    pub(super) fn mdt_nids(&self) -> Vec<Nid> {
        let mdts = self
            .filesystems
            .values()
            .flat_map(|fs| fs.stored())
            .filter(|s| s.kind == StoredKind::Mdt);
        let mut nids: Vec<Nid> = mdts
            .flat_map(|s| s.nids().into_iter().chain(s.failover()))
            .collect();
        nids.sort();
        nids.dedup();
        nids
    }

    /// Number of a file system among all, for log ids; and its client log.
    pub(super) fn client_log(&self, fsname: &str) -> Option<(usize, &Llog)> {
        let number = self.filesystems.keys().position(|n| n == fsname)?;
        Some((number, self.filesystems.get(fsname)?.log.as_ref()?))
    }

    /// The client log of the file system with this number.
    pub(super) fn client_log_by_number(&self, number: usize) -> Option<&Llog> {
        self.filesystems.values().nth(number)?.log.as_ref()
    }

    /// Where the targets of a file system run.
    pub(super) fn nid_table(&self, fsname: &str) -> Option<&NidTable> {
        self.filesystems.get(fsname).map(|f| &f.nids)
    }

    /// NIDs of the registered target with the index that `info` claims.
    pub fn holder(&self, info: &MgsTargetInfo) -> Option<Vec<Nid>> {
        let fs = self.filesystems.get(text(&info.fsname).ok()?)?;
        let at = fs.position(kind_of(info).ok()?, info.stripe_index)?;
        Some(fs.targets[at].1.nids())
    }

    /// Takes a registration at `now` (seconds). The batch is what must be stored; it is empty when nothing stored changes.
    /// EADDRINUSE: another target has the index. ESTALE, ENOENT and EREMOTEIO: the target and the MGS do not know the same of each
    /// other (`Fs::check_count`).
    pub fn register<'a>(
        &mut self,
        info: &MgsTargetInfo,
        texts: &[u8],
        who: impl Into<Who<'a>>,
        now: i64,
    ) -> Result<(Registered, Batch), Errno> {
        let who = who.into();
        let fsname = text(&info.fsname)?.to_owned();
        check_fsname(&fsname)?;
        let kind = kind_of(info)?;
        let nids = nids_of(info, texts);
        if nids.is_empty() {
            return Err(Errno::EINVAL);
        }
        if !self.filesystems.contains_key(&fsname) && self.filesystems.len() >= FILESYSTEMS_MAX {
            return Err(Errno::ENOSPC);
        }
        let params: Vec<String> = text(&info.params)?
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let fs = self.filesystems.entry(fsname.clone()).or_default();
        let index = fs.choose_index(kind, info, who.identity)?;
        let registration = fs.check_count(kind, index, &who)?;
        let mut now = StoredTarget::new(kind, index, &nids, now, params);
        now.identity = who.identity.to_owned();
        now.registration = registration;
        let mut batch = Batch::new();
        let log_changed = fs.store(&fsname, now, &mut batch)?;
        let nids_changed = fs.nids.set(kind, index, info.instance, &nids);
        if log_changed {
            fs.log = Some(config::client_log(&fsname, &fs.stored()));
        }
        let mut reply = answer(info, &fsname, kind, index);
        if let Some(registration) = registration.filter(|_| who.count.is_some()) {
            reply.config_ver = registration.number;
        }
        Ok((
            Registered {
                fsname,
                reply,
                log_changed,
                nids_changed,
            },
            batch,
        ))
    }
}

impl Fs {
    fn stored(&self) -> Vec<&StoredTarget> {
        self.targets.iter().map(|(_, s)| s).collect()
    }

    fn position(&self, kind: StoredKind, index: u32) -> Option<usize> {
        self.targets
            .iter()
            .position(|(_, s)| s.kind == kind && s.index == index)
    }

    /// The index asked for, or the lowest free one when the target has none yet. A newly formatted target, and one that is known to
    /// be another, must not take an index that is in use (-EADDRINUSE), unless it says that it replaces the old one (WRITECONF). The
    /// very target that is registered may still say that it is new: its registration was accepted, and the answer lost.
    fn choose_index(
        &self,
        kind: StoredKind,
        info: &MgsTargetInfo,
        identity: &str,
    ) -> Result<u32, Errno> {
        if info.flags & ldd::NEED_INDEX != 0 {
            return (0..=INDEX_MAX)
                .find(|i| self.position(kind, *i).is_none())
                .ok_or(Errno::ENOSPC);
        }
        if info.stripe_index > INDEX_MAX {
            return Err(Errno::ERANGE);
        }
        let Some(at) = self.position(kind, info.stripe_index) else {
            return Ok(info.stripe_index);
        };
        let there = &self.targets[at].1.identity;
        let same = !identity.is_empty() && there == identity;
        let other = !identity.is_empty() && !there.is_empty() && !same;
        let virgin = info.flags & ldd::VIRGIN != 0;
        if info.flags & ldd::WRITECONF == 0 && (other || virgin && !same) {
            return Err(Errno::EADDRINUSE);
        }
        Ok(info.stripe_index)
    }

    /// The registration to remember. Refused are a target that went back to an older state (ESTALE), one that was registered before,
    /// and not here (ENOENT), and one that this MGS has accepted and does not know of, being in an older state itself (EREMOTEIO),
    /// unless that is known and wanted.
    fn check_count(
        &self,
        kind: StoredKind,
        index: u32,
        who: &Who<'_>,
    ) -> Result<Option<StoredRegistration>, Errno> {
        let at = self.position(kind, index);
        let last = at.and_then(|at| self.targets[at].1.registration);
        let Some(count) = who.count else {
            return Ok(last);
        };
        if at.is_none() && count.number > 1 && !count.older {
            return Err(Errno::ENOENT);
        }
        let mut now = StoredRegistration {
            number: count.number,
            cookie: count.cookie,
        };
        match last {
            Some(last) if now.number <= last.number && now != last => {
                if !count.older {
                    return Err(Errno::ESTALE);
                }
                // the state that it leaves behind, and all copies of that, are older from now on
                now.number = last.number + 1;
            }
            Some(last) if now.number > last.number + 1 && !count.older => {
                return Err(Errno::EREMOTEIO);
            }
            _ => {}
        }
        Ok(Some(now))
    }

    /// Remembers the target; says whether that changes the client log.
    fn store(&mut self, fsname: &str, now: StoredTarget, batch: &mut Batch) -> Result<bool, Errno> {
        let failed = |e: OsdError| Errno(e.errno());
        let Some(i) = self.position(now.kind, now.index) else {
            let order = self.targets.last().map_or(0, |(o, _)| o + 1);
            table::put(batch, fsname, order, &now).map_err(failed)?;
            self.targets.push((order, now));
            return Ok(true);
        };
        let (order, s) = &mut self.targets[i];
        let before = s.clone();
        s.nids = now.nids;
        s.registration = now.registration;
        if !now.params.is_empty() {
            s.params = now.params;
        }
        if !now.identity.is_empty() {
            s.identity = now.identity;
        }
        if *s != before {
            table::put(batch, fsname, *order, s).map_err(failed)?;
        }
        Ok(s.nids != before.nids || s.params != before.params)
    }
}

/// The answer to a registration: what was sent, with what the MGS decided.
fn answer(info: &MgsTargetInfo, fsname: &str, kind: StoredKind, index: u32) -> MgsTargetInfo {
    let name = target_name(fsname, kind, index);
    let mut reply = *info;
    reply.stripe_index = index;
    reply.svname = c_array(name.as_bytes());
    reply.uuid = c_array(format!("{name}_UUID").as_bytes());
    reply.flags &= !(ldd::VIRGIN | ldd::NEED_INDEX | ldd::WRITECONF | ldd::UPDATE | ldd::ERROR);
    reply.flags |= ldd::REWRITE_LDD;
    debug_assert!(MgsTargetInfo::decode(&reply.to_bytes()).is_ok());
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_osd::OsdMem;

    pub(crate) fn info(flags: u32, index: u32, nid: &str) -> MgsTargetInfo {
        let mut i = MgsTargetInfo {
            flags,
            stripe_index: index,
            nid_count: 1,
            instance: 1,
            ..Default::default()
        };
        i.fsname = c_array(b"coral");
        i.nids[0] = nid.parse().unwrap();
        i
    }

    #[test]
    fn register_store_and_load() {
        let kv = OsdMem::new();
        let mut r = Registry::default();
        for (flags, index) in [
            (ldd::SV_TYPE_MDT | ldd::VIRGIN, 0),
            (ldd::SV_TYPE_OST | ldd::VIRGIN, 0),
            (ldd::SV_TYPE_OST | ldd::VIRGIN, 1),
        ] {
            let (done, batch) = r
                .register(&info(flags, index, "10.0.0.1@tcp"), &[], "", 7)
                .unwrap();
            assert!(done.log_changed && done.nids_changed && !batch.is_empty());
            kv.commit(batch).wait().unwrap();
        }
        let again = Registry::load(&kv).unwrap();
        assert_eq!(
            again.client_log("coral").unwrap().1,
            r.client_log("coral").unwrap().1
        );
        let names: Vec<String> = again.targets("coral").into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["coral-MDT0000", "coral-OST0000", "coral-OST0001"]);
        assert_eq!(
            c_str(
                &r.register(&info(ldd::SV_TYPE_OST, 1, "10.0.0.1@tcp"), &[], "", 8)
                    .unwrap()
                    .0
                    .reply
                    .svname
            ),
            b"coral-OST0001"
        );
    }

    #[test]
    fn what_is_known_changes_nothing_and_new_nids_do() {
        let mut r = Registry::default();
        r.register(
            &info(ldd::SV_TYPE_OST | ldd::VIRGIN, 3, "10.0.0.1@tcp"),
            &[],
            "",
            7,
        )
        .unwrap();
        let (done, batch) = r
            .register(&info(ldd::SV_TYPE_OST, 3, "10.0.0.1@tcp"), &[], "", 9)
            .unwrap();
        assert!(!done.log_changed && !done.nids_changed && batch.is_empty());
        let (done, batch) = r
            .register(&info(ldd::SV_TYPE_OST, 3, "10.0.0.2@tcp"), &[], "", 9)
            .unwrap();
        assert!(done.log_changed && done.nids_changed && !batch.is_empty());
        assert_eq!(
            r.targets("coral")[0].nids,
            ["10.0.0.2@tcp".parse().unwrap()]
        );
        // the same NIDs, but started again: only the nid table says so
        let mut restarted = info(ldd::SV_TYPE_OST, 3, "10.0.0.2@tcp");
        restarted.instance = 2;
        let (done, batch) = r.register(&restarted, &[], "", 9).unwrap();
        assert!(!done.log_changed && done.nids_changed && batch.is_empty());
    }

    #[test]
    fn indices() {
        let mut r = Registry::default();
        let virgin = ldd::SV_TYPE_OST | ldd::VIRGIN;
        r.register(&info(virgin, 0, "10.0.0.1@tcp"), &[], "", 7)
            .unwrap();
        assert_eq!(
            r.register(&info(virgin, 0, "10.0.0.9@tcp"), &[], "", 7)
                .unwrap_err(),
            Errno::EADDRINUSE
        );
        r.register(
            &info(virgin | ldd::WRITECONF, 0, "10.0.0.9@tcp"),
            &[],
            "",
            7,
        )
        .unwrap();
        let (done, _) = r
            .register(
                &info(virgin | ldd::NEED_INDEX, 77, "10.0.0.1@tcp"),
                &[],
                "",
                7,
            )
            .unwrap();
        assert_eq!(done.reply.stripe_index, 1);
        assert_eq!(
            r.register(&info(virgin, 0x10000, "10.0.0.1@tcp"), &[], "", 7)
                .unwrap_err(),
            Errno::ERANGE
        );
    }

    #[test]
    fn an_index_in_use_is_given_again_only_to_its_target() {
        let mut r = Registry::default();
        let virgin = ldd::SV_TYPE_OST | ldd::VIRGIN;
        r.register(&info(virgin, 0, "10.0.0.1@tcp"), &[], "a", 7)
            .unwrap();
        // the answer was lost, or the target died before it took note
        let (done, batch) = r
            .register(&info(virgin, 0, "10.0.0.1@tcp"), &[], "a", 7)
            .unwrap();
        assert!(!done.log_changed && batch.is_empty());
        let other = info(virgin, 0, "10.0.0.9@tcp");
        assert_eq!(
            r.register(&other, &[], "b", 7).unwrap_err(),
            Errno::EADDRINUSE
        );
        assert_eq!(
            r.register(&other, &[], "", 7).unwrap_err(),
            Errno::EADDRINUSE
        );
        assert_eq!(
            r.holder(&other),
            Some(vec!["10.0.0.1@tcp".parse().unwrap()])
        );
        assert_eq!(
            r.targets("coral")[0].nids,
            ["10.0.0.1@tcp".parse().unwrap()]
        );
        // registered before, it may move
        let (done, _) = r
            .register(&info(ldd::SV_TYPE_OST, 0, "10.0.0.3@tcp"), &[], "a", 7)
            .unwrap();
        assert!(done.log_changed);
        // one stored before there were identities tells its own, which changes no log
        r.register(&info(virgin, 1, "10.0.0.1@tcp"), &[], "", 7)
            .unwrap();
        let (done, batch) = r
            .register(&info(ldd::SV_TYPE_OST, 1, "10.0.0.1@tcp"), &[], "c", 7)
            .unwrap();
        assert!(!done.log_changed && !batch.is_empty());
        assert_eq!(
            r.register(&info(virgin, 1, "10.0.0.1@tcp"), &[], "d", 7)
                .unwrap_err(),
            Errno::EADDRINUSE
        );
        // of another file system of that name, whatever it says of itself
        let foreign = info(ldd::SV_TYPE_OST, 1, "10.0.0.1@tcp");
        assert_eq!(
            r.register(&foreign, &[], "d", 7).unwrap_err(),
            Errno::EADDRINUSE
        );
    }

    #[test]
    fn an_older_copy_is_refused_until_it_is_wanted() {
        let mut r = Registry::default();
        let ost = info(ldd::SV_TYPE_OST, 0, "10.0.0.1@tcp");
        let mut told = |number, cookie, older| {
            let count = Some(Count {
                number,
                cookie,
                older,
                asks: false,
            });
            let identity = "a";
            r.register(&ost, &[], Who { identity, count }, 7)
                .map(|(done, batch)| (done.reply.config_ver, batch.is_empty()))
        };
        assert_eq!(told(1, 11, false), Ok((1, false)));
        assert_eq!(told(1, 11, false), Ok((1, true)), "the answer was lost");
        assert_eq!(told(2, 12, false), Ok((2, false)));
        assert_eq!(
            told(4, 14, false),
            Err(Errno::EREMOTEIO),
            "the MGS has accepted the third and forgotten it"
        );
        assert_eq!(told(4, 14, true), Ok((4, false)));
        for (number, cookie) in [(3, 23), (4, 24), (4, 11), (1, 11)] {
            assert_eq!(
                told(number, cookie, false),
                Err(Errno::ESTALE),
                "{number} {cookie}"
            );
        }
        assert_eq!(
            told(4, 14, false),
            Ok((4, true)),
            "refused ones leave nothing"
        );
        assert_eq!(told(2, 22, true), Ok((5, false)), "it is the newest now");
        for (number, cookie) in [(5, 15), (4, 14), (3, 23)] {
            assert_eq!(
                told(number, cookie, false),
                Err(Errno::ESTALE),
                "what was left behind: {number} {cookie}"
            );
        }
        assert_eq!(told(6, 26, false), Ok((6, false)));
        // one that is not known here, and was elsewhere
        let mut r = Registry::default();
        let mut told = |number, older| {
            let count = Some(Count {
                number,
                cookie: 5,
                older,
                asks: false,
            });
            let identity = "a";
            r.register(&ost, &[], Who { identity, count }, 7).map(drop)
        };
        assert_eq!(told(2, false), Err(Errno::ENOENT));
        assert_eq!(told(2, true), Ok(()));
        assert_eq!(told(3, false), Ok(()));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut r = Registry::default();
        let good = info(ldd::SV_TYPE_OST, 0, "10.0.0.1@tcp");
        let mut bad = vec![good; 5];
        bad[0].fsname = c_array(b"");
        bad[1].fsname = c_array(b"much-too-long");
        bad[2].flags = 0;
        bad[3].nid_count = 0;
        bad[4].fsname = c_array(b"a/b");
        for b in &bad {
            assert_eq!(r.register(b, &[], "", 7).unwrap_err(), Errno::EINVAL);
        }
        assert!(
            r.filesystems().is_empty(),
            "a refused registration leaves nothing behind"
        );
        let mut many = good;
        many.nid_count = u32::MAX;
        r.register(&many, &[1; 100], "", 7).unwrap();
    }
}
