//! A file system whose targets are not all there: the rest is served, what is missing is named, nothing is taken for lost, and
//! all of it is there when the target is back.

mod common;

use common::{Place, Running, coral, fails, in_namespace, lfs, ok, pause, text, until};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exit code of what was done without a target.
const WITHOUT: Option<i32> = Some(3);

/// A file system that is served by a process of its own, as users start it; stopped when dropped.
struct Served(PathBuf);

impl Served {
    /// What `coral up` said, and its exit code.
    fn start(data: &Path, port: &str) -> (Served, Option<i32>, String) {
        let out = coral().arg("up").arg(data).args(["--port", port]).output();
        let out = out.expect("coral up");
        (Served(data.to_owned()), out.status.code(), text(&out))
    }

    fn down(&self) -> String {
        ok(coral().arg("down").arg(&self.0))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = coral().arg("down").arg(&self.0).arg("--force").output();
    }
}

/// `coral mount` of what is served at a port.
fn mount(place: &Place, at: &Path) -> Running {
    let (port, source) = (place.port.to_string(), "127.0.0.1@tcp:/coral");
    let at_s = at.to_string_lossy();
    Running::start(&["mount", "--port", &port, source, &at_s], at, &[at])
}

/// What `coral mount` said: the file beside its mount point.
fn said(at: &Path) -> String {
    std::fs::read_to_string(at.with_extension("log")).unwrap_or_default()
}

/// Runs a command that is to be waiting still after some seconds.
fn waits(program: &str, path: &Path) {
    let out = Command::new("timeout")
        .args(["3", program])
        .arg(path)
        .output();
    let out = out.expect("timeout(1)");
    assert_eq!(out.status.code(), Some(124), "{}", text(&out));
}

fn checked(data: &Path, more: &[&str]) -> (Option<i32>, String) {
    let out: Output = coral().arg("check").arg(data).args(more).output().unwrap();
    (out.status.code(), text(&out))
}

/// A file on each of the MDTs, and one with data on each OST.
fn filled(place: &Place) -> PathBuf {
    let running = place.up(&["--mdts", "4", "--osts", "2"]);
    let mnt = place.path("mnt");
    for i in 0..4 {
        let dir = mnt.join(format!("on{i}"));
        ok(lfs().args(["mkdir", "-i", &i.to_string()]).arg(&dir));
        std::fs::write(dir.join("f"), format!("on MDT {i}")).unwrap();
    }
    ok(lfs().args(["mkdir", "-c", "4"]).arg(mnt.join("striped")));
    for i in 0..40 {
        std::fs::write(mnt.join(format!("striped/f{i}")), "in a shard").unwrap();
    }
    std::fs::rename(mnt.join("on1/f"), mnt.join("on0/from1")).unwrap();
    std::fs::write(mnt.join("on1/f"), "on MDT 1").unwrap();
    // names on two MDTs of one file
    std::fs::hard_link(mnt.join("on1/f"), mnt.join("on2/of1")).unwrap();
    std::fs::hard_link(mnt.join("on2/f"), mnt.join("on1/of2")).unwrap();
    for i in 0..2 {
        let file = mnt.join(format!("on0/ost{i}"));
        ok(lfs().args(["setstripe", "-i", &i.to_string()]).arg(&file));
        std::fs::write(&file, vec![7; 3 << 20]).unwrap();
    }
    running.stop();
    place.path("data")
}

fn check_names_only(data: &Path, target: &str, why: &str) {
    let (code, told) = checked(data, &[]);
    assert_eq!(code, WITHOUT, "{told}");
    let first = told.lines().next().unwrap_or_default();
    assert!(first.starts_with(target) && first.contains(why), "{told}");
    for wrong in ["orphan", "dangling", "wrong", "remembers", "coral format"] {
        assert!(!told.contains(wrong), "'{wrong}' in: {told}");
    }
    assert!(told.contains("0 problems found in the rest"), "{told}");
    let (code, told) = checked(data, &["--repair", "--remove-objects"]);
    assert_eq!(code, Some(1), "{told}");
    let refused = format!("nothing is repaired while {target} is missing");
    assert!(told.contains(&refused), "{told}");
}

