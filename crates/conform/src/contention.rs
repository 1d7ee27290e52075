//! Two clients that want the same at once: locks are called back all the time, and nothing may be lost, doubled or stuck.

use crate::check::{Check, Env, Seen, is, must, open};
use crate::sys::{Lock, lock};
use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDWR, O_WRONLY};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Threads on each mount.
const THREADS: usize = 2;
/// Rounds of each thread.
const ROUNDS: usize = 100;

/// Runs `work(thread, directory)` for some threads on each mount at once.
fn both<T: Send>(
    e: &Env,
    work: impl Fn(usize, &Path) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    std::thread::scope(|s| {
        let run = &work;
        let all: Vec<_> = (0..2 * THREADS)
            .map(|t| {
                let dir = if t % 2 == 0 { &e.dir } else { &e.other };
                s.spawn(move || run(t, dir))
            })
            .collect();
        all.into_iter()
            .map(|h| {
                h.join()
                    .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
            })
            .collect()
    })
}

/// As [`both`], for work that counts: the sum.
fn count(e: &Env, work: impl Fn(usize, &Path) -> io::Result<usize> + Sync) -> io::Result<usize> {
    Ok(both(e, work)?.into_iter().sum())
}

/// How many of the results are a success; errors other than `allowed` are an error.
fn won(results: Vec<io::Result<()>>, allowed: &[i32]) -> io::Result<usize> {
    let mut n = 0;
    for r in results {
        match r {
            Ok(()) => n += 1,
            Err(e) if e.raw_os_error().is_some_and(|c| allowed.contains(&c)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

fn read_number(f: &File) -> io::Result<u64> {
    let mut b = [0; 8];
    f.read_exact_at(&mut b, 0)?;
    Ok(u64::from_le_bytes(b))
}

fn each_round(
    e: &Env,
    allowed: &[i32],
    work: impl Fn(usize, &Path) -> io::Result<()> + Sync,
) -> Seen {
    for round in 0..ROUNDS / 4 {
        let n = won(both(e, |_, dir| Ok(work(round, dir)))?, allowed)?;
        if n != 1 {
            return Ok(format!("{n} in round {round}"));
        }
    }
    Ok("one each".into())
}

pub(crate) const CHECKS: &[Check] = &[
    must("appends: every line is there once, whole", "ok", |e| {
        File::create(e.p("f"))?;
        both(e, |t, dir| {
            let mut f = open(dir.join("f"), O_WRONLY | O_APPEND)?;
            (0..ROUNDS).try_for_each(|i| f.write_all(format!("thread {t} line {i}\n").as_bytes()))
        })?;
        let text = fs::read_to_string(e.o("f"))?;
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        text.lines().for_each(|l| *count.entry(l).or_default() += 1);
        let want =
            (0..2 * THREADS).flat_map(|t| (0..ROUNDS).map(move |i| format!("thread {t} line {i}")));
        let lost = want.filter(|l| count.get(l.as_str()) != Some(&1)).count();
        is(lost == 0 && count.len() == 2 * THREADS * ROUNDS, || {
            format!("{lost} lines lost or doubled of {}", count.len())
        })
    }),
    must("a counter under record locks counts all", "400", |e| {
        fs::write(e.p("f"), [0; 8])?;
        both(e, |_, dir| {
            let f = open(dir.join("f"), O_RDWR)?;
            for _ in 0..ROUNDS {
                lock(&f, Lock::Write, 0, 8, true)?;
                let n = read_number(&f)?;
                f.write_all_at(&(n + 1).to_le_bytes(), 0)?;
                lock(&f, Lock::Unlock, 0, 8, false)?;
            }
            Ok(())
        })?;
        Ok(read_number(&File::open(e.o("f"))?)?.to_string())
    }),
    must("O_EXCL: one creates", "one each", |e| {
        each_round(e, &[libc::EEXIST], |i, dir| {
            open(dir.join(format!("f{i}")), O_WRONLY | O_CREAT | O_EXCL).map(drop)
        })
    }),
    must("mkdir: one makes it", "one each", |e| {
        each_round(e, &[libc::EEXIST], |i, dir| {
            fs::create_dir(dir.join(format!("d{i}")))
        })
    }),
    must("unlink: one removes", "one each", |e| {
        (0..ROUNDS / 4).try_for_each(|i| File::create(e.p(&format!("f{i}"))).map(drop))?;
        each_round(e, &[libc::ENOENT], |i, dir| {
            fs::remove_file(dir.join(format!("f{i}")))
        })
    }),
    must(
        "rename away, each to a name of its own: one does it",
        "one each",
        |e| {
            // to one name for all, Linux calls the second rename a success when both names are found to be the same file
            for i in 0..ROUNDS / 4 {
                File::create(e.p(&format!("f{i}")))?;
                let n = won(
                    both(e, |t, dir| {
                        Ok(fs::rename(
                            dir.join(format!("f{i}")),
                            dir.join(format!("g{i}-{t}")),
                        ))
                    })?,
                    &[libc::ENOENT],
                )?;
                if n != 1 {
                    return Ok(format!("{n} in round {i}"));
                }
            }
            let left = fs::read_dir(&e.other)?.count();
            is(left == ROUNDS / 4, || format!("{left} names left"))
                .map(|s| if s == "ok" { "one each".into() } else { s })
        },
    ),
    must("a file replaced all the time is always whole", "ok", |e| {
        fs::write(e.p("f"), "0".repeat(5000))?;
        let torn = count(e, |t, dir| {
            let mut torn = 0;
            for i in 0..ROUNDS / 2 {
                if t < 2 {
                    let new = dir.join(format!("new{t}"));
                    fs::write(
                        &new,
                        char::from(b'0' + (i % 10) as u8).to_string().repeat(5000),
                    )?;
                    fs::rename(&new, dir.join("f"))?;
                } else {
                    let text = fs::read(dir.join("f"))?;
                    torn += (text.len() != 5000 || text.iter().any(|b| *b != text[0])) as usize;
                }
            }
            Ok(torn)
        })?;
        is(torn == 0, || format!("{torn} reads saw a mix"))
    }),
    must(
        "one block written by all is always one writer's",
        "ok",
        |e| {
            fs::write(e.p("f"), [0; 4096])?;
            let torn = count(e, |t, dir| {
                let f = open(dir.join("f"), O_RDWR)?;
                let mut torn = 0;
                for i in 0..ROUNDS {
                    f.write_all_at(&[(t * ROUNDS + i) as u8; 4096], 0)?;
                    let mut got = [0; 4096];
                    f.read_exact_at(&mut got, 0)?;
                    torn += got.iter().any(|b| *b != got[0]) as usize;
                }
                Ok(torn)
            })?;
            is(torn == 0, || format!("{torn} reads saw a mix"))
        },
    ),
    must("neighbours in one page do not undo each other", "ok", |e| {
        fs::write(e.p("f"), [0; 400])?;
        let wrong = count(e, |t, dir| {
            let f = open(dir.join("f"), O_RDWR)?;
            let mut wrong = 0;
            for i in 1..=ROUNDS {
                f.write_all_at(&[i as u8; 100], t as u64 * 100)?;
                let mut got = [0; 100];
                f.read_exact_at(&mut got, t as u64 * 100)?;
                wrong += (got != [i as u8; 100]) as usize;
            }
            Ok(wrong)
        })?;
        is(
            wrong == 0 && fs::read(e.o("f"))? == [ROUNDS as u8; 400],
            || format!("{wrong} own writes not read back"),
        )
    }),
    must(
        "names made and removed by all in one directory",
        "ok",
        |e| {
            both(e, |t, dir| {
                for i in 0..ROUNDS {
                    let f = dir.join(format!("t{t}-{i}"));
                    fs::write(&f, format!("{t} {i}"))?;
                    if fs::read_to_string(&f)? != format!("{t} {i}") {
                        return Err(io::Error::other("another's bytes"));
                    }
                    if i % 2 == 0 {
                        fs::remove_file(&f)?;
                    }
                }
                Ok(())
            })?;
            let (a, b) = (
                fs::read_dir(&e.dir)?.count(),
                fs::read_dir(&e.other)?.count(),
            );
            is(a == b && a == THREADS * ROUNDS, || {
                format!("{a} and {b} names")
            })
        },
    ),
    must(
        "directories moved into each other by all: no loop, nothing lost",
        "ok",
        |e| {
            for d in ["a", "b"] {
                e.subdir(d)?;
            }
            let refused = both(e, |t, dir| {
                let (from, to) = if t < 2 { ("a", "b") } else { ("b", "a") };
                let mut n = 0;
                for _ in 0..ROUNDS / 2 {
                    let inner = dir.join(to).join(from);
                    // either may be inside the other just now, and is taken out again
                    n += fs::rename(dir.join(from), &inner).is_err() as usize;
                    let _ = fs::rename(&inner, dir.join(from));
                }
                Ok(n)
            })?;
            let top = fs::read_dir(&e.other)?
                .flatten()
                .map(|d| d.path())
                .collect::<Vec<_>>();
            let inner: usize = top
                .iter()
                .map(|d| fs::read_dir(d).map_or(0, Iterator::count))
                .sum();
            is(top.len() + inner == 2, || {
                format!(
                    "{} and {inner} directories left, {refused:?} refused",
                    top.len()
                )
            })
        },
    ),
];
