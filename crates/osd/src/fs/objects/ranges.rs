//! Byte ranges of one object's file: written, read, allocated, zeroed.

use std::io::IoSlice;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::super::handle::Handle;
use super::super::pool::BufPool;
use super::super::space::Class;
use super::{FsObjects, failed};
use crate::OsdError;

/// Buffers in one `pwritev`.
const IOV_MAX: usize = 1024;

/// Bytes in one `pwritev`. Linux makes the folios of its page cache as large as the write, up to 2 MiB, and those may come from memory
/// that was given back to a host ([`ahead`](super::super::ahead)). Smaller ones come from memory that was in use before.
const PIECE: usize = 1 << 20;

/// What one `pwritev` takes of `bufs`, without the first `skip` bytes of the first.
fn piece(bufs: &[Bytes], skip: usize) -> Vec<IoSlice<'_>> {
    let mut room = PIECE;
    let mut iov = Vec::with_capacity(bufs.len().min(IOV_MAX));
    for (i, b) in bufs.iter().enumerate().take(IOV_MAX) {
        let b = &b[if i == 0 { skip } else { 0 }..];
        let b = &b[..b.len().min(room)];
        room -= b.len();
        iov.push(IoSlice::new(b));
        if room == 0 {
            break;
        }
    }
    iov
}

impl FsObjects {
    /// Room for `len` bytes at `off`. On a full disk, bytes that have their blocks already may
    /// still be overwritten.
    pub(super) fn admit_write(&self, h: &Handle, off: u64, len: u64) -> Result<(), OsdError> {
        let Err(full) = self.space.admit(Class::Object, len) else {
            return Ok(());
        };
        match rustix::fs::seek(&h.file, SeekFrom::Hole(off)) {
            Ok(hole) if hole >= off.saturating_add(len) => Ok(()),
            _ => Err(full),
        }
    }