#[test]
fn without_an_mdt_the_rest_is_served() {
    in_namespace("without_an_mdt_the_rest_is_served", || {
        let place = Place::new();
        let data = filled(&place);
        assert_eq!(checked(&data, &[]).0, Some(0));
        let (mdt, away) = (data.join("mdt0002"), place.path("away"));
        std::fs::rename(&mdt, &away).unwrap();
        check_names_only(&data, "coral-MDT0002", "is not there");
        let port = place.port.to_string();
        let (served, code, told) = Served::start(&data, &port);
        assert_eq!(code, WITHOUT, "{told}");
        assert!(told.contains("3 of 4 MDTs, 2 OSTs"), "{told}");
        assert!(told.contains("missing: coral-MDT0002: "), "{told}");
        let last = told.lines().last();
        assert_eq!(last, Some("degraded: coral-MDT0002 missing"), "{told}");
        assert!(!mdt.exists());
        let status = ok(coral().arg("status").arg(&data));
        assert!(status.contains("coral-MDT0002    MISSING"), "{status}");
        let at = place.make("there");
        let client = mount(&place, &at);
        let told = said(&at);
        for part in [
            "waiting for coral-MDT0002 at 127.0.0.1@tcp",
            "mounted without coral-MDT0002 at 127.0.0.1@tcp",
        ] {
            assert!(told.contains(part), "no '{part}' in: {told}");
        }
        for (path, data) in [
            ("on0/from1", "on MDT 1"),
            ("on1/f", "on MDT 1"),
            ("on3/f", "on MDT 3"),
        ] {
            assert_eq!(std::fs::read_to_string(at.join(path)).unwrap(), data);
        }
        for i in 0..8 {
            std::fs::create_dir(at.join(format!("new{i}"))).unwrap();
        }
        waits("cat", &at.join("on2/f"));
        ok(lfs().args(["mkdir", "-i", "1"]).arg(at.join("moves")));
        migration_waits(&at.join("moves"));
        // names that lead there are listed, also by who asks for attributes where there are any
        for _ in 0..2 {
            let names = ok(Command::new("ls").arg("-a").arg(&at));
            assert!(names.contains("on1") && names.contains("on2"), "{names}");
        }
        let df = ok(lfs().arg("df").arg(&at));
        assert!(
            df.contains("coral-MDT0002_UUID  : Resource temporarily unavailable"),
            "{df}"
        );
        assert!(df.contains("[MDT:3]") && df.contains("[OST:1]"), "{df}");
        served.down();
        std::fs::rename(&away, &mdt).unwrap();
        let (served, code, told) = Served::start(&data, &port);
        assert_eq!(code, Some(0), "{told}");
        // the mount of then goes on, with what it could not reach
        for (path, data) in [("on2/f", "on MDT 2"), ("on1/of2", "on MDT 2"), ("new3", "")] {
            let at = at.join(path);
            assert!(at.is_dir() || std::fs::read_to_string(&at).unwrap() == data);
        }
        let moves = at.join("moves");
        ok(lfs().args(["migrate", "-m", "1,2"]).arg(&moves));
        assert_eq!(ok(lfs().args(["getdirstripe", "-c"]).arg(&moves)), "2\n");
        client.stop();
        served.down();
        let (code, told) = checked(&data, &[]);
        assert_eq!(code, Some(0), "{told}");
    });
}

/// Whatever is in the place of an MDT, it is not taken for it.
#[test]
fn what_is_in_the_place_of_an_mdt_is_left_alone() {
    in_namespace("what_is_in_the_place_of_an_mdt_is_left_alone", || {
        let (place, other) = (Place::new(), Place::new());
        let (data, foreign) = (filled(&place), filled(&other));
        let (mdt, port) = (data.join("mdt0002"), place.port.to_string());
        std::fs::rename(&mdt, place.path("away")).unwrap();
        let copy = |from: &Path| {
            let _ = std::fs::remove_dir_all(&mdt);
            ok(Command::new("cp").arg("-a").arg(from).arg(&mdt));
        };
        for (from, why) in [
            ("mdt0002", "another coral-MDT0002 ("),
            ("mdt0003", "holds coral-MDT0003, another target"),
        ] {
            copy(&foreign.join(from));
            check_names_only(&data, "coral-MDT0002", why);
        }
        std::fs::remove_dir_all(&mdt).unwrap();
        std::fs::create_dir(&mdt).unwrap();
        check_names_only(&data, "coral-MDT0002", "is empty");
        let (served, code, told) = Served::start(&data, &port);
        assert!(code == WITHOUT && told.contains("is empty"), "{told}");
        served.down();
        assert!(std::fs::read_dir(&mdt).unwrap().next().is_none());
        // the root is needed
        std::fs::rename(data.join("mdt0000"), place.path("root")).unwrap();
        let (_, code, told) = Served::start(&data, &port);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("coral-MDT0000 is missing"), "{told}");
    });
}

