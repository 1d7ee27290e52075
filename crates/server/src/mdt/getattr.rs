//! Questions: attributes by FID and name, extended attributes, directory pages, space
//! (`lustre/mdt/mdt_handler.c`, `mdt_xattr.c`).

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::connect::ConnectFlags;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{DirPageBuilder, LU_PAGE_SIZE, MdtBody, luda, md};
use coral_wire::ost::{ObdFlags, ObdStatfs};
use coral_wire::{Errno, Fid, portal};

use super::ctx::{Answer, Ctx};
use super::namespace::{self, At};
use super::packed::Packed;
use super::store::{MdtResult, NameEntry, Store, Txn};
use super::trans::{Need, Op};
use super::{table, xattr};

/// Most bytes of directory pages in one reply: one bulk descriptor.
const READPAGE_MAX_BYTES: usize = 1 << 20;
/// Entries read from the table at a time.
const READDIR_CHUNK: usize = 512;
/// Magic of `os_type`: what a Lustre server on ldiskfs says.
const STATFS_TYPE: u64 = 0xEF53;

impl Ctx {
    /// MDS_GET_ROOT: the root, or the directory a fileset names.
    pub async fn get_root(&self) -> MdtResult<Answer> {
        let mut path = self.name(2).to_vec();
        if let Some(map) = self.view.map() {
            if map.deny_mount {
                return Err(Errno::EPERM.into());
            }
            path = map.root_of(&String::from_utf8_lossy(&path))?.into_bytes();
        }
        let fid = self.directory(&path).await?;
        let mut a = self.answer(0);
        a.msg
            .push(&MdtBody {
                fid1: fid,
                valid: md::FLID,
                ..MdtBody::default()
            })
            .push_empty();
        Ok(a)
    }

    /// The directory at a path from the root, whoever asks, on whichever MDTs it and those above lie.
    pub async fn directory(&self, path: &[u8]) -> MdtResult<Fid> {
        let names = path.split(|&b| b == b'/');
        let names = names.filter(|n| !matches!(*n, b"" | b"."));
        let mut fid = Fid::ROOT;
        let mut op = Op::begin(&self.ops);
        for name in names {
            fid = self.named(&mut op, fid, name).await?;
        }
        if !self.is_here(&fid) {
            op.lock(vec![self.need(fid).await?], &[]).await?;
        }
        match op.is_dir(&fid)? {
            true => Ok(fid),
            false => Err(Errno::ENOTDIR.into()),
        }
    }

    /// What a name in a directory stands for, which may be in one of its shards.
    async fn named(&self, op: &mut Op, dir: Fid, name: &[u8]) -> MdtResult<Fid> {
        let name = Bytes::copy_from_slice(name);
        if let Some(found) = op.look(dir, &name).await? {
            return Ok(found);
        }
        let shards = match self.is_here(&dir) {
            true => self.shards(&dir)?,
            false => {
                // the lock is let go of before others are taken
                let mut op = Op::begin(&self.ops);
                op.lock(vec![self.need(dir).await?], &[]).await?;
                op.shards(&dir)?
            }
        };
        for shard in shards {
            if let Some(found) = op.look(shard, &name).await? {
                return Ok(found);
            }
        }
        Err(Errno::ENOENT.into())
    }

    /// The lock that tells how a directory of another MDT looks.
    async fn need(&self, fid: Fid) -> MdtResult<Need> {
        let mdt = self.ops.home(&fid).await?;
        let bits = Ibits::UPDATE.0;
        Ok(Need { fid, mdt, bits })
    }

    /// MDS_STATFS: the MDT's own space, or with AGSTATFS the file system's.
    pub fn statfs(&self) -> MdtResult<Answer> {
        let sums = self.body(1).is_ok_and(|b| b.valid & md::FLAGSTATFS != 0);
        let s = self.rq.target.kv().statfs()?;
        let mut st = ObdStatfs {
            r#type: STATFS_TYPE,
            blocks: s.blocks,
            bfree: s.blocks_free,
            bavail: s.blocks_avail,
            files: s.files.max(1),
            ffree: s.files_free,
            bsize: s.block_size.max(512),
            namelen: namespace::NAME_MAX as u32,
            maxbytes: i64::MAX as u64,
            ..ObdStatfs::default()
        };
        if sums {
            self.ops.osp.add_space(&mut st);
        }
        let mut a = self.answer(0);
        a.msg.push(&st);
        Ok(a)
    }

