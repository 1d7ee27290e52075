//! `coral lab`: a run that is killed goes on, a full disk ends one with what it has, and file systems behind a router are started,
//! measured and gone afterwards.

mod common;

use common::{coral, fails, in_namespace, in_network_namespace, ok, pause, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// Four points, two repeats each; every step notes in a file that it was made.
fn steps_spec(dir: &Path) -> std::path::PathBuf {
    let file = dir.join("steps.toml");
    let text = format!(
        "name = 'steps'\n[parameters]\nn = [1, 2, 3, 4]\n[run]\nrepeats = 2\nsample = '100ms'\n\
         [[roles]]\nname = 'r'\nparser = 'json'\n\
         command = ['sh', '-c', 'echo {{n}} {{rep}} >> {0}/made; test -e {0}/fast || sleep 1; echo \"{{{{\\\"v\\\": {{n}}}}}}\"']\n",
        dir.display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_killed_run_goes_on_and_says_so() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, run, made) = (
        steps_spec(tmp.path()),
        tmp.path().join("run"),
        tmp.path().join("made"),
    );
    let mut lab = coral()
        .args(["lab", "run"])
        .arg(&spec)
        .arg("--dir")
        .arg(&run)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("two steps are made", || {
        lines(&run.join("points.jsonl")).len() >= 2 && lines(&made).len() >= 3
    });
    lab.kill().unwrap();
    lab.wait().unwrap();
    let before = lines(&run.join("points.jsonl"));
    let after = lines(&made).len();
    pause(2500);
    assert_eq!(
        lines(&made).len(),
        after,
        "what the run started ended with it"
    );
    let listed = ok(coral().args(["lab", "list"]).arg(tmp.path()));
    assert!(
        listed.contains("incomplete") && listed.contains("without notice"),
        "{listed}"
    );
    std::fs::write(tmp.path().join("fast"), "").unwrap();
    let said = ok(coral().args(["lab", "resume"]).arg(&run));
    assert!(said.contains("Resumed at"), "{said}");
    let records = lines(&run.join("points.jsonl"));
    assert_eq!(records[..before.len()], before);
    let steps: BTreeSet<(String, u64)> = records
        .iter()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .map(|r| {
            (
                r["point"].as_str().unwrap().to_owned(),
                r["rep"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!((records.len(), steps.len()), (8, 8), "every step once");
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Resumed at") && !page.contains("Incomplete"));
    assert!(ok(coral().args(["lab", "list"]).arg(tmp.path())).contains("steps, complete"));
    // what is whole is not begun again
    let events = lines(&run.join("events.jsonl"));
    let out = coral().args(["lab", "resume"]).arg(&run).output().unwrap();
    let said = common::text(&out);
    assert!(
        out.status.success() && said.contains("nothing is left to do"),
        "{said}"
    );
    assert_eq!(lines(&run.join("events.jsonl")), events);
}

/// Also what a command has started ends with a laboratory that is killed, without namespaces of its own. That the command has told its
/// group to end before is no way out.
#[test]
fn nothing_outlives_a_killed_run() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, pid) = (tmp.path().join("long.toml"), tmp.path().join("pid"));
    let text = "name = 'long'\n[[roles]]\nname = 'r'\ncommand = ['sh', '-c', 'trap : TERM; kill -TERM 0; sleep 300 & echo $! > PID.new; mv PID.new PID; wait']\n";
    std::fs::write(&spec, text.replace("PID", &pid.to_string_lossy())).unwrap();
    let mut lab = coral()
        .args(["lab", "run"])
        .arg(&spec)
        .arg("--dir")
        .arg(tmp.path().join("run"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the command has a child", || pid.exists());
    lab.kill().unwrap();
    lab.wait().unwrap();
    let child = std::fs::read_to_string(&pid).unwrap();
    let stat = format!("/proc/{}/stat", child.trim());
    until("the child is gone", || {
        // a zombie waits for whoever takes in orphans here
        std::fs::read_to_string(&stat).map_or(true, |s| s.contains(") Z "))
    });
}

/// mdtest goes on where a file cannot be looked at, and says in the end that it was so: the run ends.
#[test]
fn operations_that_fail_end_the_run() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, run) = (tmp.path().join("fails.toml"), tmp.path().join("run"));
    let text = "name = 'fails'\n[[roles]]\nname = 'm'\nparser = 'mdtest'\ncommand = ['coral', 'mdtest', '-n', '5', '-F', '-T', '-u', '-d', '{scratch}/md']\n";
    std::fs::write(&spec, text).unwrap();
    let mut lab = coral();
    let lab = lab.args(["lab", "run"]).arg(&spec).arg("--dir").arg(&run);
    let (_, said) = fails(lab);
    assert!(
        said.contains("incomplete, 0 of 3 steps") && said.contains("mdtest: 5 operations failed"),
        "{said}"
    );
    let state = ok(coral().args(["lab", "list"]).arg(tmp.path()));
    assert!(state.contains("incomplete"), "{state}");
    let (_, said) = fails(coral().arg("explain").arg(&run));
    assert!(said.contains("without stopwatches"), "{said}");
    // What is refused has not announced anything before.
    let mut lab = coral();
    let lab = lab.args(["lab", "run"]).arg(&spec).arg("--dir").arg(&run);
    let (_, said) = fails(lab);
    assert!(
        said.contains("is there already") && !said.contains("points"),
        "{said}"
    );
}

/// Two that begin in one directory at once: one makes the run, and the other is told that it is there.
#[test]
fn a_directory_has_one_run() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, run) = (steps_spec(tmp.path()), tmp.path().join("run"));
    std::fs::write(tmp.path().join("fast"), "").unwrap();
    let begin = || {
        let mut c = coral();
        c.args(["lab", "run"]).arg(&spec).arg("--dir").arg(&run);
        c.stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = [begin(), begin(), begin()].map(|c| c.wait_with_output().unwrap());
    let made = both.iter().filter(|o| o.status.success()).count();
    assert_eq!(made, 1, "{both:?}");
    for o in both.iter().filter(|o| !o.status.success()) {
        let said = common::text(o);
        let refused = ["is there already", "another `coral lab` runs"];
        assert!(refused.iter().any(|r| said.contains(r)), "{o:?}");
    }
    assert_eq!(lines(&run.join("points.jsonl")).len(), 8);
    assert_eq!(lines(&tmp.path().join("made")).len(), 8);
}

#[test]
fn an_interrupt_ends_the_run_in_order() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, run, made) = (
        steps_spec(tmp.path()),
        tmp.path().join("run"),
        tmp.path().join("made"),
    );
    let lab = coral()
        .args(["lab", "run"])
        .arg(&spec)
        .arg("--dir")
        .arg(&run)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("a step runs", || !lines(&made).is_empty());
    ok(Command::new("kill").args(["-INT", &lab.id().to_string()]));
    let out = lab.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(130), "as of a shell: {said}");
    assert!(
        said.contains("incomplete") && said.contains("interrupted"),
        "{said}"
    );
    assert!(
        std::fs::read_to_string(run.join("report.html"))
            .unwrap()
            .contains("interrupted")
    );
}