/// A target that is damaged keeps nobody from the rest.
#[test]
fn beside_a_damaged_target_the_rest_is_served() {
    in_namespace("beside_a_damaged_target_the_rest_is_served", || {
        let place = Place::new();
        let (data, port) = (filled(&place), place.port.to_string());
        let away = place.path("away");
        for (target, part, name, why) in [
            ("mdt0002", "CORAL", "coral-MDT0002", "damaged label"),
            ("mdt0001", "kv", "coral-MDT0001", "the tables are damaged"),
            (
                "mdt0003",
                "objects",
                "coral-MDT0003",
                "the directory is gone",
            ),
            (
                "ost0001",
                "objects",
                "coral-OST0001",
                "the directory is gone",
            ),
        ] {
            let hurt = data.join(target).join(part);
            std::fs::rename(&hurt, &away).unwrap();
            if part == "CORAL" {
                std::fs::write(&hurt, "{").unwrap();
            }
            let (served, code, told) = Served::start(&data, &port);
            assert_eq!(code, WITHOUT, "{told}");
            let line = format!("missing: {name}: ");
            let said = told.lines().find(|l| l.starts_with(&line));
            assert!(said.is_some_and(|l| l.contains(why)), "{told}");
            let at_part = hurt.to_str().unwrap();
            assert!(said.is_some_and(|l| l.contains(at_part)), "{told}");
            served.down();
            let (code, told) = checked(&data, &[]);
            assert!(code == Some(1) && told.contains(why), "{told}");
            let _ = std::fs::remove_file(&hurt);
            assert!(!hurt.exists(), "nothing is made in its place");
            std::fs::rename(&away, &hurt).unwrap();
        }
        let (served, code, told) = Served::start(&data, &port);
        assert_eq!(code, Some(0), "{told}");
        served.down();
        assert_eq!(checked(&data, &[]).0, Some(0));
    });
}

/// Regular files below the objects' directories of the OSTs.
fn objects(data: &Path) -> usize {
    let find = "find ost*/objects -type f | wc -l";
    let counted = ok(Command::new("sh").args(["-c", find]).current_dir(data));
    counted.trim().parse().unwrap()
}

/// An MDT that has lost what it had done last does not destroy what it no longer knows.
#[test]
fn objects_of_files_that_an_mdt_has_lost_are_kept() {
    in_namespace("objects_of_files_that_an_mdt_has_lost_are_kept", || {
        let place = Place::new();
        let (data, port) = (filled(&place), place.port.to_string());
        let running = place.up(&[]);
        for i in 0..30 {
            let file = place.path("mnt").join(format!("on1/late{i}"));
            std::fs::write(file, vec![i; 4096]).unwrap();
        }
        running.stop();
        let (tables, was) = (data.join("mdt0001/kv"), objects(&data));
        let entries = std::fs::read_dir(&tables).unwrap().flatten();
        let mut journals: Vec<PathBuf> = entries.map(|e| e.path()).collect();
        journals.retain(|j| j.extension().is_some_and(|e| e == "jnl"));
        journals.sort();
        let last = journals.last().expect("a journal");
        let journal = std::fs::File::options().write(true).open(last).unwrap();
        let bytes = journal.metadata().unwrap().len();
        journal.set_len(bytes / 5 * 4).unwrap();
        std::fs::remove_file(data.join("mdt0001/SYNCED")).unwrap();
        let (_, told) = checked(&data, &[]);
        assert!(told.contains("orphan"), "{told}");
        let (served, code, told) = Served::start(&data, &port);
        assert_eq!(code, Some(0), "{told}");
        pause(8);
        served.down();
        let (_, told) = checked(&data, &[]);
        assert!(told.contains("orphan"), "{told}");
        assert_eq!(objects(&data), was);
    });
}

