//! A look at a closed target that changes nothing in it.
//!
//! Opening the store changes files: it finishes what a crash left, drops what is in no list, and notes how far it is. So the
//! store is opened as a shadow in a temporary directory: the files of the tables, which never change, as symbolic links,
//! everything else as copies (journals, lists: at most some hundred MiB). The objects are looked at where they are.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::objects::FsObjects;
use super::space::SpaceGate;
use super::synced::SyncedFile;
use super::tables::{Limits, TABLES_DIR, Tables};
use super::{OsdFs, OsdFsOptions, journal, largest, lock, manifest, objects_dir, private};
use crate::{Batch, Io, Kv, Label, ObjAttr, ObjectId, OpenError, OsdError, StatFs, Table};

/// Tries to find a name for the shadow that is not taken.
const NAMES_MAX: u32 = 1000;

/// A closed target that is looked at.
pub struct Inspection {
    label: Label,
    /// What is wrong with files although the store opens.
    problems: Vec<String>,
    tables: Arc<Tables>,
    objects: FsObjects,
    space: Arc<SpaceGate>,
    dir: PathBuf,
    _lock: Option<File>,
    // Last: it goes after what is open in it.
    shadow: Shadow,
}

impl Inspection {
    /// Looks at the target in `dir`, which no process may have open.
    pub fn open(dir: &Path) -> Result<Inspection, OpenError> {
        let label = Label::load(dir)?;
        let locked = lock::look(dir)?;
        let fail = |what: &str, source| OpenError::Io {
            what: format!("{what} {}", dir.display()),
            source,
        };
        let (kv, objects_dir) = (dir.join(TABLES_DIR), objects_dir(dir)?);
        if !kv.is_dir() {
            let why = "the directory is missing".to_owned();
            return Err(OpenError::BadKv { dir: kv, why });
        }
        let mut problems: Vec<String> = SyncedFile::damage(dir).into_iter().collect();
        let changed = |f: PathBuf| {
            format!(
                "{}: its checksum is wrong: it was changed or cut",
                f.display()
            )
        };
        problems.extend(manifest::damaged_files(&kv).into_iter().map(changed));
        let shadow = Shadow::of(dir)
            .map_err(|e| fail("copy lists and journals to a temporary directory, of", e))?;
        let space = Arc::new(
            SpaceGate::open(&shadow.0, Arc::default(), false)
                .map_err(|e| fail("open a copy of", e))?,
        );
        let options = OsdFsOptions::default();
        let limits = Limits {
            open_files: options.kv_open_files,
            workers: 1,
            unsorted_bytes: 1 << 20,
            logs_damage: false,
        };
        let bad = |why: String| OpenError::BadKv {
            dir: kv.clone(),
            why: shadow.tell(&why, dir),
        };
        let tables = Arc::new(Tables::open(&shadow.0, limits, space.clone()).map_err(bad)?);
        let objects = FsObjects::look(
            &objects_dir,
            options.open_files,
            space.clone(),
            &tables,
            largest::MOST_BYTES,
        );
        let objects = objects.map_err(|e| fail("open objects of", e))?;
        if let Err(e) = OsdFs::fresh(dir) {
            problems.push(e.to_string());
        }
        Ok(Inspection {
            label,
            problems,
            tables,
            objects,
            space,
            dir: dir.to_owned(),
            _lock: locked,
            shadow,
        })
    }

    /// The target's label.
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// What is wrong with single files.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Reads every record of every table, so that every stored checksum is verified; their number.
    pub fn verify_tables(&self) -> Result<u64, OsdError> {
        self.told(self.tables.verify())
    }

    /// With the names of the target's files instead of the copies'.
    fn told<T>(&self, done: Result<T, OsdError>) -> Result<T, OsdError> {
        done.map_err(|e| match e {
            OsdError::Corrupt(why) => OsdError::Corrupt(self.shadow.tell(&why, &self.dir)),
            other => other,
        })
    }

    /// Visits every object, in no particular order, until `f` returns false.
    pub fn iterate(&self, f: &mut dyn FnMut(ObjectId, ObjAttr) -> bool) -> Result<(), OsdError> {
        self.objects.iterate(f)
    }
}

impl Kv for Inspection {
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.told(self.tables.get(t, key))
    }
    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.told(self.tables.range(t, from, to, limit))
    }
    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        self.told(self.tables.last(t, prefix))
    }
    fn commit(&self, _: Batch) -> Io<()> {
        Io::ready(Err(OsdError::NotSupported(
            "a target that is looked at is not changed",
        )))
    }
    fn sync(&self) -> Io<()> {
        Io::ready(Ok(()))
    }
    fn note(&self, _: u64) {}
    fn noted(&self) -> u64 {
        0
    }
    fn statfs(&self) -> Result<StatFs, OsdError> {
        self.space.statfs()
    }
}

/// The temporary directory with the copy; goes with this.
struct Shadow(PathBuf);

impl Shadow {
    fn of(dir: &Path) -> io::Result<Shadow> {
        let shadow = Shadow(Self::make()?);
        copy(
            &dir.canonicalize()?.join(TABLES_DIR),
            &shadow.0.join(TABLES_DIR),
        )?;
        match private::copy(&dir.join("SYNCED"), &shadow.0.join("SYNCED")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(shadow),
        }
    }

    fn make() -> io::Result<PathBuf> {
        for n in 0..NAMES_MAX {
            let path = std::env::temp_dir().join(format!("coral-check-{}-{n}", std::process::id()));
            match private::make_new_dir(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done.map(|()| path),
            }
        }
        Err(io::Error::other(
            "no free name for a temporary directory; remove coral-check-* there",
        ))
    }

    /// A message about the shadow as one about the target.
    fn tell(&self, why: &str, dir: &Path) -> String {
        why.replace(&*self.0.to_string_lossy(), &dir.to_string_lossy())
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "remove a temporary copy");
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    private::make_new_dir(to)?;
    let final_files = from.file_name().is_some_and(|n| n == "tables");
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let to = to.join(name);
        if path.is_dir() {
            copy(&path, &to)?;
        } else if final_files {
            symlink(&path, &to)?;
        } else if path.extension().is_some_and(|e| e == "jnl") {
            let bytes = journal::contents(&path).map_err(io::Error::other)?;
            let file = private::create(&to)?;
            file.write_all_at(&bytes, 0)?;
            file.set_len(path.metadata()?.len())?;
        } else {
            private::copy(&path, &to)?;
        }
    }
    Ok(())
}