/// What is said at the end of a broken run works as it stands; other mounts are told.
#[test]
fn a_run_goes_on_with_its_mounts() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, mnt) = (tmp.path().join("given.toml"), tmp.path().join("it's"));
    std::fs::create_dir(&mnt).unwrap();
    let text = "name = 'given'\n[run]\nrepeats = 1\nsample = '100ms'\n[rig]\nsystems = [{ name = 'fs1' }]\n[[roles]]\nname = 'r'\ncommand = ['sh', '-c', 'test -e OK && touch \"$0/made\" && test -e OK.2', '{fs1}']\n";
    let fine = tmp.path().join("ok");
    std::fs::write(&spec, text.replace("OK", &fine.to_string_lossy())).unwrap();
    let mut lab = coral();
    lab.args(["lab", "run"]).arg(&spec);
    lab.args(["--mount", "fs1=it's", "--dir", "the run"]);
    let (code, said) = fails(lab.current_dir(tmp.path()));
    assert_eq!(code, 1, "{said}");
    let line = said.lines().find_map(|l| l.strip_suffix("` goes on"));
    let line = line
        .and_then(|l| l.strip_prefix("`coral "))
        .expect("a command");
    std::fs::write(&fine, "").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("\"$0\" {line}")]);
    let coral = std::fs::canonicalize(coral().get_program()).unwrap();
    fails(shell.arg(coral).current_dir(tmp.path()));
    assert!(mnt.join("made").exists());

    let other = tmp.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(tmp.path().join("ok.2"), "").unwrap();
    let mut lab = crate::coral();
    lab.args(["lab", "resume"]).arg(tmp.path().join("the run"));
    lab.arg("--mount").arg(format!("fs1={}", other.display()));
    let out = lab.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && other.join("made").exists(),
        "{said}"
    );
    assert!(
        said.contains("another environment than before: place: "),
        "{said}"
    );
    let told = String::from_utf8_lossy(&out.stdout) + said;
    assert!(
        told.contains("not Coral: nothing to explain") && !told.contains("no Coral process"),
        "{told}"
    );
}

/// Steps of one run are of the same file systems.
#[test]
fn a_run_of_its_own_file_systems_goes_on_with_no_others() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, run) = (tmp.path().join("rig.toml"), tmp.path().join("run"));
    let text = "name = 'rig'\n[run]\nrepeats = 1\n[rig]\nsystems = [{ name = 'fs1' }]\n[[roles]]\nname = 'r'\ncommand = ['sh', '-c', 'exit 7', '{fs1}']\n";
    std::fs::write(&spec, text).unwrap();
    fails(
        coral()
            .args(["lab", "run"])
            .arg(&spec)
            .arg("--dir")
            .arg(&run),
    );
    let mut lab = coral();
    lab.args(["lab", "resume"]).arg(&run).arg("--mount");
    let (_, said) = fails(lab.arg(format!("fs1={}", tmp.path().display())));
    assert!(
        said.contains("leave --mount out, or begin another run"),
        "{said}"
    );
}