/// What an OST holds that is gone does not read as holes.
#[test]
fn files_of_an_ost_that_is_gone_wait_or_give_errors() {
    in_namespace("files_of_an_ost_that_is_gone_wait_or_give_errors", || {
        let place = Place::new();
        let data = filled(&place);
        let (ost, away) = (data.join("ost0001"), place.path("away"));
        std::fs::rename(&ost, &away).unwrap();
        check_names_only(&data, "coral-OST0001", "is not there");
        let port = place.port.to_string();
        let (served, code, told) = Served::start(&data, &port);
        assert_eq!(code, WITHOUT, "{told}");
        assert!(told.contains("4 MDTs, 1 of 2 OSTs"), "{told}");
        let at = place.make("there");
        let client = mount(&place, &at);
        assert!(said(&at).contains("waiting for coral-OST0001 at"));
        let (here, gone) = (at.join("on0/ost0"), at.join("on0/ost1"));
        assert_eq!(std::fs::read(&here).unwrap(), vec![7; 3 << 20]);
        waits("cat", &gone);
        for i in 0..8 {
            std::fs::write(at.join(format!("new{i}")), "to the other").unwrap();
        }
        set_param(&at, "osc.coral-OST0001*.active=0");
        let (_, told) = fails(Command::new("cat").arg(&gone));
        assert!(told.contains("Input/output error"), "{told}");
        set_param(&at, "osc.coral-OST0001*.active=1");
        served.down();
        std::fs::rename(&away, &ost).unwrap();
        let (served, code, told) = Served::start(&data, &port);
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(std::fs::read(&gone).unwrap(), vec![7; 3 << 20]);
        client.stop();
        served.down();
        assert_eq!(checked(&data, &[]).0, Some(0));
    });
}

fn set_param(at: &Path, param: &str) {
    let mut lctl = coral();
    ok(lctl
        .arg("lctl")
        .arg("--dir")
        .arg(at)
        .args(["set_param", param]));
}

/// A target whose directory was put back from an older copy is not served: what was done since would be lost without a word.
#[test]
fn older_copies_are_served_only_when_that_is_wanted() {
    in_namespace("older_copies_are_served_only_when_that_is_wanted", || {
        let place = Place::new();
        let (data, mnt) = (filled(&place), place.path("mnt"));
        let copy = |from: &Path, to: &Path| {
            let _ = std::fs::remove_dir_all(to);
            ok(Command::new("cp").arg("-a").arg(from).arg(to));
        };
        let (older, newer) = (place.make("older"), place.make("newer"));
        for target in ["mgs", "mdt0001", "ost0001"] {
            copy(&data.join(target), &older.join(target));
        }
        let running = place.up(&[]);
        for i in 0..8 {
            let lost = mnt.join(format!("on1/lost{i}"));
            std::fs::write(&lost, vec![b'x'; 5000]).unwrap();
        }
        running.stop();
        let port = place.port.to_string();
        for (target, name) in [("mdt0001", "coral-MDT0001"), ("ost0001", "coral-OST0001")] {
            let there = data.join(target);
            std::fs::rename(&there, newer.join(target)).unwrap();
            copy(&older.join(target), &there);
            // as often as it is tried
            for _ in 0..3 {
                let (_, code, told) = Served::start(&data, &port);
                let refused = format!("{name} was put back from an older copy");
                assert!(code == Some(1) && told.contains(&refused), "{told}");
                let (code, told) = checked(&data, &[]);
                let found = format!("an older copy of {name} was put back");
                assert!(code == Some(1) && told.contains(&found), "{told}");
            }
            std::fs::remove_dir_all(&there).unwrap();
            std::fs::rename(newer.join(target), &there).unwrap();
            let (served, code, told) = Served::start(&data, &port);
            assert_eq!(code, Some(0), "{told}");
            served.down();
            assert_eq!(checked(&data, &[]).0, Some(0));
        }
        // wanted, it is served, and no file has bytes of one that is lost
        copy(&older.join("mdt0001"), &data.join("mdt0001"));
        let (_, told) = checked(&data, &["--repair"]);
        assert!(told.contains("the MGS takes it as it is,"), "{told}");
        assert!(!told.contains("an older copy of"), "{told}");
        let new_files = |dir: &str| {
            let running = place.up(&[]);
            for i in 0..40 {
                let file = mnt.join(format!("{dir}/new{i}"));
                std::fs::write(&file, "hi").unwrap();
                assert_eq!(std::fs::read(&file).unwrap(), b"hi");
            }
            running.stop();
        };
        new_files("on1");
        // an older MGS with it knows of nothing, but the others have been served since
        for target in ["mgs", "mdt0001"] {
            copy(&older.join(target), &data.join(target));
        }
        let (_, code, told) = Served::start(&data, &port);
        let refused = "the MGS at 127.0.0.1@tcp was put back from an older copy";
        assert!(code == Some(1) && told.contains(refused), "{told}");
        let (code, told) = checked(&data, &[]);
        let found = "the MGS was put back from an older copy: it knows of";
        assert!(code == Some(1) && told.contains(found), "{told}");
        checked(&data, &["--repair"]);
        new_files("on1");
    });
}

