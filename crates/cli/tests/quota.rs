//! `lfs quota` of a mount says what `find` and `du` count: for users, groups and a project, whatever happened to the files.

mod common;

use common::{Place, in_network_namespace, is_root, lfs, ok, until};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const USERS: [u32; 3] = [1001, 1002, 1003];
const GROUPS: [u32; 2] = [2001, 2002];
const PROJECT: u32 = 77;

/// KiB and inodes by kind of id and id.
type Used = BTreeMap<(char, u32), (u64, u64)>;

fn asked() -> impl Iterator<Item = (char, u32)> {
    let root = [('u', 0), ('g', 0)];
    USERS
        .map(|u| ('u', u))
        .into_iter()
        .chain(GROUPS.map(|g| ('g', g)))
        .chain(root)
        .chain([('p', PROJECT)])
}

/// What `lfs quota` says.
fn quotas(mnt: &Path) -> Used {
    asked()
        .map(|(kind, id)| {
            let said = ok(lfs()
                .args(["quota", "-q", &format!("-{kind}"), &id.to_string()])
                .arg(mnt));
            assert!(!said.contains("failed"), "{said}");
            let numbers: Vec<u64> = said
                .split_whitespace()
                .filter_map(|w| w.parse().ok())
                .collect();
            ((kind, id), (numbers[0], numbers[3]))
        })
        .collect()
}

/// What the files say, each once.
fn walked(mnt: &Path) -> Used {
    let mut bytes: BTreeMap<(char, u32), (u64, u64)> = asked().map(|of| (of, (0, 0))).collect();
    let mut seen = BTreeSet::new();
    let mut due = vec![mnt.to_path_buf()];
    while let Some(path) = due.pop() {
        let m = fs::symlink_metadata(&path).unwrap();
        if m.is_dir() {
            due.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        if !seen.insert(m.ino()) {
            continue;
        }
        let below = path.starts_with(mnt.join("project"));
        for of in [
            Some(('u', m.uid())),
            Some(('g', m.gid())),
            below.then_some(('p', PROJECT)),
        ]
        .into_iter()
        .flatten()
        {
            let sum = bytes.entry(of).or_default();
            *sum = (sum.0 + 512 * m.blocks(), sum.1 + 1);
        }
    }
    bytes
        .into_iter()
        .filter(|(of, _)| asked().any(|a| a == *of))
        .map(|(of, (b, n))| (of, (b.div_ceil(1024), n)))
        .collect()
}

/// OSTs hear of owners and of removed files in the background.
fn agrees(mnt: &Path, after: &str) -> Used {
    ok(Command::new("sync").arg("-f").arg(mnt));
    let mut last = (Used::new(), Used::new());
    let same = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("quotas agree", || {
            last = (quotas(mnt), walked(mnt));
            last.0 == last.1
        });
    }));
    assert!(
        same.is_ok(),
        "{after}: lfs quota says\n{:?}, the files\n{:?}",
        last.0,
        last.1
    );
    last.0
}

fn run_as(uid: u32, gid: u32, dir: &Path, script: &str) {
    ok(Command::new("sh")
        .args(["-ec", script])
        .current_dir(dir)
        .uid(uid)
        .gid(gid));
}

#[test]
fn quotas_are_what_the_files_say() {
    if !is_root() {
        return; // nobody else can make files of others
    }
    in_network_namespace("quotas_are_what_the_files_say", || {
        let place = Place::new();
        fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let up = ["--osts", "2", "--stripe-count", "2", "--stripe-size", "64K"];
        let running = place.up(&up);
        let mnt = place.make("mnt");
        agrees(&mnt, "new");
        for (i, uid) in USERS.into_iter().enumerate() {
            let gid = GROUPS[i % 2];
            let home = mnt.join(format!("u{uid}"));
            fs::create_dir(&home).unwrap();
            chown(&home, Some(uid), Some(gid)).unwrap();
            run_as(
                uid,
                gid,
                &home,
                "
                mkdir d
                for n in 1 2 3 4 5; do head -c $((n * 50000)) /dev/zero > d/f$n; done
                ln d/f1 d/again
                ln -s f1 d/link
                : > d/empty
                mkfifo d/pipe
            ",
            );
        }
        // another writes first to the second stripe of a file
        let first = mnt.join("u1001/d/half");
        run_as(1001, 2001, &mnt, "head -c 1000 /dev/zero > u1001/d/half");
        OpenOptions::new()
            .append(true)
            .open(&first)
            .unwrap()
            .write_all(&[1; 200_000])
            .unwrap();
        // data on the MDT
        let dom = mnt.join("dom");
        ok(lfs()
            .args(["setstripe", "-E", "64K", "-L", "mdt", "-E", "-1"])
            .arg(&dom));
        fs::write(&dom, vec![1; 150_000]).unwrap();
        let project = mnt.join("project");
        fs::create_dir(&project).unwrap();
        ok(lfs()
            .args(["project", "-p", &PROJECT.to_string(), "-s"])
            .arg(&project));
        fs::write(project.join("new"), vec![1; 150_000]).unwrap();
        let counted = agrees(&mnt, "writes");
        assert!(
            counted
                .values()
                .all(|(kib, inodes)| *kib > 100 && *inodes > 1),
            "{counted:?}"
        );

        chown(mnt.join("u1001/d/f5"), Some(1002), Some(2002)).unwrap();
        lchown(mnt.join("u1001/d/link"), Some(1003), None).unwrap();
        chown(&dom, Some(1003), Some(2002)).unwrap();
        // owned before it is written
        fs::write(mnt.join("early"), b"").unwrap();
        chown(mnt.join("early"), Some(1003), Some(2002)).unwrap();
        fs::write(mnt.join("early"), vec![1; 300_000]).unwrap();
        agrees(&mnt, "chown");

        fs::rename(&dom, project.join("dom")).unwrap();
        fs::rename(mnt.join("u1002/d/f4"), project.join("f4")).unwrap();
        symlink("new", project.join("link")).unwrap();
        agrees(&mnt, "moves into the project");

        for gone in ["u1002/d/f5", "u1003/d/f1", "u1001/d/empty"] {
            fs::remove_file(mnt.join(gone)).unwrap();
        }
        OpenOptions::new()
            .write(true)
            .open(mnt.join("u1001/d/f5"))
            .unwrap()
            .set_len(70_000)
            .unwrap();
        OpenOptions::new()
            .write(true)
            .open(mnt.join("u1002/d/f3"))
            .unwrap()
            .set_len(10 << 20)
            .unwrap();
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(mnt.join("u1003/d/f5"))
            .unwrap();
        let counted = agrees(&mnt, "unlink and truncate");

        running.kill();
        let running = place.up(&up);
        assert_eq!(agrees(&mnt, "kill -9"), counted);
        chown(mnt.join("u1003/d/f4"), Some(1001), Some(2001)).unwrap();
        fs::remove_dir_all(mnt.join("u1002")).unwrap();
        let counted = agrees(&mnt, "more changes");
        // the group of two users, target by target
        let all = ok(lfs().args(["quota", "-v", "-g", "2001"]).arg(&mnt));
        let rows: Vec<&str> = all
            .lines()
            .filter(|l| l.contains("-MDT0000 ") || l.contains("-OST000"))
            .collect();
        assert_eq!(rows.len(), 3, "{all}");
        running.kill();
        let running = place.up(&up);
        assert_eq!(agrees(&mnt, "another kill -9"), counted);
        running.stop();
        let said = ok(common::coral().arg("check").arg(place.path("data")));
        assert!(!said.contains("wrong usage"), "{said}");
    });
}
