//! Ranks in processes of their own and on hosts: what becomes of the others where one fails or is killed, and where they work.

mod common;

use common::{place, why_incomplete};
use coral_lab::load::{Ending, Mounted, main};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

const LINE: &str = "CORAL_TEST_LINE";
const DIR: &str = "CORAL_TEST_DIR";
/// What the process of rank 1 of two does after its rank has left.
const AFTER: &str = "CORAL_TEST_AFTER";

/// Long writes: with its delays a rank makes some 100 transfers a second, for a minute.
const LONG: &str = "ior --np 2 -F -w -t 4k -b 1g -D 60 -O interIODelay=10000";
/// Transfers of ranks that were ended at once, at most.
const FEW: u64 = 2000;

/// Not a test: every process of the tests below.
#[test]
#[ignore = "the tests start it"]
fn engine() {
    let line = std::env::var(LINE).expect("it is started by a test");
    let words = line.split_whitespace();
    let tool = words.clone().next().expect("a name");
    let args = words.map(Into::into).collect();
    let code = main(tool, args, Mounted::default(), Ending::default());
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

/// A program that is called as `coral` is, and writes down its process.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let exe = std::env::current_exe().expect("this program");
        let script = format!(
            "#!/bin/sh\necho $$ > \"${DIR}/pid.$CORAL_LAB_RANKS\"\nexport {LINE}=\"$*\"\nset -- '{}' --exact engine --ignored --nocapture\n\
             [ \"${AFTER}\" ] && [ \"$CORAL_LAB_RANKS\" = 1:1:2 ] && \"$@\" && eval \"${AFTER}\"\nexec \"$@\"\n",
            exe.display()
        );
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine");
        make_program(&path, &script);
        path
    })
}

/// Not written by this process: another thread might start a program meanwhile, with the file open.
fn make_program(path: &Path, script: &str) {
    let write = "printf %s \"$1\" > \"$0.$$\" && chmod 755 \"$0.$$\" && mv \"$0.$$\" \"$0\"";
    let mut make = Command::new("sh");
    let made = make.args(["-c", write]).arg(path).arg(script);
    assert!(made.status().expect("sh").success());
}

fn start(dir: &TempDir, line: &str) -> Child {
    start_with(dir, line, &[])
}