#[test]
fn misspelt_words_name_the_nearest() {
    let tmp = tempfile::tempdir().unwrap();
    let (_, said) = fails(coral().args(["lab", "run", "s7"]).current_dir(tmp.path()));
    assert!(
        said.contains("no study 's7'") && said.contains("did you mean 's0'"),
        "{said}"
    );
    let (_, said) = fails(
        coral()
            .args(["lab", "run", "s1", "--profile", "quikc"])
            .current_dir(tmp.path()),
    );
    assert!(said.contains("did you mean 'quick'"), "{said}");
    let (_, said) = fails(
        coral()
            .args(["lab", "run", "s1", "--mount", "fs3=/tmp"])
            .current_dir(tmp.path()),
    );
    assert!(said.contains("did you mean 'fs1'"), "{said}");
    for verb in ["resume", "report"] {
        let (_, said) = fails(coral().args(["lab", verb]).arg(tmp.path()));
        assert!(
            said.contains("holds no run of the laboratory") && said.contains("coral lab list"),
            "{verb}: {said}"
        );
    }
    assert_eq!(
        std::fs::read_dir(tmp.path()).unwrap().count(),
        0,
        "nothing was made"
    );
    let spec = tmp.path().join("rig.toml");
    let text = "name = 'rig'\n[rig]\nsystems = [{ name = 'fs1', ost = [1] }]\n[[roles]]\nname = 'r'\ncommand = ['true']\n";
    std::fs::write(&spec, text).unwrap();
    let run = tmp.path().join("run");
    let mut lab = coral();
    let lab = lab.args(["lab", "run"]).arg(&spec).arg("--dir").arg(&run);
    let (_, said) = fails(lab);
    assert!(
        said.contains("unknown key 'ost'; did you mean 'oss'"),
        "{said}"
    );
    assert!(!run.exists());
    let listed = ok(coral().args(["lab", "list"]).arg(tmp.path()));
    for study in ["s0", "s1", "s2", "s3", "s4"] {
        assert!(listed.contains(study), "{listed}");
    }
}

/// What `coral lab run` refuses before anything is made, with what is to do.
#[test]
fn what_cannot_be_run_says_what_is_to_do() {
    let tmp = tempfile::tempdir().unwrap();
    let spec = tmp.path().join("x.toml");
    let base = "name = 'x'\n[[roles]]\nname = 'r'\n";
    let plain = "command = ['true']\n";
    let of_x = "command = ['ls', '{x}']\n";
    let mount = "--mount x=.";
    for (end, options, says) in [
        (
            plain,
            mount,
            "--mount x: no command of the experiment names a file system: write {fs1} where a command takes its directory, as in \"--directory={fs1}\", and give --mount fs1=DIR, or leave --mount out",
        ),
        (
            of_x,
            mount,
            "./x.toml: unknown name '{x}' in a command; known: rep, scratch, coral; without a [rig], names of file systems have 'fs' in them, as {fs1} for --mount fs1=DIR",
        ),
        (
            plain,
            "--mount =.",
            "--mount =.: give the name of the experiment's file system and a directory, as in fs1=/mnt",
        ),
        (
            plain,
            "--mount x=",
            "--mount x=: give the name of the experiment's file system and a directory, as in fs1=/mnt",
        ),
        (
            plain,
            "--dir no/such/run",
            "--dir no/such/run: there is no directory 'no/such': make it, or correct the path",
        ),
    ] {
        std::fs::write(&spec, format!("{base}{end}")).unwrap();
        let mut run = coral();
        let run = run.current_dir(tmp.path());
        let (_, said) = fails(
            run.args(["lab", "run", "./x.toml"])
                .args(options.split(' ')),
        );
        assert_eq!(said, format!("coral: {says}\n"));
        let there = std::fs::read_dir(tmp.path()).unwrap().count();
        assert_eq!(there, 1, "nothing was made: {options}");
    }
    let rig = "[rig]\nsystems = [{ name = 'fs1' }]\n";
    std::fs::write(&spec, format!("{base}{plain}{rig}")).unwrap();
    let mut run = coral();
    let run = run.args(["lab", "run"]).arg(&spec).current_dir(tmp.path());
    let (_, said) = fails(run.args(["--scratch", "no/such/scratch"]));
    let told =
        "--scratch no/such/scratch: there is no directory 'no/such': make it, or correct the path";
    assert_eq!(said, format!("coral: {told}\n"));
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1);
}

#[test]
fn a_full_disk_ends_the_run_with_what_it_has() {
    in_namespace("a_full_disk_ends_the_run_with_what_it_has", full_disk);
}

