//! How processes of coral begin and end: in the background, by signals, with servers that are gone, with a failed mount.

mod common;

use common::{
    Place, Running, coral, fails, in_namespace, in_network_namespace, is_mounted, ok, pause, text,
    until,
};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn signal(pid: u32, name: &str) {
    ok(Command::new("kill").args([format!("-{name}"), pid.to_string()]));
}

fn ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// Processes whose command line names `path`.
fn that_name(path: &Path) -> Vec<u32> {
    let path = path.to_string_lossy().into_owned();
    let names_it = |e: &std::fs::DirEntry| {
        std::fs::read(e.path().join("cmdline"))
            .is_ok_and(|c| String::from_utf8_lossy(&c).contains(&path))
    };
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(names_it);
    all.filter_map(|e| e.file_name().to_string_lossy().parse().ok())
        .collect()
}

/// Background processes of a test end with it, also when it fails.
struct EndsWithTest<'a>(&'a Path);

impl Drop for EndsWithTest<'_> {
    fn drop(&mut self) {
        that_name(self.0).iter().for_each(|pid| {
            drop(
                Command::new("kill")
                    .args(["-KILL", &pid.to_string()])
                    .status(),
            )
        });
    }
}

fn client(port: u16, mnt: &Path) -> Child {
    client_with_log(port, mnt, Path::new("/dev/null"))
}

fn client_with_log(port: u16, mnt: &Path, log: &Path) -> Child {
    let (port, log) = (port.to_string(), std::fs::File::create(log).unwrap());
    let mut mount = coral();
    mount
        .args(["mount", "127.0.0.1@tcp:/coral"])
        .arg(mnt)
        .args(["--port", &port, "--foreground"]);
    let child = mount.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    until("the client has mounted", || is_mounted(mnt));
    child
}

