//! The load generators by the names users call them: ranks as processes, under a foreign launcher, on other hosts by a shell that
//! stands for ssh; system calls as strace counts them; and what happens when a process of a run is killed.

mod common;

use common::{coral, fails, free_port, in_namespace, ok, pause, text, until};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A directory with links to `coral` by the names of the generators.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        let coral = PathBuf::from(coral().get_program())
            .canonicalize()
            .expect("the program");
        for name in ["ior", "mdtest", "mib", "mdsrate"] {
            symlink(&coral, dir.path().join(name)).expect("a link");
        }
        Bench(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    /// A command line, of which `DIR` is the directory.
    fn tool(&self, line: &str) -> Command {
        let line = line.replace("DIR", &self.0.path().to_string_lossy());
        let mut words = line.split_whitespace();
        let mut command = Command::new(self.path(words.next().expect("a name")));
        command.args(words).stdin(Stdio::null());
        command
    }

    fn record(&self, name: &str) -> serde_json::Value {
        let text = std::fs::read_to_string(self.path(name)).expect("a record");
        serde_json::from_str(&text).expect("JSON")
    }
}

#[test]
fn the_generators_have_names_of_their_own_and_are_subcommands() {
    let b = Bench::new();
    let out = ok(&mut b.tool("ior -N 2 -F -b 64k -t 4k -o DIR/f"));
    assert!(
        out.starts_with("IOR-4.1.0+dev: MPI Coordinated Test of Parallel I/O\n"),
        "{out}"
    );
    let out = ok(coral()
        .args(["mdtest", "--np", "2", "-n", "4", "-d"])
        .arg(b.path("md")));
    assert!(
        out.contains("mdtest-4.1.0+dev was launched with 2 total task(s) on 1 node(s)"),
        "{out}"
    );
    let (code, said) = fails(&mut b.tool("ior --filePerProcs"));
    assert_eq!(code, 1);
    assert!(said.contains("the nearest is -F (filePerProc)"), "{said}");
    let (code, said) = fails(&mut b.tool("mdsrate --creat --nfile 4 --dirfmtt x"));
    assert_eq!(code, 1);
    assert!(said.contains("the nearest is --dirfmt"), "{said}");
}

#[test]
fn ranks_are_processes_when_asked() {
    let b = Bench::new();
    let line =
        "ior --np 3 --processes -w -r -W -R -G 3 -b 128k -t 8k -o DIR/f --coral-json DIR/r.json";
    ok(&mut b.tool(line));
    let record = b.record("r.json");
    assert_eq!(
        (&record["ranks"], &record["complete"]),
        (&3.into(), &true.into())
    );
    for phase in record["phases"].as_array().expect("phases") {
        assert_eq!(phase["bytes"], 3 * 128 * 1024);
        assert_eq!(phase["latency_ns"]["samples"], 48);
    }
    // the clock of rank 0 is the common one; the others know how far off theirs may be
    let bounds = record["clock_uncertainty_ns"].as_array().expect("bounds");
    assert_eq!(bounds[0], 0);
    assert!(
        bounds[1..]
            .iter()
            .all(|b| b.as_u64().is_some_and(|ns| ns > 0)),
        "{bounds:?}"
    );
}

/// Rank 1 has no file to read. That the others say so too, and nothing of a signal or of when it came, is what they heard.
#[test]
fn a_rank_that_fails_ends_the_others_for_its_reason() {
    let b = Bench::new();
    ok(&mut b.tool("ior --np 3 -w -k -F -b 64k -t 8k -o DIR/f"));
    std::fs::remove_file(b.path("f.00000001")).expect("it is there");
    let (_, said) = fails(&mut b.tool("ior --np 3 --processes -r -F -b 64k -t 8k -o DIR/f"));
    let reasons: Vec<&str> = said.lines().filter(|l| l.starts_with("ior: ")).collect();
    let is_own = |l: &&str| l.contains("f.00000001") && !l.contains(" after ");
    assert!(
        !reasons.is_empty() && reasons.iter().all(is_own),
        "{reasons:?}: {said}"
    );
}