    /// Length of what is to be written at `off`, unless it goes beyond the largest object.
    pub(super) fn fits(&self, off: u64, bufs: &[Bytes]) -> Result<u64, OsdError> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let end = off.checked_add(len).filter(|e| *e <= self.max_bytes);
        end.map(|_| len).ok_or(OsdError::TooLarge(off))
    }

    /// Does what needs up to `bytes` of promised space; what was put by for it is freed when the disk says that it is full, and at the
    /// end it is tried once more: what somebody tried to put by may have been the last of the room for a moment. Where free space lags,
    /// what is freed is of use after [`Room::settle`](crate::Room::settle) only: it fails at once, as it never waits itself.
    pub(super) fn with_promised<T>(
        &self,
        bytes: u64,
        call: impl Fn() -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        let mut ended = self.space.lags;
        loop {
            match call() {
                Err(OsdError::NoSpace) if self.space.make_room(bytes) => {}
                Err(OsdError::NoSpace) if !std::mem::replace(&mut ended, true) => {}
                Err(OsdError::NoSpace) => {
                    tracing::debug!(bytes, "no room for a promised write");
                    return Err(OsdError::NoSpace);
                }
                done => {
                    self.space.found_room();
                    return done;
                }
            }
        }
    }

    pub(super) fn pwrite_all(&self, h: &Handle, off: u64, bufs: &[Bytes]) -> Result<(), OsdError> {
        let mut at = off;
        let (mut first, mut skip) = (0, 0);
        while first < bufs.len() {
            if skip == bufs[first].len() {
                (first, skip) = (first + 1, 0);
                continue;
            }
            let iov = piece(&bufs[first..], skip);
            let n = match rustix::io::pwritev(&h.file, &iov, at) {
                Ok(0) => return Err(failed("write object", h.id, Errno::IO)),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(failed("write object", h.id, e)),
            };
            at += n as u64;
            let mut left = n;
            while left > 0 {
                let step = left.min(bufs[first].len() - skip);
                left -= step;
                skip += step;
                if skip == bufs[first].len() {
                    (first, skip) = (first + 1, 0);
                }
            }
        }
        Ok(())
    }

    /// Reads up to `len` bytes into a buffer of the pool, or into a new one.
    pub(super) fn read_at(&self, h: &Handle, off: u64, len: usize) -> Result<Bytes, OsdError> {
        match BufPool::serves(len) {
            true => self.pool.fill(len, |buf| self.pread(h, off, buf)),
            false => self.pread_new(h, off, len),
        }
    }

    /// Reads into a new buffer, which is not filled with zeros before.
    fn pread_new(&self, h: &Handle, off: u64, len: usize) -> Result<Bytes, OsdError> {
        h.ahead.begin(&h.file);
        let mut buf = Vec::with_capacity(len);
        while buf.len() < len {
            let at = off + buf.len() as u64;
            match rustix::io::pread(&h.file, spare_capacity(&mut buf), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(failed("read object", h.id, e)),
            }
        }
        // the allocator may have given more
        buf.truncate(len);
        if buf.len() == len {
            h.ahead.was_read(&h.file, off, len as u64);
        }
        Ok(buf.into())
    }

    /// Reads, and asks for what is going to be read next.
    fn pread(&self, h: &Handle, off: u64, buf: &mut [u8]) -> Result<usize, OsdError> {
        h.ahead.begin(&h.file);
        let n = self.pread_all(h, off, buf)?;
        if n == buf.len() {
            h.ahead.was_read(&h.file, off, n as u64);
        }
        Ok(n)
    }

    fn pread_all(&self, h: &Handle, off: u64, buf: &mut [u8]) -> Result<usize, OsdError> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&h.file, &mut buf[done..], off + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed("read object", h.id, e)),
            }
        }
        Ok(done)
    }

    pub(super) fn stat(&self, h: &Handle) -> Result<Stat, OsdError> {
        rustix::fs::fstat(&h.file).map_err(|e| failed("stat object", h.id, e))
    }

    pub(super) fn fallocate_file(
        &self,
        h: &Handle,
        flags: FallocateFlags,
        start: u64,
        len: u64,
    ) -> Result<(), OsdError> {
        loop {
            match rustix::fs::fallocate(&h.file, flags, start, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => return Err(OsdError::NotSupported("fallocate")),
                Err(e) => return Err(failed("fallocate object", h.id, e)),
            }
        }
    }

    /// Makes `start..end` read as zeros within the size, as a hole where possible.
    pub(super) fn punch_handle(&self, h: &Handle, start: u64, end: u64) -> Result<(), OsdError> {
        let end = end.min(self.stat(h)?.st_size as u64);
        if start >= end {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.fallocate_file(h, flags, start, end - start) {
            Err(OsdError::NotSupported(_)) => self.write_zeros(h, start, end),
            other => other,
        }
    }

    pub(super) fn write_zeros(&self, h: &Handle, start: u64, end: u64) -> Result<(), OsdError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = start;
        while at < end {
            let n = (end - at).min(ZEROS.len() as u64);
            self.pwrite_all(h, at, &[Bytes::from_static(&ZEROS[..n as usize])])?;
            at += n;
        }
        Ok(())
    }

    pub(super) fn zero_range(
        &self,
        h: &Handle,
        start: u64,
        end: u64,
        keep: bool,
    ) -> Result<(), OsdError> {
        let mut flags = FallocateFlags::ZERO_RANGE;
        if keep {
            flags |= FallocateFlags::KEEP_SIZE;
        }
        match self.fallocate_file(h, flags, start, end - start) {
            Err(OsdError::NotSupported(_)) => {}
            other => return other,
        }
        self.punch_handle(h, start, end)?;
        if !keep && (self.stat(h)?.st_size as u64) < end {
            rustix::fs::ftruncate(&h.file, end).map_err(|e| failed("extend object", h.id, e))?;
        }
        Ok(())
    }
}
