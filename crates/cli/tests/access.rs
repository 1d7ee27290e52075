//! Who may be a client: a stranger with an account on the servers' machine tries what an attacker would. Needs root, to become
//! somebody else; without it these tests say so and try nothing.

mod common;

use common::net::Namespace;
use common::{Place, Running, coral, fails, in_namespace, in_network_namespace, is_root, ok, text};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Uids that no account has.
const ALICE: u32 = 4242;
const MALLORY: u32 = 4343;

fn needs_root() -> bool {
    let root = is_root();
    if !root {
        eprintln!("not root: there is no other user to try with");
    }
    root
}

/// A place that every user can enter, with a copy of coral that every user can run.
fn open_place() -> (Place, PathBuf) {
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let bin = place.path("coral");
    let built = coral().get_program().to_owned();
    if std::fs::hard_link(&built, &bin).is_err() {
        std::fs::copy(&built, &bin).unwrap();
    }
    (place, bin)
}

fn owned(place: &Place, name: &str, uid: u32) -> PathBuf {
    let dir = place.make(name);
    chown(&dir, Some(uid), Some(uid)).unwrap();
    dir
}

/// A program of `uid`. It is executed in the place of setpriv.
fn of_user(uid: u32, program: &[&str]) -> Command {
    let mut c = Command::new("setpriv");
    c.args([
        "--reuid",
        &uid.to_string(),
        "--regid",
        &uid.to_string(),
        "--clear-groups",
        "--",
    ])
    .args(program);
    c.env("HOME", "/nowhere").env_remove("XDG_RUNTIME_DIR");
    c
}

/// /dev/fuse is for everybody, as on most machines; in this mount namespace.
fn fuse_for_all(place: &Place) {
    let dev = place.make("dev");
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "mode=755", "none"])
        .arg(&dev));
    ok(Command::new("mknod")
        .args(["-m", "666"])
        .arg(dev.join("fuse"))
        .args(["c", "10", "229"]));
    ok(Command::new("mount")
        .arg("--bind")
        .arg(dev.join("fuse"))
        .arg("/dev/fuse"));
}

