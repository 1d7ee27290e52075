//! Servers on directories that were formatted: indices, NIDs, and what `coral check` says of a set of targets.

mod common;

use common::{Place, Running, coral, fails, in_namespace, lfs, ok, text};
use std::path::Path;
use std::process::Command;

fn serve(place: &Place, dir: &Path, nid: &str) -> Running {
    let (dir_s, port) = (dir.to_string_lossy().into_owned(), place.port.to_string());
    Running::start(&["serve", &dir_s, "--nid", nid, "--port", &port], dir, &[])
}

fn format_ost(place: &Place, dir: &Path, index: &str) {
    let _ = place;
    std::fs::create_dir_all(dir.join("lost+found")).unwrap(); // a new ext4 file system has it
    ok(coral()
        .args([
            "format",
            "--ost",
            index,
            "--fsname",
            "a",
            "--mgsnode",
            "127.0.0.1@tcp",
        ])
        .arg(dir));
}

#[test]
fn an_index_in_use_is_refused_to_another_ost_and_not_to_its_own() {
    let place = Place::new();
    let (mds, first, second) = (place.path("mds"), place.path("first"), place.path("second"));
    ok(coral()
        .args([
            "format",
            "--mgs",
            "--mdt",
            "0",
            "--fsname",
            "a",
            "--mgsnode",
            "127.0.0.1@tcp",
        ])
        .arg(&mds));
    format_ost(&place, &first, "0");
    format_ost(&place, &second, "0");
    let mds = serve(&place, &mds, "127.0.0.1@tcp");
    let ost = serve(&place, &first, "127.0.0.2@tcp");
    assert!(!first.join("FRESH").exists() && second.join("FRESH").exists());

    let port = place.port.to_string();
    let refused = || {
        let mut serve = coral();
        serve.arg("serve").arg(&second);
        serve.args(["--nid", "127.0.0.3@tcp", "--port", &port]);
        fails(serve.arg("--foreground"))
    };
    for _ in 0..2 {
        let (code, said) = refused();
        assert_eq!(code, 1, "{said}");
        for part in [
            "a-OST0000",
            "index 0",
            "127.0.0.2@tcp",
            "an index of its own",
        ] {
            assert!(said.contains(part), "no '{part}' in: {said}");
        }
    }
    // as if it had died before it took note that it was accepted, and it moves
    ost.stop();
    std::fs::copy(second.join("FRESH"), first.join("FRESH")).unwrap();
    serve(&place, &first, "127.0.0.2@tcp").stop();
    assert!(!first.join("FRESH").exists());
    serve(&place, &first, "127.0.0.4@tcp").stop();
    // one that is not new is another one all the same
    std::fs::remove_file(second.join("FRESH")).unwrap();
    let (_, said) = refused();
    let another = "a-OST0000 is not the one that has this name at 127.0.0.4@tcp";
    assert!(said.contains(another), "{said}");
    mds.stop();
}

/// The mount of `coral up` uses what other processes serve, also what was added while it was mounted.
#[test]
fn the_mount_of_up_reaches_targets_of_other_processes() {
    in_namespace("the_mount_of_up_reaches_targets_of_other_processes", || {
        let place = Place::new();
        let (mnt, mdt, ost) = (place.make("mnt"), place.path("mdt"), place.path("ost"));
        let up = place.up(&[]);
        for (dir, what) in [(&mdt, ["--mdt", "1"]), (&ost, ["--ost", "7"])] {
            let mut format = coral();
            format.args(["format", "--fsname", "coral"]).args(what);
            ok(format.args(["--mgsnode", "127.0.0.1@tcp"]).arg(dir));
        }
        let beside = serve(&place, &mdt, "127.0.0.2@tcp");
        let further = serve(&place, &ost, "127.0.0.3@tcp");
        let known = |target: &str| ok(lfs().arg("df").arg(&mnt)).contains(target);
        common::until("both targets are known", || {
            known("coral-MDT0001") && known("coral-OST0007")
        });
        let dir = mnt.join("there");
        ok(lfs().args(["mkdir", "-i", "1"]).arg(&dir));
        ok(lfs().args(["setstripe", "-c", "1", "-i", "7"]).arg(&dir));
        let file = dir.join("file");
        std::fs::write(&file, common::pattern(1, 300_000)).unwrap();
        std::fs::File::open(&file).unwrap().sync_all().unwrap();
        std::fs::rename(&file, mnt.join("moved")).unwrap();
        let other = place.make("other");
        let port = place.port.to_string();
        let mounted = Running::start(
            &[
                "mount",
                "--port",
                &port,
                "127.0.0.1@tcp:/coral",
                &other.to_string_lossy(),
            ],
            &other,
            &[&other],
        );
        // each takes the other's locks away
        assert!(std::fs::read(other.join("moved")).unwrap() == common::pattern(1, 300_000));
        std::fs::write(other.join("moved"), "of the other").unwrap();
        assert_eq!(std::fs::read(mnt.join("moved")).unwrap(), b"of the other");
        std::fs::remove_file(mnt.join("moved")).unwrap();
        std::fs::remove_dir(other.join("there")).unwrap();
        assert_eq!(std::fs::read_dir(&mnt).unwrap().count(), 0);
        mounted.stop();
        // together: each says goodbye to the others
        std::thread::scope(|s| {
            for one in [up, beside, further] {
                s.spawn(|| one.stop());
            }
        });
    });
}

