//! Locks of files: records (by open file, so that one process can contend with itself) and flock.

use crate::check::{Check, Env, is, must, open, say};
use crate::sys::{Lock, lock, pause, test_lock};
use libc::{O_CREAT, O_RDWR};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

/// Two descriptions of one new file, the second through the other mount if there is one.
pub(crate) fn two(e: &Env) -> io::Result<(File, File)> {
    let a = open(e.p("f"), O_RDWR | O_CREAT)?;
    Ok((a, open(e.o("f"), O_RDWR)?))
}

/// Whether `wait` is still waiting while `during` is awaited, and ends once `free` was called: `waited, got`.
pub(crate) fn waits(
    wait: impl FnOnce() -> io::Result<()> + Send,
    free: impl FnOnce() -> io::Result<()>,
) -> io::Result<String> {
    let (tx, rx) = mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(move || tx.send(wait()));
        let early = rx.recv_timeout(Duration::from_millis(300));
        free()?;
        let late = match early {
            Ok(r) => return Ok(format!("did not wait, {}", say(r))),
            Err(_) => rx.recv_timeout(Duration::from_secs(60)),
        };
        Ok(late.map_or("waits for ever".into(), |r| format!("waited, {}", say(r))))
    })
}

pub(crate) const CHECKS: &[Check] = &[
    must("a write lock keeps others out", "EAGAIN or EACCES", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        Ok(say(lock(&b, Lock::Write, 50, 100, false)))
    }),
    must("ranges that do not touch go together", "ok", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        Ok(say(lock(&b, Lock::Write, 100, 100, false)))
    }),
    must(
        "read locks go together, a write lock does not",
        "ok EAGAIN",
        |e| {
            let (a, b) = two(e)?;
            lock(&a, Lock::Read, 0, 100, false)?;
            Ok(format!(
                "{} {}",
                say(lock(&b, Lock::Read, 0, 100, false)),
                say(lock(&b, Lock::Write, 0, 10, false))
            ))
        },
    ),
    must(
        "unlocking the middle leaves both ends",
        "EAGAIN ok EAGAIN",
        |e| {
            let (a, b) = two(e)?;
            lock(&a, Lock::Write, 0, 100, false)?;
            lock(&a, Lock::Unlock, 40, 20, false)?;
            let t = |at| say(lock(&b, Lock::Write, at, 1, false));
            Ok(format!("{} {} {}", t(39), t(40), t(60)))
        },
    ),
    must("a lock to the end of the file has no end", "EAGAIN", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 10, 0, false)?;
        Ok(say(lock(&b, Lock::Write, 1 << 50, 1, false)))
    }),
    must("who holds what is told", "Write 10 20", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 10, 20, false)?;
        Ok(test_lock(&b, Lock::Read, 0, 100)?
            .map_or("nothing".into(), |(k, s, l)| format!("{k:?} {s} {l}")))
    }),
    must("nothing is told of a free range", "nothing", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 10, 20, false)?;
        Ok(test_lock(&b, Lock::Write, 30, 100)?.map_or("nothing".into(), |l| format!("{l:?}")))
    }),
    must("close gives locks back", "ok", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        drop(a);
        // the close may be told to the server after close() has returned
        let tries = (0..100).map(|_| lock(&b, Lock::Write, 0, 100, false));
        let last = tries
            .inspect(|r| {
                if r.is_err() {
                    pause(50)
                }
            })
            .find(Result::is_ok);
        is(last.is_some(), || "still held".into())
    }),
    must("a write lock can become a read lock", "ok", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        lock(&a, Lock::Read, 0, 100, false)?;
        Ok(say(lock(&b, Lock::Read, 0, 100, false)))
    }),
    must(
        "a waiting lock gets it when it is free",
        "waited, ok",
        |e| {
            let (a, b) = two(e)?;
            lock(&a, Lock::Write, 0, 100, false)?;
            waits(
                || lock(&b, Lock::Write, 0, 100, true),
                || lock(&a, Lock::Unlock, 0, 100, false),
            )
        },
    ),
    must("flock: exclusive keeps others out", "EAGAIN", |e| {
        let (a, b) = two(e)?;
        flock(&a, FlockOperation::LockExclusive)?;
        Ok(say(flock(&b, FlockOperation::NonBlockingLockShared)))
    }),
    must("flock: shared goes together", "ok", |e| {
        let (a, b) = two(e)?;
        flock(&a, FlockOperation::LockShared)?;
        Ok(say(flock(&b, FlockOperation::NonBlockingLockShared)))
    }),
    must("flock: the waiting one gets it", "waited, ok", |e| {
        let (a, b) = two(e)?;
        flock(&a, FlockOperation::LockExclusive)?;
        waits(
            || Ok(flock(&b, FlockOperation::LockExclusive)?),
            || Ok(flock(&a, FlockOperation::Unlock)?),
        )
    }),
    must(
        "flock: shared to exclusive waits for the other",
        "waited, ok",
        |e| {
            let (a, b) = two(e)?;
            flock(&a, FlockOperation::LockShared)?;
            flock(&b, FlockOperation::LockShared)?;
            waits(
                || Ok(flock(&b, FlockOperation::LockExclusive)?),
                || Ok(flock(&a, FlockOperation::Unlock)?),
            )
        },
    ),
];