fn full_disk() {
    let tmp = tempfile::tempdir().unwrap();
    let small = tmp.path().join("small");
    std::fs::create_dir(&small).unwrap();
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&small));
    let spec = tmp.path().join("full.toml");
    // the second repeat fills what the run directory is on
    let fill = format!(
        "test {{rep}} = 1 || dd if=/dev/zero of={0}/fill bs=4k 2>/dev/null; echo 1",
        small.display()
    );
    std::fs::write(&spec, format!("name = 'full'\n[run]\nrepeats = 3\n[[roles]]\nname = 'r'\nparser = 'json'\ncommand = ['sh', '-c', '{fill}; echo \"{{{{\\\"v\\\": 5}}}}\"']\n")).unwrap();
    let run = small.join("run");
    let (_, said) = fails(
        coral()
            .args(["lab", "run"])
            .arg(&spec)
            .arg("--dir")
            .arg(&run),
    );
    assert!(said.contains("incomplete, 1 of 3"), "{said}");
    let wanted = ["no space is left on", "No space left on device"];
    assert!(wanted.iter().any(|w| said.contains(w)), "{said}");
    std::fs::remove_file(small.join("fill")).unwrap();
    let state = ok(coral().args(["lab", "list"]).arg(&small));
    assert!(
        state.contains("incomplete") && state.contains("1 of 3"),
        "{state}"
    );
    // its one result is in the report
    let table = ok(coral().args(["lab", "report"]).arg(&run));
    assert!(table.contains("r/v") && table.contains("5.000"), "{table}");
    ok(Command::new("umount").arg(&small));
}

/// What the commands of a step say goes into the run's report: of `repeats` steps only `done` have a result.
fn ended_early(run: &Path, said: &str, done: usize, repeats: usize, why: &str) {
    let counted = format!("incomplete, {done} of {repeats} steps");
    assert!(
        said.contains(&counted) && said.contains(why),
        "{why}: {said}"
    );
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Incomplete") && page.contains(why), "{page}");
    let csv = lines(&run.join("data.csv"));
    let measured = csv.iter().filter(|l| l.contains(",w/write,")).count();
    assert_eq!(measured, done, "{csv:?}");
}

#[test]
fn a_full_target_ends_the_run_with_what_it_has() {
    in_namespace("a_full_target_ends_the_run_with_what_it_has", || {
        let tmp = tempfile::tempdir().unwrap();
        let small = tmp.path().join("small");
        std::fs::create_dir(&small).unwrap();
        ok(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "none"])
            .arg(&small));
        let spec = tmp.path().join("fills.toml");
        let text = "name = 'fills'\n[run]\nrepeats = 3\n[[roles]]\nname = 'w'\nparser = 'ior'\ncommand = ['coral', 'ior', '-w', '-k', '-b', '3m', '-t', '64k', '-o', '{fs1}/f{rep}']\n";
        std::fs::write(&spec, text).unwrap();
        let run = tmp.path().join("run");
        let mount = format!("fs1={}", small.display());
        let mut lab = coral();
        let lab = lab
            .args(["lab", "run"])
            .arg(&spec)
            .args(["--mount", &mount]);
        let (_, said) = fails(lab.arg("--dir").arg(&run));
        ended_early(&run, &said, 1, 3, "No space left on device");
        ok(Command::new("umount").arg(&small));
    });
}

/// A program in the place of ssh, which runs the command here; `before`: what it does first with `$host` and the command `$1`.
fn fake_ssh(at: &Path, before: &str) -> String {
    let text = format!("#!/bin/sh\nhost=$1; shift\n{before}\nexec sh -c \"exec $1\"\n");
    std::fs::write(at, text).unwrap();
    ok(Command::new("chmod").arg("755").arg(at));
    at.display().to_string()
}

#[test]
fn a_host_that_vanishes_ends_the_run_with_what_it_has() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    // In the second step the host goes away in the middle.
    let dies = "case \"$1\" in */f2*) [ $host = bert ] && { (sleep 1; kill -9 $$) & };; esac";
    let ssh = fake_ssh(&at("ssh"), dies);
    let program = Path::new(coral().get_program()).canonicalize().unwrap();
    let text = format!(
        "name = 'hosts'\n[run]\nrepeats = 3\n[[roles]]\nname = 'w'\nparser = 'ior'\ncommand = ['sh', '-c', 'exec {{coral}} ior --np 2 -F -w -b 64k -t 4k -O interIODelay=$(( 2000 + ({{rep}} - 1) * 500000 )) -o {dir}/f{{rep}} --hosts anna,bert --meet 127.0.0.1 --ssh {ssh} --program {program}']\n",
        dir = tmp.path().display(),
        program = program.display()
    );
    std::fs::write(at("hosts.toml"), text).unwrap();
    let mut lab = coral();
    let lab = lab.args(["lab", "run"]).arg(at("hosts.toml"));
    let (_, said) = fails(lab.arg("--dir").arg(at("run")));
    ended_early(&at("run"), &said, 1, 3, "the connection to bert (its ssh, ");
}

