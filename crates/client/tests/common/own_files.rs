//! A directory that one user alone changes, and what must be in it.

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Result, User};

/// The directory, with the choices of whoever works in it.
pub struct OwnFiles {
    pub u: User,
    pub rng: ChaCha8Rng,
    pub dir: String,
    /// Content of the files by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Names to choose from.
    name_count: u32,
}

impl OwnFiles {
    pub fn new(u: User, rng: ChaCha8Rng, dir: String, name_count: u32) -> OwnFiles {
        OwnFiles {
            u,
            rng,
            dir,
            files: BTreeMap::new(),
            name_count,
        }
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    pub fn some_name(&mut self) -> String {
        format!("f{}", self.rng.random_range(0..self.name_count))
    }

    /// A file that is there.
    pub fn some_file(&mut self) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        let i = self.rng.random_range(0..self.files.len());
        self.files.keys().nth(i).cloned()
    }

    /// Renames one, perhaps over another; 0 when there is none.
    pub async fn rename(&mut self) -> Result<u64> {
        let (Some(from), to) = (self.some_file(), self.some_name()) else {
            return Ok(0);
        };
        self.u.rename(&self.path(&from), &self.path(&to), 0).await?;
        let data = self.files.remove(&from).expect("there");
        self.files.insert(to, data);
        Ok(1)
    }

    /// Removes one; 0 when there is none.
    pub async fn unlink(&mut self) -> Result<u64> {
        let Some(name) = self.some_file() else {
            return Ok(0);
        };
        self.u.unlink(&self.path(&name)).await?;
        self.files.remove(&name);
        Ok(1)
    }

    /// Lists all; their number.
    pub async fn list(&mut self) -> Result<u64> {
        let names = self.u.names(&self.dir).await?;
        assert_eq!(
            names,
            self.files.keys().cloned().collect::<Vec<_>>(),
            "{}",
            self.dir
        );
        Ok(names.len() as u64)
    }

    /// Everything is there, as `u` sees it.
    pub async fn verify(&self, u: &User) {
        let names = u.names(&self.dir).await.expect("listing");
        assert_eq!(names, self.files.keys().cloned().collect::<Vec<_>>());
        for (name, want) in &self.files {
            assert!(
                u.get(&self.path(name)).await.expect("content") == *want,
                "{} differs at the end",
                self.path(name)
            );
        }
    }
}
