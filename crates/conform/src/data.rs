//! Data: reads, writes, appends, holes, truncates, preallocation, O_DIRECT.

use crate::check::{Check, Env, Seen, errno, is, may, must, open, say};
use libc::*;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

const MIB: usize = 1 << 20;

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    out.truncate(len);
    out
}

/// `ok`, or where two buffers first differ.
pub(crate) fn same(got: &[u8], want: &[u8]) -> Seen {
    let at = got.iter().zip(want).position(|(a, b)| a != b);
    is(got == want, || {
        at.map_or(
            format!("{} bytes instead of {}", got.len(), want.len()),
            |at| format!("differs at byte {at}"),
        )
    })
}

/// A file made and truncated; its length and what is there.
fn truncated(e: &Env, lens: &[u64]) -> io::Result<Vec<u8>> {
    let f = open(e.file("f", pattern(10_000, 1))?, O_RDWR)?;
    for len in lens {
        f.set_len(*len)?;
    }
    fs::read(e.p("f"))
}

pub(crate) const CHECKS: &[Check] = &[
    must("3 MiB and 5 bytes come back", "ok", |e| {
        let p = pattern(3 * MIB + 5, 2);
        same(&fs::read(e.file("f", &p)?)?, &p)
    }),
    must("writes at odd places of a file, read as one", "ok", |e| {
        let f = File::create(e.p("f"))?;
        let mut want = vec![0; 700_000];
        for i in 0..40u64 {
            let at = (i * 7_919 * 37) % 690_000;
            let p = pattern(1 + (i as usize * 531) % 9_000, i);
            f.write_all_at(&p, at)?;
            let end = (at as usize + p.len()).min(want.len());
            want[at as usize..end].copy_from_slice(&p[..end - at as usize]);
        }
        let len = f.metadata()?.len().min(700_000) as usize;
        same(&fs::read(e.p("f"))?[..len], &want[..len])
    }),
    must("a hole reads as zeros", "ok", |e| {
        let f = File::create(e.p("f"))?;
        f.write_all_at(b"end", 5_000_000)?;
        let got = fs::read(e.p("f"))?;
        is(
            got.len() == 5_000_003 && got[..5_000_000].iter().all(|b| *b == 0),
            || "other bytes".into(),
        )
    }),
    must("a hole takes no room", "ok", |e| {
        let f = File::create(e.p("f"))?;
        f.write_all_at(b"end", 64 << 20)?;
        f.sync_all()?;
        let blocks = f.metadata()?.blocks();
        is(blocks < 2 * (8 << 20) / 512, || format!("{blocks} blocks"))
    }),
    must("a byte 1 TiB into a file", "1099511627777 x", |e| {
        let f = open(e.p("f"), O_RDWR | O_CREAT)?;
        f.write_all_at(b"x", 1 << 40)?;
        let mut b = [0];
        f.read_exact_at(&mut b, 1 << 40)?;
        Ok(format!("{} {}", f.metadata()?.len(), b[0] as char))
    }),
    must(
        "O_APPEND writes at the end, wherever others write",
        "abcdef",
        |e| {
            let (mut a, mut b) = (
                open(e.p("f"), O_WRONLY | O_CREAT | O_APPEND)?,
                open(e.p("f"), O_WRONLY | O_CREAT | O_APPEND)?,
            );
            for (i, t) in ["ab", "cd", "ef"].iter().enumerate() {
                if i % 2 == 0 { &mut a } else { &mut b }.write_all(t.as_bytes())?;
            }
            fs::read_to_string(e.p("f"))
        },
    ),
    must(
        "pwrite with O_APPEND appends, as Linux does",
        "oldnew",
        |e| {
            open(e.file("f", "old")?, O_WRONLY | O_APPEND)?.write_all_at(b"new", 0)?;
            fs::read_to_string(e.p("f"))
        },
    ),
    must("O_TRUNC empties", "0", |e| {
        open(e.file("f", "text")?, O_WRONLY | O_TRUNC)?;
        Ok(fs::metadata(e.p("f"))?.len().to_string())
    }),
    must("truncate cuts", "ok", |e| {
        same(&truncated(e, &[1234])?, &pattern(10_000, 1)[..1234])
    }),
    must("truncate down and up leaves zeros", "ok", |e| {
        let mut want = pattern(10_000, 1);
        want[100..].fill(0);
        same(&truncated(e, &[100, 10_000])?, &want)
    }),
    must("truncate to more than a page boundary away", "ok", |e| {
        let mut want = pattern(10_000, 1);
        want.resize(3 * MIB, 0);
        same(&truncated(e, &[3 * MIB as u64])?, &want)
    }),
    must("ftruncate of a file open for reading", "EINVAL", |e| {
        Ok(say(open(e.file("f", "")?, O_RDONLY)?.set_len(1)))
    }),
    must("truncate of a directory", "EISDIR", |e| {
        Ok(say(rustix::fs::open(
            e.subdir("d")?,
            rustix::fs::OFlags::WRONLY,
            rustix::fs::Mode::empty(),
        )))
    }),
    must("read at and behind the end", "0 0", |e| {
        let f = File::open(e.file("f", "text")?)?;
        Ok(format!(
            "{} {}",
            f.read_at(&mut [0; 8], 4)?,
            f.read_at(&mut [0; 8], 1 << 30)?
        ))
    }),
    must("read over the end gives what is there", "2", |e| {
        Ok(File::open(e.file("f", "text")?)?
            .read_at(&mut [0; 8], 2)?
            .to_string())
    }),
    must("read of a directory", "EISDIR", |e| {
        Ok(say(File::open(e.subdir("d")?)?.read(&mut [0; 8])))
    }),
    must("write through a descriptor for reading", "EBADF", |e| {
        Ok(say(File::open(e.file("f", "")?)?.write(b"x")))
    }),
    must("read through a descriptor for writing", "EBADF", |e| {
        Ok(say(open(e.file("f", "")?, O_WRONLY)?.read(&mut [0; 1])))
    }),
    must(
        "a write is seen by another descriptor at once",
        "new",
        |e| {
            let r = File::open(e.file("f", "old")?)?;
            open(e.p("f"), O_WRONLY)?.write_all_at(b"new", 0)?;
            let mut b = [0; 3];
            r.read_exact_at(&mut b, 0)?;
            Ok(String::from_utf8_lossy(&b).into_owned())
        },
    ),
    must(
        "four threads write a file, each its own blocks",
        "ok",
        |e| {
            let f = File::create(e.p("f"))?;
            std::thread::scope(|s| {
                let all: Vec<_> = (0..4u64)
                    .map(|t| {
                        let f = &f;
                        s.spawn(move || {
                            (0..16).try_for_each(|i| {
                                f.write_all_at(&pattern(10_000, t + 1), (i * 4 + t) * 10_000)
                            })
                        })
                    })
                    .collect();
                all.into_iter().try_for_each(|h| {
                    h.join()
                        .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
                })
            })?;
            let want: Vec<u8> = (0..64u64)
                .flat_map(|i| pattern(10_000, i % 4 + 1))
                .collect();
            same(&fs::read(e.p("f"))?, &want)
        },
    ),
    must(
        "fsync, fdatasync and fsync of a directory",
        "ok ok ok",
        |e| {
            let f = open(e.file("f", "text")?, O_RDWR)?;
            Ok(format!(
                "{} {} {}",
                say(f.sync_all()),
                say(f.sync_data()),
                say(File::open(&e.dir)?.sync_all())
            ))
        },
    ),
    must(
        "SEEK_DATA and SEEK_HOLE keep data apart from the end",
        "ok",
        |e| {
            let f = File::create(e.p("f"))?;
            f.write_all_at(&pattern(4096, 3), 4 << 20)?;
            f.sync_all()?;
            let f = File::open(e.p("f"))?;
            let data = seek(&f, SeekFrom::Data(0))?;
            let hole = seek(&f, SeekFrom::Hole(4 << 20))?;
            is(data <= 4 << 20 && hole == (4 << 20) + 4096, || {
                format!("data at {data}, hole at {hole}")
            })
        },
    ),
    must("SEEK_DATA behind the end", "ENXIO", |e| {
        Ok(say(seek(
            File::open(e.file("f", "text")?)?,
            SeekFrom::Data(100),
        )))
    }),
    may("fallocate makes a file longer", "5000", |e| {
        allocated(e, FallocateFlags::empty()).map(|f| f.0)
    }),
    may("fallocate with KEEP_SIZE does not", "0", |e| {
        allocated(e, FallocateFlags::KEEP_SIZE).map(|f| f.0)
    }),
    may("PUNCH_HOLE leaves zeros and the size", "ok", |e| {
        let f = open(e.file("f", pattern(100_000, 4))?, O_RDWR)?;
        fallocate(
            &f,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            5_000,
            50_000,
        )?;
        let mut want = pattern(100_000, 4);
        want[5_000..55_000].fill(0);
        same(&fs::read(e.p("f"))?, &want)
    }),
    may("O_DIRECT writes what O_DIRECT reads", "ok", |e| {
        let (f, p) = (
            open(e.p("f"), O_RDWR | O_CREAT | O_DIRECT)?,
            Aligned::new(pattern(MIB, 5)),
        );
        f.write_all_at(p.bytes(), 0)?;
        let mut got = Aligned::new(vec![0; MIB]);
        f.read_exact_at(got.bytes_mut(), 0)?;
        same(got.bytes(), p.bytes())
    }),
    may(
        "O_DIRECT and ordinary descriptors see each other",
        "ok",
        |e| {
            let (d, f) = (
                open(e.p("f"), O_RDWR | O_CREAT | O_DIRECT)?,
                open(e.p("f"), O_RDWR)?,
            );
            f.write_all_at(&pattern(MIB, 6), 0)?;
            let p = Aligned::new(pattern(8192, 7));
            d.write_all_at(p.bytes(), 4096)?;
            let mut want = pattern(MIB, 6);
            want[4096..12288].copy_from_slice(p.bytes());
            let mut got = vec![0; MIB];
            f.read_exact_at(&mut got, 0)?;
            same(&got, &want)
        },
    ),
    must("copy_file_range copies", "ok", |e| {
        let (a, b) = (
            File::open(e.file("a", pattern(300_000, 8))?)?,
            File::create(e.p("b"))?,
        );
        let mut left = 300_000;
        while left > 0 {
            match rustix::fs::copy_file_range(&a, None, &b, None, left)? {
                0 => break,
                n => left -= n,
            }
        }
        same(&fs::read(e.p("b"))?, &pattern(300_000, 8))
    }),
    must(
        "statfs says something",
        "ok",
        |e| match rustix::fs::statvfs(&e.dir) {
            Ok(s) => is(
                s.f_blocks > 0 && s.f_bavail <= s.f_blocks && s.f_namemax == 255,
                || {
                    format!(
                        "{} blocks, {} free, names of {}",
                        s.f_blocks, s.f_bavail, s.f_namemax
                    )
                },
            ),
            Err(err) => Ok(errno(&err.into())),
        },
    ),
];

/// Size of a new file after `fallocate` of 5000 bytes.
fn allocated(e: &Env, flags: FallocateFlags) -> io::Result<(String, File)> {
    let f = File::create(e.p("f"))?;
    fallocate(&f, flags, 0, 5_000)?;
    Ok((f.metadata()?.len().to_string(), f))
}

/// Bytes at a 4 KiB boundary, as O_DIRECT wants them.
struct Aligned {
    room: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: Vec<u8>) -> Aligned {
        let len = bytes.len();
        let mut room = vec![0; len + 4096];
        let at = room.as_ptr().align_offset(4096);
        room[at..at + len].copy_from_slice(&bytes);
        Aligned { room, at, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.at..self.at + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.at..self.at + self.len]
    }
}
