//! Open (`lustre/mdt/mdt_open.c`); `closing` has the other end.
//!
//! An open may look a name up, create the file with its layout, give an open handle and a lock,
//! all in one transaction. Replayed after a restart it opens by FID what it opened then; a file
//! that lost its last name meanwhile is still there as an orphan.

mod layout;
mod lease;
mod untold;

use bytes::Bytes;
use coral_wire::coral::{KEEPS_ATTRS, MAY_MAKE};
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmRequest};
use coral_wire::mds::{MdtRecReint, RecCreate, bias, disp, open as flag};
use coral_wire::{ConnectFlags, Errno, Fid};

use super::core::MdtCore;
use super::cred::{FL_APPEND, FL_IMMUTABLE, MAY_EXEC, MAY_READ, MAY_WRITE, Ucred};
use super::ctx::{Answer, Ctx};
use super::intent::{Blocked, HeldObject, IntentOutcome};
use super::locks::HeldLocks;
use super::namespace::{self, At, NewObject};
use super::open_handles::OpenHandle;
use super::packed::Packed;
use super::record::{Inode, S_IFREG};
use super::reint::inherited_layout;
use super::store::{MdtResult, Store, Txn};
use super::stripe;

/// Times an open starts over with more locks.
const RETRIES: usize = 64;

/// An open request, taken apart.
struct Open<'a> {
    rec: RecCreate,
    cred: Ucred,
    flags: u64,
    name: &'a [u8],
    ea: &'a Bytes,
    replay: bool,
    /// The client has the directory to itself, and has told of the file already ([`super::lending`]).
    late: bool,
    /// See [`At::layout`].
    layout: u32,
}

impl Open<'_> {
    fn has(&self, bits: u64) -> bool {
        self.flags & bits != 0
    }

    fn by_fid(&self) -> bool {
        self.name.is_empty() || self.has(flag::BY_FID)
    }

    /// Whether it comes with the layout the file is to have.
    fn asks_layout(&self) -> bool {
        let replayed = self.replay && stripe::has_objects(self.ea);
        (self.has(flag::HAS_EA) || replayed) && !self.ea.is_empty() && !is_lmv_space(self.ea)
    }

    fn at(&self) -> At<'_> {
        At {
            parent: self.rec.fid1,
            name: self.name,
            layout: self.layout,
        }
    }
}

/// Bits of an open's lock: those a lookup gives, and those that it has where they are free.
const OPEN_BITS: Ibits = Ibits(Ibits::LOOKUP.0 | Ibits::PERM.0);
const OPEN_TRIES: Ibits = Ibits(Ibits::UPDATE.0 | Ibits::LAYOUT.0);

/// What must be locked before an open can go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenNeed {
    /// The directory a file is created in.
    Parent,
    /// The layout of a file that gets one.
    Layout(Fid),
    /// That nobody has a lease on the file; and its layout, if it gets one.
    Lease(Fid, bool),
    /// What another client keeps back, or changes.
    Blocked(Blocked),
}

/// How far an open came.
enum OpenStep {
    Done(Box<Answer>),
    OpenNeed(OpenNeed),
}

impl Ctx {
    /// An open without lock request (MDS_REINT with an open record).
    pub async fn reint_open(&self) -> MdtResult<Answer> {
        Err(Errno::EOPNOTSUPP.into())
    }