/// Commands run on hosts, each host is sampled, and one whose agent ends in the middle ends the run.
#[test]
fn hosts_are_measured_and_one_that_vanishes_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name);
    // The agent of bert dies in the second step.
    let dies = format!(
        "case \"$host $1\" in bert*agent*) n=$(cat {0} 2>/dev/null | wc -l); echo >> {0}; test $n -lt 1 || {{ (sleep 1; kill -9 $$) & }};; esac",
        at("agents").display()
    );
    let ssh = fake_ssh(&at("ssh"), &dies);
    let program = Path::new(coral().get_program()).canonicalize().unwrap();
    let host = |name: &str| {
        format!(
            "[[hosts]]\nname = '{name}'\nssh = ['{ssh}', '{name}']\ncoral = '{}'\n",
            program.display()
        )
    };
    let text = format!(
        "name = 'hosts'\n[run]\nrepeats = 3\nsample = '100ms'\n{}{}[[roles]]\nname = 'w'\nhost = 'anna'\nparser = 'json'\ncommand = ['sh', '-c', 'test {{rep}} = 1 || sleep 60; sleep 0.5; echo \"{{{{\\\"write\\\": 7}}}}\"']\n",
        host("anna"),
        host("bert")
    );
    std::fs::write(at("hosts.toml"), text).unwrap();
    let mut lab = coral();
    let lab = lab.args(["lab", "run"]).arg(at("hosts.toml"));
    let (_, said) = fails(lab.arg("--dir").arg(at("run")));
    let why = "the host bert went away: its agent has ended";
    ended_early(&at("run"), &said, 1, 3, why);
    let first: Value = serde_json::from_str(&lines(&at("run/points.jsonl"))[0]).unwrap();
    let samples = at("run").join(first["samples"].as_str().unwrap());
    let samples: Value = serde_json::from_str(&std::fs::read_to_string(samples).unwrap()).unwrap();
    for series in [
        "anna/host/cpu_busy",
        "bert/host/cpu_busy",
        "bert/host/mem_available",
    ] {
        assert!(samples["series"].get(series).is_some(), "{series}");
    }
    // One that does not answer is no reason to stay when asked to end.
    fake_ssh(&at("ssh"), "touch $0.asked; sleep 300");
    let mut silent = coral()
        .args(["lab", "run"])
        .arg(at("hosts.toml"))
        .arg("--dir")
        .arg(at("silent"))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the host is asked", || at("ssh.asked").exists());
    ok(Command::new("kill").args(["-TERM", &silent.id().to_string()]));
    until("it ends", || silent.try_wait().unwrap().is_some());
    let said = common::text(&silent.wait_with_output().unwrap());
    assert!(
        said.contains("interrupted") && !said.contains("cannot be reached"),
        "{said}"
    );
    fake_ssh(&at("ssh"), "echo no route to $host >&2; exit 255");
    let mut again = coral();
    let again = again.args(["lab", "run"]).arg(at("hosts.toml"));
    let (_, said) = fails(again.arg("--dir").arg(at("other")));
    assert!(
        said.contains("the host 'anna' cannot be reached") && said.contains("no route to anna"),
        "{said}"
    );
    assert!(!at("other").exists());
}

