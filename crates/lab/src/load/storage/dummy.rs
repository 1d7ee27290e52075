//! A file system that does nothing: what remains is the cost of the generator.

use super::{How, OpenFile, Space, Storage};
use std::io;

/// Says yes to everything and moves nothing. A file has every size.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dummy;

impl Storage for Dummy {
    fn name(&self) -> &'static str {
        "DUMMY"
    }

    fn open(&self, _: &str, _: How) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(Dummy))
    }

    fn size(&self, _: &str) -> io::Result<u64> {
        Ok(0)
    }

    fn mknod(&self, _: &str, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn unlink(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn mkdir(&self, _: &str, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn rmdir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn create_xattr(&self, _: &str, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn space(&self, _: &str) -> io::Result<Space> {
        Ok(Space {
            block_bytes: 1,
            blocks: 1,
            free_blocks: 1,
            inodes: 1,
            free_inodes: 1,
            kind: 0,
        })
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl OpenFile for Dummy {
    fn read_at(&mut self, into: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(into.len())
    }

    fn write_at(&mut self, from: &[u8], _: u64) -> io::Result<usize> {
        Ok(from.len())
    }

    fn size(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