/// What an attacker runs: root in a user namespace of his own mounts what is served on this machine, and does `then` in `$mnt`.
fn attack(place: &Place, bin: &Path, uid: u32, then: &str) -> (bool, String) {
    let mnt = owned(place, &format!("loot{uid}"), uid);
    let (mnt, bin, port) = (
        mnt.to_string_lossy().into_owned(),
        bin.to_string_lossy().into_owned(),
        place.port.to_string(),
    );
    // His own side's caution (the servers are another user's) does not stop him.
    let careless = if uid == MALLORY { "--accept all" } else { "" };
    // The mount of another user may still say goodbye, and whose the address is cannot be seen.
    let host = if uid == MALLORY { 8 } else { 7 };
    let script = format!(
        "mnt={mnt}; {bin} mount 127.0.0.1@tcp:/coral $mnt --port {port} --nid 127.7.7.{host}@tcp {careless} --log $mnt/../loot{uid}.d/log && {{ {then}; umount $mnt; }}"
    );
    owned(place, &format!("loot{uid}.d"), uid);
    let out = of_user(uid, &["unshare", "-Urm", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (out.status.success(), text(&out))
}

fn log_of(dir: &Path) -> String {
    std::fs::read_to_string(dir.with_extension("log")).unwrap_or_default()
}

#[test]
fn a_local_user_does_not_become_root_on_what_root_serves() {
    in_namespace(
        "a_local_user_does_not_become_root_on_what_root_serves",
        || {
            if !needs_root() {
                return;
            }
            let (place, bin) = open_place();
            fuse_for_all(&place);
            let data = place.path("data");
            let steal = "cat $mnt/secret; cp /bin/true $mnt/sh; chmod 4755 $mnt/sh";

            // This is what it is about.
            let running = place.up(&["--accept", "all"]);
            std::fs::write(place.path("mnt/secret"), "of root").unwrap();
            std::fs::set_permissions(place.path("mnt/secret"), PermissionsExt::from_mode(0o600))
                .unwrap();
            let (done, said) = attack(&place, &bin, MALLORY, steal);
            assert!(done && said.contains("of root"), "{said}");
            let planted = std::fs::metadata(place.path("mnt/sh")).unwrap();
            assert_eq!(
                (planted.uid(), planted.permissions().mode() & 0o7777),
                (0, 0o4755)
            );
            std::fs::remove_file(place.path("mnt/sh")).unwrap();
            running.stop();

            let running = place.up(&["--accept", "secure"]);
            let (done, said) = attack(&place, &bin, MALLORY, steal);
            assert!(!done && !said.contains("of root"), "{said}");
            assert!(
                said.contains("accept=secure") && said.contains("--accept all"),
                "{said}"
            );
            let log = log_of(&data);
            assert!(
                log.contains("connection refused: from port") && log.contains("--accept all"),
                "{log}"
            );
            assert!(!place.path("mnt/sh").exists());
            // Root of the machine comes in, and its servers call it back.
            let (mnt2, port) = (place.make("mnt2"), place.port.to_string());
            let second = Running::start(
                &[
                    "mount",
                    "127.0.0.1@tcp:/coral",
                    &mnt2.to_string_lossy(),
                    "--port",
                    &port,
                ],
                &place.path("second"),
                &[&mnt2],
            );
            assert_eq!(
                std::fs::read_to_string(mnt2.join("secret")).unwrap(),
                "of root"
            );
            std::fs::write(place.path("mnt/secret"), "of root, changed").unwrap();
            assert_eq!(
                std::fs::read_to_string(mnt2.join("secret")).unwrap(),
                "of root, changed"
            );
            second.stop();
            running.stop();
        },
    );
}

#[test]
fn what_a_user_serves_is_his_and_roots() {
    in_namespace("what_a_user_serves_is_his_and_roots", || {
        if !needs_root() {
            return;
        }
        let (place, bin) = open_place();
        fuse_for_all(&place);
        let data = owned(&place, "data", ALICE);
        let (bin_s, data_s, port) = (
            bin.to_string_lossy().into_owned(),
            data.to_string_lossy().into_owned(),
            place.port.to_string(),
        );
        let up = |more: &[&str]| {
            let args = [&["up", &data_s, "--osts", "1", "--port", &port][..], more].concat();
            Running::start_as(of_user(ALICE, &[&bin_s]), &args, &data, &[])
        };
        let running = up(&[]);
        let status = ok(coral().arg("status").arg(&data));
        assert!(status.contains("accept user"), "{status}");
        // Another user; also as root of a namespace.
        let (done, said) = attack(&place, &bin, MALLORY, "ls $mnt");
        assert!(
            !done && said.contains("--accept user") && said.contains("--accept all"),
            "{said}"
        );
        let log = log_of(&data);
        assert!(
            log.contains(&format!("user {MALLORY}'s")) && log.contains("--accept all"),
            "{log}"
        );
        // Root comes in when it says that it trusts the user's servers.
        let mnt = place.make("mnt");
        let mount = [
            "mount",
            "127.0.0.1@tcp:/coral",
            &mnt.to_string_lossy(),
            "--port",
            &port,
            "--foreground",
        ]
        .map(str::to_owned);
        let (_, said) = fails(coral().args(&mount));
        assert!(
            said.contains("another user's") && said.contains("--accept all"),
            "{said}"
        );
        let trusting = Running::start(
            &[
                &mount[..5].iter().map(String::as_str).collect::<Vec<_>>()[..],
                &["--accept", "all"],
            ]
            .concat(),
            &place.path("trusting"),
            &[&mnt],
        );
        std::fs::create_dir(mnt.join("d")).unwrap();
        // The same user; what it is called in its namespace does not matter. The root directory is uid 4242's, which that namespace
        // has no name for, and the kernel lets nobody there change such a directory: so `d`, uid 0's, is written to.
        assert_eq!(std::fs::metadata(&mnt).unwrap().uid(), ALICE);
        let (done, said) = attack(&place, &bin, ALICE, "echo mine > $mnt/d/f; cat $mnt/d/f");
        assert!(done && said.contains("mine"), "{said}");
        assert_eq!(std::fs::read_to_string(mnt.join("d/f")).unwrap(), "mine\n");
        trusting.stop();
        running.stop();

        let running = up(&["--accept", "all"]);
        let (done, said) = attack(&place, &bin, MALLORY, "cat $mnt/d/f");
        assert!(done && said.contains("mine"), "{said}");
        running.stop();
    });
}

#[test]
fn from_another_machine_root_is_taken_by_secure_and_nobody_by_user() {
    in_network_namespace(
        "from_another_machine_root_is_taken_by_secure_and_nobody_by_user",
        || {
            if !needs_root() {
                return;
            }
            let ((place, bin), there) = (open_place(), Namespace::joined(99, &[2]));
            fuse_for_all(&place);
            let (data, mnt, port) = (
                place.path("data"),
                place.make("far"),
                place.port.to_string(),
            );
            let (data_s, mnt_s, bin_s) = (
                data.to_string_lossy().into_owned(),
                mnt.to_string_lossy().into_owned(),
                bin.to_string_lossy().into_owned(),
            );
            let serve = |accept: &str| {
                Running::start(
                    &[
                        "up",
                        &data_s,
                        "--osts",
                        "1",
                        "--port",
                        &port,
                        "--nid",
                        "10.99.0.1@tcp",
                        "--accept",
                        accept,
                    ],
                    &data,
                    &[],
                )
            };
            let mount = ["mount", "10.99.0.1@tcp:/coral", &mnt_s, "--port", &port];

            let running = serve("user");
            let out = there
                .inside(&bin_s)
                .args(mount)
                .arg("--foreground")
                .output()
                .unwrap();
            assert!(
                !out.status.success() && text(&out).contains("--accept user"),
                "{}",
                text(&out)
            );
            assert!(
                log_of(&data).contains("none from other machines"),
                "{}",
                log_of(&data)
            );
            running.stop();

            let running = serve("secure");
            Running::start_as(
                there.inside(&bin_s),
                &mount,
                &place.path("far-root"),
                &[&mnt],
            )
            .stop();
            // An ordinary user there has an ordinary port.
            let loot = owned(&place, "loot", MALLORY)
                .to_string_lossy()
                .into_owned();
            let script = format!(
                "exec {bin_s} mount 10.99.0.1@tcp:/coral {loot} --port {port} --foreground"
            );
            let user = [
                "setpriv",
                "--reuid",
                "4343",
                "--regid",
                "4343",
                "--clear-groups",
                "--",
                "unshare",
                "-Urm",
                "sh",
                "-c",
                &script,
            ];
            let out = there.inside(user[0]).args(&user[1..]).output().unwrap();
            assert!(
                !out.status.success() && text(&out).contains("accept=secure"),
                "{}",
                text(&out)
            );
            running.stop();

            // Nobody comes in from outside; a mount in the process of the servers needs no connection.
            let own = place.make("own");
            let own_s = own.to_string_lossy().into_owned();
            let running = Running::start(
                &[
                    "up", &data_s, "--port", &port, "--accept", "none", "--mount", &own_s,
                ],
                &data,
                &[&own],
            );
            std::fs::write(own.join("f"), "x").unwrap();
            let out = there
                .inside(&bin_s)
                .args(mount)
                .arg("--foreground")
                .output()
                .unwrap();
            assert!(!out.status.success(), "{}", text(&out));
            running.stop();
            // It is kept, and shown.
            let running = Running::start(&["up", &data_s, "--port", &port], &data, &[]);
            assert!(ok(coral().arg("status").arg(&data)).contains("accept none"));
            running.stop();
        },
    );
}

#[test]
fn a_word_that_is_none_is_refused_with_those_there_are() {
    let place = Place::new();
    let (code, said) = fails(
        coral()
            .args(["up", "--accept", "some"])
            .arg(place.path("data")),
    );
    assert!(
        code == 2 && said.contains("secure, user, all or none"),
        "{said}"
    );
}

/// What others may use of `dir` and all it holds.
fn open_to_others(dir: &Path) -> Vec<PathBuf> {
    let meta = std::fs::symlink_metadata(dir).unwrap();
    let mut out: Vec<PathBuf> = if meta.permissions().mode() & 0o077 == 0 {
        Vec::new()
    } else {
        vec![dir.to_owned()]
    };
    if meta.is_dir() {
        out.extend(
            std::fs::read_dir(dir)
                .unwrap()
                .flat_map(|e| open_to_others(&e.unwrap().path())),
        );
    }
    out
}

#[test]
fn what_servers_keep_is_nobody_elses_whatever_the_umask() {
    in_namespace(
        "what_servers_keep_is_nobody_elses_whatever_the_umask",
        || {
            let place = Place::new();
            let (data, mnt, port) = (
                place.path("data"),
                place.make("mnt"),
                place.port.to_string(),
            );
            let (data_s, mnt_s) = (
                data.to_string_lossy().into_owned(),
                mnt.to_string_lossy().into_owned(),
            );
            let up = || {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", "umask 0; exec \"$0\" \"$@\""])
                    .arg(coral().get_program());
                Running::start_as(
                    shell,
                    &[
                        "up", &data_s, "--mount", &mnt_s, "--osts", "1", "--port", &port,
                    ],
                    &data,
                    &[&mnt],
                )
            };
            let running = up();
            std::fs::write(mnt.join("f"), vec![7; 1 << 20]).unwrap();
            ok(Command::new("sync").arg("-f").arg(&mnt));
            assert_eq!(open_to_others(&data), Vec::<PathBuf>::new());
            running.stop();
            assert_eq!(open_to_others(&data), Vec::<PathBuf>::new());

            // As a version that did not care left it.
            ok(Command::new("chmod").args(["-R", "go+rX"]).arg(&data));
            up().stop();
            for target in ["mgs", "mdt0000", "ost0000"] {
                let left: Vec<PathBuf> = open_to_others(&data.join(target))
                    .into_iter()
                    .filter(|p| !p.starts_with(data.join(target).join("objects")))
                    .collect();
                assert_eq!(left, Vec::<PathBuf>::new());
                assert_eq!(
                    std::fs::metadata(data.join(target).join("objects"))
                        .unwrap()
                        .permissions()
                        .mode()
                        & 0o777,
                    0o700
                );
            }
            let told = || log_of(&data).matches("open to other users").count();
            assert_eq!(told(), 3, "one line a target");
            up().stop();
            assert_eq!(told(), 3);
        },
    );
}