#[test]
fn a_target_that_is_not_what_a_study_needs_is_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(tmp.path().join("file"), "").unwrap();
    let mount = |name: &str, what: &str| format!("{name}={}", tmp.path().join(what).display());
    for (study, mounts, why) in [
        (
            "s0",
            vec![mount("fs1", "dir")],
            "needs 4 mounts of 'fs1', and 1 is given",
        ),
        (
            "s1",
            vec![mount("fs1", "dir")],
            "needs the file system 'fs2' too: give --mount fs2=DIR",
        ),
        (
            "s2",
            vec![mount("fs1", "dir")],
            "needs a mount of Lustre or Coral, because it sets stripes",
        ),
        (
            "s3",
            vec![mount("fs1", "file")],
            "no directory that can be written to",
        ),
        ("s4", vec![mount("fs1", "dir")], "leave --mount out"),
    ] {
        let mut lab = coral();
        lab.args(["lab", "run", study, "--profile", "quick"]);
        for m in mounts {
            lab.args(["--mount", &m]);
        }
        let run = tmp.path().join("run");
        let (_, said) = fails(lab.arg("--dir").arg(&run));
        assert!(said.contains(why), "{study}: {said}");
        assert!(!run.exists(), "{study}: nothing was made");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// Two file systems behind a router, each written to and read: what the router forwarded is in the report, and nothing is left.
#[test]
fn file_systems_behind_a_router_are_measured_and_gone() {
    let tmp = tempfile::tempdir().unwrap();
    let spec = tmp.path().join("rig.toml");
    let text = r#"
        name = "rig"
        [parameters]
        fs = ["fs1", "fs2"]
        where = ["{fs1.0}", "{fs2.1}"]
        [run]
        repeats = 1
        cache = "remount"
        sample = "100ms"
        [rig]
        systems = [{ name = "fs1", oss = [1, 1] }, { name = "fs2" }]
        router = true
        clients = 2
        cache_mb = 16
        [[prepare]]
        name = "before"
        command = ["dd", "if=/dev/zero", "of={where}/read", "bs=1M", "count=8", "status=none"]
        [[roles]]
        name = "w"
        parser = "json"
        command = ["sh", "-c", "dd if=/dev/zero of={where}/written bs=1M count=8 conv=fsync status=none && echo '{{\"MiB\": 8}}'"]
        [[roles]]
        name = "r"
        parser = "json"
        command = ["sh", "-c", "n=$(cat {where}/read | wc -c); echo \"{{\\\"bytes\\\": $n}}\""]
        [[figures]]
        title = "Router"
        kind = "time"
        y = ["router/routed_bytes"]
        unit = "bytes/s"
    "#;
    std::fs::write(
        &spec,
        text.replace(
            "name = \"rig\"\n",
            "name = \"rig\"\n        zip = [[\"fs\", \"where\"]]\n",
        ),
    )
    .unwrap();
    let run = tmp.path().join("run");
    ok(coral()
        .args(["lab", "run"])
        .arg(&spec)
        .arg("--dir")
        .arg(&run));
    let records: Vec<Value> = lines(&run.join("points.jsonl"))
        .iter()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(records.len(), 2);
    for r in &records {
        assert_eq!(r["roles"][1]["measures"][0]["value"], f64::from(8 << 20));
        assert_eq!(r["cache"]["done"][0], "clients were mounted anew");
        let verdict = r["verdict"].as_str().unwrap();
        assert!(verdict.contains("operations/s"), "of the mounts: {verdict}");
        let samples: Value = serde_json::from_str(
            &std::fs::read_to_string(run.join(r["samples"].as_str().unwrap())).unwrap(),
        )
        .unwrap();
        let bins = samples["series"]["router/routed_bytes"]["bins"]
            .as_array()
            .unwrap();
        let most = bins
            .iter()
            .filter(|b| b["count"].as_u64() > Some(0))
            .map(|b| b["max"].as_f64().unwrap())
            .fold(0.0, f64::max);
        // 16 MiB went through: the largest rate is at least their mean over the time
        let seconds = r["roles"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["seconds"].as_f64().unwrap())
            .fold(0.0, f64::max);
        assert!(most * seconds >= 8e6, "{most} bytes/s in {seconds} s");
        for series in [
            "proc/router_cpu",
            "proc/fs1-mds_rss",
            "proc/fs2-oss0_rss",
            "proc/fs1-client1_rss",
            "fs1-client1/requests",
            "host/net_lo_rx",
        ] {
            assert!(
                samples["series"].get(series).is_some(),
                "{series}: {:?}",
                samples["series"].as_object().unwrap().keys()
            );
        }
    }
    assert!(!run.join("rig").exists(), "targets are gone");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(&*tmp.path().to_string_lossy()),
        "no mount is left"
    );
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("class=\"panel\"") && !page.contains("Incomplete"));
}

/// Several MDSs, a directory striped over their MDTs, and mounts of the library: all work, each measurement has file systems of
/// its own, and the verdict is about the operations of those mounts.
#[test]
fn many_mounts_in_one_process_use_several_mdts() {
    let tmp = tempfile::tempdir().unwrap();
    let spec = tmp.path().join("many.toml");
    let text = r#"
        name = "many"
        [run]
        repeats = 2
        sample = "100ms"
        [rig]
        systems = [{ name = "fs1", mds = "1,2" }, { name = "fs2", mds = "none" }]
        clients = 1
        cache_mb = 16
        fresh = true
        [[prepare]]
        name = "directory"
        command = ["coral", "lfs", "mkdir", "-c", "3", "{fs1}/d0"]
        [[roles]]
        name = "m"
        parser = "mdsrate"
        command = ["sh", "-c", "exec {coral} mdsrate {fs1.library} --coral-mounts 5 --coral-stopwatches {scratch}/stopwatches-m.json --np 10 --create --nfiles 200 --ndirs 1 --dirfmt /d%d --filefmt 'f%%d'"]
        [[cleanup]]
        name = "count"
        command = ["sh", "-c", "test $(ls {fs1}/d0 | wc -l) = 200"]
    "#;
    std::fs::write(&spec, text).unwrap();
    let run = tmp.path().join("run");
    ok(coral()
        .args(["lab", "run"])
        .arg(&spec)
        .arg("--dir")
        .arg(&run));
    let records: Vec<Value> = lines(&run.join("points.jsonl"))
        .iter()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(records.len(), 2);
    for r in &records {
        let verdict = r["verdict"].as_str().unwrap();
        assert!(verdict.starts_with("Little's law "), "{verdict}");
        assert!(!verdict.contains("no operation was seen"), "{verdict}");
    }
    let text = std::fs::read_to_string(run.join("stopwatches.json")).unwrap();
    let seen: coral_lab::verdict::Seen = serde_json::from_str(&text).unwrap();
    let mounts: BTreeSet<&String> = seen.dumps.iter().flat_map(|d| &d.names).collect();
    for n in 1..=5 {
        let nid = format!("127.10.0.{n}@tcp");
        assert!(mounts.contains(&nid), "{nid}: {mounts:?}");
    }
    // every mount had two ranks of 20 files each
    let joined = seen.joined();
    let targets: BTreeSet<&String> = (joined.rpcs.iter())
        .map(|r| &joined.names[r.target])
        .collect();
    for target in ["fs1-MDT0000", "fs1-MDT0001", "fs1-MDT0002"] {
        assert!(targets.contains(&target.to_owned()), "{targets:?}");
    }
    let (_, said) = fails(
        coral()
            .args(["lab", "run"])
            .arg(&spec)
            .args(["--mount", "fs1=/tmp", "--dir"])
            .arg(tmp.path().join("other")),
    );
    assert!(said.contains("leave --mount out"), "{said}");
}

