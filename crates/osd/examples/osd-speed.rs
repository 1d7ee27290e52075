//! Measures an `OsdFs` in a directory against plain files in the same directory.
//!
//! `cargo run --release -p coral-osd --example osd-speed -- DIR [MiB]`

#![expect(
    clippy::disallowed_methods,
    reason = "a measuring program at the edge: real time is its purpose"
)]

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use coral_osd::{Batch, Kv, Label, ObjectId, Objects, OsdFs, SetAttr, Table, TargetKind, Time};

const MIB: usize = 1 << 20;
type Any = Box<dyn std::error::Error>;

fn main() -> Result<(), Any> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: osd-speed DIR [MiB]")?;
    let mib: usize = args.next().map_or(Ok(1024), |a| a.parse())?;
    let root = Path::new(&dir).join(format!("osd-speed-{}", std::process::id()));
    let result = run(&root, mib);
    let _ = std::fs::remove_dir_all(&root);
    result
}

fn run(root: &Path, mib: usize) -> Result<(), Any> {
    let label = Label {
        kind: TargetKind::Ost,
        fsname: "speed".into(),
        index: 0,
        uuid: "speed".into(),
        mgs_nids: vec![],
    };
    OsdFs::format(root, &label)?;
    let t = Instant::now();
    let (osd, _) = OsdFs::open(root)?;
    println!(
        "open                       {:8.1} ms",
        t.elapsed().as_secs_f64() * 1e3
    );
    // As a target does it: what was committed is synced every second meanwhile.
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(1000));
                let _ = Kv::sync(&osd).wait();
            }
        });
        let done = commits(&osd);
        stop.store(true, Ordering::Relaxed);
        done
    })?;
    streams(&osd, &root.join("plain"), mib)?;
    small_objects(&osd)?;
    Ok(())
}