#[test]
fn a_foreign_launcher_says_who_is_who() {
    let b = Bench::new();
    for (rank, size) in [
        ("PMI_RANK", "PMI_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ] {
        let ranks: Vec<_> = (0..3)
            .map(|i| {
                let mut c = b.tool("ior -F -C -b 64k -t 4k -o DIR/f --coral-json DIR/r.json");
                c.env(rank, i.to_string())
                    .env(size, "3")
                    .env("TMPDIR", b.path(""));
                c.stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("starts")
            })
            .collect();
        for (i, child) in ranks.into_iter().enumerate() {
            let out = child.wait_with_output().expect("ends");
            assert!(out.status.success(), "{rank} {i}: {}", text(&out));
            let prints = text(&out).contains("Summary of all tests:");
            assert_eq!(prints, i == 0, "rank 0 prints: {}", text(&out));
        }
        assert_eq!(b.record("r.json")["phases"][1]["bytes"], 3 * 64 * 1024);
        let left = std::fs::read_dir(b.path("")).expect("listed");
        let left = left.filter(|e| {
            e.as_ref()
                .is_ok_and(|e| e.file_name().to_string_lossy().contains(".meet"))
        });
        assert_eq!(left.count(), 0, "where they met is forgotten");
    }
    let mut both = b.tool("ior --np 2 -o DIR/f");
    both.env("PMI_RANK", "0").env("PMI_SIZE", "2");
    assert!(
        fails(&mut both)
            .1
            .contains("--np and --hosts are for runs without one")
    );
}

/// A program in the place of ssh: it runs the command here.
fn fake_ssh(b: &Bench, script: &str) -> String {
    let path = b.path("fake-ssh");
    std::fs::write(&path, script).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
        .expect("made a program");
    path
}

fn on_hosts(b: &Bench, ssh: &str, line: &str) -> Command {
    let mut c = b.tool(line);
    c.args([
        "--hosts",
        "anna,bert",
        "--meet",
        "127.0.0.1",
        "--ssh",
        ssh,
        "--program",
    ]);
    c.arg(
        PathBuf::from(coral().get_program())
            .canonicalize()
            .expect("the program"),
    );
    c
}

#[test]
fn several_hosts_meet_over_ssh() {
    let b = Bench::new();
    let ssh = fake_ssh(&b, "#!/bin/sh\nshift\nexec sh -c \"$1\"\n");
    let line = "ior --np 5 -F -C -b 64k -t 4k -o DIR/it's --coral-json DIR/r.json";
    let out = ok(&mut on_hosts(&b, &ssh, line));
    assert!(
        out.contains("nodes               : 2\n") && out.contains("clients per node    : 3\n"),
        "{out}"
    );
    let record = b.record("r.json");
    assert_eq!(
        record["hosts"],
        serde_json::json!(["anna", "anna", "anna", "bert", "bert"])
    );
    assert_eq!(
        (&record["complete"], &record["phases"][1]["bytes"]),
        (&true.into(), &(5 * 65536).into())
    );
}

#[test]
fn a_host_that_does_not_come_or_vanishes_ends_the_run() {
    let b = Bench::new();
    let ssh = fake_ssh(
        &b,
        "#!/bin/sh\n[ $1 = bert ] && { echo no route to bert >&2; exit 255; }\nshift\nexec sh -c \"$1\"\n",
    );
    let (_, said) = fails(&mut on_hosts(
        &b,
        &ssh,
        "ior --np 2 -F -b 64k -o DIR/f --coral-json DIR/r.json",
    ));
    assert!(
        said.contains("bert ended with code 255 before it took part"),
        "{said}"
    );
    assert_eq!(b.record("r.json")["complete"], false);

    // bert is killed in the middle of a long write
    let ssh = fake_ssh(
        &b,
        &format!(
            "#!/bin/sh\nhost=$1; shift; echo $$ > {}/$host.pid; exec sh -c \"exec $1\"\n",
            b.path("")
        ),
    );
    let line = "ior --np 2 -F -w -t 4k -b 1g -D 50 -O interIODelay=10000 -i 2 -o DIR/f --coral-json DIR/r.json";
    let run = on_hosts(&b, &ssh, line)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    until("both write", || {
        ["f.00000000", "f.00000001"]
            .iter()
            .all(|f| std::fs::metadata(b.path(f)).is_ok_and(|m| m.len() > 0))
    });
    pause(100);
    let pid = std::fs::read_to_string(b.path("bert.pid")).expect("its id");
    ok(Command::new("kill").args(["-9", pid.trim()]));
    let out = run.wait_with_output().expect("ends");
    assert!(!out.status.success());
    let said = text(&out);
    let told = format!(
        "the connection to bert (its ssh, process {}) ended by signal: 9 (SIGKILL)",
        pid.trim()
    );
    assert!(said.contains(&told), "{told}: {said}");
    let record = b.record("r.json");
    assert_eq!(record["complete"], false);
    assert!(
        record["why_incomplete"]
            .as_str()
            .is_some_and(|w| w.contains(&told) && !w.contains(" after ")),
        "{record}"
    );
}

/// The operations would go on for ever; those of one repetition are over.
#[test]
fn a_signal_ends_a_run_with_its_record() {
    let b = Bench::new();
    for (signal, code, how) in [
        ("INT", 130, ""),
        ("TERM", 143, ""),
        ("TERM", 143, "--processes"),
    ] {
        let line = format!(
            "ior --np 2 {how} -F -w -r -i 1000000 -b 64k -t 4k -o DIR/f --coral-json DIR/r.json"
        );
        let mut tool = b.tool(&line);
        let mut run = tool
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut printed = BufReader::new(run.stdout.take().expect("its output"));
        let mut lines = printed.by_ref().lines().map(|l| l.expect("a line"));
        assert!(lines.any(|l| l.starts_with("read ")), "a row of the table");
        ok(Command::new("kill").args([&format!("-{signal}"), &run.id().to_string()]));
        std::io::copy(&mut printed, &mut std::io::sink()).expect("read to its end");
        let out = run.wait_with_output().expect("ends");
        let said = text(&out);
        assert_eq!(out.status.code(), Some(code), "{how}: {said}");
        let record = b.record("r.json");
        assert_eq!(record["complete"], false);
        let why = record["why_incomplete"].as_str().expect("a reason");
        assert!(
            why.starts_with(&format!("ended by SIG{signal} after ")),
            "{why}"
        );
        assert!(why.contains(" s; ranks 0 to 1 had done "), "{why}");
        assert!(said.contains(&format!("ior: {why}\n")), "{why}: {said}");
        let phases = record["phases"].as_array().expect("phases");
        assert!(
            phases.len() >= 2,
            "write and read of a repetition: {record}"
        );
    }
}

/// Two ranks that write for long, each in a process: the run, and the process of rank 1.
fn two_processes(b: &Bench, how: impl FnOnce(&str) -> Command) -> (std::process::Child, String) {
    let line =
        "ior --np 2 -F -w -t 4k -b 1g -D 60 -O interIODelay=10000 -o DIR/f --coral-json DIR/r.json";
    let run = how(line)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let run = run.expect("starts");
    until("both write", || {
        let files = ["f.00000000", "f.00000001"].map(|f| std::fs::metadata(b.path(f)));
        files.iter().all(|f| f.as_ref().is_ok_and(|m| m.len() > 0))
    });
    let is_of_rank_1 = |pid: &&u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut words = environ.split(|b| *b == 0);
        let is_shell = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        words.any(|w| w == b"CORAL_LAB_RANKS=1:1:2") && is_shell.is_ok_and(|c| c.trim() != "sh")
    };
    let all = std::fs::read_dir("/proc").expect("listed").flatten();
    let pids: Vec<u32> = all
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect();
    let of_run = |pid: &&u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&b.path("r.json"))
    };
    let found = pids.iter().filter(of_run).find(is_of_rank_1);
    (run, found.expect("a process").to_string())
}