    /// IT_OPEN, with or without IT_CREAT.
    pub async fn intent_open(&self, req: &LdlmRequest) -> MdtResult<Answer> {
        let head: MdtRecReint = self.rq.rq.msg.get(3)?;
        let rec: RecCreate = self.rq.rq.msg.get(3)?;
        let mut cred = self.cred(&head);
        cred.umask = rec.umask;
        let o = Open {
            flags: rec.flags(),
            rec,
            cred,
            name: self.name(6),
            ea: self.buf(7),
            replay: self.rq.is_replay(),
            late: rec.flags() & flag::CREAT != 0 && self.is_late(rec.bias),
            layout: self.layout(rec.layout_ver),
        };
        let new = o.has(flag::LEASE) && o.has(flag::CREAT);
        if new || o.has(flag::VOLATILE | flag::RELEASE) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let mut held: Option<(OpenNeed, HeldLocks)> = None;
        let mut object = None;
        for _ in 0..RETRIES {
            let need = match self.try_open(req, &o, &mut held, &mut object) {
                Ok(OpenStep::Done(a)) => return Ok(*a),
                Ok(OpenStep::OpenNeed(need)) => need,
                Err(e) => {
                    let out = IntentOutcome {
                        disp: disp::IT_EXECD | disp::LOOKUP_EXECD,
                        error: Some(self.told(&e)),
                        lock: None,
                    };
                    return Ok(self.open_answer(&out, Packed::default(), None));
                }
            };
            // nothing is held while it waits: what it locks next may come before in the order of locks
            held = None;
            drop(object.take());
            let lock = match &need {
                OpenNeed::Parent => self.ops.lock(&[o.rec.fid1], &[], self.own()).await,
                OpenNeed::Layout(fid) => self.ops.lock_layout(fid).await,
                OpenNeed::Lease(fid, layout) => {
                    let layout = if *layout { Ibits::LAYOUT.0 } else { 0 };
                    let bits = Ibits(Ibits::OPEN.0 | layout);
                    self.ops.lock(&[], &[(*fid, bits)], None).await
                }
                OpenNeed::Blocked(Blocked::Kept(fid)) => {
                    Box::pin(self.end_keeping(fid)).await;
                    continue;
                }
                OpenNeed::Blocked(Blocked::Changing(fid, bits)) => {
                    object = Some(self.unchanged(fid, LdlmMode::PR, *bits).await?);
                    continue;
                }
            };
            if o.has(flag::LEASE) {
                // what stood in the way of the lease has gone; it is the client's to hold, not the server's
                drop(lock);
                continue;
            }
            held = Some((need, lock));
        }
        Err(Errno::EAGAIN.into())
    }

    fn try_open(
        &self,
        req: &LdlmRequest,
        o: &Open<'_>,
        held: &mut Option<(OpenNeed, HeldLocks)>,
        object: &mut Option<HeldObject>,
    ) -> MdtResult<OpenStep> {
        let early = self.ahead(|t| self.read_ahead(t, o));
        let mut guard = self.core();
        // it may have gone while this waited; whoever closes its handles takes the mutex after it is marked as gone
        if self.rq.exp.gone() {
            return Err(Errno::ENOTCONN.into());
        }
        let core = &mut *guard;
        if let Err(e) = core.opens.room(self.exp()) {
            tracing::warn!(client = %self.rq.exp.uuid, nid = %self.rq.rq.from, limits = ?core.opens.limits, "an open is refused: too many open files");
            return Ok(self.open_failed(0, e));
        }
        if o.late && !o.replay && !self.has_lent(&o.rec.fid1) {
            return Err(Errno::ESTALE.into());
        }
        let dir = Some(&o.rec.fid1).filter(|_| !o.by_fid() && !o.replay);
        if let Some(lent) = self.lent_to_other(core, dir, None)? {
            return Ok(OpenStep::OpenNeed(OpenNeed::Blocked(lent)));
        }
        let mut t = Txn::after(&self.ops.store, early);
        let found = match self.find_target(&mut t, o) {
            Ok(f) => f,
            Err(e) => return Ok(self.open_failed(disp::LOOKUP_POS, self.told(&e))),
        };
        match found {
            None if !o.has(flag::CREAT) || self.rq.replay_committed() => Ok(self.open_failed(
                disp::LOOKUP_NEG,
                if o.by_fid() { Errno::ENOENT } else { Errno(0) },
            )),
            None if o.late => self.create_open(req, o, core, t),
            Some(_) if o.late && !o.replay => Ok(self.open_failed(disp::LOOKUP_POS, Errno::ESTALE)),
            None => {
                // a lock that nobody has to give up first is taken here; it is let go of after the core's
                if held.is_none()
                    && let Some(lock) = self.ops.lock_now(&o.rec.fid1, self.own())
                {
                    *held = Some((OpenNeed::Parent, lock));
                }
                match held {
                    Some((OpenNeed::Parent, _)) => self.create_open(req, o, core, t),
                    _ => Ok(OpenStep::OpenNeed(OpenNeed::Parent)),
                }
            }
            Some(_) if o.has(flag::EXCL) && o.has(flag::CREAT) && !o.replay => {
                Ok(self.open_failed(disp::LOOKUP_POS, Errno::EEXIST))
            }
            Some(fid) if !core.store.is_here(&fid) => self.open_elsewhere(req, fid, object),
            Some(fid) => {
                let locked = held.as_ref().map(|(need, _)| *need);
                self.open_existing(req, o, core, t, (fid, locked), object)
            }
        }
    }