/// Who serves, and who mounts, is told that the file system has no root yet, or that its name is mistyped.
#[test]
fn a_file_system_without_mdt0000_is_named() {
    in_namespace("a_file_system_without_mdt0000_is_named", || {
        let place = Place::new();
        let (meta, lost) = (place.path("meta"), place.path("lost"));
        for (dir, args) in [
            (&meta, &["--mgs", "--mdt", "1", "--fsname", "a"][..]),
            (&lost, &["--ost", "0", "--fsname", "typo"]),
        ] {
            let mut format = coral();
            format.args(["format", "--mgsnode", "127.0.0.1@tcp"]);
            ok(format.args(args).arg(dir));
        }
        let port = place.port.to_string();
        let serve = |dir: &Path, nid: &str| {
            let mut serve = coral();
            serve.arg("serve").arg(dir).args(["--nid", nid]);
            ok(serve.args(["--port", &port]))
        };
        let told = serve(&meta, "127.0.0.1@tcp");
        assert!(told.contains("no MDT0000 of the file system 'a'"), "{told}");
        let told = serve(&lost, "127.0.0.2@tcp");
        assert!(
            told.contains("no MDT0000 of the file system 'typo'"),
            "{told}"
        );
        let at = place.make("there");
        let mount = |fsname: &str| {
            let mut mount = coral();
            mount.args(["mount", "--port", &port]);
            mount.arg(format!("127.0.0.1@tcp:/{fsname}")).arg(&at);
            fails(&mut mount).1
        };
        for fsname in ["a", "typo"] {
            let told = mount(fsname);
            for part in [
                format!(
                    "waiting for {fsname}-MDT0000 (the MGS at 127.0.0.1@tcp does not know it: it was never served)"
                ),
                format!("the MGS at 127.0.0.1@tcp knows no MDT0000 of the file system '{fsname}'"),
            ] {
                assert!(told.contains(&part), "no '{part}' in: {told}");
            }
        }
        let told = mount("none");
        assert!(told.contains("knows no file system 'none'"), "{told}");
        for dir in [&lost, &meta] {
            ok(coral().arg("down").arg(dir));
        }
    });
}

/// A directory of `coral up` that was up once.
fn used(place: &Place) -> std::path::PathBuf {
    let (data, port) = (place.path("data"), place.port.to_string());
    Running::start(
        &[
            "up",
            &data.to_string_lossy(),
            "--osts",
            "3",
            "--port",
            &port,
        ],
        &data,
        &[],
    )
    .stop();
    data
}

#[test]
fn check_says_a_line_of_every_target() {
    let place = Place::new();
    let data = used(&place);
    ok(coral().arg("check").arg(&data));
    std::fs::write(data.join("mgs/CORAL"), "torn").unwrap();
    std::fs::write(data.join("ost0000/SYNCED"), "nonsense").unwrap();
    std::fs::remove_dir_all(data.join("ost0001")).unwrap();
    ok(Command::new("cp")
        .arg("-a")
        .arg(data.join("ost0002"))
        .arg(data.join("ost0001")));
    let out = coral().arg("check").arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(3), "{said}");
    let line = |start: &str| said.lines().any(|l| l.starts_with(start));
    assert!(
        line("mgs ") && line("coral-MDT0000 ") && line("coral-OST0000 ") && line("coral-OST0002 "),
        "{said}"
    );
    let first = said.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("coral-OST0001 ") && first.contains("holds coral-OST0002"),
        "{said}"
    );
    assert!(said.contains("mgs/CORAL"), "{said}");
    let dirs = ["ost0001", "ost0002"].map(|d| data.join(d));
    let out = coral().arg("check").args(dirs).output().unwrap();
    let said = text(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("are both coral-OST0002"), "{said}");
}

