//! Ranks in processes of their own and on hosts: what becomes of the others where one fails or is killed, and where they work.

mod common;

use common::{place, why_incomplete};
use coral_lab::load::{Ending, Mounted, main};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

const LINE: &str = "CORAL_TEST_LINE";
const DIR: &str = "CORAL_TEST_DIR";

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
            "#!/bin/sh\necho $$ > \"${DIR}/pid.$CORAL_LAB_RANKS\"\n{LINE}=\"$*\" exec '{}' --exact engine --ignored --nocapture\n",
            exe.display()
        );
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine");
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("made a program");
        path
    })
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

fn transfers(dir: &TempDir, file: &str) -> u64 {
    fs::metadata(dir.path().join(file)).map_or(0, |m| m.len() / 4096)
}

/// A program in the place of ssh, with which commands begin in another directory.
const SSH: &str = "--meet 127.0.0.1 --ssh DIR/ssh --hosts anna,bert";

/// `change` is what happens to the command on the way.
fn with_ssh(dir: &TempDir, change: &str) -> String {
    let path = dir.path().join("ssh");
    // Not written by this process: another thread might start a program meanwhile, with the file open.
    let script = format!("#!/bin/sh\ncd /\ncommand=$2\n{change}\nexec sh -c \"exec $command\"\n");
    let made = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(&path)
        .arg(script)
        .status();
    assert!(made.expect("sh").success());
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
        let pid = fs::read_to_string(dir.path().join("pid.1:1:2")).expect("rank 1");
        let killed = Command::new("kill").args(["-9", pid.trim()]).status();
        assert!(killed.expect("kill").success());
        let said = end(run);
        assert!(said.contains("rank 1"), "{said}");
        let done = transfers(&dir, "f.00000000");
        assert!(done < FEW, "rank 0 went on to {done}");
        let why = why_incomplete(&dir);
        let told = format!("; 1 of 2 ranks had done {done} operations with ");
        assert!(why.contains(&told), "{told}: {why}");
        assert!(said.contains(&why), "{why}: {said}");
    }
}

#[test]
fn processes_end_where_rank_0_fails_and_say_what_they_did() {
    let dir = place();
    fs::create_dir(dir.path().join("f.00000000")).expect("made");
    let said = end(start(&dir, &format!("{LONG} --processes -o f")));
    assert!(
        said.contains("ior: Cannot create file f.00000000: "),
        "{said}"
    );
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
        let ranks = ["0", "1"].map(|rank| {
            let job = dir.path().to_string_lossy().into_owned();
            let vars = [
                ("PMI_RANK", rank),
                ("PMI_SIZE", "2"),
                ("CORAL_LAB_JOB", &job),
            ];
            start_with(&dir, &line, &vars)
        });
        let said = ranks.map(end).concat();
        assert!(
            said.contains(&format!("ior: Cannot create file f.0000000{fails}: ")),
            "{said}"
        );
        let done = transfers(&dir, &format!("f.0000000{}", 1 - fails));
        assert!(done < FEW, "rank {} went on to {done}", 1 - fails);
        let why = why_incomplete(&dir);
        let told = format!("; ranks 0 to 1 had done {done} operations with ");
        assert!(why.contains(&told), "{told}: {why}");
    }
}

#[test]
fn ranks_on_hosts_work_in_the_directory_of_the_command() {
    let dir = place();
    let line = "ior --np 3 -F -w -k -t 4k -b 16k -o it's";
    let run = start(&dir, &format!("{line} {}", with_ssh(&dir, "")));
    let out = run.wait_with_output().expect("it ends");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    for rank in 0..3 {
        assert_eq!(transfers(&dir, &format!("it's.{rank:08}")), 4);
    }

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
}