/// An MDT that cannot be added leaves the file system as it was.
#[test]
fn an_mdt_that_is_refused_is_not_added() {
    in_namespace("an_mdt_that_is_refused_is_not_added", || {
        let place = Place::new();
        let (data, port) = (filled(&place), place.port.to_string());
        let (served, ..) = Served::start(&data, &port);
        let elsewhere = place.path("elsewhere");
        let mut format = coral();
        format.args(["format", "--mdt", "4", "--fsname", "coral"]);
        ok(format.args(["--mgsnode", "127.0.0.1@tcp"]).arg(&elsewhere));
        let serving = place.path("serving");
        let args = ["serve", "--port", &port, "--nid", "127.0.0.2@tcp"];
        let args = [&args[..], &[elsewhere.to_str().unwrap()]].concat();
        let other = Running::start_logged(&args, &elsewhere, &serving);
        served.down();
        let mut up = coral();
        up.arg("up").arg(&data).args(["--port", &port]);
        let (_, told) = fails(up.args(["--mdts", "5"]));
        assert!(
            told.contains("its index 4 belongs to the target at 127.0.0.2@tcp"),
            "{told}"
        );
        assert!(told.contains("has 4 MDTs and 2 OSTs now"), "{told}");
        assert!(!data.join("mdt0004").exists());
        // as a crash leaves it between that and its taking back
        let new = data.join("mdt0004");
        let mut format = coral();
        format.args(["format", "--mdt", "4", "--fsname", "coral"]);
        ok(format.args(["--mgsnode", "127.0.0.1@tcp"]).arg(&new));
        let config = data.join("coral.json");
        let kept = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, kept.replace("\"mdts\": 4", "\"mdts\": 5")).unwrap();
        let (_, told) = fails(coral().arg("up").arg(&data).args(["--port", &port]));
        assert!(told.contains("has 4 MDTs and 2 OSTs now"), "{told}");
        assert_eq!(std::fs::read_to_string(&config).unwrap(), kept);
        assert!(std::fs::read_dir(&new).unwrap().next().is_none());
        other.stop();
        let (served, code, told) = Served::start(&data, &port);
        assert!(code == Some(0) && told.contains("4 MDTs"), "{told}");
        served.down();
    });
}

/// Who gives a mount up that waits leaves nothing behind that is waited for.
#[test]
fn a_mount_that_was_given_up_is_not_one() {
    in_namespace("a_mount_that_was_given_up_is_not_one", || {
        let place = Place::new();
        let data = filled(&place);
        std::fs::rename(data.join("mdt0002"), place.path("away")).unwrap();
        let port = place.port.to_string();
        let (served, ..) = Served::start(&data, &port);
        let at = place.make("there");
        let log = std::fs::File::create(at.with_extension("log")).unwrap();
        let mut mount = coral()
            .args(["mount", "--port", &port, "127.0.0.1@tcp:/coral"])
            .arg(&at)
            .arg("--foreground")
            .stderr(log)
            .spawn()
            .unwrap();
        until("it waits", || said(&at).contains("waiting for"));
        ok(Command::new("kill").arg("-INT").arg(mount.id().to_string()));
        assert_eq!(mount.wait().unwrap().code(), Some(1));
        let told = said(&at);
        assert!(told.contains("stopped before it was mounted"), "{told}");
        let told = served.down();
        assert!(!told.contains("still mounted"), "{told}");
    });
}

/// The mount point of a mount whose process was killed.
#[test]
fn who_mounts_what_is_up_is_told_how() {
    in_namespace("who_mounts_what_is_up_is_told_how", || {
        let place = Place::new();
        let (data, port) = (place.path("data"), place.port.to_string());
        let (_served, code, told) = Served::start(&data, &port);
        assert_eq!(code, Some(0), "{told}");
        let at = place.make("there");
        let client = mount(&place, &at);
        ok(Command::new("kill").arg("-9").arg(client.pid().to_string()));
        let up = || {
            let mut up = coral();
            up.arg("up").arg(&data).args(["--port", &port, "--mount"]);
            fails(up.arg(&at)).1
        };
        until("it is dead", || up().contains("dead mount"));
        let told = up();
        for part in [
            "is already up",
            &format!("coral mount --port {port} 127.0.0.1@tcp:/coral"),
            "umount -l",
        ] {
            assert!(told.contains(part), "no '{part}' in: {told}");
        }
        pause(1);
        drop(client);
    });
}

