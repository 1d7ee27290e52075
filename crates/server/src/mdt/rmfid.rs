//! MDS_RMFID: objects are removed by their FIDs, with all of their names (`mdt_rmfid` in `lustre/mdt/mdt_handler.c`).
//!
//! The request lists FIDs, and the reply says of each how it went. Each name goes by an operation of its own, and what is answered is
//! on disk: a replay finds nothing to do.

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::coral::updates::Look;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::MdtBody;
use coral_wire::{Errno, Fid, Wire};

use super::core::MdtCore;
use super::cred::{FL_IMMUTABLE, Ucred, cap};
use super::ctx::{Answer, Ctx};
use super::namespace::{self, At};
use super::record::{Inode, Link};
use super::remote::{Needs, RETRIES};
use super::store::{MdtError, MdtResult, Txn};
use super::trans::Op;

/// Most FIDs of one request (`OBD_MAX_FIDS_IN_ARRAY`).
const FIDS_MAX: usize = 4096;
/// Names of one object that are looked at together.
const NAMES_AT_A_TIME: usize = 64;
/// Bytes of a FID.
const FID_BYTES: usize = 16;
/// Bits of an object that loses a name.
const GOES: u64 = Ibits::LOOKUP.0 | Ibits::UPDATE.0;

impl Ctx {
    /// Removes the listed objects.
    pub(super) async fn rmfid(&self) -> MdtResult<Answer> {
        let body = self.body(1)?;
        let raw = self.buf(2);
        if !raw.len().is_multiple_of(FID_BYTES) || raw.len() / FID_BYTES > FIDS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let fids: Vec<Fid> = coral_wire::raw::decode_all(raw);
        let cred = self.cred_of(&body);
        let time = self.time(body.ctime);
        let mut results = Vec::with_capacity(fids.len() * 4);
        for fid in &fids {
            let result = match self.rmfid_one(&cred, *fid, time).await {
                Ok(()) => 0,
                Err(e) => self.told(&e).status(),
            };
            results.extend_from_slice(&result.to_bytes());
        }
        self.rq.target.sync().await?;
        let mut a = self.answer(0);
        a.msg
            .push(&MdtBody::default())
            .push_bytes(raw.clone())
            .push_bytes(results.into());
        Ok(a)
    }

    async fn rmfid_one(&self, cred: &Ucred, fid: Fid, time: Time) -> MdtResult<()> {
        if !fid.is_norm() {
            return Err(Errno::EINVAL.into());
        }
        if !self.is_here(&fid) {
            return Err(Errno::EREMOTE.into());
        }
        self.ops.out.settled(&[fid]).await?;
        let mut tries = 0;
        loop {
            let (ino, names) = {
                let store = self.reading().store.clone();
                let ino = store.inode(&fid)?;
                let names = store.links(&fid, &ino, NAMES_AT_A_TIME)?;
                (ino, names)
            };
            if ino.nlink == 0 {
                // the names went, and it is open no more
                return if tries > 0 {
                    Ok(())
                } else {
                    Err(Errno::ENOENT.into())
                };
            }
            may_remove(cred, &ino)?;
            let before = names.len();
            for name in names {
                match self.rm_name(cred, fid, &name, ino.is_dir(), time).await {
                    // it was moved before it was locked
                    Err(MdtError::Errno(Errno::EAGAIN)) if tries < RETRIES => {}
                    done => done?,
                }
            }
            tries += 1;
            if before == 0 || tries > RETRIES {
                return Err(Errno::EAGAIN.into());
            }
            if self.reading().store.find(&fid)?.is_none() {
                return Ok(());
            }
        }
    }

    /// Takes one name away, with all that the object has in shards.
    async fn rm_name(
        &self,
        cred: &Ucred,
        fid: Fid,
        link: &Link,
        is_dir: bool,
        time: Time,
    ) -> MdtResult<()> {
        let at = At {
            parent: link.parent,
            name: &link.name,
            layout: 0,
        };
        let remove = |core: &MdtCore, t: &mut Txn<'_>| {
            t.get(&at.parent)?;
            if t.lookup(&at.parent, at.name)? != Some(fid) {
                return Err(Errno::EAGAIN.into());
            }
            if core.opens.is_open(&fid) {
                return Err(Errno::EBUSY.into());
            }
            namespace::unlink(t, cred, at, is_dir, &|f| core.opens.is_open(f), time).map(drop)
        };
        if self.is_here(&at.parent) && self.shards(&fid)?.is_empty() {
            let goes = [(fid, Ibits(GOES))];
            let _locks = self.ops.lock(&[at.parent], &goes, None).await;
            let core = self.core();
            let mut t = Txn::new(&core.store);
            remove(&core, &mut t)?;
            return self.ops.commit_own(&core.store, t.finish());
        }
        let (mdt, here) = (self.ops.home(&at.parent).await?, self.ops.mdts.index());
        let mut needs = Needs::default();
        needs.add(at.parent, mdt, Ibits::UPDATE.0);
        needs.add(fid, here, GOES);
        needs.add(fid, mdt, Ibits::LOOKUP.0);
        for shard in self.shards(&fid)? {
            needs.add(shard, self.ops.home(&shard).await?, GOES);
        }
        let look = Look {
            dir: at.parent,
            name: Bytes::copy_from_slice(at.name),
        };
        let mut op = Op::begin(&self.ops);
        op.lock(needs.list(), &[look]).await?;
        self.ops.make_own(&self.rq.target, op, remove).await
    }
}

/// EACCES for who may not write to the object (`mdt_rmfid_check_permission`).
fn may_remove(cred: &Ucred, ino: &Inode) -> MdtResult<()> {
    if ino.flags & FL_IMMUTABLE != 0 {
        return Err(Errno::EACCES.into());
    }
    let writes = match () {
        () if cred.has(cap::DAC_OVERRIDE) => true,
        () if cred.uid == ino.uid => ino.mode & 0o200 != 0,
        () if cred.in_group(ino.gid) => ino.mode & 0o020 != 0,
        () => ino.mode & 0o002 != 0,
    };
    match writes {
        true => Ok(()),
        false => Err(Errno::EACCES.into()),
    }
}
