//! Targets that are not where `coral up` formatted them: what is there instead, and what to do about it.
//!
//! Nothing is ever formatted in the place of one. Its server is not started, so clients wait for it: they never take what it
//! holds for holes.

use crate::up::UpConfig;
use coral_osd::{Label, OpenError, OsdFs, TargetKind};
use std::path::{Path, PathBuf};

/// Exit code of a command that did its work without targets that are missing.
pub(crate) const EXIT_CODE: u8 = 3;

/// What is in the place of a target.
#[derive(Debug)]
enum Instead {
    /// No directory.
    Nothing,
    /// An empty one, such as a mount point without its disk.
    Empty,
    /// Files without a label.
    NoLabel,
    /// Another target.
    Other(Label),
    /// The target, damaged so that it cannot be served.
    Damaged(String),
}

/// A target that is not where it was formatted.
#[derive(Debug)]
pub(crate) struct Absent {
    /// What it is.
    pub(crate) wanted: Label,
    /// Where it was looked for.
    pub(crate) dir: PathBuf,
    instead: Instead,
}

/// The targets of `config` in `dir` that were formatted and are not there, or have a damaged label.
pub(crate) fn all(config: &UpConfig, dir: &Path) -> Result<Vec<Absent>, OpenError> {
    let mut absent = Vec::new();
    for target in config.target_dirs(dir) {
        match look(config, &target) {
            Err(why) if why.is_damage() && config.is_formatted(&target) => {
                absent.push(Absent::damaged(config, &target, &why));
            }
            looked => absent.extend(looked?),
        }
    }
    Ok(absent)
}

/// Nothing can be served without it: it has the configuration or the root directory.
pub(crate) fn is_needed(target: &Label) -> bool {
    match target.kind {
        TargetKind::Mgs => true,
        TargetKind::Mdt => target.index == 0,
        TargetKind::Ost => false,
    }
}

/// The target in this directory, if it was formatted there and is not there. A label that cannot be read is an error.
pub(crate) fn look(config: &UpConfig, dir: &Path) -> Result<Option<Absent>, OpenError> {
    let Some(uuid) = config.targets.get(&crate::up::name_of(dir)) else {
        return Ok(None);
    };
    let instead = match OsdFs::label(dir) {
        Ok(label) if label.uuid == *uuid => return Ok(None),
        Ok(label) => Instead::Other(label),
        Err(OpenError::NotOurs { .. }) => without_label(dir),
        Err(why) => return Err(why),
    };
    Ok(Some(Absent {
        wanted: Label {
            uuid: uuid.clone(),
            ..crate::up::label_of(config, dir)
        },
        dir: dir.to_owned(),
        instead,
    }))
}

fn without_label(dir: &Path) -> Instead {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Instead::Nothing;
    };
    // a new ext4 has this one
    let mut entries = entries.flatten().filter(|e| e.file_name() != "lost+found");
    match entries.next() {
        Some(_) => Instead::NoLabel,
        None => Instead::Empty,
    }
}

impl Absent {
    /// Its name, such as `coral-MDT0002`.
    pub(crate) fn name(&self) -> String {
        self.wanted.target_name()
    }

    /// The target of this directory, which is damaged.
    pub(crate) fn damaged(config: &UpConfig, dir: &Path, why: &OpenError) -> Absent {
        Absent {
            wanted: crate::up::label_of(config, dir),
            dir: dir.to_owned(),
            instead: Instead::Damaged(why.to_string()),
        }
    }

    /// What is there instead, and how the target comes back.
    pub(crate) fn why(&self) -> String {
        let dir = self.dir.display();
        match &self.instead {
            Instead::Nothing => {
                format!("'{dir}' is not there: mount its disk, or put the directory back")
            }
            Instead::Empty => {
                format!("'{dir}' is empty: mount its disk, or put back what was in it")
            }
            Instead::NoLabel => format!(
                "'{dir}' has files and no label: mount the right disk, or restore the file '{dir}/CORAL'"
            ),
            Instead::Other(label) => format!(
                "'{dir}' holds {}: put the right directory back",
                self.described(label)
            ),
            Instead::Damaged(why) => why.clone(),
        }
    }