/// One of the processes is ended by a signal, and nobody has told the others to end.
#[test]
fn a_rank_that_a_signal_ends_is_named_with_the_signal() {
    for (name, is_on_hosts) in [("INT", false), ("TERM", true)] {
        let b = Bench::new();
        let ssh = fake_ssh(&b, "#!/bin/sh\nshift\nexec sh -c \"$1\"\n");
        let (run, rank) = two_processes(&b, |line| match is_on_hosts {
            true => on_hosts(&b, &ssh, line),
            false => b.tool(&format!("{line} --processes")),
        });
        ok(Command::new("kill").args(["-s", name, &rank]));
        let out = run.wait_with_output().expect("ends");
        assert_eq!(out.status.code(), Some(1), "{}", text(&out));
        let record = b.record("r.json");
        let why = record["why_incomplete"].as_str().expect("a reason");
        let told = format!("rank 1 (process {rank} on ");
        assert!(why.starts_with(&told), "{told}: {why}");
        let how = format!(") was ended by SIG{name}; ranks 0 to 1 had done ");
        assert!(why.contains(&how), "{how}: {why}");
        assert_eq!(text(&out), format!("ior: {why}\n"));
    }
}

/// Rank 1 is not there yet, and says nothing of whom it does not find.
#[test]
fn a_run_that_is_ended_before_it_began_says_so_in_one_line() {
    let b = Bench::new();
    let ssh = fake_ssh(
        &b,
        "#!/bin/sh\n[ $1 = bert ] && { touch DIR/late; sleep 1; }\nshift\nexec sh -c \"$1\"\n"
            .replace("DIR", &b.path(""))
            .as_str(),
    );
    let line = "ior --np 2 -F -w -b 64k -t 4k -o DIR/f --coral-json DIR/r.json";
    let mut run = on_hosts(&b, &ssh, line);
    let run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let run = run.expect("starts");
    until("it starts", || {
        std::path::Path::new(&b.path("late")).exists()
    });
    ok(Command::new("kill").args(["-INT", &run.id().to_string()]));
    let out = run.wait_with_output().expect("ends");
    assert_eq!(out.status.code(), Some(130), "{}", text(&out));
    let said = text(&out);
    assert!(said.starts_with("ior: ended by SIGINT"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// A signal to all processes, as of a terminal, is one to the run.
#[test]
fn a_signal_to_all_processes_is_that_of_the_run() {
    let b = Bench::new();
    let (run, rank) = two_processes(&b, |line| b.tool(&format!("{line} --processes")));
    // The one that the others wait for comes last.
    ok(Command::new("kill").args(["-s", "INT", &rank, &run.id().to_string()]));
    let out = run.wait_with_output().expect("ends");
    assert_eq!(out.status.code(), Some(130), "{}", text(&out));
    let record = b.record("r.json");
    let why = record["why_incomplete"].as_str().expect("a reason");
    assert!(why.starts_with("ended by SIGINT after "), "{why}");
    assert_eq!(text(&out), format!("ior: {why}\n"));
}

/// The disk has room for the data of two files, in the directory of the tree. The original's interface ends at the third, by an assertion.
#[test]
fn mdtest_ends_where_data_cannot_be_written() {
    in_namespace("mdtest_ends_where_data_cannot_be_written", || {
        let b = Bench::new();
        let dir = b.path("full");
        std::fs::create_dir(&dir).expect("a directory");
        ok(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8k", "tmpfs"])
            .arg(&dir));
        let line = "mdtest -n 10 -F -C -w 4096 -d DIR/full --coral-json DIR/r.json";
        let out = b.tool(line).output().expect("runs");
        let said = text(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        let record = b.record("r.json");
        let why = record["why_incomplete"].as_str().expect("a reason");
        assert!(why.starts_with("unable to write file "), "{why}");
        assert!(why.contains("No space left on device"), "{why}");
        let done = "; rank 0 had done 3 operations with 8192 bytes by then, in all phases";
        assert!(why.ends_with(done), "{why}");
        assert!(said.contains(&format!("mdtest: {why}\n")), "{said}");
        assert!(!said.contains("File creation"), "no rate is told: {said}");
        ok(Command::new("umount").arg(&dir));
    });
}

/// The original goes on where a directory cannot be made, and ends with 0.
#[test]
fn operations_of_mdtest_that_fail_are_told_and_in_its_code() {
    let b = Bench::new();
    ok(&mut b.tool("mdtest -n 10 -D -C -d DIR/md"));
    let line = "mdtest -n 12 -D -C -d DIR/md --coral-json DIR/r.json";
    let (code, said) = fails(&mut b.tool(line));
    assert_eq!(code, 1);
    let record = b.record("r.json");
    let why = record["why_incomplete"].as_str().expect("a reason");
    assert!(why.contains(" operations failed, the first: "), "{why}");
    let told = format!("mdtest: {why}; what is printed counts them as done\n");
    assert!(said.contains(&told), "{told}: {said}");
}

/// mdsrate says so among what it prints, and ends with 0.
#[test]
fn files_that_mdsrate_does_not_find_are_told_and_in_its_code() {
    let b = Bench::new();
    ok(&mut b.tool("mdsrate --create --nfiles 10 --dir DIR/d"));
    let line = "mdsrate --unlink --nfiles 12 --dir DIR/d --coral-json DIR/r.json";
    let (code, said) = fails(&mut b.tool(line));
    assert_eq!(code, 1);
    let record = b.record("r.json");
    let why = record["why_incomplete"].as_str().expect("a reason");
    assert!(why.starts_with("an operation failed: unlink "), "{why}");
    assert!(said.contains(&format!("mdsrate: {why}\n")), "{said}");
    assert_eq!(record["phases"][0]["operations"], 10);
}

/// What keeps a process of the run from its work is known before its ranks are there.
#[test]
fn a_host_that_cannot_mount_says_why_once() {
    let b = Bench::new();
    let ssh = fake_ssh(&b, "#!/bin/sh\nshift\nexec sh -c \"$1\"\n");
    let line = "ior --np 1 -F -w -b 64k -o /f --coral-fs nobody@tcp:/none --coral-json DIR/r.json";
    let (code, said) = fails(&mut on_hosts(&b, &ssh, line));
    assert_eq!(code, 1);
    let record = b.record("r.json");
    let why = record["why_incomplete"].as_str().expect("a reason");
    assert!(
        why.starts_with("rank 0 on anna: ") && why.contains("nobody"),
        "{why}"
    );
    assert_eq!(said, format!("ior: {why}\n"));
}

/// Whatever its name: what is logged on the way to it is not told.
#[test]
fn servers_that_are_not_there_are_one_line() {
    let b = Bench::new();
    let port = free_port().to_string();
    let args = [
        "-F",
        "-b",
        "64k",
        "-t",
        "4k",
        "-o",
        "/f",
        "--coral-port",
        &port,
    ];
    let fs = ["--coral-fs", "127.0.0.1@tcp:/none"];
    let by_name = b.tool("ior").args(args).args(fs).output();
    let by_word = coral().arg("ior").args(args).args(fs).output();
    for out in [by_name, by_word].map(|out| out.expect("runs")) {
        let said = text(&out);
        assert_eq!(
            (out.status.code(), said.lines().count()),
            (Some(1), 1),
            "{said}"
        );
        assert!(
            said.starts_with("ior: cannot mount 127.0.0.1@tcp:/none: "),
            "{said}"
        );
    }
}

/// The original says nothing but that it cannot statfs.
#[test]
fn mib_says_what_is_to_do_without_its_directory() {
    let b = Bench::new();
    let (code, said) = fails(&mut b.tool("mib -t DIR/none -l 1"));
    assert_eq!(code, 1);
    let told = format!(
        "mib: Could not statfs {}: No such file or directory (os error 2); mib writes its files into a directory that is there: make it, or give another one with -t",
        b.path("none")
    );
    assert!(said.starts_with(&told), "{said}");
    assert!(!std::path::Path::new(&b.path("none")).exists());
}

/// Processes that those of a process's threads have started.
fn children(pid: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("children")).unwrap();
    let all: String = threads.flatten().map(of).collect();
    all.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_process_that_is_killed_is_named_once() {
    let b = Bench::new();
    std::fs::write(b.path("r.json"), "an earlier run's").expect("written");
    let line =
        "ior --np 3 --processes -F -w -t 4k -b 64k -i 1000000 -o DIR/f --coral-json DIR/r.json";
    let mut tool = b.tool(line);
    let tool = tool.stdout(Stdio::null()).stderr(Stdio::piped());
    let run = tool.spawn().expect("starts");
    until("all write", || {
        std::path::Path::new(&b.path("f.00000002")).exists()
    });
    assert!(
        !std::path::Path::new(&b.path("r.json")).exists(),
        "it is no record of this run"
    );
    let first = children(run.id()).first().cloned().expect("rank 1");
    ok(Command::new("kill").args(["-9", &first]));
    let said = text(&run.wait_with_output().expect("ends"));
    let told: Vec<&str> = said.lines().filter(|l| l.starts_with("ior: ")).collect();
    assert_eq!(told.len(), 1, "{said}");
    assert!(
        told[0].contains("the process of rank 1 ended by signal: 9"),
        "{said}"
    );
    assert!(!said.contains("buffer"), "{said}");
    let why = b.record("r.json")["why_incomplete"].to_string();
    assert!(why.contains("ended by signal: 9"), "{why}");
}

/// Each operation makes a file, so the files tell what the ranks did. They are ended while they work.
#[test]
fn what_all_processes_did_until_a_signal_is_in_the_record() {
    let b = Bench::new();
    let line = "mdsrate --np 3 --processes --create --time 100000 --nfiles 300000000 --dir DIR/d --filefmt f%%d-%d --coral-json DIR/r.json";
    let mut run = b.tool(line).stdout(Stdio::null()).spawn().expect("starts");
    let files = || std::fs::read_dir(b.path("d")).map_or(0, Iterator::count);
    until("all work", || files() > 300);
    ok(Command::new("kill").args(["-TERM", &run.id().to_string()]));
    assert_eq!(run.wait().expect("ends").code(), Some(143));
    let record = b.record("r.json");
    let why = record["why_incomplete"].as_str().expect("a reason");
    let told = format!("; ranks 0 to 2 had done {} operations with ", files());
    assert!(why.contains(&told), "{told}: {why}");
}

/// Calls of these names that a run makes, or None where strace cannot be used.
fn strace(b: &Bench, calls: &str, line: &str) -> Option<Vec<String>> {
    let to = b.path("trace");
    let tool = b.tool(line);
    let out = Command::new("strace")
        .args(["-f", "-qq", "-e", &format!("trace={calls}"), "-o", &to])
        .arg(tool.get_program())
        .args(tool.get_args())
        .output()
        .ok()?;
    assert!(out.status.success(), "{}", text(&out));
    let trace = std::fs::read_to_string(&to).ok()?;
    // a call that another thread interrupts has two lines; its end has "resumed"
    Some(
        trace
            .lines()
            .filter(|l| !l.contains("resumed") && !l.contains("+++"))
            .map(str::to_owned)
            .collect(),
    )
}

#[test]
fn system_calls_are_as_many_as_operations() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("strace is not here: calls are not counted");
        return;
    }
    let b = Bench::new();
    let count = |calls: &Option<Vec<String>>, name: &str| {
        let calls = calls.as_ref().expect("a trace");
        // The loader of programs reads as well, in other sizes. A call that another thread interrupts shows none.
        let ours =
            |l: &&String| !name.starts_with('p') || !l.contains(" = ") || l.contains(", 4096, ");
        calls
            .iter()
            .filter(|l| l.contains(&format!(" {name}(")))
            .filter(ours)
            .count()
    };
    let seen = strace(
        &b,
        "pwrite64,pread64,fsync",
        "ior -N 2 -F -b 64k -t 4k -e -o DIR/f --coral-json DIR/r.json",
    );
    assert_eq!(
        (count(&seen, "pwrite64"), count(&seen, "pread64")),
        (32, 32)
    );
    assert_eq!(count(&seen, "fsync"), 2);
    let said = b.record("r.json");
    assert_eq!(
        (
            &said["phases"][0]["operations"],
            &said["phases"][1]["operations"]
        ),
        (&32.into(), &32.into())
    );

    let seen = strace(
        &b,
        "mknodat,mknod,unlinkat,unlink",
        "mdsrate --np 2 --mknod --nfiles 20 --dirfmt DIR/d",
    );
    assert_eq!(count(&seen, "mknodat") + count(&seen, "mknod"), 20);
    let seen = strace(
        &b,
        "unlinkat,unlink",
        "mdsrate --np 2 --unlink --nfiles 20 --dirfmt DIR/d",
    );
    assert_eq!(count(&seen, "unlinkat") + count(&seen, "unlink"), 20);
    let seen = strace(
        &b,
        "statx,newfstatat",
        "mdtest --np 2 -n 10 -F -C -T -d DIR/md",
    );
    let stats = seen
        .as_ref()
        .expect("a trace")
        .iter()
        .filter(|l| l.contains("file.mdtest."))
        .count();
    assert_eq!(stats, 20);
    let seen = strace(&b, "pwrite64,fsync", "mib --np 2 -F -t DIR -s 4k -l 7 -W");
    assert_eq!((count(&seen, "pwrite64"), count(&seen, "fsync")), (14, 2));
}
