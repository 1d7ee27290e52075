//! Requests about open files: open, read, write, sync and close.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coral_buffers::Payload;
use coral_client::llite::types::SeekWhence;

use super::{Fut, In, OpenFile, Started, boxed, cred};
use crate::abi::{self, InHeader};
use crate::buf::RequestBuf;
use crate::error::OpError;
use crate::fs::FileSystem;
use crate::naming::naming;
use crate::reply::Body;
use crate::session::Shared;

pub(super) fn create<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let c: abi::CreateIn = i.get()?;
    let (s, h, parent, name, cred) = (s.clone(), *h, s.fid(h.nodeid)?, i.name()?, cred(h, c.umask));
    Ok(boxed(async move {
        let began = s.notifier.told.mark();
        let work = s.fs.create(&cred, parent, &name, c.mode, c.flags);
        let (e, file) = naming(&s.notifier, parent, h.pid, work).await?;
        let file = OpenFile::new(file, e.attr.fid);
        if e.attr.mode & (libc::S_ISUID | libc::S_ISGID) == 0 {
            file.clean
                .store(s.chmods.load(Ordering::Acquire), Ordering::Relaxed);
        }
        if !F::DROPS_SETID && c.open_flags & abi::OPEN_KILL_SUIDGID != 0 {
            s.kill_suidgid(&file).await?;
        }
        let entry = s.created_out(began, &e);
        s.fresh.created(&h, &entry, e.attr.fid, began);
        Ok(Body::of(&abi::CreateOut {
            entry,
            open: s.open_out(file),
        }))
    }))
}

pub(super) fn open<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let o: abi::OpenIn = i.get()?;
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        let file = OpenFile::new(
            s.fs.open(&cred, fid, o.flags)
                .await
                .map_err(OpError::looked_up)?,
            fid,
        );
        if !F::DROPS_SETID && o.open_flags & abi::OPEN_KILL_SUIDGID != 0 {
            s.kill_suidgid(&file).await?;
        }
        Ok(Body::of(&s.open_out(file)))
    }))
}

pub(super) fn read<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let r: abi::ReadIn = i.get()?;
    let (s, node, file) = (s.clone(), h.nodeid, s.file(r.fh)?);
    Ok(boxed(async move {
        // A read around the page cache names the owner of locks, one that fills pages does not.
        let data = match r.read_flags & abi::READ_LOCKOWNER {
            0 => {
                let _pages = s.sizes.pages(node, r.offset, u64::from(r.size));
                s.fs.read_pages(&file.file, r.offset, r.size).await?
            }
            _ => s.fs.read(&file.file, r.offset, r.size).await?,
        };
        // The kernel fails the connection on more than it asked for.
        if data.len() > r.size as usize {
            return Err(OpError::TooMuch);
        }
        if data.len() < r.size as usize {
            // the kernel takes the file to end there
            s.sizes.tell(node, r.offset + data.len() as u64, false);
        }
        Ok(Body::Payload(data))
    }))
}

pub(super) fn write<F: FileSystem>(
    s: &Arc<Shared<F>>,
    buf: &mut RequestBuf,
    len: usize,
    h: &InHeader,
) -> Result<Started, OpError> {
    let w: abi::WriteIn = In(&buf.request(len)[size_of::<InHeader>()..]).get()?;
    let size = w.size as usize;
    if size > len - abi::WRITE_HEAD {
        return Err(OpError::Malformed);
    }
    let (s, node, file, cred) = (s.clone(), h.nodeid, s.file(w.fh)?, cred(h, 0));
    let data = Payload::from(buf.detach(abi::WRITE_HEAD..abi::WRITE_HEAD + size));
    // Write-back of mmapped pages goes where the pages are, through whichever handle the kernel found.
    let (append, pages) = (
        w.flags & libc::O_APPEND as u32 != 0,
        w.write_flags & abi::WRITE_CACHE != 0,
    );
    Ok(Started::Future(boxed(async move {
        if pages {
            let n = s.fs.write_pages(&file.file, w.offset, data).await?;
            return Ok(Body::of(&abi::WriteOut {
                size: n as u32,
                padding: 0,
            }));
        }
        if !F::DROPS_SETID && w.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            s.kill_suidgid(&file).await?;
        }
        let pages = s.sizes.pages(node, w.offset, data.len() as u64);
        let n =
            s.fs.write(&cred, &file.file, w.offset, data, append)
                .await?;
        drop(pages);
        s.sizes.wrote(node, w.offset + n as u64);
        Ok(Body::of(&abi::WriteOut {
            size: n as u32,
            padding: 0,
        }))
    })))
}

pub(super) fn flush<F: FileSystem>(s: &Arc<Shared<F>>, mut i: In<'_>) -> Fut {
    let f: abi::FlushIn = i.get()?;
    let (s, file) = (s.clone(), s.file(f.fh)?);
    Ok(boxed(async move {
        s.fs.flush(&file.file, f.lock_owner)
            .await
            .map(|()| Body::Empty)
    }))
}

pub(super) fn release<F: FileSystem>(s: &Arc<Shared<F>>, mut i: In<'_>) -> Fut {
    let r: abi::ReleaseIn = i.get()?;
    let (s, file) = (s.clone(), s.files.remove(r.fh).ok_or(OpError::BadHandle)?);
    Ok(boxed(async move {
        s.fs.release(&file.file).await.map(|()| Body::Empty)
    }))
}

pub(super) fn fsync<F: FileSystem>(s: &Arc<Shared<F>>, _h: &InHeader, mut i: In<'_>) -> Fut {
    let f: abi::FsyncIn = i.get()?;
    let (s, file) = (s.clone(), s.file(f.fh)?);
    let datasync = f.fsync_flags & abi::FSYNC_FDATASYNC != 0;
    Ok(boxed(async move {
        s.fs.fsync(&file.file, datasync).await.map(|()| Body::Empty)
    }))
}

pub(super) fn fallocate<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let f: abi::FallocateIn = i.get()?;
    let (s, file, cred) = (s.clone(), s.file(f.fh)?, cred(h, 0));
    Ok(boxed(async move {
        s.fs.fallocate(&cred, &file.file, f.mode, f.offset, f.length)
            .await
            .map(|()| Body::Empty)
    }))
}

pub(super) fn lseek<F: FileSystem>(s: &Arc<Shared<F>>, mut i: In<'_>) -> Fut {
    let l: abi::LseekIn = i.get()?;
    let whence = match l.whence as i32 {
        libc::SEEK_DATA => SeekWhence::Data,
        libc::SEEK_HOLE => SeekWhence::Hole,
        _ => return Err(OpError::BadValue),
    };
    let (s, file) = (s.clone(), s.file(l.fh)?);
    Ok(boxed(async move {
        let offset = s.fs.lseek(&file.file, l.offset, whence).await?;
        Ok(Body::of(&abi::LseekOut { offset }))
    }))
}