#[test]
fn a_directory_lies_on_no_more_mdts_than_there_are() {
    in_namespace("a_directory_lies_on_no_more_mdts_than_there_are", || {
        let place = Place::new();
        let running = place.up(&["--mdts", "4", "--osts", "1"]);
        let mnt = place.path("mnt");
        let shown = |args: &[&str], dir: &Path| {
            let text = ok(lfs().arg("getdirstripe").args(args).arg(dir));
            text.trim_end().to_owned()
        };
        let wide = mnt.join("wide");
        ok(lfs().args(["mkdir", "-c", "9"]).arg(&wide));
        assert_eq!(shown(&["-c"], &wide), "4");
        assert_eq!(shown(&[], &wide).lines().count(), 6);
        let default = mnt.join("default");
        ok(lfs().args(["mkdir", "-i", "0"]).arg(&default));
        let refused = |args: &[&str], dir: &Path| fails(lfs().args(args).arg(dir)).1;
        let said = refused(&["mkdir", "-i", "1,1"], &mnt.join("twice"));
        assert!(
            said.contains("MDT 1 is listed twice") && said.contains("-C"),
            "{said}"
        );
        let said = refused(&["setdirstripe", "-D", "-i", "9"], &default);
        let told = "to MDT 9: the file system has 0, 1, 2, 3";
        assert!(
            said.starts_with("lfs setdirstripe: ") && said.contains(told),
            "{said}"
        );
        let said = refused(&["setdirstripe", "-i", "1"], &default);
        assert!(
            said.starts_with("lfs setdirstripe: ") && said.contains("File exists"),
            "{said}"
        );
        let said = refused(&["setdirstripe", "-c", "3", "-i", "1"], &default);
        let told = "the directory is there already. `-c` without `-i`";
        assert!(said.contains(told), "{said}");
        let file = default.join("file");
        std::fs::write(&file, "").unwrap();
        let said = refused(&["setdirstripe", "-c", "3"], &file);
        assert!(said.contains("only directories have shards"), "{said}");
        ok(lfs().args(["setdirstripe", "-D", "-c", "9"]).arg(&default));
        assert_eq!(
            shown(&["-D"], &default),
            "lmv_stripe_count: 9 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 3 lmv_max_inherit_rr: 0"
        );
        assert_eq!(shown(&["-D", "-X"], &default), "3");
        std::fs::create_dir(default.join("below")).unwrap();
        assert_eq!(shown(&["-c"], &default.join("below")), "4");
        let on2 = mnt.join("on2");
        ok(lfs().args(["mkdir", "-i", "2"]).arg(&on2));
        std::fs::write(on2.join("f"), "").unwrap();
        let found = |args: &[&str]| {
            let text = ok(lfs().arg("find").arg(&mnt).args(args));
            let names = text
                .lines()
                .map(|l| l.rsplit('/').next().unwrap().to_owned());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        assert_eq!(found(&["-mdt", "coral-MDT0002"]), ["f", "on2"]);
        assert_eq!(found(&["--mdt", "1-2", "-type", "f"]), ["f"]);
        let below = |dir: &Path| shown(&["-D", "-X"], dir);
        ok(lfs().args(["setdirstripe", "-D", "-i", "1"]).arg(&on2));
        assert_eq!(below(&on2), "-1");
        assert_eq!(found(&["-mdt-count", "+1"]), ["below", "wide"]);
        let (_, told) = fails(lfs().args(["mkdir", "-i", "4"]).arg(mnt.join("none")));
        assert!(told.contains("the file system has 0, 1, 2, 3"), "{told}");
        running.stop();
    });
}

/// An MDT that is away is waited for, wherever it is in a list.
fn migration_waits(at: &Path) {
    for list in ["1,2", "2,1", "2"] {
        let mut migrate = Command::new("timeout");
        migrate
            .arg("3")
            .arg(coral().get_program())
            .args(["lfs", "migrate", "-m", list]);
        let out = migrate.arg(at).output().expect("timeout(1)");
        assert_eq!(out.status.code(), Some(124), "{list}: {}", text(&out));
    }
}

/// An MGS that was made anew knows no target. A repair makes it take those that are there, says so, and the check after it judges them.
#[test]
fn a_new_mgs_takes_the_targets_that_are_there() {
    in_namespace("a_new_mgs_takes_the_targets_that_are_there", || {
        let place = Place::new();
        let data = filled(&place);
        let mgs = data.join("mgs");
        std::fs::remove_dir_all(&mgs).unwrap();
        ok(coral().args(["format", "--mgs"]).arg(&mgs));
        let dirs = [
            "mgs", "mdt0000", "mdt0001", "mdt0002", "mdt0003", "ost0000", "ost0001",
        ];
        let check = |dirs: &[&str], more: &[&str]| {
            let dirs = dirs.iter().map(|d| data.join(d));
            let out = coral().arg("check").args(more).args(dirs).output();
            let out = out.unwrap();
            (out.status.code(), text(&out))
        };
        let (code, told) = check(&dirs, &[]);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("left out: "), "{told}");
        // nothing tells whether they belong together
        let (code, told) = check(&dirs[1..], &["--repair"]);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("the MGS of 'coral' was not given"), "{told}");
        let (code, told) = check(&dirs, &["--repair"]);
        assert_eq!(code, Some(0), "{told}");
        let taken = told.matches("repaired: the MGS takes it as it is").count();
        assert_eq!(taken, dirs.len() - 1, "{told}");
        assert!(!told.contains("left out: "), "{told}");
        // what was not served since may be another file system's: nothing of it is removed
        let (code, told) = check(&dirs, &["--repair", "--remove-objects"]);
        assert_eq!(code, Some(0), "{told}");
        assert!(!told.contains("removed"), "{told}");
    });
}

