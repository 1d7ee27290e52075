//! The servers are restarted under a client: it goes on, and nothing that was acknowledged is lost.

use crate::check::{Check, Env, Seen, is, must, open, say};
use crate::data::{pattern, same};
use crate::locks::two;
use crate::sys::{Lock, lock};
use libc::{O_APPEND, O_CREAT, O_RDWR, O_WRONLY};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Restarts the servers as the run was told to.
fn restart(e: &Env) -> io::Result<()> {
    let command = e.restart.as_deref().unwrap_or("false");
    match Command::new("sh").arg("-c").arg(command).status()? {
        s if s.success() => Ok(()),
        s => Err(io::Error::other(format!("'{command}': {s}"))),
    }
}

/// Does `work` over and over while the servers are restarted; how often, and the first error.
fn meanwhile(
    e: &Env,
    work: impl Fn(usize) -> io::Result<()> + Sync,
) -> io::Result<(usize, String)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let worker = s.spawn(|| {
            let mut n = 0;
            while !done.load(Relaxed) {
                if let Err(e) = work(n) {
                    return (n, say::<(), _>(Err(e)));
                }
                n += 1;
            }
            // and a little on afterwards
            match (n..n + 20).try_for_each(&work) {
                Ok(()) => (n + 20, "ok".to_string()),
                Err(e) => (n, say::<(), _>(Err(e))),
            }
        });
        let restarted = restart(e);
        done.store(true, Relaxed);
        let out = worker
            .join()
            .map_err(|_| io::Error::other("the worker panicked"));
        restarted.and(out)
    })
}

fn ends_well(
    e: &Env,
    work: impl Fn(usize) -> io::Result<()> + Sync,
    check: impl FnOnce(usize) -> Seen,
) -> Seen {
    match meanwhile(e, work)? {
        (n, said) if said == "ok" => check(n),
        (n, said) => Ok(format!("{said} in round {n}")),
    }
}

pub(crate) const CHECKS: &[Check] = &[
    must("files and names outlive a restart", "ok", |e| {
        let p = pattern(2_000_000, 1);
        e.file("f", &p)?;
        fs::create_dir(e.p("d"))?;
        fs::hard_link(e.p("f"), e.p("d").join("g"))?;
        restart(e)?;
        let m = fs::metadata(e.p("f"))?;
        match same(&fs::read(e.p("d").join("g"))?, &p)? {
            s if s == "ok" => is(m.nlink() == 2, || format!("{} links", m.nlink())),
            s => Ok(s),
        }
    }),
    must("an open file goes on", "ok", |e| {
        let f = open(e.file("f", pattern(10_000, 1))?, O_RDWR)?;
        restart(e)?;
        f.write_all_at(b"after", 5_000)?;
        let mut got = vec![0; 10_000];
        f.read_exact_at(&mut got, 0)?;
        let mut want = pattern(10_000, 1);
        want[5_000..5_005].copy_from_slice(b"after");
        same(&got, &want)
    }),
    must("an unlinked open file goes on", "text", |e| {
        let mut f = open(e.file("f", "text")?, O_RDWR)?;
        fs::remove_file(e.p("f"))?;
        restart(e)?;
        let mut text = String::new();
        f.read_to_string(&mut text)?;
        Ok(text)
    }),
    must(
        "a write that was not synced outlives a restart",
        "ok",
        |e| {
            let f = open(e.p("f"), O_RDWR | O_CREAT)?;
            f.write_all_at(&pattern(500_000, 2), 0)?;
            restart(e)?;
            drop(f);
            same(&fs::read(e.p("f"))?, &pattern(500_000, 2))
        },
    ),
    must("names made while the servers are away", "ok", |e| {
        ends_well(
            e,
            |n| fs::write(e.p(&format!("f{n}")), format!("{n}")),
            |n| {
                let wrong = (0..n)
                    .filter(|i| {
                        fs::read_to_string(e.p(&format!("f{i}"))).ok() != Some(i.to_string())
                    })
                    .count();
                is(wrong == 0, || format!("{wrong} of {n} wrong"))
            },
        )
    }),
    must("appends while the servers are away", "ok", |e| {
        fs::write(e.p("f"), "")?;
        ends_well(
            e,
            |n| open(e.p("f"), O_WRONLY | O_APPEND)?.write_all(format!("{n}\n").as_bytes()),
            |n| {
                let want: String = (0..n).map(|i| format!("{i}\n")).collect();
                same(&fs::read(e.p("f"))?, want.as_bytes())
            },
        )
    }),
    must("renames while the servers are away", "1", |e| {
        e.file("f0", "x")?;
        ends_well(
            e,
            |n| fs::rename(e.p(&format!("f{n}")), e.p(&format!("f{}", n + 1))),
            |_| Ok(fs::read_dir(&e.dir)?.count().to_string()),
        )
    }),
    must("a record lock is still held", "EAGAIN", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        restart(e)?;
        Ok(say(lock(&b, Lock::Write, 0, 100, false)))
    }),
];