fn commits(osd: &OsdFs) -> Result<(), Any> {
    const N: u64 = 200_000;
    let tables = [Table("inode"), Table("dirent"), Table("lastrcvd")];
    let mut us = Vec::new();
    for n in 0..N {
        let mut b = Batch::new();
        for k in 0..5u64 {
            let key = (n * 7919 + k).to_be_bytes().to_vec();
            b.put(tables[k as usize % 3], key, vec![k as u8; 160]);
        }
        let t = Instant::now();
        osd.commit(b).wait()?;
        us.push(t.elapsed().as_secs_f64() * 1e6);
    }
    let stalls = us.iter().filter(|us| **us > 1000.0).count();
    println!("commits over 1 ms          {stalls:8} of {N}");
    let mean = us.iter().sum::<f64>() / us.len() as f64;
    us.sort_by(f64::total_cmp);
    let at = |q: f64| us[((us.len() - 1) as f64 * q) as usize];
    println!(
        "commit of 5 keys           {mean:8.1} us mean, {:.1} median, {:.1} p99, {:.0} max",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    let t = Instant::now();
    for n in 0..N {
        osd.get(tables[0], &(n * 7919).to_be_bytes())?
            .ok_or("a row is missing")?;
    }
    println!(
        "get                        {:8.2} us",
        t.elapsed().as_secs_f64() * 1e6 / N as f64
    );
    let t = Instant::now();
    for _ in 0..20 {
        let mut b = Batch::new();
        b.put(tables[0], "k", "v");
        osd.commit(b).wait()?;
        Kv::sync(osd).wait()?;
    }
    println!(
        "commit and sync            {:8.2} ms",
        t.elapsed().as_secs_f64() * 1e3 / 20.0
    );
    Ok(())
}

fn streams(osd: &OsdFs, plain: &Path, mib: usize) -> Result<(), Any> {
    let data = Bytes::from(vec![0x5a; MIB]);
    let id = ObjectId { seq: 0, oid: 1 };
    let rate = |t: Instant| mib as f64 / t.elapsed().as_secs_f64();
    let report = |what: &str, plain: f64, osd: f64| {
        println!(
            "{what:26} {osd:8.0} MiB/s, plain file {plain:.0}, ratio {:.2}",
            osd / plain
        );
    };
    for round in 0..2 {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(plain)?;
        let t = Instant::now();
        for n in 0..mib {
            (&file).write_all(&data)?;
            std::hint::black_box(n);
        }
        let plain_write = rate(t);
        file.sync_all()?;
        let plain_synced = rate(t);
        osd.destroy(id).wait()?;
        let t = Instant::now();
        for n in 0..mib {
            osd.write(id, (n * MIB) as u64, std::slice::from_ref(&data))
                .wait()?;
            let now = Time {
                secs: 1_700_000_000,
                nsecs: n as u32,
            };
            let set = SetAttr {
                mtime: Some(now),
                ctime: Some(now),
                uid: Some(1),
                ..Default::default()
            };
            osd.set_attr(id, &set)?;
        }
        let osd_write = rate(t);
        osd.sync_object(id).wait()?;
        let osd_synced = rate(t);
        if round == 0 {
            continue;
        }
        report("write 1 MiB", plain_write, osd_write);
        report("write 1 MiB + sync", plain_synced, osd_synced);
        let mut buf = vec![0; MIB];
        let t = Instant::now();
        for n in 0..mib {
            file.read_exact_at(&mut buf, (n * MIB) as u64)?;
        }
        let plain_read = rate(t);
        let t = Instant::now();
        for n in 0..mib {
            let got = osd.read(id, (n * MIB) as u64, MIB).wait()?;
            assert_eq!(got.len(), MIB);
        }
        report("read 1 MiB, cached", plain_read, rate(t));
        drop_cache(&file)?;
        let t = Instant::now();
        for n in 0..mib {
            file.read_exact_at(&mut buf, (n * MIB) as u64)?;
        }
        let plain_read = rate(t);
        let object = std::fs::File::open(plain.with_file_name("objects/00/00/0-1"))?;
        drop_cache(&object)?;
        let t = Instant::now();
        let mut waits = 0;
        for n in 0..mib {
            let got = match osd.read(id, (n * MIB) as u64, MIB).now() {
                Ok(got) => got?,
                Err(later) => {
                    waits += 1;
                    later.wait()?
                }
            };
            assert_eq!(got.len(), MIB);
        }
        report("read 1 MiB, cold", plain_read, rate(t));
        println!("   of {mib} cold reads {waits} had to wait for the disk");
    }
    Ok(())
}

fn drop_cache(file: &std::fs::File) -> Result<(), Any> {
    file.sync_all()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

fn small_objects(osd: &OsdFs) -> Result<(), Any> {
    const N: u64 = 10_000;
    let data = Bytes::from(vec![1; 4096]);
    let t = Instant::now();
    for n in 0..N {
        let id = ObjectId {
            seq: 0,
            oid: 1000 + n,
        };
        osd.write(id, 0, std::slice::from_ref(&data)).wait()?;
        let now = Some(Time::from_secs(1_700_000_000));
        let set = SetAttr {
            mtime: now,
            ctime: now,
            uid: Some(1),
            gid: Some(1),
            ..Default::default()
        };
        osd.set_attr(id, &set)?;
    }
    println!(
        "create object of 4 KiB     {:8.1} us",
        t.elapsed().as_secs_f64() * 1e6 / N as f64
    );
    let t = Instant::now();
    for n in 0..N {
        osd.attr(ObjectId {
            seq: 0,
            oid: 1000 + n,
        })?
        .ok_or("an object is missing")?;
    }
    println!(
        "attributes, file closed    {:8.1} us",
        t.elapsed().as_secs_f64() * 1e6 / N as f64
    );
    let t = Instant::now();
    for n in 0..N {
        osd.destroy(ObjectId {
            seq: 0,
            oid: 1000 + n,
        })
        .wait()?;
    }
    println!(
        "destroy                    {:8.1} us",
        t.elapsed().as_secs_f64() * 1e6 / N as f64
    );
    Ok(())
}