fn start_with(dir: &TempDir, line: &str, vars: &[(&str, &str)]) -> Child {
    let program = program().to_string_lossy();
    Command::new(&*program)
        .args(line.split_whitespace())
        .args(["--program", &program, "--coral-json", "r.json"])
        .current_dir(dir.path())
        .env(DIR, dir.path())
        .envs(vars.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

fn end(child: Child) -> String {
    let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

#[expect(clippy::disallowed_methods, reason = "waits for other processes")]
fn until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within 30 s: {what}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "other processes stand still so long"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

fn signal(name: &str, pid: &str) {
    let sent = Command::new("kill").args(["-s", name, pid.trim()]).status();
    assert!(sent.expect("kill").success());
}

/// The process of a rank that was started.
fn pid_of(dir: &TempDir, ranks: &str) -> String {
    let pid = fs::read_to_string(dir.path().join(format!("pid.{ranks}")));
    pid.expect("it has started").trim().to_owned()
}

/// Two ranks of a foreign launcher.
fn start_foreign(dir: &TempDir, line: &str) -> [Child; 2] {
    ["0", "1"].map(|rank| {
        let job = dir.path().to_string_lossy().into_owned();
        let vars = [
            ("PMI_RANK", rank),
            ("PMI_SIZE", "2"),
            ("CORAL_LAB_JOB", &job),
        ];
        start_with(dir, line, &vars)
    })
}

fn transfers(dir: &TempDir, file: &str) -> u64 {
    fs::metadata(dir.path().join(file)).map_or(0, |m| m.len() / 4096)
}

/// A program in the place of ssh, with which commands begin in another directory.
const SSH: &str = "--meet 127.0.0.1 --ssh DIR/ssh --hosts anna,bert";

/// `change` is what happens to the command on the way.
fn with_ssh(dir: &TempDir, change: &str) -> String {
    let path = dir.path().join("ssh");
    let script = format!("#!/bin/sh\ncd /\ncommand=$2\n{change}\nexec sh -c \"exec $command\"\n");
    make_program(&path, &script);
    SSH.replace("DIR", &dir.path().to_string_lossy())
}

#[test]
fn a_process_that_is_killed_ends_the_others_at_once() {
    for on_hosts in [false, true] {
        let dir = place();
        let how = match on_hosts {
            true => with_ssh(&dir, ""),
            false => "--processes".to_owned(),
        };
        let run = start(&dir, &format!("{LONG} {how} -o f"));
        until("both write", || {
            transfers(&dir, "f.00000000") > 0 && transfers(&dir, "f.00000001") > 0
        });
        signal("KILL", &pid_of(&dir, "1:1:2"));
        let said = end(run);
        assert!(said.contains("rank 1"), "{said}");
        let done = transfers(&dir, "f.00000000");
        assert!(done < FEW, "rank 0 went on to {done}");
        let why = why_incomplete(&dir);
        let told = format!("; 1 of 2 ranks had done {done} operations with ");
        assert!(why.contains(&told), "{told}: {why}");
        let how = match on_hosts {
            true => "the process of rank 1 on bert ended by signal: 9 (SIGKILL)",
            false => "the process of rank 1 ended by signal: 9 (SIGKILL)",
        };
        assert!(why.contains(how), "{how}: {why}");
        let address = why.contains("127.0.0.1");
        assert!(!address, "it has a name: {why}");
        // A shell may say something, too.
        assert!(said.ends_with(&format!("ior: {why}\n")), "{said}");
        assert_eq!(said.matches("ior: ").count(), 1, "{said}");
    }
}

/// All ranks of a run fail for the same reason; one of them is named, once.
#[test]
fn what_all_ranks_fail_of_is_said_once() {
    for how in ["", "--processes", "--hosts"] {
        let dir = place();
        let how = match how {
            "--hosts" => with_ssh(&dir, ""),
            how => how.to_owned(),
        };
        let line = format!("ior --np 4 -F -w -t 4k -b 16k -o none/f {how}");
        let said = end(start(&dir, &line.replace("none/", "none-such/")));
        let why = why_incomplete(&dir);
        let is_named = (0..4).any(|rank| {
            why.starts_with(&format!(
                "rank {rank}: Cannot create file none-such/f.0000000{rank}: "
            ))
        });
        assert!(
            is_named && why.contains(" had done 0 operations with "),
            "{why}"
        );
        assert_eq!(said, format!("ior: {why}\n"), "{how}");
    }
}

/// Lines on standard error as they come.
#[expect(clippy::disallowed_methods, reason = "reads beside the test")]
fn lines(run: &mut Child) -> std::sync::mpsc::Receiver<String> {
    let (to, lines) = std::sync::mpsc::channel();
    let stderr = std::io::BufReader::new(run.stderr.take().expect("it is read"));
    std::thread::spawn(move || {
        let all = std::io::BufRead::lines(stderr).map_while(Result::ok);
        all.for_each(|line| drop(to.send(line)));
    });
    lines
}

/// Options by which each rank has a process of its own, on hosts or here.
fn ranks_apart(dir: &TempDir, on_hosts: bool) -> String {
    match on_hosts {
        true => with_ssh(dir, ""),
        false => "--processes".to_owned(),
    }
}

/// Of two ranks, the process of rank 1 is stopped while both write.
fn start_and_stop(dir: &TempDir, line: &str, how: &str) -> (Child, String) {
    let run = start(dir, &format!("{line} {how} -o f"));
    until("both write", || {
        transfers(dir, "f.00000000") > 0 && transfers(dir, "f.00000001") > 0
    });
    let stopped = pid_of(dir, "1:1:2");
    signal("STOP", &stopped);
    (run, stopped)
}

#[test]
fn a_process_that_stands_still_is_named_and_the_run_goes_on_with_it() {
    std::thread::scope(|s| {
        for on_hosts in [false, true] {
            s.spawn(move || {
                let dir = place();
                let how = ranks_apart(&dir, on_hosts);
                // A second or two, after which rank 0 waits.
                let line = "ior --np 2 -F -w -k -t 4k -b 600k -O interIODelay=10000";
                let (mut run, stopped) = start_and_stop(&dir, line, &how);
                let lines = lines(&mut run);
                let next = || lines.recv_timeout(Duration::from_secs(30));
                let still = next().expect("it is said");
                let who = format!("ior: rank 1 (process {stopped} on ");
                assert!(still.starts_with(&who), "{who}: {still}");
                let on_bert = still.starts_with(&format!("{who}bert) stands still: "));
                assert!(
                    still.contains(") stands still: ") && on_bert == on_hosts,
                    "{still}"
                );
                signal("CONT", &stopped);
                let goes_on = next().expect("it is said");
                assert!(
                    goes_on.starts_with(&who) && goes_on.contains(") goes on after "),
                    "{goes_on}"
                );
                assert!(run.wait().expect("it ends").success());
                assert_eq!(transfers(&dir, "f.00000001"), 150);
                stood_still(&dir, &[(&[1], &stopped)], 5.0);
            });
        }
    });
}

/// The record of a run that is complete says which ranks stood still, in which processes, and how long.
fn stood_still(dir: &TempDir, who: &[(&[u32], &str)], least_s: f64) {
    let record = common::record(dir);
    assert_eq!(record["complete"], true);
    let stood = record["stood_still"].as_array().expect("a list");
    assert_eq!(stood.len(), who.len(), "{stood:?}");
    let phase = &record["phases"][0];
    let span = ["start_s", "end_s"].map(|key| phase[key].as_f64().expect("seconds"));
    let notes = record["notes"].to_string();
    for (ranks, process) in who {
        let of = stood
            .iter()
            .find(|s| s["ranks"] == serde_json::json!(ranks));
        let of = of.unwrap_or_else(|| panic!("ranks {ranks:?}: {stood:?}"));
        assert_eq!(of["process"].to_string(), *process);
        let [from, took] = ["from_s", "for_s"].map(|key| of[key].as_f64().expect("seconds"));
        assert!((least_s..60.0).contains(&took), "{of}");
        assert!(
            span[0] - 1.5 < from && from + took < span[1] + 1.5,
            "{of}: {span:?}"
        );
        assert!(
            notes.contains(&format!("(process {process} on ")),
            "{notes}"
        );
    }
    assert_eq!(notes.matches(" stood still for ").count(), who.len());
}

/// The process where the ranks meet stands still, and takes the others for no slower than they are.
#[test]
fn who_stood_still_is_known_also_where_nobody_could_look() {
    std::thread::scope(|s| {
        for all in [false, true] {
            s.spawn(move || {
                let dir = place();
                let line =
                    "ior --np 2 --processes -F -w -k -t 4k -b 600k -O interIODelay=10000 -o f";
                let run = start(&dir, line);
                until("both write", || {
                    transfers(&dir, "f.00000000") > 0 && transfers(&dir, "f.00000001") > 0
                });
                let (first, other) = (run.id().to_string(), pid_of(&dir, "1:1:2"));
                let who: &[&str] = if all { &[&first, &other] } else { &[&first] };
                who.iter().for_each(|pid| signal("STOP", pid));
                wait(Duration::from_secs(7));
                who.iter().for_each(|pid| signal("CONT", pid));
                let out = run.wait_with_output().expect("it ends");
                let said = String::from_utf8_lossy(&out.stderr);
                assert!(out.status.success(), "{said}");
                let ranks: [(&[u32], &str); 2] = [(&[0], &first), (&[1], &other)];
                stood_still(&dir, &ranks[..who.len()], 5.0);
                assert_eq!(
                    said.matches(" stood still for ").count(),
                    who.len(),
                    "{said}"
                );
            });
        }
    });
}

/// As with Ctrl-Z at a terminal: nobody else is there to notice.
#[test]
fn a_run_that_stands_still_as_a_whole_has_it_in_its_record() {
    let dir = place();
    let line = "ior --np 2 -F -w -k -t 4k -b 600k -O interIODelay=10000 -o f";
    let mut run = start(&dir, line);
    until("it writes", || transfers(&dir, "f.00000000") > 0);
    let pid = run.id().to_string();
    let lines = lines(&mut run);
    signal("STOP", &pid);
    wait(Duration::from_secs(6));
    signal("CONT", &pid);
    let said = lines.recv_timeout(Duration::from_secs(30));
    let said = said.expect("it is said");
    let who = format!("ior: ranks 0 to 1 (process {pid} on ");
    assert!(
        said.starts_with(&who) && said.contains(") stood still for "),
        "{said}"
    );
    assert!(run.wait().expect("it ends").success());
    stood_still(&dir, &[(&[0, 1], &pid)], 5.5);
}

/// What stands still cannot end in order: it has some seconds, and the others write their record.
#[test]
fn a_process_that_stands_still_does_not_outlive_a_run_that_is_ended() {
    std::thread::scope(|s| {
        for on_hosts in [false, true] {
            s.spawn(move || {
                let dir = place();
                let how = ranks_apart(&dir, on_hosts);
                let line = LONG.replace("--np 2", "--np 3");
                let run = start(&dir, &format!("{line} {how} -o f"));
                until("all write", || {
                    (0..3).all(|rank| transfers(&dir, &format!("f.{rank:08}")) > 0)
                });
                // anna has two of the ranks, in one process
                let (still, gone) = match on_hosts {
                    true => ("0:2:3", "2:1:3"),
                    false => ("1:1:3", "2:1:3"),
                };
                let stopped = pid_of(&dir, still);
                signal("STOP", &stopped);
                signal("KILL", &pid_of(&dir, gone));
                end(run);
                until("it is gone", || !Path::new("/proc").join(&stopped).exists());
                let why = why_incomplete(&dir);
                assert!(why.contains("rank 2"), "{why}");
            });
        }
    });
}

/// The ranks there are told by their own connection, and end as after a failure.
#[test]
fn where_the_connection_to_a_host_is_cut_its_ranks_end_at_once() {
    let dir = place();
    let ssh = with_ssh(
        &dir,
        "echo $$ > DIR/ssh.$1"
            .replace("DIR", &dir.path().to_string_lossy())
            .as_str(),
    );
    // It waits for its command, as ssh does.
    let script = fs::read_to_string(dir.path().join("ssh")).expect("written");
    make_program(
        &dir.path().join("ssh"),
        &script.replace("exec sh -c \"exec $command\"", "sh -c \"exec $command\""),
    );
    let run = start(&dir, &format!("{LONG} {ssh} -o f"));
    until("both write", || {
        transfers(&dir, "f.00000000") > 0 && transfers(&dir, "f.00000001") > 0
    });
    let cut = fs::read_to_string(dir.path().join("ssh.bert")).expect("its id");
    signal("KILL", &cut);
    let said = end(run);
    let there = pid_of(&dir, "1:1:2");
    until("it has ended", || !Path::new("/proc").join(&there).exists());
    let [done, done_there] = ["f.00000000", "f.00000001"].map(|f| transfers(&dir, f));
    assert!(
        done < FEW && done_there < FEW,
        "they went on to {done} and {done_there}"
    );
    let why = why_incomplete(&dir);
    let told = format!(
        "the connection to bert (its ssh, process {}) ended by signal: 9 (SIGKILL); ranks 0 to 1 had done {} operations with ",
        cut.trim(),
        done + done_there
    );
    assert!(why.starts_with(&told), "{told}: {why}");
    assert_eq!(said, format!("ior: {why}\n"));
}

/// The kernel gives a signal to the first thread of a process: an operation there would keep it.
#[test]
fn the_first_thread_of_a_process_is_in_no_operation() {
    let (dir, line) = with_stuck(0);
    let mut run = start(&dir, &format!("{line} --np 1 --processes"));
    let wchan = |thread: &str| {
        let at = format!("/proc/{0}/task/{thread}/syscall", run.id());
        fs::read_to_string(at).unwrap_or_default()
    };
    let opens = format!("{} ", libc::SYS_openat);
    let first = run.id().to_string();
    let threads = || {
        let all = fs::read_dir(format!("/proc/{}/task", run.id())).expect("it is there");
        let names = all
            .flatten()
            .map(|t| t.file_name().to_string_lossy().into_owned());
        names.collect::<Vec<_>>()
    };
    until("a thread waits for its file", || {
        threads().iter().any(|t| wchan(t).starts_with(&opens))
    });
    // It may not have come to that yet.
    until("the first thread waits for another one", || {
        wchan(&first).starts_with(&format!("{} ", libc::SYS_futex))
    });
    run.kill().expect("it is there");
    run.wait().expect("it ends");
}

#[test]
fn processes_end_where_rank_0_fails_and_say_what_they_did() {
    let dir = place();
    fs::create_dir(dir.path().join("f.00000000")).expect("made");
    let said = end(start(&dir, &format!("{LONG} --processes -o f")));
    let why = why_incomplete(&dir);
    assert!(
        why.starts_with("rank 0: Cannot create file f.00000000: "),
        "{why}"
    );
    assert_eq!(said, format!("ior: {why}\n"), "it is said once");
    let done = transfers(&dir, "f.00000001");
    assert!(done < FEW, "rank 1 went on to {done}");
    let why = why_incomplete(&dir);
    let told = format!("; ranks 0 to 1 had done {done} operations with ");
    assert!(why.contains(&told), "{told}: {why}");
}

/// Nobody of ours has started the ranks, so each is told over the network.
#[test]
fn ranks_of_a_foreign_launcher_end_where_another_fails() {
    for fails in [0, 1] {
        let dir = place();
        fs::create_dir(dir.path().join(format!("f.0000000{fails}"))).expect("made");
        let line = format!("{} -o f", LONG.replace("--np 2 ", ""));
        let said = start_foreign(&dir, &line).map(end).concat();
        assert!(
            said.contains(&format!(
                "ior: rank {fails}: Cannot create file f.0000000{fails}: "
            )),
            "{said}"
        );
        let done = transfers(&dir, &format!("f.0000000{}", 1 - fails));
        assert!(done < FEW, "rank {} went on to {done}", 1 - fails);
        let why = why_incomplete(&dir);
        let told = format!("; ranks 0 to 1 had done {done} operations with ");
        assert!(why.contains(&told), "{told}: {why}");
    }
}

/// Nobody is left who could say why.
#[test]
fn ranks_of_a_foreign_launcher_end_where_rank_0_is_killed() {
    let dir = place();
    let line = format!("{} -o f", LONG.replace("--np 2 ", ""));
    let [mut first, other] = start_foreign(&dir, &line);
    until("both write", || {
        transfers(&dir, "f.00000000") > 0 && transfers(&dir, "f.00000001") > 0
    });
    let name = dir.path().file_name().expect("a name").to_string_lossy();
    let job = name.trim_start_matches('.');
    until("where they met is forgotten", || {
        let all = fs::read_dir(std::env::temp_dir())
            .expect("listed")
            .flatten();
        let mut names = all.map(|f| f.file_name().to_string_lossy().into_owned());
        !names.any(|f| f.starts_with("coral-lab-") && f.contains(job))
    });
    first.kill().expect("it is there");
    first.wait().expect("it ends");
    let said = end(other);
    assert!(said.contains("ior: rank 0 is gone\n"), "{said}");
    let done = transfers(&dir, "f.00000001");
    assert!(done < FEW, "rank 1 went on to {done}");
}

/// Transfers of a rank that fails when the other is at work.
const SHORT: u64 = 200;

/// One rank comes to the end of its file; the other waits for ever for somebody who writes.
fn with_stuck(stuck: u32) -> (TempDir, String) {
    let dir = place();
    let fifo = dir.path().join(format!("f.{stuck:08}"));
    let made = Command::new("mkfifo").arg(fifo).status();
    assert!(made.expect("mkfifo").success());
    let short = dir.path().join(format!("f.{:08}", 1 - stuck));
    fs::write(short, vec![0; SHORT as usize * 4096]).expect("written");
    let line = "ior -F -r -k -t 4k -b 1g -O interIODelay=10000 -o f".to_owned();
    (dir, line)
}

/// Why the run with a stuck rank ended.
fn short(stuck: u32) -> String {
    let rank = 1 - stuck;
    format!("rank {rank}: cannot read from file f.{rank:08}: the file ends here")
}

/// The rank that has the record, or a thread beside it, is in an operation that does not end.
#[test]
fn a_failure_is_told_and_a_process_does_not_wait_for_ever_for_its_own_ranks() {
    std::thread::scope(|s| {
        s.spawn(|| {
            let (dir, line) = with_stuck(1);
            let said = end(start(&dir, &format!("{line} --np 2")));
            stuck(&dir, &said, 1);
        });
        s.spawn(|| {
            let (dir, line) = with_stuck(0);
            let said = end(start(&dir, &format!("{line} --np 2 --processes")));
            stuck(&dir, &said, 0);
        });
        let (dir, line) = with_stuck(0);
        let [first, other] = start_foreign(&dir, &line);
        stuck(&dir, &end(first), 0);
        end(other);
    });

    fn stuck(dir: &TempDir, said: &str, rank: u32) {
        let why = short(rank);
        let told = format!(
            "ior: {why}; what is under way has 12 s to end\n\
             ior: 12 s after that: rank {rank} is in an operation that has not ended; nothing is waited for any longer, and there is no record\n"
        );
        assert!(said.contains(&told), "{told}: {said}");
        assert!(!dir.path().join("r.json").exists());
    }
}

/// They have said nothing of what they did, and the record has the others.
#[test]
fn ranks_in_other_processes_that_do_not_end_are_not_waited_for() {
    std::thread::scope(|s| {
        s.spawn(|| {
            let (dir, line) = with_stuck(1);
            end(start(&dir, &format!("{line} --np 2 --processes")));
            told(&dir);
        });
        s.spawn(|| {
            let (dir, line) = with_stuck(1);
            start_foreign(&dir, &line)
                .into_iter()
                .for_each(|rank| drop(end(rank)));
            told(&dir);
        });
        let dir = place();
        let line = LONG.replace("--np 2 ", "--np 3 ");
        let run = start(&dir, &format!("{line} --processes -o f"));
        until("all write", || {
            (0..3).all(|rank| transfers(&dir, &format!("f.{rank:08}")) > 0)
        });
        let stopped = pid_of(&dir, "1:1:3");
        signal("STOP", &stopped);
        signal("KILL", &pid_of(&dir, "2:1:3"));
        end(run);
        let why = why_incomplete(&dir);
        assert!(why.contains("; 1 of 3 ranks had done "), "{why}");
        assert!(!Path::new("/proc").join(stopped).exists());
    });

    fn told(dir: &TempDir) {
        let why = why_incomplete(dir);
        let told = format!(
            "{}; 1 of 2 ranks had done {SHORT} operations with ",
            short(1)
        );
        assert!(why.starts_with(&told), "{told}: {why}");
        assert!(why.ends_with("; the others did not tell"), "{why}");
    }
}

/// All ranks have done their work, and rank 0 has handed the record over.
#[test]
fn a_process_that_fails_at_its_very_end_fails_the_run() {
    for (after, on_hosts, told) in [
        ("exit 3", false, "a process of the run ended with code 3"),
        ("exit 3", true, "a process of the run ended with code 3"),
        (
            "kill -9 $$",
            false,
            "the process of rank 1 ended by signal: 9 (SIGKILL)",
        ),
        (
            "kill -9 $$",
            true,
            "the process of rank 1 on bert ended by signal: 9 (SIGKILL)",
        ),
    ] {
        let dir = place();
        let how = match on_hosts {
            true => with_ssh(&dir, ""),
            false => "--processes".to_owned(),
        };
        let line = format!("ior --np 2 -F -w -t 4k -b 16k -o f {how}");
        end(start_with(&dir, &line, &[(AFTER, after)]));
        let why = why_incomplete(&dir);
        assert!(why.starts_with(told), "{after}, {how}: {why}");
        let phases = common::record(&dir)["phases"].as_array().map(Vec::len);
        assert_eq!(phases, Some(1), "they are in the record");
    }
}

#[test]
fn ranks_on_hosts_work_in_the_directory_of_the_command() {
    let dir = place();
    let three_write = |dir: &TempDir, path: &str, how: &str| {
        let line = format!("ior --np 3 -F -w -k -t 4k -b 16k -o {path} {how}");
        let out = start(dir, &line).wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        let name = path.rsplit('/').next().expect("a name");
        for rank in 0..3 {
            assert_eq!(transfers(dir, &format!("{name}.{rank:08}")), 4);
        }
    };
    three_write(&dir, "it's", &with_ssh(&dir, ""));

    // bert has none of that name
    let dir = place();
    let change = "[ $1 = bert ] && command=$(echo \"$command\" | sed s:_DIR=/:_DIR=/none/:)";
    let how = with_ssh(&dir, change);
    let said = end(start(&dir, &format!("{LONG} {how} -o f")));
    let at = dir.path().display();
    let told = format!(
        "bert: the directory of the command, '/none{at}', cannot be worked in there: No such file or directory"
    );
    assert!(said.contains(&format!("ior: {told}")), "{said}");
    assert!(
        why_incomplete(&dir).starts_with(&told),
        "{}",
        why_incomplete(&dir)
    );

    // and needs none
    three_write(&dir, &format!("{at}/g"), &how);
}

/// Files go before the second iteration looks at them: that is a warning, and the end where they are opened.
#[test]
fn what_mdtest_did_before_a_failure_is_in_the_record() {
    for how in ["", "--processes"] {
        let dir = place();
        let script =
            "#!/bin/sh\necho >> calls\n[ $(wc -l < calls) -lt 11 ] || find md -type f -delete\n";
        make_program(&dir.path().join("before"), script);
        let line = "mdtest --np 2 -n 5 -i 2 -F -d md --run-cmd-before-phase ./before";
        let said = end(start(&dir, &format!("{line} {how}")));
        let record = common::record(&dir);
        let phases = record["phases"].as_array().expect("a list").iter();
        let phases: Vec<&str> = phases
            .map(|p| p["name"].as_str().expect("a name"))
            .collect();
        let files = ["Tree creation", "File creation", "File stat"];
        let more = ["File read", "File removal", "Tree removal"];
        assert_eq!(phases, [&files[..], &more, &files].concat(), "{how}");
        assert_eq!(record["failed_operations"], 10, "{how}");
        let why = why_incomplete(&dir);
        let told = "; 10 operations failed, the first: unable to stat md/";
        assert!(
            why.contains("unable to open file md/") && why.contains(told),
            "{why}"
        );
        assert!(said.contains(&format!("mdtest: {why}\n")), "{said}");
    }
}

/// What was read and is not what was written counts, also where the phase does not end.
#[test]
fn wrong_data_before_a_failure_are_in_the_record() {
    let dir = place();
    let line = "ior --np 1 -F -k -t 4k -o f";
    let wrote = start(&dir, &format!("{line} -w -G 1 -b 16k")).wait_with_output();
    assert!(wrote.expect("it ends").status.success());
    end(start(&dir, &format!("{line} -r -R -G 2 -b 32k")));
    assert_eq!(common::record(&dir)["failed_operations"], 4);
    let why = why_incomplete(&dir);
    let told = "; 4 operations failed, the first: incorrect data on read";
    assert!(
        why.contains("the file ends here") && why.contains(told),
        "{why}"
    );
}

/// Its table of calls cannot be written, which is known when the phase is over.
#[test]
fn a_phase_of_mib_is_in_the_record_before_its_table() {
    let dir = place();
    end(start(
        &dir,
        "mib --np 2 -t . -F -l 4 -L 2 -s 4k -W -p none/profile",
    ));
    let phases = common::record(&dir)["phases"].clone();
    assert_eq!(phases[0]["name"], "write");
    assert_eq!(phases[0]["operations"], 8);
}