/// An MDT of another file system with the same name, which has files.
fn foreign_mdt(place: &Place) -> PathBuf {
    let (meta, far) = (place.path("meta"), place.path("far"));
    for (dir, args) in [
        (&meta, &["--mgs", "--mdt", "0"][..]),
        (&far, &["--mdt", "7"]),
    ] {
        let mut format = coral();
        format.args(["format", "--fsname", "coral", "--mgsnode", "127.0.0.1@tcp"]);
        ok(format.args(args).arg(dir));
    }
    let port = place.port.to_string();
    let dirs = [&meta, &far].map(|d| d.to_str().unwrap());
    let args = [&["serve", "--port", &port][..], &dirs[..]].concat();
    let serving = place.path("serving");
    let servers = Running::start_logged(&args, &meta, &serving);
    let at = place.make("other");
    let client = mount(place, &at);
    ok(lfs().args(["mkdir", "-i", "7"]).arg(at.join("d")));
    std::fs::create_dir(at.join("d/e")).unwrap();
    client.stop();
    servers.stop();
    far
}

/// Directories that do not belong together are named, and nothing is said of what they would contradict.
#[test]
fn what_is_not_of_the_file_system_is_left_out_of_a_check() {
    in_namespace(
        "what_is_not_of_the_file_system_is_left_out_of_a_check",
        || {
            let (place, other) = (Place::new(), Place::new());
            let (data, foreign) = (filled(&place), filled(&other));
            let far = foreign_mdt(&other);
            let unused = place.path("unused");
            let mut format = coral();
            format.args(["format", "--mdt", "9", "--fsname", "coral"]);
            ok(format.args(["--mgsnode", "127.0.0.1@tcp"]).arg(&unused));
            let own = |names: &str| names.split(' ').map(|n| data.join(n)).collect::<Vec<_>>();
            let all = own("mgs mdt0000 mdt0001 mdt0002 mdt0003 ost0000 ost0001");
            let three = own("mgs mdt0000 mdt0002 mdt0003 ost0000 ost0001");
            let no_mgs = own("mdt0000 mdt0002 mdt0003 ost0000 ost0001");
            let second = foreign.join("mdt0002");
            let (mine, theirs) = (data.join("mdt0002"), second.display().to_string());
            let both = format!("'{theirs}' and '{}' are both coral-MDT0002", mine.display());
            let unlike = "this is not the coral-MDT0001 that the MGS knows";
            let given = "has not given it the sequences that it holds";
            for (dirs, more, code, left_out) in [
                (&all, &unused, 0, ""),
                (&three, &unused, 3, ""),
                (&all, &second, 1, &*both),
                (&three, &second, 3, &*both),
                (&no_mgs, &second, 3, &*both),
                (&three, &foreign.join("mdt0001"), 1, unlike),
                (&all, &far, 1, given),
                (&three, &far, 3, given),
                (&no_mgs, &far, 3, given),
                // what is given twice is looked at once
                (&all, &mine, 0, ""),
            ] {
                let check = |args: &[&str]| {
                    let out = coral()
                        .arg("check")
                        .args(dirs)
                        .arg(more)
                        .args(args)
                        .output();
                    let out = out.expect("coral check");
                    (out.status.code(), text(&out))
                };
                let (found, told) = check(&[]);
                assert_eq!(found, Some(code), "{told}");
                for wrong in ["orphan", "dangling", "wrong link", "remembers"] {
                    assert!(!told.contains(wrong), "'{wrong}' in: {told}");
                }
                let has = |part: &str| told.contains(part);
                let missing = code == 3;
                assert_eq!(has("coral-MDT0001    missing: "), missing, "{told}");
                assert_eq!(has(" left out: '"), !left_out.is_empty(), "{told}");
                assert!(has(left_out), "no '{left_out}' in: {told}");
                let first = told.lines().find(|l| l.starts_with("coral-MDT0000"));
                assert!(first.is_some_and(|l| !l.contains(" 0 files")), "{told}");
                if !left_out.is_empty() {
                    let (found, told) = check(&["--repair"]);
                    assert_eq!(found, Some(1), "{told}");
                    assert!(told.contains("nothing is repaired: '"), "{told}");
                }
            }
        },
    );
}