/// A file without a name, in the tables of an MDT, and an object of no file.
fn damage(data: &std::path::Path) {
    use coral_osd::{Batch, Kv, ObjectId, Objects, OsdFs, SetAttr};
    use coral_server::mdt::record::Inode;
    use coral_server::mdt::table;
    let (mdt, _) = OsdFs::open(&data.join("mdt0000")).unwrap();
    let fid = coral_wire::Fid::new(coral_wire::fid::seq::NORMAL, 5);
    let lost = Inode {
        mode: 0o100644,
        nlink: 1,
        ..Inode::default()
    };
    let mut b = Batch::new();
    b.put(table::INODE, table::fid_key(&fid).to_vec(), lost.encode());
    mdt.commit(b).wait().unwrap();
    Kv::sync(&mdt).wait().unwrap();
    let (ost, _) = OsdFs::open(&data.join("ost0001")).unwrap();
    let id = ObjectId { seq: 0, oid: 7 };
    ost.set_attr(id, &SetAttr::default()).unwrap();
}

#[test]
fn check_repairs_what_it_finds_when_it_is_told() {
    let place = Place::new();
    let data = used(&place);
    let check = |more: &[&str]| {
        let out = coral().arg("check").arg(&data).args(more).output().unwrap();
        (out.status.code(), text(&out))
    };
    // nothing is wrong: nothing is said
    let (code, said) = check(&["--repair"]);
    assert!(code == Some(0) && !said.contains("repaired"), "{said}");
    damage(&data);
    let (code, said) = check(&[]);
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "orphan inode [0x200000400:0x5:0x0]",
        "orphan object 0x0:0x7",
    ] {
        assert!(said.contains(part), "no '{part}' in: {said}");
    }
    // while it is served, nothing is changed
    let port = place.port.to_string();
    let up = [
        "up",
        &data.to_string_lossy(),
        "--osts",
        "3",
        "--port",
        &port,
    ];
    let running = Running::start(&up, &data, &[]);
    let (code, said) = check(&["--repair"]);
    assert!(
        code == Some(1) && said.contains("nothing is repaired"),
        "{said}"
    );
    running.stop();
    let (code, said) = check(&["--repair"]);
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "is in lost+found as [0x200000400:0x5:0x0]",
        "orphan object 0x0:0x7",
        "1 problem left",
    ] {
        assert!(said.contains(part), "no '{part}' in: {said}");
    }
    let (code, said) = check(&["--repair", "--remove-objects"]);
    assert!(code == Some(0), "{said}");
    assert!(
        said.contains("object 0x0:0x7, which no file had, is removed"),
        "{said}"
    );
    let (code, said) = check(&["--json"]);
    assert!(code == Some(0) && !said.contains("repaired"), "{said}");
    Running::start(&up, &data, &[]).stop();
    let (code, said) = check(&[]);
    assert_eq!(code, Some(0), "{said}");
}

/// Changes a block in the largest file of the tables of an MDT, which has grown so much that its tables are sorted into files.
fn damage_a_block(mdt: &std::path::Path) {
    use coral_osd::{Batch, Kv, OsdFs};
    use coral_server::mdt::{record::Inode, table};
    let (osd, _) = OsdFs::open(mdt).unwrap();
    for oids in (100..60_100).collect::<Vec<u32>>().chunks(10_000) {
        let mut b = Batch::new();
        for oid in oids {
            let fid = coral_wire::Fid::new(coral_wire::fid::seq::NORMAL, *oid);
            b.put(
                table::INODE,
                table::fid_key(&fid).to_vec(),
                Inode::default().encode(),
            );
        }
        osd.commit(b).wait().unwrap();
    }
    Kv::sync(&osd).wait().unwrap();
    drop(osd);
    let keyspaces = std::fs::read_dir(mdt.join("kv/keyspaces"))
        .unwrap()
        .flatten();
    let tables = keyspaces.filter_map(|k| std::fs::read_dir(k.path().join("tables")).ok());
    let files = tables.flat_map(|t| t.flatten());
    let size = |f: &std::fs::DirEntry| f.metadata().unwrap().len();
    let file = files.max_by_key(size).unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    assert!(
        bytes.len() > 100_000,
        "a table of many blocks: {}",
        bytes.len()
    );
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8]
        .iter_mut()
        .for_each(|b| *b ^= 0x55);
    std::fs::write(&file, bytes).unwrap();
}