/// A signal outside reaches the run in its namespaces; it ends in order, and its file systems with it.
#[test]
fn a_signal_ends_what_runs_in_namespaces() {
    let tmp = tempfile::tempdir().unwrap();
    let spec = tmp.path().join("long.toml");
    let text = "name = 'long'\n[rig]\nsystems = [{ name = 'fs1' }]\n[[roles]]\nname = 'r'\ncommand = ['sh', '-c', 'touch {fs1}/f; echo there > NOTE; sleep 300']\n";
    let note = tmp.path().join("note");
    std::fs::write(&spec, text.replace("NOTE", &note.to_string_lossy())).unwrap();
    let run = tmp.path().join("run");
    for signal in ["-TERM", "-KILL"] {
        let _ = std::fs::remove_dir_all(&run);
        let _ = std::fs::remove_file(&note);
        let mut lab = coral()
            .args(["lab", "run"])
            .arg(&spec)
            .arg("--dir")
            .arg(&run)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the command runs", || note.exists());
        ok(Command::new("kill").args([signal, &lab.id().to_string()]));
        let code = lab.wait().unwrap().code();
        assert_eq!(code, (signal == "-TERM").then_some(143));
        let listed = ok(coral().args(["lab", "list"]).arg(tmp.path()));
        assert!(!listed.contains("long, running, "), "{signal}: {listed}");
        until("the run says why it ended", || {
            lines(&run.join("events.jsonl"))
                .last()
                .is_some_and(|l| l.contains("interrupted"))
        });
        until("its file systems are gone", || {
            !run.join("rig").exists() && processes_with(&run.to_string_lossy()) == 0
        });
    }
}

/// The end of standard input and a signal are one wish to end: what runs inside ends in order although it gets both.
#[test]
fn one_interrupt_that_arrives_in_two_ways_is_one() {
    let tmp = tempfile::tempdir().unwrap();
    let (mut lab, run, note) = rig_with(tmp.path(), "touch {fs1}/f");
    let inside = process_where(
        |words| {
            let is_lab = words[0].ends_with("/coral") && words.iter().any(|w| w == "lab");
            is_lab && words.contains(&run.display().to_string())
        },
        lab.id(),
    );
    let server = process_where(
        |words| {
            words.iter().any(|w| w == "--foreground")
                && words.iter().any(|w| w.ends_with("rig/fs1-mds"))
        },
        lab.id(),
    );
    // While a server does not answer the end in order is not over.
    let send = |signal: &str, pid: u32| {
        Command::new("kill")
            .args([signal, &pid.to_string()])
            .output()
            .unwrap()
    };
    send("-STOP", server);
    send("-TERM", lab.id());
    until("the command is ended", || processes_with(&note) == 0);
    send("-INT", inside);
    pause(500);
    send("-CONT", server);
    assert_eq!(lab.wait().unwrap().code(), Some(143));
    let last = lines(&run.join("events.jsonl")).pop().unwrap();
    assert!(last.contains("interrupted"), "{last}");
}

/// Who works inside is killed: its file systems end with it, and their targets go when the run goes on.
#[test]
fn what_a_killed_run_left_is_removed_when_it_goes_on() {
    let tmp = tempfile::tempdir().unwrap();
    let (spec, run, note) = (
        tmp.path().join("rig.toml"),
        tmp.path().join("run"),
        tmp.path().join("note"),
    );
    let at = note.display().to_string();
    let text = format!(
        "name = 'rig'\n[run]\nrepeats = 1\n[rig]\nsystems = [{{ name = 'fs1' }}]\n[[roles]]\nname = 'r'\ncommand = ['sh', '-c', 'test -e {at} && exit; touch {{fs1}}/f {at}; sleep 300']\n"
    );
    std::fs::write(&spec, text).unwrap();
    let mut lab = coral();
    lab.args(["lab", "run"]).arg(&spec).arg("--dir").arg(&run);
    let mut lab = lab
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the command runs", || note.exists());
    let of_run = run.display().to_string();
    let inside = process_where(
        |words| {
            let is_lab = words[0].ends_with("/coral") && words.iter().any(|w| w == "lab");
            is_lab && words.contains(&of_run)
        },
        lab.id(),
    );
    ok(Command::new("kill").args(["-KILL", &inside.to_string()]));
    assert!(!lab.wait().unwrap().success());
    until("its processes are gone", || processes_with(&of_run) == 0);
    assert!(run.join("rig").exists(), "there was nobody to remove it");
    ok(coral().args(["lab", "resume"]).arg(&run));
    assert!(!run.join("rig").exists());
}