fn write(path: &Path, text: &str) -> std::fs::File {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

const LINES: u32 = 80;

/// Writes [`lines`] to a new file: the servers take the first half of them, and are killed before the rest.
fn write_beyond_the_end_of(servers: Running, path: &Path) {
    let mut file = write(path, "");
    let mut add = |n: u32| writeln!(file, "line {n}").unwrap();
    (0..LINES / 2).for_each(&mut add);
    ok(Command::new("sync").arg(path));
    add(LINES / 2); // the client has its lock and its grant by now
    servers.kill();
    (LINES / 2 + 1..LINES).for_each(&mut add);
}

fn lines() -> String {
    (0..LINES).map(|n| format!("line {n}\n")).collect()
}

/// The number of clients of the MDT.
fn exports(data: &Path) -> u64 {
    let status: serde_json::Value =
        serde_json::from_str(&ok(coral().arg("status").arg(data).arg("--json"))).unwrap();
    let targets = status["targets"].as_array().unwrap().clone();
    targets
        .iter()
        .find(|t| t["name"] == "coral-MDT0000")
        .unwrap()["exports"]
        .as_u64()
        .unwrap()
}

#[test]
fn mount_helper_works_in_the_background() {
    in_namespace("mount_helper_works_in_the_background", || {
        let place = Place::new();
        let _guard = EndsWithTest(place.dir.path());
        let running = place.up(&[]);
        let (helper, mnt) = (place.path("mount.coral"), place.make("second"));
        std::os::unix::fs::symlink(coral().get_program(), &helper).unwrap();
        let run = |source: &str, flag: &str, options: &str| {
            let mut c = Command::new(&helper);
            c.env("XDG_RUNTIME_DIR", place.make("runtime"))
                .arg(source)
                .arg(&mnt)
                .args([flag, "-o", &format!("{options},port={}", place.port)]);
            c
        };
        let said = ok(&mut run("127.0.0.1@tcp:/coral", "-n", "rw"));
        assert_eq!(said, "", "as mount(8) wants its helpers");
        std::fs::write(mnt.join("f"), "through the helper").unwrap();
        assert_eq!(
            std::fs::read_to_string(place.path("mnt/f")).unwrap(),
            "through the helper"
        );
        std::fs::copy("/bin/true", mnt.join("true")).unwrap();
        ok(&mut Command::new(mnt.join("true")));
        ok(Command::new("umount").arg(&mnt));
        until("the client has said goodbye", || {
            exports(&place.path("data")) == 1
        });
        // what mount(8) and fstab pass along
        ok(&mut run(
            "127.0.0.1@tcp:/coral",
            "-sv",
            "ro,_netdev,x-a=b,noexec,nosuid,nodev,noatime,quota,cache_mb=64,nid=127.0.0.8@tcp",
        ));
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table
            .lines()
            .find(|l| l.contains(&*mnt.to_string_lossy()))
            .unwrap();
        for word in ["ro", "noexec", "nosuid", "nodev", "noatime"] {
            assert!(line.split([' ', ',']).any(|w| w == word), "{word}: {line}");
        }
        assert_eq!(
            std::fs::File::create(mnt.join("g")).unwrap_err().kind(),
            std::io::ErrorKind::ReadOnlyFilesystem
        );
        assert_eq!(
            Command::new(mnt.join("true")).status().unwrap_err().kind(),
            std::io::ErrorKind::PermissionDenied
        );
        ok(Command::new("umount").arg(&mnt));
        until("the client has said goodbye", || {
            exports(&place.path("data")) == 1
        });
        // locks of this node alone
        ok(&mut run("127.0.0.1@tcp:/coral", "-v", "localflock"));
        ok(Command::new("flock").arg(mnt.join("f")).arg("true"));
        ok(Command::new("umount").arg(&mnt));
        until("the client has said goodbye", || {
            exports(&place.path("data")) == 1
        });
        ok(&mut run("127.0.0.1@tcp:/coral", "-f", "rw"));
        assert!(!is_mounted(&mnt), "mount -f only checks");
        for (options, says) in [
            ("cache_mb=no", "give a number of 1 to 1048576"),
            ("quota", "'quota' is not supported"),
        ] {
            let (_, said) = fails(&mut run("127.0.0.1@tcp:/coral", "-n", options));
            assert!(said.contains(says), "{said}");
        }
        let (_, said) = fails(&mut run("127.0.0.1@tcp:/other", "-n", "rw"));
        assert!(said.contains("other"), "{said}");
        running.stop();
    });
}

/// The kernel answers for a mount whose process was killed what it remembers, its attributes among that.
#[test]
fn nothing_is_mounted_over_a_dead_mount() {
    in_namespace("nothing_is_mounted_over_a_dead_mount", || {
        let place = Place::new();
        let running = place.up(&[]);
        let mnt = place.make("second");
        let mut client = client(place.port, &mnt);
        assert_eq!(std::fs::read_dir(&mnt).unwrap().count(), 0);
        assert!(mnt.metadata().unwrap().is_dir());
        client.kill().unwrap();
        client.wait().unwrap();
        let (other, port) = (Place::new(), place.port.to_string());
        let (_, said) = fails(
            coral()
                .arg("up")
                .arg(other.path("data"))
                .args(["--port", &other.port.to_string(), "--mount"])
                .arg(&mnt),
        );
        assert!(said.contains("is a dead mount"), "{said}");
        let (_, said) = fails(
            coral()
                .args(["mount", "127.0.0.1@tcp:/coral", "--port", &port])
                .arg(&mnt),
        );
        assert!(said.contains("is a dead mount"), "{said}");
        ok(Command::new("umount").arg("-l").arg(&mnt));
        running.stop();
    });
}

#[test]
fn a_client_ends_though_its_servers_are_gone() {
    in_namespace("a_client_ends_though_its_servers_are_gone", || {
        for by in ["signal", "umount -l", "umount -f"] {
            let place = Place::new();
            let running = place.up(&[]);
            let mnt = place.make("second");
            let mut client = client(place.port, &mnt);
            write(&mnt.join("f"), "x").sync_all().unwrap();
            running.kill();
            match by.split_once(' ') {
                Some((umount, flag)) => drop(ok(Command::new(umount).arg(flag).arg(&mnt))),
                None => signal(client.id(), "INT"),
            }
            until("the client has ended", || ended(&mut client));
            assert!(!is_mounted(&mnt));
        }
    });
}

/// Whether its data are written later or a signal gives them up, an end is no silent loss.
#[test]
fn what_is_written_outlives_the_end_of_the_client() {
    in_namespace("what_is_written_outlives_the_end_of_the_client", || {
        let place = Place::new();
        let (mnt, log) = (place.make("second"), place.path("client.log"));
        let said = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
        for gives_up in [false, true] {
            let running = place.up(&[]);
            let mut client = client_with_log(place.port, &mnt, &log);
            write_beyond_the_end_of(running, &mnt.join("f"));
            signal(client.id(), "INT");
            until("the client says what it waits for", || {
                said("waiting for OSTs to take what was written")
            });
            assert!(!ended(&mut client));
            if gives_up {
                signal(client.id(), "INT");
                assert_eq!(client.wait().unwrap().code(), Some(1));
                assert!(said("which no OST took, are lost"));
            } else {
                let running = place.up(&[]);
                assert!(client.wait().unwrap().success());
                assert_eq!(
                    std::fs::read_to_string(place.path("mnt/f")).unwrap(),
                    lines()
                );
                running.stop();
            }
            std::fs::remove_file(&log).unwrap();
        }
    });
}

/// As a service manager ends it: umount(8), and SIGTERM for the process. Servers hear that the client has gone, and get what was written.
#[test]
fn a_signal_right_after_an_umount_gives_nothing_up() {
    in_namespace("a_signal_right_after_an_umount_gives_nothing_up", || {
        let place = Place::new();
        let (mnt, data) = (place.make("second"), place.path("data"));
        let running = place.up(&[]);
        let before = exports(&data);
        for n in 0..5 {
            let mut client = client(place.port, &mnt);
            write(&mnt.join(format!("f{n}")), "x");
            ok(Command::new("umount").arg(&mnt));
            signal(client.id(), "TERM");
            assert!(client.wait().unwrap().success());
            assert_eq!(exports(&data), before, "{n}");
        }
        let mut client = client(place.port, &mnt);
        write_beyond_the_end_of(running, &mnt.join("f"));
        ok(Command::new("umount").arg("-l").arg(&mnt));
        signal(client.id(), "TERM");
        let running = place.up(&[]);
        assert!(client.wait().unwrap().success());
        assert_eq!(
            std::fs::read_to_string(place.path("mnt/f")).unwrap(),
            lines()
        );
        running.stop();
    });
}

#[test]
fn a_mount_that_fails_leaves_no_client_behind() {
    in_namespace("a_mount_that_fails_leaves_no_client_behind", || {
        let place = Place::new();
        let running = place.up(&[]);
        assert_eq!(exports(&place.path("data")), 1);
        let (_, said) = fails(
            coral()
                .args([
                    "mount",
                    "127.0.0.1@tcp:/coral/no/such",
                    "--port",
                    &place.port.to_string(),
                ])
                .arg(place.make("second")),
        );
        assert!(said.contains("no/such"), "{said}");
        assert_eq!(exports(&place.path("data")), 1);
        running.stop();
    });
}

#[test]
fn an_interrupted_start_leaves_nothing_running() {
    in_network_namespace("an_interrupted_start_leaves_nothing_running", || {
        let place = Place::new();
        let _guard = EndsWithTest(place.dir.path());
        place.make("mnt");
        for wait_ms in [0, 30, 100, 300, 1000] {
            let mut up = coral();
            up.arg("up")
                .arg(place.path("data"))
                .arg("--mount")
                .arg(place.path("mnt"))
                .args(["--port", &place.port.to_string()]);
            let said = std::fs::File::create(place.path("said")).unwrap();
            let mut up = up
                .stdout(said.try_clone().unwrap())
                .stderr(said)
                .spawn()
                .unwrap();
            pause(wait_ms);
            if ended(&mut up) {
                let said = std::fs::read_to_string(place.path("said")).unwrap();
                assert!(up.wait().unwrap().success(), "after {wait_ms} ms: {said}");
                ok(coral().arg("down").arg(place.path("data"))); // it was quick
                continue;
            }
            signal(up.id(), "INT");
            until("the command has ended", || ended(&mut up));
            let data = place.path("data");
            if up.wait().unwrap().success() {
                ok(coral().arg("down").arg(&data)); // it was done when the signal came
            }
            until("nothing works in the directory", || {
                that_name(&data).is_empty()
            });
            assert!(!is_mounted(&place.path("mnt")));
        }
        let running = place.up(&[]);
        std::fs::write(place.path("mnt/f"), "x").unwrap();
        running.stop();
    });
}

/// However far it had come, also with MDTs that are added.
#[test]
fn a_start_that_was_killed_can_be_made_again() {
    in_network_namespace("a_start_that_was_killed_can_be_made_again", || {
        for first in 0..4 {
            let place = Place::new();
            let _guard = EndsWithTest(place.dir.path());
            place.make("mnt");
            let data = place.path("data");
            let start = |mdts: u32| {
                let mut up = coral();
                up.arg("up")
                    .arg(&data)
                    .args(["--mdts", &mdts.to_string(), "--mount"])
                    .arg(place.path("mnt"))
                    .args(["--port", &place.port.to_string()]);
                up
            };
            for mdts in [1, 1, 1, 3, 3, 3] {
                let mut up = start(mdts)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                pause(15 + 23 * first + 61 * u64::from(up.id() % 5));
                let _ = up.kill();
                up.wait().unwrap();
                until("nothing works in the directory", || {
                    let left = that_name(&data);
                    let kill = |pid: &u32| {
                        // it may be gone by now
                        let mut kill = Command::new("kill");
                        let _ = kill.args(["-KILL", &pid.to_string()]).output();
                    };
                    left.iter().for_each(kill);
                    left.is_empty()
                });
                // what was mounted by a process that is dead
                let _ = Command::new("umount")
                    .arg("-l")
                    .arg(place.path("mnt"))
                    .output();
            }
            ok(&mut start(3));
            std::fs::write(place.path("mnt/f"), "x").unwrap();
            ok(coral().arg("down").arg(&data));
        }
    });
}

#[test]
fn flags_of_a_start_that_failed_are_not_kept() {
    in_namespace("flags_of_a_start_that_failed_are_not_kept", || {
        let place = Place::new();
        let (data, port) = (place.path("data"), place.port.to_string());
        let (_, said) = fails(
            coral()
                .arg("up")
                .arg(&data)
                .args(["--port", &port, "--mount"])
                .arg(place.path("nowhere")),
        );
        assert!(said.contains("nowhere") && !data.exists(), "{said}");
        let (_, said) =
            fails(
                coral()
                    .arg("up")
                    .arg(&data)
                    .args(["--port", &port, "--nid", "192.0.2.7@tcp"]),
            );
        assert!(said.contains("192.0.2.7"), "{said}");
        let running = place.up(&["--nid", "127.0.0.1@tcp", "--nid", "127.0.0.2@tcp"]);
        let said = ok(coral().arg("status").arg(&data));
        assert!(
            said.contains(&format!(
                ", 127.0.0.1@tcp 127.0.0.2@tcp port {port}, accept "
            )),
            "{said}"
        );
        running.stop();
    });
}

#[test]
fn a_start_says_whom_it_waits_for_and_can_be_told_not_to() {
    in_namespace(
        "a_start_says_whom_it_waits_for_and_can_be_told_not_to",
        || {
            let place = Place::new();
            let (data, mnt, other) = (place.path("data"), place.make("mnt"), place.make("other"));
            let _guard = EndsWithTest(place.dir.path());
            // Stops it while a client cannot say goodbye, which is not dead either.
            let leave = |running: Running| {
                let silent = client(place.port, &other);
                signal(silent.id(), "STOP");
                let said = ok(coral().arg("down").arg(&data));
                let nid = said
                    .split_once("still mounted at ")
                    .unwrap_or_else(|| panic!("{said}"))
                    .1
                    .split_once(':')
                    .unwrap()
                    .0
                    .to_owned();
                running.ended();
                (silent, nid)
            };
            let forget = |mut silent: Child| {
                silent.kill().unwrap();
                silent.wait().unwrap();
                ok(Command::new("umount").arg("-l").arg(&other));
            };
            let (silent, nid) = leave(place.up(&[]));

            let port = place.port.to_string();
            let mut up = coral();
            up.arg("up")
                .arg(&data)
                .args(["--port", &port, "--foreground", "--mount"])
                .arg(&mnt);
            let mut up = up
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut said = String::new();
            until("its status names the client that is waited for", || {
                let out = coral().arg("status").arg(&data).output().unwrap();
                said = String::from_utf8_lossy(&out.stdout).into_owned();
                said.contains("  waits ") && said.contains(&nid)
            });
            assert!(!is_mounted(&mnt), "the mount waits as well: {said}");
            ok(coral()
                .args(["lctl", "--dir"])
                .arg(&data)
                .args(["abort_recovery", "*"]));
            until("it is mounted", || is_mounted(&mnt));
            signal(up.id(), "INT");
            until("it has ended", || ended(&mut up));
            forget(silent);

            let (silent, _) = leave(place.up(&[]));
            let running = place.up(&["--abort-recovery"]);
            let said = ok(coral().arg("status").arg(&data));
            assert!(!said.contains("  waits "), "{said}");
            running.stop();
            forget(silent);
        },
    );
}

#[test]
fn a_closed_pipe_is_no_panic() {
    in_namespace("a_closed_pipe_is_no_panic", || {
        let place = Place::new();
        let running = place.up(&[]);
        for n in 0..2000 {
            std::fs::write(
                place
                    .path("mnt")
                    .join(format!("a-file-with-a-rather-long-name-{n:080}")),
                "",
            )
            .unwrap();
        }
        let find = format!(
            "{} lfs find {} | head -1",
            coral().get_program().display(),
            place.path("mnt").display()
        );
        let out = Command::new("sh").args(["-c", &find]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 1);
        assert!(
            out.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        running.stop();

        let unread = Place::new();
        let _guard = EndsWithTest(unread.dir.path());
        let (data, program) = (
            unread.path("data"),
            coral().get_program().display().to_string(),
        );
        let up = format!(
            "{program} up {} --port {} | true",
            data.display(),
            unread.port
        );
        let out = Command::new("sh").args(["-c", &up]).output().unwrap();
        assert!(
            !String::from_utf8_lossy(&out.stderr).contains("panicked"),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        ok(coral().arg("down").arg(&data));
    });
}

/// mount(8) expects of its helpers that they say nothing when all is well, and that they remount.
#[test]
fn the_helper_of_mount_is_silent_and_remounts() {
    in_namespace("the_helper_of_mount_is_silent_and_remounts", || {
        use std::os::unix::process::CommandExt;
        let place = Place::new();
        let _guard = EndsWithTest(place.dir.path());
        let running = place.up(&[]);
        let (mnt, port) = (place.make("second"), place.port.to_string());
        let helper = |options: &str| {
            let mut helper = coral();
            helper
                .arg0("mount.coral")
                .arg("127.0.0.1@tcp:/coral")
                .arg(&mnt)
                .args(["-o", options]);
            helper
        };
        let log = place.path("second.log");
        let said = ok(helper(&format!(
            "rw,port={port},nosuid,strictatime,nodiratime,sync,dirsync,lazytime"
        ))
        .arg("--log")
        .arg(&log));
        assert_eq!(said, "");
        let flags = || {
            let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            all.lines()
                .find(|l| l.contains(&format!(" {} ", mnt.display())))
                .unwrap()
                .to_owned()
        };
        assert!(
            flags().contains(",nosuid") && flags().contains(",sync,dirsync"),
            "{}",
            flags()
        );
        drop(write(&mnt.join("f"), "synchronous"));
        std::fs::rename(mnt.join("f"), mnt.join("g")).unwrap();
        if common::is_root() {
            assert_eq!(
                ok(&mut helper(
                    "rw,nosuid,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro"
                )),
                ""
            );
            assert_eq!(
                std::fs::write(mnt.join("f"), "")
                    .unwrap_err()
                    .raw_os_error(),
                Some(libc::EROFS)
            );
            assert!(
                flags().contains(",nosuid"),
                "what is not named stays: {}",
                flags()
            );
            assert_eq!(ok(&mut helper("remount,rw,suid")), "");
            std::fs::write(mnt.join("f"), "").unwrap();
            assert!(!flags().contains(",nosuid"), "{}", flags());
        }
        let (_, said) = fails(&mut helper("remount,cache_mb=7"));
        assert!(
            said.contains("'cache_mb=7' is not changed by a remount"),
            "{said}"
        );
        assert_eq!(
            std::fs::read_to_string(mnt.join("g")).unwrap(),
            "synchronous"
        );
        ok(Command::new("umount").arg(&mnt));
        let (_, said) = fails(&mut helper("remount,ro"));
        assert!(
            said.contains("no Coral file system is mounted there"),
            "{said}"
        );
        running.stop();
    });
}

/// Its NID and port are a mount's until it has said goodbye: the next one waits for that, or says who has them.
#[test]
fn a_mount_waits_for_the_end_of_the_one_before() {
    in_namespace("a_mount_waits_for_the_end_of_the_one_before", || {
        let place = Place::new();
        let _guard = EndsWithTest(place.dir.path());
        let (mnt, port, log) = (
            place.make("second"),
            place.port.to_string(),
            place.path("second.log"),
        );
        let mount = || {
            let mut mount = coral();
            mount
                .args(["mount", "127.0.0.1@tcp:/coral"])
                .arg(&mnt)
                .args(["--nid", "127.0.0.9@tcp", "--port", &port, "--log"])
                .arg(&log);
            mount
        };
        let running = place.up(&[]);
        ok(&mut mount());
        let (_, said) = fails(mount().arg("--foreground"));
        let holder = |said: &str| {
            said.contains("another node's on this machine (process ")
                && said.contains(&format!("127.0.0.1@tcp:/coral {}", mnt.display()))
        };
        assert!(holder(&said), "{said}");
        // unmounted, but the process behind it has not seen that yet: it is waited for
        let pid: String = said
            .split_once("(process ")
            .unwrap()
            .1
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let kill = |signal: &str| ok(Command::new("kill").args([signal, &pid]));
        kill("-STOP");
        ok(Command::new("umount").arg("-l").arg(&mnt));
        let next = mount()
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        common::pause(500);
        kill("-CONT");
        let next = next.wait_with_output().unwrap();
        assert!(
            next.status.success(),
            "{}",
            String::from_utf8_lossy(&next.stderr)
        );
        // written, and no OST there to take it: it ends when one is
        let mut file = write(&mnt.join("f"), "");
        (0..40).for_each(|n| writeln!(file, "line {n}").unwrap());
        ok(Command::new("sync").arg(mnt.join("f")));
        // under a lock, with which more can be written when there is nobody to ask for one
        writeln!(file, "line 40").unwrap();
        running.kill();
        (41..80).for_each(|n| writeln!(file, "line {n}").unwrap());
        drop(file);
        ok(Command::new("umount").arg("-l").arg(&mnt));
        let (_, said) = fails(&mut mount());
        assert!(holder(&said), "{said}");
        let running = place.up(&[]);
        ok(&mut mount());
        assert_eq!(
            std::fs::read_to_string(mnt.join("f"))
                .unwrap()
                .lines()
                .count(),
            80
        );
        ok(Command::new("umount").arg(&mnt));
        running.stop();
    });
}

/// The load generator of this command line, on a mount of its own through the library.
fn generator(place: &Place, line: &str) -> Command {
    let (name, options) = line.split_once(' ').unwrap();
    let mut c = coral();
    c.args([name, "--coral-fs", "127.0.0.1@tcp:/coral"])
        .args(["--coral-port", &place.port.to_string()])
        .args(["--coral-nid", "127.0.0.9@tcp"])
        .args(options.split(' '));
    c
}

/// A load generator that mounts through the library says goodbye to the servers when it fails.
#[test]
fn a_generator_leaves_no_client_behind() {
    in_namespace("a_generator_leaves_no_client_behind", || {
        let place = Place::new();
        let running = place.up(&[]);
        let data = place.path("data");
        assert_eq!(exports(&data), 1);
        let (_, said) = fails(&mut generator(&place, "ior -w -o /no/such/directory/f"));
        assert!(said.contains("No such file"), "{said}");
        assert_eq!(exports(&data), 1, "it ended after its mount");
        let many = "ior --coral-mounts 3 --np 3 -w -o /no/such/file";
        let (_, said) = fails(&mut generator(&place, many));
        assert!(said.contains("No such file"), "{said}");
        assert_eq!(exports(&data), 1);
        running.stop();
    });
}

/// What is meant for one client would go to the other, which is evicted then.
#[test]
fn a_generator_takes_no_nid_of_another_node() {
    in_namespace("a_generator_takes_no_nid_of_another_node", || {
        let place = Place::new();
        let running = place.up(&[]);
        let mnt = place.make("second");
        let mount = |mnt: &Path| {
            let mut c = coral();
            c.args(["mount", "127.0.0.1@tcp:/coral"]).arg(mnt);
            c.args(["--nid", "127.0.0.9@tcp", "--port"]);
            c.arg(place.port.to_string());
            c
        };
        ok(&mut mount(&mnt));
        let line = "ior -w -b 64k -t 64k -o /f";
        let (_, said) = fails(&mut generator(&place, line));
        let taken = format!(
            "127.0.0.9@tcp port {} is another node's on this machine",
            place.port
        );
        assert!(said.contains(&taken), "{said}");
        assert!(said.contains("give a NID with --coral-nid"), "{said}");
        std::fs::read_dir(&mnt).unwrap().for_each(drop);
        ok(Command::new("umount").arg(&mnt));
        until("the mount's process has ended", || {
            std::net::TcpListener::bind(("127.0.0.9", place.port)).is_ok()
        });
        let mut first = generator(&place, "ior -w -t 4k -b 4g -o /g");
        let first = first.stdout(Stdio::null()).stderr(Stdio::null());
        let mut first = first.spawn().unwrap();
        until("the generator has mounted", || {
            exports(&place.path("data")) > 1
        });
        let (_, said) = fails(&mut generator(&place, line));
        assert!(said.contains(&taken), "{said}");
        let (_, said) = fails(&mut mount(&mnt));
        assert!(said.contains(&taken), "{said}");
        signal(first.id(), "TERM");
        first.wait().unwrap();
        ok(&mut generator(&place, line));
        running.stop();
    });
}

/// It does when a signal ends it, too, while its ranks are at work.
#[test]
fn a_generator_that_is_ended_at_work_leaves_no_client_behind() {
    in_namespace(
        "a_generator_that_is_ended_at_work_leaves_no_client_behind",
        || {
            let place = Place::new();
            let running = place.up(&[]);
            let data = place.path("data");
            let lines = [
                "ior --np 4 -w -t 4k -b 1g -F -o /ior",
                "mdtest --np 4 -n 1000000 -C -F -d /mdtest",
                "ior --coral-mounts 2 --np 2 -w -t 64k -b 4g -o /shared",
            ];
            for (round, line) in lines.iter().cycle().take(6).enumerate() {
                let mut generator = generator(&place, line);
                let generator = generator.stdout(Stdio::null()).stderr(Stdio::null());
                let mut generator = generator.spawn().unwrap();
                until("the generator has mounted", || exports(&data) > 1);
                pause(100 * round as u64);
                signal(generator.id(), ["TERM", "INT"][round % 2]);
                let code = generator.wait().unwrap().code();
                assert_eq!(code, Some(128 + [15, 2][round % 2]), "{line}");
                assert_eq!(exports(&data), 1, "round {round}: {line}");
            }
            running.stop();
        },
    );
}

/// Processes that those of a process's threads have started.
fn children(pid: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("children")).unwrap();
    let all: String = threads.flatten().map(of).collect();
    all.split_whitespace().map(str::to_owned).collect()
}

/// Its servers are stopped in the middle of its operations. The record of an earlier run is no record of this one.
#[test]
fn a_generator_that_cannot_end_says_what_has_not_ended() {
    in_namespace(
        "a_generator_that_cannot_end_says_what_has_not_ended",
        || {
            let place = Place::new();
            let _guard = EndsWithTest(place.dir.path());
            let running = place.up(&[]);
            let mnt = place.make("second");
            let mut client = client(place.port, &mnt);
            let record = place.path("r.json");
            std::fs::write(&record, "an earlier run's").unwrap();
            let mut ior = coral();
            ior.args("ior --np 2 --processes -F -w -t 4k -b 1g --posix.odirect -o".split(' '))
                .arg(mnt.join("f"))
                .arg("--coral-json")
                .arg(&record);
            let ior = ior.stdout(Stdio::null()).stderr(Stdio::piped());
            let ior = ior.spawn().unwrap();
            until("both write", || {
                (0..2).all(|i| mnt.join(format!("f.0000000{i}")).exists())
            });
            let ranks = children(ior.id());
            assert_eq!(ranks.len(), 1, "rank 1");
            signal(running.pid(), "STOP");
            pause(500);
            let begun = tokio::time::Instant::now();
            let mut ior = ior;
            let stderr = BufReader::new(ior.stderr.take().unwrap());
            signal(ior.id(), "INT");
            let mut said = String::new();
            let mut told = 0;
            for line in stderr.lines() {
                let line = line.unwrap();
                if line.contains("12 s after SIGINT: ") {
                    told = begun.elapsed().as_secs();
                }
                said += &(line + "\n");
            }
            let code = ior.wait().unwrap().code();
            assert_eq!(code, Some(130), "{said}");
            let took = begun.elapsed().as_secs();
            assert!(took <= 22, "{took} s: {said}");
            assert!((12..15).contains(&told), "told after {told} s: {said}");
            assert!(
                said.contains("12 s after SIGINT: ranks 0, 1 are in operations"),
                "{said}"
            );
            assert!(!record.exists(), "there is none of this run");
            for rank in ranks {
                assert!(
                    !Path::new("/proc").join(&rank).exists(),
                    "{rank} is there still"
                );
            }
            signal(running.pid(), "CONT");
            ok(Command::new("umount").arg("-l").arg(&mnt));
            until("the client has ended", || ended(&mut client));
            running.stop();
        },
    );
}

/// Rank 0 is in an operation of the kernel's. The signals are heard beside it.
#[test]
fn a_second_signal_ends_a_generator_that_is_in_an_operation() {
    in_namespace(
        "a_second_signal_ends_a_generator_that_is_in_an_operation",
        || {
            let place = Place::new();
            let _guard = EndsWithTest(place.dir.path());
            let running = place.up(&[]);
            let mnt = place.make("second");
            let mut client = client(place.port, &mnt);
            let mut ior = coral();
            ior.args("ior --np 2 --processes -F -w -t 4k -b 1g --posix.odirect -o".split(' '))
                .arg(mnt.join("f"));
            let ior = ior.stdout(Stdio::null()).stderr(Stdio::piped());
            let ior = ior.spawn().unwrap();
            until("both write", || {
                (0..2).all(|i| mnt.join(format!("f.0000000{i}")).exists())
            });
            signal(running.pid(), "STOP");
            pause(500);
            let begun = tokio::time::Instant::now();
            signal(ior.id(), "INT");
            pause(1000);
            signal(ior.id(), "INT");
            let out = ior.wait_with_output().unwrap();
            let said = text(&out);
            let took = begun.elapsed().as_secs();
            assert!(took <= 10, "{took} s: {said}");
            assert_eq!(out.status.code(), Some(130), "{said}");
            assert!(
                said.contains("at a second signal, SIGINT: ranks 0, 1 are in operations"),
                "{said}"
            );
            signal(running.pid(), "CONT");
            ok(Command::new("umount").arg("-l").arg(&mnt));
            until("the client has ended", || ended(&mut client));
            running.stop();
        },
    );
}