    /// Reads what an open will look at.
    fn read_ahead(&self, t: &mut Txn<'_>, o: &Open<'_>) -> MdtResult<()> {
        let found = self.find_target(t, o)?;
        let fid = match found {
            Some(fid) if self.is_here(&fid) => fid,
            None if o.has(flag::CREAT) => {
                inherited_layout(t, Some(&o.rec.fid1))?;
                o.rec.fid2
            }
            _ => return Ok(()),
        };
        t.find(&fid).map(drop)
    }

    /// The client is to open it on the MDT where it lies (`mdt_reint_open`).
    fn open_elsewhere(
        &self,
        req: &LdlmRequest,
        fid: Fid,
        object: &mut Option<HeldObject>,
    ) -> MdtResult<OpenStep> {
        let lock = match self.sure_lock(req, &fid, Ibits::LOOKUP, object)? {
            Ok(lock) => lock,
            Err(blocked) => return Ok(OpenStep::OpenNeed(OpenNeed::Blocked(blocked))),
        };
        let out = IntentOutcome {
            disp: disp::IT_EXECD | disp::LOOKUP_EXECD | disp::LOOKUP_POS,
            error: None,
            lock,
        };
        let body = super::remote::elsewhere(fid);
        let p = Packed {
            body,
            ..Packed::default()
        };
        Ok(OpenStep::Done(Box::new(self.open_answer(&out, p, None))))
    }

    /// What the open names, if it exists. A replay opens what it opened then, wherever it is now.
    fn find_target(&self, t: &mut Txn<'_>, o: &Open<'_>) -> MdtResult<Option<Fid>> {
        if o.replay && !o.rec.fid2.is_zero() {
            // gone since, or to be created again: what has its name now is another
            return Ok(t.find(&o.rec.fid2)?.map(|_| o.rec.fid2));
        }
        if o.by_fid() {
            // named by another MDT, the object comes first and its parent second (`mdt_cross_open`)
            let first = o.rec.fid2.is_zero() || o.rec.bias & bias::CROSS_REF != 0;
            let fid = if first { o.rec.fid1 } else { o.rec.fid2 };
            return Ok(t.find(&fid)?.map(|_| fid));
        }
        namespace::lookup(t, &o.cred, o.at())
    }

    /// An open that ends without a handle; `errno` 0: the disposition says it all.
    fn open_failed(&self, d: u64, errno: Errno) -> OpenStep {
        let out = IntentOutcome {
            disp: disp::IT_EXECD | disp::LOOKUP_EXECD | d,
            error: (errno.0 != 0).then_some(errno),
            lock: None,
        };
        OpenStep::Done(Box::new(self.open_answer(&out, Packed::default(), None)))
    }

    fn open_answer(&self, out: &IntentOutcome, p: Packed, parent: Option<(Fid, &Inode)>) -> Answer {
        let mut a = self.intent_answer(out);
        a.msg.push(&p.body).push_bytes(p.md).push_bytes(p.acl);
        self.push_parents(&mut a, [parent, None]);
        a.msg
            .push_bytes(Bytes::from_static(&[0; 16]))
            .push_empty()
            .push_empty()
            .push_bytes(p.default_lmv);
        a
    }