/// The second signal outside ends what is inside at once, also while its end in order waits.
#[test]
fn a_second_signal_ends_the_namespaces() {
    let tmp = tempfile::tempdir().unwrap();
    // What works in the file system, and is not of the command's group, keeps it from being unmounted.
    let stays = "setsid sh -c 'cd {fs1} && touch BUSY && exec sleep 300' & until test -e {fs1}/BUSY; do sleep 0.1; done";
    let (mut lab, run, note) = rig_with(tmp.path(), stays);
    let term = || ok(Command::new("kill").args(["-TERM", &lab.id().to_string()]));
    term();
    until("the command is ended", || processes_with(&note) == 0);
    term();
    assert_eq!(lab.wait().unwrap().code(), Some(143));
    until("all is gone", || {
        processes_with(&run.to_string_lossy()) == 0
    });
    let events = lines(&run.join("events.jsonl"));
    assert!(
        !events.iter().any(|e| e.contains("interrupted")),
        "{events:?}"
    );
}

/// Starts a run with a file system of its own, whose command has run `script` and waits: the process, the run directory, and a text
/// in the command line of that command only.
fn rig_with(dir: &Path, script: &str) -> (std::process::Child, std::path::PathBuf, String) {
    let (spec, run, note) = (dir.join("rig.toml"), dir.join("run"), dir.join("note"));
    let at = note.display().to_string();
    let text = format!(
        "name = 'rig'\n[rig]\nsystems = [{{ name = 'fs1' }}]\n[[roles]]\nname = 'r'\ncommand = ['sh', '-c', \"\"\"{script}; touch {at}; sleep 300\"\"\"]\n"
    );
    std::fs::write(&spec, text).unwrap();
    let mut lab = coral();
    lab.args(["lab", "run"]).arg(&spec).arg("--dir").arg(&run);
    let lab = lab.stdout(Stdio::null()).stderr(Stdio::null());
    let lab = lab.spawn().unwrap();
    until("the command runs", || note.exists());
    (lab, run, at)
}

/// The process other than `not` with such a command line.
fn process_where(is: impl Fn(&[String]) -> bool, not: u32) -> u32 {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut found = pids.filter(|pid| *pid != not).filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> = line
            .split(|b| *b == 0)
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        is(&words)
    });
    found.next().expect("such a process")
}

/// Processes with this text in their command line.
fn processes_with(text: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

/// A mount that is given, whose servers run here: where the time went in them is in the record without their being named.
#[test]
fn the_servers_of_a_given_mount_are_asked_by_themselves() {
    in_network_namespace(
        "the_servers_of_a_given_mount_are_asked_by_themselves",
        || {
            let place = common::Place::new();
            let port = place.port.to_string();
            let text = |name: &str| place.path(name).to_string_lossy().into_owned();
            let (mds, ost, nid) = (text("mds"), text("ost"), "127.0.0.2@tcp");
            let format = ["format", "--fsname", "fs"];
            ok(coral().args(format).args(["--mgs", "--mdt", "0", &mds]));
            ok(coral()
                .args(format)
                .args(["--ost", "0", "--mgsnode", nid, &ost]));
            let args = ["serve", &mds, &ost, "--nid", nid, "--port", &port];
            let servers = common::Running::start(&args, &place.path("mds"), &[]);
            let mnt = place.make("mnt");
            let m = mnt.to_string_lossy().into_owned();
            let args = ["mount", "127.0.0.2@tcp:/fs", &m, "--port", &port];
            let args: Vec<&str> = args.into_iter().chain(["--nid", "127.0.0.4@tcp"]).collect();
            let client = common::Running::start(&args, &place.path("client"), &[&mnt]);
            let spec = r#"
name = "x"
title = "x"
[parameters]
n = [1]
[run]
repeats = 1
[[roles]]
name = "w"
parser = "mdtest"
command = ["coral", "mdtest", "-n", "100", "-F", "-C", "-r", "-w", "4096", "-d", "{fs1}/d"]
[rig]
systems = [{ name = "fs1", oss = [1] }]
"#;
            let (file, run) = (place.path("x.toml"), place.path("run"));
            std::fs::write(&file, spec).expect("written");
            let mut lab = coral();
            let lab = lab.args(["lab", "run"]).arg(&file);
            ok(lab
                .arg("--mount")
                .arg(format!("fs1={m}"))
                .arg("--dir")
                .arg(&run));
            let kept = std::fs::read_to_string(run.join("stopwatches.json")).expect("a record");
            let seen: coral_lab::verdict::Seen = serde_json::from_str(&kept).expect("JSON");
            assert!(
                seen.dumps.iter().any(|d| d.served.len() > 50),
                "the servers told"
            );
            let said = ok(coral().arg("explain").arg(&run));
            assert!(!said.contains("network and server together"), "{said}");
            // it stands alone
            let (_, said) = fails(coral().arg("explain").arg(&run).arg(&mnt));
            assert!(
                said.contains("explained alone: name nothing else"),
                "{said}"
            );
            client.stop();
            servers.stop();
        },
    );
}