/// The damaged MDT is named with its file and what to do; of the others nothing is said that is not known.
#[test]
fn a_damaged_block_is_named_and_nothing_is_repaired() {
    let place = Place::new();
    let (data, port) = (place.path("data"), place.port.to_string());
    let data_s = data.to_string_lossy().into_owned();
    Running::start(&["up", &data_s, "--mdts", "2", "--port", &port], &data, &[]).stop();
    damage_a_block(&data.join("mdt0001"));
    for (more, end) in [
        (&[][..], "2 problems found"),
        (&["--repair"], "nothing is repaired"),
    ] {
        let (_, said) = fails(coral().arg("check").arg(&data).args(more));
        let line = |start: &str| said.lines().find(|l| l.starts_with(start)).unwrap_or("");
        assert!(said.contains(end), "{said}");
        assert!(said.contains("mdt0001/kv/keyspaces/"), "{said}");
        assert!(
            said.contains("restore the target directory from a copy"),
            "{said}"
        );
        assert!(
            !said.contains("ERROR") && !said.contains("coral-check-"),
            "{said}"
        );
        if more.is_empty() {
            let told = "files and directories; 0 open without a name";
            assert!(line("coral-MDT0000").contains(told), "{said}");
            let told = "its names are not judged";
            assert!(line("coral-MDT0001").contains(told), "{said}");
            let told = "cannot be told without MDT0001";
            assert!(line("coral-OST0000").contains(told), "{said}");
        }
    }
}

/// Who was told that it is mounted finds the process of the mount at once.
#[test]
fn a_mount_can_be_asked_as_soon_as_it_is_there() {
    in_namespace("a_mount_can_be_asked_as_soon_as_it_is_there", || {
        let place = Place::new();
        let (up, at) = (place.up(&[]), place.make("other"));
        let port = place.port.to_string();
        for _ in 0..20 {
            let mut mount = coral();
            mount.args(["mount", "--port", &port, "127.0.0.1@tcp:/coral"]);
            ok(mount.arg(&at));
            ok(coral().args(["lctl", "--dir"]).arg(&at).arg("list_nids"));
            ok(Command::new("umount").arg(&at));
        }
        up.stop();
    });
}

/// Files take their objects along to other MDTs: whose an object is, only all MDTs together can tell.
#[test]
fn no_object_is_removed_while_an_mdt_is_not_given() {
    let place = Place::new();
    let (data, port) = (place.path("two"), place.port.to_string());
    let up = [
        "up",
        &data.to_string_lossy(),
        "--mdts",
        "2",
        "--port",
        &port,
    ];
    Running::start(&up, &data, &[]).stop();
    {
        use coral_osd::{ObjectId, Objects, OsdFs, SetAttr};
        let (ost, _) = OsdFs::open(&data.join("ost0000")).unwrap();
        let id = ObjectId { seq: 0, oid: 7 };
        ost.set_attr(id, &SetAttr::default()).unwrap();
    }
    let check = |targets: &[&str]| {
        let mut check = coral();
        check.args(["check", "--repair", "--remove-objects"]);
        let out = check.args(targets.iter().map(|t| data.join(t))).output();
        let out = out.unwrap();
        (out.status.code(), text(&out))
    };
    let (code, said) = check(&["mdt0001", "ost0000"]);
    assert_eq!(code, Some(1), "{said}");
    let why = "nothing is repaired: coral-MDT0000 was not given";
    assert!(said.contains(why), "{said}");
    let (code, said) = check(&["mgs", "mdt0000", "mdt0001", "ost0000"]);
    assert!(code == Some(0) && said.contains("object 0x0:0x7"), "{said}");
}
