//! Servers on directories that were formatted: indices, NIDs, and what `coral check` says of a set of targets.

mod common;

use common::{Place, Running, coral, fails, ok, text};
use std::path::Path;
use std::process::Command;

fn serve(place: &Place, dir: &Path, nid: &str) -> Running {
    let (dir_s, port) = (dir.to_string_lossy().into_owned(), place.port.to_string());
    Running::start(&["serve", &dir_s, "--nid", nid, "--port", &port], dir, &[])
}

fn format_ost(place: &Place, dir: &Path, index: &str) {
    let _ = place;
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
        "1 problems are left",
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
    let (code, said) = check(&["mdt0000", "mdt0001", "ost0000"]);
    assert!(code == Some(0) && said.contains("object 0x0:0x7"), "{said}");
}
