//! Mappings of files, within one mount.

use crate::check::{Check, Env, is, must, open};
use crate::data::{pattern, same};
use crate::sys::Map;
use libc::O_RDWR;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

const LEN: usize = 3 * 4096 + 100;

fn mapped(e: &Env, shared: bool) -> io::Result<(File, Map)> {
    let f = open(e.file("f", pattern(LEN, 1))?, O_RDWR)?;
    let m = Map::new(&f, LEN, shared)?;
    Ok((f, m))
}

pub(crate) const CHECKS: &[Check] = &[
    must("a mapping shows the file", "ok", |e| {
        same(&mapped(e, true)?.1.read(0, LEN), &pattern(LEN, 1))
    }),
    must("behind the end of the file the page is zeros", "ok", |e| {
        let f = open(e.file("f", pattern(100, 1))?, O_RDWR)?;
        same(&Map::new(&f, 4096, true)?.read(100, 3996), &[0; 3996])
    }),
    must("what is stored is read back after msync", "ok", |e| {
        let (_f, m) = mapped(e, true)?;
        m.write(5000, b"stored");
        m.sync()?;
        let got = fs::read(e.p("f"))?;
        is(got.len() == LEN && &got[5000..5006] == b"stored", || {
            "not there".into()
        })
    }),
    must("what is stored is read back without msync", "ok", |e| {
        let (f, m) = mapped(e, true)?;
        m.write(5000, b"stored");
        let mut got = [0; 6];
        f.read_exact_at(&mut got, 5000)?;
        same(&got, b"stored")
    }),
    must("what is written shows in the mapping", "ok", |e| {
        let (f, m) = mapped(e, true)?;
        m.read(0, LEN);
        f.write_all_at(b"written", 4090)?;
        same(&m.read(4090, 7), b"written")
    }),
    must("a private mapping keeps its stores", "ok", |e| {
        let (_f, m) = mapped(e, false)?;
        m.write(10, b"mine");
        is(
            m.read(10, 4) == b"mine" && fs::read(e.p("f"))? == pattern(LEN, 1),
            || "they went to the file".into(),
        )
    }),
    must("stores survive the end of the mapping", "ok", |e| {
        let (f, m) = mapped(e, true)?;
        m.write(1, b"stored");
        drop(m);
        f.sync_all()?;
        drop(f);
        same(&fs::read(e.p("f"))?[1..7], b"stored")
    }),
    must("two mappings of a file are one memory", "ok", |e| {
        let (_f, a) = mapped(e, true)?;
        let b = Map::new(&open(e.p("f"), O_RDWR)?, LEN, true)?;
        a.write(8000, b"one");
        same(&b.read(8000, 3), b"one")
    }),
    must("a truncated and grown file shows zeros", "ok", |e| {
        let (f, m) = mapped(e, true)?;
        m.read(0, LEN);
        f.set_len(4096)?;
        f.set_len(LEN as u64)?;
        same(&m.read(4096, LEN - 4096), &vec![0; LEN - 4096])
    }),
];
