//! A storage that is worked on until the run is ended.

use super::{How, Inside, OpenFile, Space, Storage};
use crate::load::ending::Ending;
use std::io;
use std::sync::Arc;

/// Another storage, whose operations fail once the run is ended.
pub struct Until {
    /// It.
    pub storage: Arc<dyn Storage>,
    /// The end.
    pub ending: Ending,
}

impl Until {
    fn now(&self) -> io::Result<&dyn Storage> {
        self.ending.goes_on().map(|()| &*self.storage)
    }
}

impl Storage for Until {
    fn name(&self) -> &'static str {
        self.storage.name()
    }

    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(UntilFile {
            file: self.now()?.open(path, how)?,
            ending: self.ending.clone(),
        }))
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        self.now()?.size(path)
    }

    fn mknod(&self, path: &str, mode: u32) -> io::Result<()> {
        self.now()?.mknod(path, mode)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.now()?.unlink(path)
    }

    fn mkdir(&self, path: &str, mode: u32) -> io::Result<()> {
        self.now()?.mkdir(path, mode)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.now()?.rmdir(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.now()?.rename(from, to)
    }

    fn create_xattr(&self, path: &str, name: &str, value: &[u8]) -> io::Result<()> {
        self.now()?.create_xattr(path, name, value)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.now()?.list(path)
    }

    fn space(&self, path: &str) -> io::Result<Space> {
        self.now()?.space(path)
    }

    fn sync(&self) -> io::Result<()> {
        self.now()?.sync()
    }

    fn enter(&self, dir: &str) -> io::Result<Option<Inside>> {
        self.now()?.enter(dir)
    }
}

struct UntilFile {
    file: Box<dyn OpenFile>,
    ending: Ending,
}

impl OpenFile for UntilFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.ending.goes_on()?;
        self.file.read_at(into, offset)
    }

    fn write_at(&mut self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.ending.goes_on()?;
        self.file.write_at(from, offset)
    }

    fn size(&mut self) -> io::Result<u64> {
        self.file.size()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.ending.goes_on()?;
        self.file.sync()
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.file.close()
    }
}
