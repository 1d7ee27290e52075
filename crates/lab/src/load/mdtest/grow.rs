//! The directories of the tree, made before the phases and removed after them.

use super::report::{Kind, Measured};
use super::run::{DIR_MODE, Test};
use super::tree;
use crate::load::Failed;
use crate::load::meter::Meter;
use std::io;

impl Test<'_, '_, '_> {
    pub(super) fn make_trees(&mut self) -> Result<(), Failed> {
        for nth in 0..self.loops {
            if self.leads() {
                let dir = tree::test_dir(&self.path, self.iteration, nth);
                match self.rank.storage.mkdir(&dir, DIR_MODE) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                        self.lose(&format!("Unable to create test directory {dir}: {e}"))?;
                    }
                    _ => {}
                }
            }
        }
        self.trees(Kind::TreeCreate, |t, meter, root, base, below| {
            for dir in std::iter::once(String::new()).chain(below) {
                let path = format!("{root}/{base}.0/{dir}");
                let made = t.rank.storage.mkdir(&path, DIR_MODE);
                t.expect("unable to create tree directory", &path, made)?;
                meter.done(0);
            }
            Ok(())
        })
    }

    pub(super) fn remove_trees(&mut self) -> Result<(), Failed> {
        self.trees(Kind::TreeRemove, |t, meter, root, base, below| {
            for dir in below.into_iter().rev().chain([String::new()]) {
                let path = format!("{root}/{base}.0/{dir}");
                let removed = t.rank.storage.rmdir(&path);
                t.expect("Unable to remove directory", &path, removed)?;
                meter.done(0);
            }
            Ok(())
        })?;
        for nth in 0..self.loops {
            let dir = tree::test_dir(&self.path, self.iteration, nth);
            if self.leads() && self.rank.storage.size(&dir).is_ok() {
                let removed = self.rank.storage.rmdir(&dir);
                self.expect("unable to remove directory", &dir, removed)?;
            }
        }
        Ok(())
    }

    /// The trees that this task is to make or remove, between barriers.
    fn trees(
        &mut self,
        kind: Kind,
        mut act: impl FnMut(&mut Self, &mut Meter<'_>, &str, &str, Vec<String>) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        self.rank.barrier()?;
        let mut meter = Meter::start(self.rank.clock, self.rank.line);
        let start = meter.now();
        let first = self.rank.is_first();
        let owners = match (self.o.is("unique_dir"), self.o.is("collective")) {
            (false, _) if first => 0..1,
            (true, true) if first => 0..u64::from(self.rank.members),
            (true, false) => u64::from(self.rank.id)..u64::from(self.rank.id) + 1,
            _ => 0..0,
        };
        for owner in owners {
            let base = tree::base(self.o, owner);
            for nth in 0..self.loops {
                let root = tree::test_dir(&self.path, self.iteration, nth);
                act(self, &mut meter, &root, &base, self.tree.directories(&base))?;
            }
        }
        let before_barrier = self.rank.clock.now();
        self.rank.barrier()?;
        self.done.push(Measured {
            start,
            before_barrier,
            end: self.rank.clock.now(),
            items: self.tree.dirs,
            operations: meter.operations(),
            ..Measured::of(kind, meter.finish()?)
        });
        self.gather()
    }
}
