//! Directories that are lent: one client takes names from them, or makes files in them, and tells of it later ([`LEND`], [`LENT`]).
//!
//! The right is an EX lock of that client's on the directory, on all that covers its attributes; there is no other record of it. It ends
//! with the lock, it is replayed with the lock, and an eviction takes it.
//!
//! # Invariants
//! - When a directory is lent, no other client has a lock on it, nor on what it names. So nobody has a name in it in its cache.
//! - As long as it is lent, nobody else gets one: whoever asks about the directory, a name in it, or an object whose only name is in it,
//!   waits first until the lock is given back. Who gets a lock with the answer is looked at under the core's lock
//!   ([`Ctx::lent_to_other`]); who gets none is looked at before it is served ([`Ctx::not_lent`]), and is beside the removals then.
//!   What others were doing with an object when its directory was lent may leave them a lock on it, or another name: they are asked for
//!   such locks as soon as the name has gone.
//! - Changes of the directory's entries lock it, and wait for the lock by that.
//! - What the client tells takes no lock and waits for nobody who may be waiting for the lock. Nor is it refused because nobody says at the
//!   moment which groups its user is in: it was acknowledged.
//! - A replay compares the version of the directory alone: it is right also where a name that another client gave an object is missing.

use coral_ldlm::LocalLock;
use coral_osd::StatFs;
use coral_wire::coral::{LENT, LENT_BITS, LENT_MAX};
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmRequest, LdlmType, Policy};
use coral_wire::mds::{MdtBody, MdtRecReint, RecUnlink, disp};
use coral_wire::{Errno, Fid};

#[cfg(doc)]
use coral_wire::coral::LEND;

use super::core::MdtCore;
use super::cred::{MAY_EXEC, MAY_WRITE};
use super::ctx::{Answer, Ctx};
use super::intent::{Blocked, IntentOutcome};
use super::namespace::{self, At};
use super::record::Inode;
use super::reint::NAME_BITS;
use super::store::{MdtResult, Txn};

/// Room on the MDT with which clients may make files before they tell of them, bytes.
const AMPLE_BYTES: u64 = 256 << 20;
/// A directory with more entries is not lent where other clients have locks at all: each entry is looked at with the MDT at a standstill.
const ENTRIES_MAX: usize = 4096;

