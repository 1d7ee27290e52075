//! What a target lies on, and how it is opened: the one place where the storage below a target is chosen.
//!
//! Backends of `coral-osd`: a directory ([`OsdFs`]), or any device that is given, such as a simulated disk ([`coral_osd::OsdSim`]).

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use coral_osd::{Disk, Fresh, Kv, Label, Objects, OpenError, OsdFs, OsdFsOptions, TargetKind};
use coral_server::mdt::OstTarget;
use coral_wire::nid::Nid;

/// What a target lies on.
#[derive(Clone)]
pub enum Backend {
    /// A directory that [`OsdFs::format`] made. It says itself who the target is and whether it is fresh.
    Dir(PathBuf),
    /// Any other device.
    Given {
        /// Who the target is.
        label: Label,
        /// Who formatted it, when no MGS has accepted it yet.
        fresh: Option<Fresh>,
        /// Its tables.
        tables: Arc<dyn Kv>,
        /// Its objects.
        objects: Arc<dyn Objects>,
    },
}

/// A target to serve.
#[derive(Clone)]
pub struct TargetSpec {
    /// What it lies on.
    pub backend: Backend,
    /// Nodes that serve it when this one does not, one NID each; a directory names some besides ([`crate::target_dir`]).
    pub failover: Vec<Nid>,
    /// Others are served without it where what it lies on is damaged ([`crate::Servers::left_out`]).
    pub dispensable: bool,
    /// Of an MDT: OSTs it knows before it has read the configuration.
    pub osts: Vec<OstTarget>,
}

impl TargetSpec {
    /// What `device` holds.
    pub fn new(backend: Backend) -> TargetSpec {
        TargetSpec {
            backend,
            failover: Vec::new(),
            dispensable: false,
            osts: Vec::new(),
        }
    }

    /// What the directory holds.
    pub fn dir(dir: impl Into<PathBuf>) -> TargetSpec {
        TargetSpec::new(Backend::Dir(dir.into()))
    }

    /// A target in memory that counts as registered.
    pub fn memory<O: Kv + Objects + Clone + 'static>(label: Label, device: &O) -> TargetSpec {
        let device = Arc::new(device.clone());
        TargetSpec::new(Backend::Given {
            label,
            fresh: None,
            tables: device.clone(),
            objects: device,
        })
    }
}

/// The label of a target whose identity is its name: of devices that are gone when the process ends.
pub fn simulated_label(kind: TargetKind, fsname: &str, index: u32, mgs: &[Nid]) -> Label {
    let mut label = Label {
        kind,
        fsname: fsname.to_owned(),
        index,
        uuid: String::new(),
        mgs_nids: mgs.iter().map(Nid::to_string).collect(),
    };
    label.uuid = label.target_name();
    label
}

/// An open device.
pub(crate) struct Opened {
    pub label: Label,
    pub tables: Arc<dyn Kv>,
    pub objects: Arc<dyn Objects>,
    /// Who formatted it, when no MGS has accepted it yet.
    pub fresh: Option<Fresh>,
    /// What was committed last may be lost ([`OsdFs::may_lack`]).
    pub may_lack: bool,
    /// Owner of an MDT's root directory, should this start make it.
    pub root_owner: (u32, u32),
    /// The directory and what is on it, to ask for trouble there as long as it is open.
    pub dir: Option<(PathBuf, Weak<OsdFs>)>,
}

/// The disks below directories of targets: those on one share its space.
#[derive(Default)]
pub(crate) struct Disks {
    by_device: BTreeMap<u64, OneDisk>,
}

#[derive(Default)]
struct OneDisk {
    account: Arc<Disk>,
    /// OSTs that are or will be on it.
    osts: u64,
    /// Those of them that are open.
    open: Vec<Weak<OsdFs>>,
}