    fn described(&self, found: &Label) -> String {
        let (name, wanted) = (found.target_name(), &self.wanted);
        if found.kind != TargetKind::Mgs && found.fsname != wanted.fsname {
            format!("{name}, of the file system '{}'", found.fsname)
        } else if name != wanted.target_name() {
            format!("{name}, another target")
        } else {
            format!(
                "another {name} ({}) than the one that was formatted there ({}, says coral.json; where that line is what is damaged, correct it)",
                found.uuid, wanted.uuid
            )
        }
    }

    /// What that means for who uses the file system, and what can be done meanwhile.
    pub(crate) fn consequence(&self) -> String {
        let name = self.name();
        match self.wanted.kind {
            TargetKind::Ost => format!(
                "reads, writes and stat of files with objects on it wait until it is back; `lctl --dir MNT set_param 'osc.{name}*.active=0'` makes them errors"
            ),
            _ => "what lies on it, and attributes of names that lead there, wait until it is back; the rest can be used".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_node::target_dir;

    fn config() -> UpConfig {
        let mut config = UpConfig::fresh(&crate::args::Up::of(PathBuf::new()));
        config.mdts = 3;
        for name in ["mgs", "mdt0000", "mdt0001", "mdt0002", "ost0001"] {
            config
                .targets
                .insert(name.into(), format!("uuid of {name}"));
        }
        config
    }

    #[test]
    fn what_is_there_instead_is_told_as_it_is() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("mdt0002");
        let why = || {
            let absent = look(&config(), &dir).unwrap().unwrap();
            assert_eq!(absent.name(), "coral-MDT0002");
            absent.why()
        };
        assert!(why().contains("is not there"));
        std::fs::create_dir(&dir).unwrap();
        assert!(why().contains("is empty"));
        std::fs::write(dir.join("thesis.tex"), "precious").unwrap();
        assert!(why().contains("no label"));
        std::fs::remove_file(dir.join("thesis.tex")).unwrap();
        let labelled = |fsname: &str, kind, index| {
            let _ = std::fs::remove_dir_all(&dir);
            let label = target_dir::label(kind, fsname, index, &[]);
            OsdFs::format(&dir, &label).unwrap();
            why()
        };
        let said = labelled("other", TargetKind::Mdt, 2);
        assert!(
            said.contains("other-MDT0002, of the file system 'other'"),
            "{said}"
        );
        let said = labelled("coral", TargetKind::Mdt, 3);
        assert!(said.contains("coral-MDT0003, another target"), "{said}");
        let said = labelled("coral", TargetKind::Mdt, 2);
        assert!(
            said.contains("another coral-MDT0002 (") && said.contains("(uuid of mdt0002,"),
            "{said}"
        );
        assert!(!said.contains("coral format"));
    }

    #[test]
    fn a_target_that_was_never_formatted_is_not_missing() {
        let tmp = tempfile::tempdir().unwrap();
        let names: Vec<String> = all(&config(), tmp.path())
            .unwrap()
            .iter()
            .map(Absent::name)
            .collect();
        let formatted = [
            "MGS",
            "coral-MDT0000",
            "coral-MDT0001",
            "coral-MDT0002",
            "coral-OST0001",
        ];
        assert_eq!(names, formatted);
    }

    #[test]
    fn what_has_the_configuration_or_the_root_is_needed() {
        let tmp = tempfile::tempdir().unwrap();
        let needed: Vec<bool> = all(&config(), tmp.path())
            .unwrap()
            .iter()
            .map(|a| is_needed(&a.wanted))
            .collect();
        assert_eq!(needed, [true, true, false, false, false]);
    }
}