impl Ctx {
    /// Lends the directory `fid1` of the body, if it can be, to who may change it. One that was lent when the reply was lost stays so: the
    /// client's own locks went for it.
    pub(super) async fn intent_lend(&self, req: &LdlmRequest) -> MdtResult<Answer> {
        let body = self.body(3)?;
        let fid = body.fid1;
        if !self.coral {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if !self.is_here(&fid) {
            return Err(Errno::EREMOTE.into());
        }
        let given_up = LdlmRequest::decode(self.buf(4))?;
        let mut out = IntentOutcome {
            disp: disp::IT_EXECD | disp::LOOKUP_EXECD | disp::LOOKUP_POS,
            lock: self.given_before(req),
            ..IntentOutcome::default()
        };
        // nobody gives a lock back for what is not lent
        let asks = out.lock.is_none() && self.may_lend(&self.reading(), &body)?;
        let mut free = match asks {
            true => Some(self.lock_to_lend(&fid).await),
            false => None,
        };
        let p = {
            let core = self.core();
            if self.rq.exp.gone() {
                return Err(Errno::ENOTCONN.into());
            }
            let ino = core.store.inode(&fid)?;
            let p = self.pack_all(&core.store, &fid, &ino, Some(body.valid))?;
            let is_free = asks && self.may_lend(&core, &body)?;
            if let Some(lock) = free.take_if(|_| is_free) {
                match lock.give_for(self.exp(), req.handle(0), given_up.cancels()) {
                    Ok((cookie, _)) => out.lock = Some(cookie),
                    // not let go of with the core locked
                    Err(refused) => free = Some(refused),
                }
            }
            p
        };
        drop(free);
        Ok(self.getattr_answer(&out, p))
    }

    /// Locks a directory as it is going to be lent; the client's own locks stay.
    async fn lock_to_lend(&self, fid: &Fid) -> LocalLock {
        self.rq.rq.leave_lane();
        let (ty, policy) = (LdlmType::IBITS, Policy::ibits(LENT_BITS));
        let (ldlm, own) = (&self.ops.ldlm, Some(self.exp()));
        ldlm.lock_local(fid.res_id(), ty, LdlmMode::EX, policy, own)
            .await
    }

    /// Whether nobody but the client would notice that a name in the directory is there a little longer. EACCES for who may not change it.
    fn may_lend(&self, core: &MdtCore, body: &MdtBody) -> MdtResult<bool> {
        let (dir, ldlm) = (&body.fid1, &self.ops.ldlm);
        let ino = core.store.inode(dir)?;
        if !ino.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let cred = self.cred_of(body);
        core.store.permit(&cred, dir, &ino, MAY_WRITE | MAY_EXEC)?;
        if ino.nlink == 0 || !self.believes_client() {
            return Ok(false);
        }
        if ldlm.is_only(self.exp()) {
            return Ok(true);
        }
        let entries = core.store.entries(dir, 0, ENTRIES_MAX + 1)?;
        let mut named = entries.iter().map(|e| e.fid.res_id());
        Ok(entries.len() <= ENTRIES_MAX && !named.any(|res| ldlm.others_on(self.exp(), res)))
    }

    /// The directory that is lent to another client, of these: `dir` in which a name is looked up, `fid` itself, and that of its only name.
    pub(super) fn lent_to_other(
        &self,
        core: &MdtCore,
        dir: Option<&Fid>,
        object: Option<(&Fid, &Inode)>,
    ) -> MdtResult<Option<Blocked>> {
        if !self.ops.ldlm.is_other_alone(self.exp()) {
            return Ok(None);
        }
        let mut all: smallvec::SmallVec<[_; 3]> = dir.map(Fid::res_id).into_iter().collect();
        if let Some((fid, ino)) = object {
            all.push(fid.res_id());
            if !ino.is_dir() && ino.nlink == 1 {
                let links = core.store.links(fid, ino, 1)?;
                all.extend(links.iter().map(|l| l.parent.res_id()));
            }
        }
        let lent = self.ops.ldlm.alone_on(self.exp(), &all);
        Ok(lent.map(|res| Blocked::Changing(Fid::from_res_id(&res), Ibits::UPDATE)))
    }

    /// What another client may know of an object and the MDT not: attributes that it keeps back, or that its only name is gone. Nobody does
    /// before replays are through.
    pub(super) fn kept_by_other(
        &self,
        core: &MdtCore,
        fid: &Fid,
        ino: &Inode,
    ) -> MdtResult<Option<Blocked>> {
        match core.opens.is_kept_by_other(fid, self.exp()) {
            _ if self.rq.is_replay() => Ok(None),
            true => Ok(Some(Blocked::Kept(*fid))),
            false => self.lent_to_other(core, None, Some((fid, ino))),
        }
    }

    /// Waits until none of these objects, and none of the directories of their only names, is lent to another client.
    pub(super) async fn not_lent(&self, fids: &[Fid]) -> MdtResult<()> {
        for fid in fids.iter().filter(|f| !f.is_zero() && self.is_here(f)) {
            while let Some(Blocked::Changing(dir, bits)) = self.lent_of(fid)? {
                drop(self.unchanged(&dir, LdlmMode::PR, bits).await?);
            }
        }
        Ok(())
    }

    fn lent_of(&self, fid: &Fid) -> MdtResult<Option<Blocked>> {
        let core = self.reading();
        match core.store.find(fid)? {
            Some(ino) => self.lent_to_other(&core, None, Some((fid, &ino))),
            None => Ok(None),
        }
    }

    /// It is told under the right that a directory is lent to the client.
    pub(super) fn is_late(&self, bias: u32) -> bool {
        self.coral && bias & LENT != 0
    }

    /// The directory is lent to the client.
    pub(super) fn has_lent(&self, dir: &Fid) -> bool {
        let (res, held) = (dir.res_id(), Policy::ibits(LENT_BITS));
        let (ty, mode) = (LdlmType::IBITS, LdlmMode::EX);
        self.ops.ldlm.holds(self.exp(), &res, ty, mode, &held)
    }

    /// The client has the directory, and what it makes there next is not refused for want of room.
    pub(super) fn may_make_more(&self, dir: &Fid) -> bool {
        let space = || self.rq.target.kv().statfs();
        let ample =
            |s: StatFs| s.blocks_avail.saturating_mul(u64::from(s.block_size)) >= AMPLE_BYTES;
        self.has_lent(dir) && space().is_ok_and(ample)
    }

    /// Takes names away from a directory that the client has: all, or none.
    pub(super) async fn unlink_lent(&self, head: &MdtRecReint, r: &RecUnlink) -> MdtResult<Answer> {
        self.cancel_early(4);
        let cred = self.cred(head);
        let lent = self.lent_names()?;
        let fids: Vec<Fid> = lent.iter().map(|n| n.fid).collect();
        if !self.all_here(fids.iter().chain([&r.fid1])) {
            return Err(Errno::ESTALE.into());
        }
        self.ops.out.settled(&fids).await?;
        let early = self.ahead(|t| {
            t.find(&r.fid1)?;
            for n in &lent {
                t.lookup(&r.fid1, n.name)?;
                t.find(&n.fid)?;
            }
            Ok(())
        });
        let mut guard = self.core();
        let core = &mut *guard;
        if !self.rq.is_replay() && !self.has_lent(&r.fid1) {
            return Err(Errno::ESTALE.into());
        }
        let mut t = Txn::after(&core.store, early);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(&r.fid1))?;
        let mut closed = Vec::new();
        for n in &lent {
            let at = At {
                parent: r.fid1,
                name: n.name,
                layout: 0,
            };
            let child = t.lookup(&at.parent, n.name)?;
            pre.same(&n.fid, child.as_ref())?;
            if child != Some(n.fid) {
                return Err(child.map_or(Errno::ENOENT, |_| Errno::ESTALE).into());
            }
            let own = self.given_up(core, n.open, child);
            closed.extend(own.map(|cookie| (n.fid, cookie)));
            let own = own.map(|cookie| (cookie, self.exp()));
            let is_open = |f: &Fid| core.opens.is_open_but(f, own);
            namespace::unlink(&mut t, &cred, at, false, &is_open, self.time(r.time))?;
        }
        let (files, cookies): (Vec<Fid>, Vec<u64>) = closed.into_iter().unzip();
        let mut a = self.answer(0);
        pre.tell(&mut a);
        a.msg
            .push(&MdtBody::default())
            .push_bytes(coral_wire::raw::encode_all(&files))
            .push_empty();
        let dir = t.get(&r.fid1)?;
        self.push_parents(&mut a, [Some((r.fid1, t.ino(dir))), None]);
        self.commit(t, &mut a)?;
        for cookie in cookies {
            core.opens.remove(cookie, self.exp());
        }
        drop(guard);
        self.call_back(&fids);
        Ok(a)
    }