impl Disks {
    /// Tells of a target that will be opened: the OSTs on its disk report a smaller part of its space each.
    pub(crate) fn expect(&mut self, target: &TargetSpec) {
        let Backend::Dir(dir) = &target.backend else {
            return;
        };
        if OsdFs::label(dir).is_ok_and(|l| l.kind == TargetKind::Ost)
            && let Some(disk) = self.of(dir)
        {
            disk.osts += 1;
            let osts = disk.osts;
            disk.open
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|osd| osd.share_disk(osts));
        }
    }

    fn of(&mut self, dir: &Path) -> Option<&mut OneDisk> {
        let device = std::fs::metadata(dir).ok()?.dev();
        Some(self.by_device.entry(device).or_default())
    }

    /// Opens a device. An OST that shares its disk has been told of with [`Disks::expect`].
    pub(crate) fn open(&mut self, backend: &Backend) -> Result<Opened, OpenError> {
        match backend {
            Backend::Dir(dir) => self.open_dir(dir),
            Backend::Given {
                label,
                fresh,
                tables,
                objects,
            } => Ok(Opened {
                label: label.clone(),
                tables: tables.clone(),
                objects: objects.clone(),
                fresh: *fresh,
                may_lack: false,
                root_owner: fresh.map_or((0, 0), |f| (f.uid, f.gid)),
                dir: None,
            }),
        }
    }

    fn open_dir(&mut self, dir: &Path) -> Result<Opened, OpenError> {
        let mut disk = self.of(dir);
        let options = OsdFsOptions {
            disk: disk.as_ref().map(|d| d.account.clone()).unwrap_or_default(),
            ..OsdFsOptions::default()
        };
        let (osd, label) = OsdFs::open_with(dir, options)?;
        let osd = Arc::new(osd);
        if let (Some(disk), TargetKind::Ost) = (&mut disk, label.kind) {
            osd.share_disk(disk.osts.max(1));
            disk.open.push(Arc::downgrade(&osd));
        }
        let fresh = OsdFs::fresh(dir)?;
        let owner = fresh.unwrap_or_else(Fresh::own);
        Ok(Opened {
            label,
            tables: osd.clone(),
            objects: osd.clone(),
            fresh,
            may_lack: osd.may_lack(),
            root_owner: (owner.uid, owner.gid),
            dir: Some((dir.to_owned(), Arc::downgrade(&osd))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target_dir::label;

    /// Blocks that a target says its file system has.
    fn blocks(o: &Opened) -> u64 {
        o.tables.statfs().unwrap().blocks
    }

    #[test]
    fn osts_on_one_disk_share_its_space_also_with_one_that_comes_later() {
        let place = tempfile::tempdir().unwrap();
        let format = |kind, index| {
            let dir = place.path().join(format!("{kind:?}{index}"));
            OsdFs::format(&dir, &label(kind, "a", index, &[])).unwrap();
            TargetSpec::dir(dir)
        };
        let specs = [
            format(TargetKind::Mgs, 0),
            format(TargetKind::Ost, 0),
            format(TargetKind::Ost, 1),
        ];
        let mut disks = Disks::default();
        specs.iter().for_each(|s| disks.expect(s));
        let open: Vec<Opened> = specs
            .iter()
            .map(|s| disks.open(&s.backend).unwrap())
            .collect();
        let (whole, half) = (blocks(&open[0]), blocks(&open[1]));
        assert_eq!(half, blocks(&open[2]));
        assert!(half <= whole / 2 + 1, "{half} of {whole} blocks");
        let later = format(TargetKind::Ost, 2);
        disks.expect(&later);
        let later = disks.open(&later.backend).unwrap();
        assert_eq!(blocks(&later), blocks(&open[1]), "a third each");
        assert!(blocks(&later) < half);
    }

    #[test]
    fn the_owner_of_a_fresh_target_owns_the_root_directory() {
        let given = |fresh| Backend::Given {
            label: simulated_label(TargetKind::Mdt, "a", 0, &[]),
            fresh,
            tables: Arc::new(coral_osd::OsdSim::default()),
            objects: Arc::new(coral_osd::OsdSim::default()),
        };
        let owner = |fresh| Disks::default().open(&given(fresh)).unwrap().root_owner;
        assert_eq!(owner(None), (0, 0));
        assert_eq!(owner(Some(Fresh { uid: 7, gid: 8 })), (7, 8));
    }
}