    /// MDS_GETATTR: by FID.
    pub async fn getattr(&self) -> MdtResult<Answer> {
        let b = self.body(1)?;
        if b.valid & md::FLDATAVERSION != 0 {
            return self.data_version(&b).await;
        }
        self.nothing_kept(&b.fid1).await;
        let p = {
            let core = self.reading();
            let ino = core.store.inode(&b.fid1)?;
            self.pack_all(&core.store, &b.fid1, &ino, Some(b.valid))?
        };
        Ok(
            self.attributes(match b.valid & (md::MEA | md::DEFAULT_MEA) {
                md::DEFAULT_MEA => p.with_default_as_layout(),
                _ => p,
            }),
        )
    }

    /// What another client keeps back of the attributes of `fid` has come.
    async fn nothing_kept(&self, fid: &Fid) {
        let kept = self.reading().opens.is_kept_by_other(fid, self.exp());
        if kept {
            Box::pin(self.end_keeping(fid)).await;
        }
    }

    /// The version of data on the MDT: the last transaction of the MDT, which no change leaves as it was (`mdt_data_version_get`).
    /// Who asks for a lock finds what others had not written.
    async fn data_version(&self, b: &MdtBody) -> MdtResult<Answer> {
        let locked = b.valid & md::FLFLAGS != 0 && b.flags & ObdFlags::SRVLOCK.0 != 0;
        let _lock = match locked {
            true => Some(self.ops.lock(&[], &[(b.fid1, Ibits::DOM)], None).await),
            false => None,
        };
        if !self.reading().store.inode(&b.fid1)?.is_reg() {
            return Err(Errno::EBADF.into());
        }
        let body = MdtBody {
            valid: md::FLDATAVERSION,
            version: self.rq.target.last_transno(),
            ..MdtBody::default()
        };
        Ok(self.attributes(Packed {
            body,
            ..Packed::default()
        }))
    }

    /// MDS_GETATTR_NAME: by name, without a lock.
    pub async fn getattr_name(&self) -> MdtResult<Answer> {
        let b = self.body(1)?;
        let at = At {
            parent: b.fid1,
            name: self.name(3),
            layout: 0,
        };
        let named = || -> MdtResult<Fid> {
            let core = self.reading();
            let mut t = Txn::new(&core.store);
            Ok(match at.name {
                b"" => b.fid1,
                _ => namespace::lookup(&mut t, &self.cred_of(&b), at)?.ok_or(Errno::ENOENT)?,
            })
        };
        let fid = named()?;
        if self.ops.ldlm.is_other_alone(self.exp()) {
            Box::pin(self.not_lent(&[fid])).await?;
        }
        self.nothing_kept(&fid).await;
        let p = {
            let core = self.reading();
            match core.store.is_here(&fid) {
                true => {
                    let ino = core.store.inode(&fid)?;
                    self.pack_all(&core.store, &fid, &ino, Some(b.valid))?
                }
                false => Packed {
                    body: super::remote::elsewhere(fid),
                    ..Packed::default()
                },
            }
        };
        Ok(self.attributes(p))
    }

    fn attributes(&self, p: Packed) -> Answer {
        let mut a = self.answer(0);
        a.msg
            .push(&p.body)
            .push_bytes(p.md)
            .push_bytes(p.acl)
            .push_empty()
            .push_empty()
            .push_empty();
        a
    }