    /// A replay of what is on disk closes what it closed: those opens were replayed before it.
    pub(super) fn lent_again(&self) -> MdtResult<()> {
        let lent = self.lent_names()?;
        let core = &mut *self.core();
        for n in &lent {
            if let Some(cookie) = self.given_up(core, n.open, Some(n.fid)) {
                core.opens.remove(cookie, self.exp());
            }
        }
        Ok(())
    }

    /// Others that have locks on these objects are asked for them: a name has gone.
    fn call_back(&self, fids: &[Fid]) {
        let (ops, own) = (self.ops.clone(), self.own());
        let is_others = |f: &&Fid| ops.ldlm.others_on(self.exp(), f.res_id());
        let seen: Vec<Fid> = fids.iter().filter(is_others).copied().collect();
        if !seen.is_empty() {
            tokio::spawn(async move {
                for fid in seen {
                    drop(ops.lock(&[], &[(fid, NAME_BITS)], own).await);
                }
            });
        }
    }

    /// The names, with what they stand for. EPROTO: it is no such request.
    fn lent_names(&self) -> MdtResult<Vec<LentName<'_>>> {
        let (names, fids, opens) = (self.name(3), self.buf(6), self.buf(7));
        let names: Vec<&[u8]> = names.split(|b| *b == 0).take(LENT_MAX + 1).collect();
        let fids: Vec<Fid> = coral_wire::raw::decode_all(fids);
        let mut opens: Vec<u64> = coral_wire::raw::decode_all(opens);
        if opens.is_empty() {
            opens = vec![0; fids.len()];
        }
        if names.len() > LENT_MAX || fids.len() != names.len() || opens.len() != names.len() {
            return Err(Errno::EPROTO.into());
        }
        let all = names.into_iter().zip(fids).zip(opens);
        Ok(all
            .map(|((name, fid), open)| LentName { name, fid, open })
            .collect())
    }
}

/// A name that goes from a directory that is lent.
struct LentName<'a> {
    name: &'a [u8],
    fid: Fid,
    /// Handle of an open that is closed with it; 0: none.
    open: u64,
}