/// A migration that was ended early goes on with the command that is named then.
#[test]
fn an_interrupted_migration_is_named_with_all_its_mdts() {
    use coral_client::llite::MigrateRequest;
    use coral_wire::layout::{LMV_MAGIC_STRIPE, LmvUserMd, LmvUserMdsData, hash_flag};
    in_namespace(
        "an_interrupted_migration_is_named_with_all_its_mdts",
        || {
            let place = Place::new();
            let running = place.up(&["--mdts", "4", "--osts", "1"]);
            let mnt = place.path("mnt");
            let dir = mnt.join("d");
            ok(lfs().args(["mkdir", "-i", "0"]).arg(&dir));
            std::fs::write(dir.join("f"), "").unwrap();
            // the first step of `lfs migrate -m 2,1`
            let mut lum = LmvUserMd::request(2, 2, hash_flag::FIXED);
            lum.head.magic = LMV_MAGIC_STRIPE;
            let shard = |mds| LmvUserMdsData {
                mds,
                ..Default::default()
            };
            lum.objects = [2, 1].map(shard).to_vec();
            let rq = MigrateRequest {
                name_only: false,
                name: "d".into(),
                lum,
            };
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(mnt.join("."), "lustre.migrate", &rq.encode(), flags).unwrap();
            let shown = ok(lfs().arg("getdirstripe").arg(&dir));
            let ends: Vec<&str> = shown
                .lines()
                .skip(2)
                .filter_map(|l| l.rsplit('\t').next())
                .collect();
            assert_eq!(ends, ["to", "to", "from"], "{shown}");
            let command = format!("lfs migrate -m 2,1 {}", dir.display());
            for other in ["2", "1", "2,3"] {
                let (_, told) = fails(lfs().args(["migrate", "-m", other]).arg(&dir));
                let named = format!("'{}' is on its way to MDT 2,1 since", dir.display());
                assert!(told.contains(&named) && told.contains(&command), "{told}");
            }
            ok(lfs().args(["migrate", "-m", "2,1"]).arg(&dir));
            let shown = ok(lfs().arg("getdirstripe").arg(&dir));
            assert!(!shown.contains("from"), "{shown}");
            // as many as there are MDTs; and no MDT twice without a word
            ok(lfs().args(["migrate", "-m", "1", "-c", "9"]).arg(&dir));
            assert_eq!(ok(lfs().args(["getdirstripe", "-c"]).arg(&dir)), "4\n");
            let (_, told) = fails(lfs().args(["migrate", "-m", "1,1"]).arg(&dir));
            assert!(told.contains("MDT 1 is listed twice"), "{told}");
            running.stop();
        },
    );
}