    /// Says that a layout was set, or was to be: a client keeps only such opens, and those that create, for replay after their
    /// close (`mdt_finish_open`, `mdc_free_open`).
    fn striped(&self) -> u64 {
        if self.rq.exp.connect().has(ConnectFlags::DISP_STRIPE) {
            disp::OPEN_STRIPE
        } else {
            0
        }
    }

    /// Creates the file and opens it; `t` has what was looked up.
    fn create_open(
        &self,
        req: &LdlmRequest,
        o: &Open<'_>,
        core: &mut MdtCore,
        mut t: Txn<'_>,
    ) -> MdtResult<OpenStep> {
        let created = disp::LOOKUP_NEG | disp::OPEN_CREATE;
        if o.has(flag::DIRECTORY) {
            return Ok(self.open_failed(created, Errno::EINVAL));
        }
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(&o.rec.fid1))?;
        pre.absent(1, &mut t, |t| t.store.lookup(&o.rec.fid1, o.name))?;
        // nothing is allocated for a file that may not be made
        if let Err(e) = self.check_create(&mut t, o) {
            return Ok(self.open_failed(created, self.told(&e)));
        }
        let lov = match self.new_layout(core, &mut t, o) {
            Ok(lov) => lov,
            Err(e) => return Ok(self.open_failed(created, self.told(&e))),
        };
        let fid = o.rec.fid2;
        let new = NewObject {
            fid,
            mode: S_IFREG | o.rec.mode & 0o7777,
            lov,
            time: self.time(o.rec.time),
            ..NewObject::default()
        };
        let parent = t.get(&o.rec.fid1)?;
        let times = (t.ino(parent).mtime, t.ino(parent).ctime);
        let h = match namespace::create(&mut t, &o.cred, o.at(), &new) {
            Ok(h) => h,
            Err(e) => return Ok(self.open_failed(created, self.told(&e))),
        };
        if o.late {
            // such requests may overtake each other, and what was told of the directory's times stays so
            let dir = t.change(parent);
            (dir.mtime, dir.ctime) = (dir.mtime.max(times.0), dir.ctime.max(times.1));
        }
        let lock = self.give_lock(req, &fid, OPEN_BITS, OPEN_TRIES);
        let keeps = self.may_keep(&o.rec, lock.is_some()) && core.opens.has_ample_room();
        let ample = keeps && core.opens.has_ample_room_for(self.exp());
        let more = ample && self.may_make_more(&o.rec.fid1);
        let mut p = self.pack_all(&core.store, &fid, t.ino(h), None)?;
        if !o.has(flag::DELAY_CREATE) || !p.md.is_empty() {
            p.body.valid |= coral_wire::mds::md::FLEASIZE;
        }
        p.body.open_handle = self.rq.target.node().next_cookie();
        let striped = if p.md.is_empty() { self.striped() } else { 0 };
        let out = IntentOutcome {
            disp: disp::IT_EXECD
                | disp::LOOKUP_EXECD
                | created
                | disp::OPEN_OPEN
                | striped
                | if keeps { KEEPS_ATTRS } else { 0 }
                | if more { MAY_MAKE } else { 0 },
            error: None,
            lock,
        };
        let mut a = self.open_answer(&out, p.clone(), Some((o.rec.fid1, t.ino(parent))));
        pre.tell(&mut a);
        if let Err(e) = self.commit(t, &mut a) {
            self.take_back(lock);
            return Err(e);
        }
        core.opens
            .insert(p.body.open_handle, self.new_handle(o, fid, keeps));
        Ok(OpenStep::Done(Box::new(a)))
    }

    fn new_handle(&self, o: &Open<'_>, fid: Fid, keeps: bool) -> OpenHandle {
        let old = if o.replay { o.rec.open_handle_old } else { 0 };
        OpenHandle {
            fid,
            flags: o.flags,
            export: self.exp(),
            old,
            keeps,
        }
    }

    fn check_create(&self, t: &mut Txn<'_>, o: &Open<'_>) -> MdtResult<()> {
        namespace::check_name(o.name)?;
        let h = t.get(&o.rec.fid1)?;
        let dir = t.ino(h);
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if dir.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        t.store
            .permit(&o.cred, &o.rec.fid1, dir, MAY_WRITE | MAY_EXEC)
    }

    /// A lock given with a reply that will not be sent. Later: the core's lock is held.
    fn take_back(&self, lock: Option<u64>) {
        let (ldlm, exp) = (self.ops.ldlm.clone(), self.exp());
        if let Some(cookie) = lock {
            tokio::spawn(async move { ldlm.cancel(exp, &[cookie]) });
        }
    }

    /// Opens what exists.
    fn open_existing(
        &self,
        req: &LdlmRequest,
        o: &Open<'_>,
        core: &mut MdtCore,
        mut t: Txn<'_>,
        (fid, locked): (Fid, Option<OpenNeed>),
        object: &mut Option<HeldObject>,
    ) -> MdtResult<OpenStep> {
        let h = t.get(&fid)?;
        let ino = t.ino(h).clone();
        if ino.nlink == 0 && !o.replay && !core.opens.is_open(&fid) {
            return Ok(self.open_failed(disp::LOOKUP_NEG, Errno::ENOENT));
        }
        if let Some(blocked) = self.kept_by_other(core, &fid, &ino)? {
            return Ok(OpenStep::OpenNeed(OpenNeed::Blocked(blocked)));
        }
        if let Err(e) = self.check_open(&core.store, o, &fid, &ino) {
            return Ok(self.open_failed(disp::LOOKUP_POS, self.told(&e)));
        }
        let found = disp::IT_EXECD | disp::LOOKUP_EXECD | disp::LOOKUP_POS;
        if !ino.is_reg() && !ino.is_dir() {
            // pipes, sockets, devices and links are opened by the client's kernel
            let lock = self.give_lock(req, &fid, OPEN_BITS, OPEN_TRIES);
            let p = self.pack_all(&core.store, &fid, &ino, None)?;
            return Ok(OpenStep::Done(Box::new(self.open_answer(
                &IntentOutcome {
                    disp: found,
                    error: None,
                    lock,
                },
                p,
                None,
            ))));
        }
        if let Err(e) = core
            .opens
            .conflict(&fid, o.flags)
            .or_else(|e| if o.replay { Ok(()) } else { Err(e) })
        {
            return Ok(self.open_failed(disp::LOOKUP_POS, e));
        }
        // who replays an open brings its lock back by itself
        let leases = o.has(flag::LEASE) && !o.replay;
        let lays_out = self.wants_layout(o, &ino);
        let lease = OpenNeed::Lease(fid, lays_out || leases);
        let alone = locked == Some(lease);
        if leases {
            if let Err(e) = self.may_lease(core, o, &fid, &ino) {
                return Ok(self.open_failed(disp::LOOKUP_POS, e));
            }
        } else if breaks_leases(o) && !alone && core.opens.is_leased(&fid) {
            return Ok(OpenStep::OpenNeed(lease));
        }
        let lov = match lays_out {
            true if locked != Some(OpenNeed::Layout(fid)) && !alone => {
                return Ok(OpenStep::OpenNeed(OpenNeed::Layout(fid)));
            }
            true => match self.late_layout(core, o, &fid) {
                Ok(lov) => lov,
                Err(e) => return Ok(self.open_failed(disp::LOOKUP_POS, self.told(&e))),
            },
            false => None,
        };
        let changed = lov.is_some();
        if let Some(lov) = lov {
            t.change(h).lov = lov;
        }
        let lock = match self.existing_lock(req, &fid, &ino, (leases, locked), object)? {
            Ok(lock) => lock,
            Err(blocked) => return Ok(OpenStep::OpenNeed(OpenNeed::Blocked(blocked))),
        };
        let leased = match leases {
            true if lock.is_none() => return Ok(OpenStep::OpenNeed(lease)),
            true => disp::OPEN_LOCK | disp::OPEN_LEASE,
            false => 0,
        };
        let mut p = self.pack_all(&core.store, &fid, t.ino(h), None)?;
        p.body.open_handle = self.rq.target.node().next_cookie();
        let striped = if changed { self.striped() } else { 0 };
        let out = IntentOutcome {
            disp: found | disp::OPEN_OPEN | striped | leased,
            error: None,
            lock,
        };
        let mut a = self.open_answer(&out, p.clone(), None);
        let committed = if changed {
            self.commit(t, &mut a)
        } else {
            self.commit_empty(&mut a)
        };
        if let Err(e) = committed {
            self.take_back(lock);
            return Err(e);
        }
        let keeps = o.replay && self.may_keep(&o.rec, false);
        core.opens
            .insert(p.body.open_handle, self.new_handle(o, fid, keeps));
        Ok(OpenStep::Done(Box::new(a)))
    }

    /// The lock that comes with the open of what exists, or what it waits for. While our own lock is held, its bit is left out.
    fn existing_lock(
        &self,
        req: &LdlmRequest,
        fid: &Fid,
        ino: &Inode,
        (leases, locked): (bool, Option<OpenNeed>),
        object: &mut Option<HeldObject>,
    ) -> MdtResult<Result<Option<u64>, Blocked>> {
        let waits = matches!(locked, None | Some(OpenNeed::Parent)) && !leases;
        if waits && self.believes_layouts(ino) {
            let bits = Ibits(OPEN_BITS.0 | OPEN_TRIES.0);
            return self.sure_lock(req, fid, bits, object);
        }
        Ok(Ok(match ino.is_dir() {
            true => None,
            false if leases => self.lease_lock(req, fid),
            false => self.give_lock(req, fid, OPEN_BITS, OPEN_TRIES),
        }))
    }

    /// May this caller open the object so (`mdd_open_sanity_check`)?
    fn check_open(&self, store: &Store, o: &Open<'_>, fid: &Fid, ino: &Inode) -> MdtResult<()> {
        if o.has(flag::DIRECTORY) && !ino.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if ino.is_dir() && (o.has(flag::WRITE | flag::TRUNC) || (o.has(flag::CREAT) && !o.by_fid()))
        {
            return Err(Errno::EISDIR.into());
        }
        if o.replay || ino.is_symlink() {
            return Ok(());
        }
        let mut want = wanted(o.flags);
        if o.asks_layout() && ino.is_reg() && ino.lov.is_empty() {
            // the file changes, whatever it is opened for
            want |= MAY_WRITE;
        }
        if o.has(flag::OWNEROVERRIDE) && o.cred.uid == ino.uid {
            want = 0;
        }
        if ino.flags & FL_IMMUTABLE != 0 && want & MAY_WRITE != 0 {
            return Err(Errno::EPERM.into());
        }
        store.permit(&o.cred, fid, ino, want)?;
        if ino.flags & FL_APPEND != 0
            && (o.has(flag::TRUNC) || (o.has(flag::WRITE) && !o.has(flag::APPEND)))
        {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }
}

/// Permissions that an open with `flags` needs. What is opened to be executed is read too, but needs no more than execute
/// permission for that (`mds_accmode` in `lustre/include/lustre_mds.h`); to write it needs write permission besides.
fn wanted(flags: u64) -> u32 {
    let write = if flags & (flag::WRITE | flag::TRUNC | flag::APPEND) != 0 {
        MAY_WRITE
    } else {
        0
    };
    let read = match flags {
        f if f & flag::EXEC != 0 => MAY_EXEC,
        f if f & flag::READ != 0 => MAY_READ,
        _ => 0,
    };
    read | write
}

/// Whether others must give up their leases on what is opened so.
fn breaks_leases(o: &Open<'_>) -> bool {
    o.has(flag::WRITE | flag::TRUNC) && !o.has(flag::LEASE) && !o.replay
}

/// A kernel client sends room for an LMV attribute, all zero, where a layout may be.
fn is_lmv_space(ea: &[u8]) -> bool {
    ea.iter().take(4).all(|&b| b == 0)
}