    /// MDS_GETXATTR: one value by name (FLXATTR), or the list of names (FLXATTRLS). A buffer of 0
    /// bytes asks for the size.
    pub fn getxattr(&self) -> MdtResult<Answer> {
        let b = self.body(1)?;
        let cred = self.cred_of(&b);
        let data = {
            let core = self.reading();
            let ino = core.store.inode(&b.fid1)?;
            if b.valid & md::FLXATTRLS != 0 {
                let mut names = Vec::new();
                for (name, _) in xattr::all(&core.store, &b.fid1, &ino)? {
                    names.extend_from_slice(&name);
                    names.push(0);
                }
                Bytes::from(names)
            } else {
                let name = self.name(3);
                match name {
                    xattr::LUSTRE_LOV | xattr::TRUSTED_LOV if ino.is_dir() => {
                        let lov = self.directory_default(&b.fid1, &ino);
                        if lov.is_empty() {
                            return Err(Errno::ENODATA.into());
                        }
                        lov
                    }
                    _ => self.view.xattr_to_client(
                        name,
                        xattr::value(&core.store, &cred, &b.fid1, &ino, name)?,
                    ),
                }
            }
        };
        let mut a = self.answer(0);
        let body = MdtBody {
            eadatasize: data.len() as u32,
            valid: b.valid & (md::FLXATTR | md::FLXATTRLS),
            ..MdtBody::default()
        };
        if b.eadatasize == 0 {
            a.msg.push(&body).push_empty();
        } else if (b.eadatasize as usize) < data.len() {
            return Err(Errno::ERANGE.into());
        } else {
            a.msg.push(&body).push_bytes(data);
        }
        Ok(a)
    }

    /// MDS_READPAGE: directory pages from a hash on, as bulk.
    pub async fn readpage(&self) -> MdtResult<Answer> {
        let b = self.body(1)?;
        let bytes = b.nlink as usize;
        if bytes == 0 || !bytes.is_multiple_of(LU_PAGE_SIZE) {
            return Err(Errno::EFAULT.into());
        }
        // a client with 64-bit hashes is told so in every entry
        let wide = if self.rq.exp.connect().has(ConnectFlags::B64BITHASH) {
            luda::B64BITHASH
        } else {
            0
        };
        let pages = {
            let core = self.reading();
            read_pages(
                &core.store,
                &b.fid1,
                b.size,
                bytes.min(READPAGE_MAX_BYTES),
                b.mode | wide,
            )?
        };
        let sent = self
            .rq
            .rq
            .bulk_write_to_client(portal::MDS_BULK, vec![Payload::from(pages)])
            .await;
        if sent.is_err() {
            // The client asks again; nothing was changed.
            return Err(Errno::EINPROGRESS.into());
        }
        let mut a = self.answer(0);
        a.msg.push(&MdtBody::default());
        Ok(a)
    }
}

/// The pages of directory `fid` from hash `start`: `.` and `..` first, then the entries.
pub fn read_pages(
    store: &Store,
    fid: &Fid,
    start: u64,
    bytes: usize,
    attrs: u32,
) -> MdtResult<Bytes> {
    let ino = store.inode(fid)?;
    if !ino.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let mut pages = DirPageBuilder::new(
        start,
        bytes,
        attrs & (luda::FID | luda::TYPE | luda::B64BITHASH),
    );
    if ino.nlink == 0 {
        return Ok(pages.finish());
    }
    let parent = ino.links.first().map_or(Fid::ROOT, |l| l.parent);
    for (hash, name, fid) in [
        (table::HASH_DOT, b".".as_slice(), *fid),
        (table::HASH_DOTDOT, b"..", parent),
    ] {
        if hash >= start && pages.push(fid, hash, name, super::record::S_IFDIR).is_err() {
            return Ok(pages.finish());
        }
    }
    if start >= table::HASH_LIMIT {
        return Ok(pages.finish());
    }
    let mut chunk = store.entries(fid, start, READDIR_CHUNK)?;
    loop {
        for e in &chunk {
            if pages.push(e.fid, e.hash, &e.name, e.file_type).is_err() {
                return Ok(pages.finish());
            }
        }
        let next = match chunk.last() {
            Some(last) if chunk.len() == READDIR_CHUNK => {
                store.entries_after(fid, last, READDIR_CHUNK)?
            }
            _ => return Ok(pages.finish()),
        };
        chunk = next as Vec<NameEntry>;
    }
}
