//! Figures against what is known otherwise: sizes of files, counts of names, arithmetic of the same stamps; and what must
//! fail, fails.

mod common;

use common::{good, place, record, start, why_incomplete};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;

fn phases<'r>(record: &'r Value, name: &str) -> Vec<&'r Value> {
    let phases = record["phases"].as_array().expect("phases");
    phases.iter().filter(|p| p["name"] == name).collect()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn bandwidth_is_bytes_over_the_time_of_the_same_stamps() {
    let dir = place();
    let (record, printed) = good(&dir, "ior --np 3 -F -b 1m -t 4k -i 2 -k -o DIR/f");
    for name in ["write", "read"] {
        let all = phases(&record, name);
        assert_eq!(all.len(), 2);
        for p in all {
            assert_eq!(p["bytes"], 3 << 20);
            assert_eq!(p["operations"], 3 * 256);
            assert_eq!(p["latency_ns"]["samples"], 3 * 256);
            let seconds = number(&p["end_s"]) - number(&p["start_s"]);
            let mib = 3.0 / seconds;
            assert!((number(&p["printed"]["bw_mib_per_s"]) / mib - 1.0).abs() < 1e-6);
            assert!((number(&p["bytes_per_s"]) / mib / 1_048_576.0 - 1.0).abs() < 1e-6);
        }
    }
    for rank in 0..3 {
        let file = dir.path().join(format!("f.{rank:08}"));
        assert_eq!(fs::metadata(file).expect("kept").len(), 1 << 20);
    }
    // the summary's deviation is the population's; the record has both
    let spread = &record["summary"]["0.write"]["bytes_per_s"];
    let values: Vec<f64> = spread["values"]
        .as_array()
        .expect("raw points")
        .iter()
        .map(number)
        .collect();
    let half = (values[0] - values[1]).abs() / 2.0;
    assert!((number(&spread["stdev_population"]) - half).abs() < half * 1e-9 + 1e-9);
    assert!((number(&spread["stdev_sample"]) - half * 2.0_f64.sqrt()).abs() < half * 1e-9 + 1e-9);
    assert!(printed.contains("Summary of all tests:"));
}

#[test]
fn shuffled_and_shared_files_are_whole_and_right() {
    let dir = place();
    for order in [
        "",
        "-z",
        "-z -F",
        "-F -C",
        "-F -Z",
        "-F -Z -Z -X 7",
        "-C -Q 2",
        "-F -u",
    ] {
        for data in ["t", "o", "i", "r"] {
            let line = format!(
                "ior --np 4 {order} -l {data} -G 27 --random-offset-seed 5 -s 3 -b 32k -t 8k -w -W -r -R -k -o DIR/v"
            );
            let (record, _) = good(&dir, &line);
            for p in phases(&record, "read") {
                assert_eq!(p["bytes"], 4 * 3 * 32768, "{line}");
            }
            for entry in fs::read_dir(dir.path()).expect("listed") {
                let path = entry.expect("an entry").path();
                let gone = if path.is_dir() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                };
                gone.expect("removed");
            }
        }
    }
}

#[test]
fn a_flipped_byte_is_found_and_counted() {
    let dir = place();
    let write = "ior --np 2 -F -w -k -G 27 -l o -b 64k -t 8k -o DIR/f";
    good(&dir, write);
    let path = dir.path().join("f.00000001");
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opened");
    for at in [20_000_u64, 60_001] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        byte[0] ^= 0x10;
        file.write_all_at(&byte, at).expect("written");
    }
    let (ended, printed) = start(
        &dir,
        "ior --np 2 -F -r -R -k -G 27 -l o -b 64k -t 8k -o DIR/f",
    );
    let ended = ended.expect("it ends in order");
    assert_eq!(ended.code, 2, "two transfers are wrong\n{printed}");
    assert!(
        printed.contains("WARNING: Incorrect data on read (2 errors found)."),
        "{printed}"
    );
    let record = ended.record.expect("a record");
    assert_eq!(phases(&record, "read")[0]["errors"], 2);
    assert_eq!(
        (&record["complete"], &record["failed_operations"]),
        (&false.into(), &2.into())
    );
    assert_eq!(
        record["why_incomplete"],
        "2 operations failed, the first: incorrect data on read"
    );
    // another seed makes everything wrong
    let (ended, _) = start(
        &dir,
        "ior --np 2 -F -r -R -k -G 28 -l o -b 64k -t 8k -o DIR/f",
    );
    assert_eq!(ended.expect("ends").code, 16);
}

#[test]
fn a_stonewalled_write_is_read_back_to_where_it_came() {
    let dir = place();
    let common = "-F -t 4k -b 1g -k -o DIR/s -O stoneWallingStatusFile=DIR/st";
    let (record, _) = good(
        &dir,
        &format!("ior --np 3 {common} -w -D 1 -O stoneWallingWearOut=1 -O interIODelay=500"),
    );
    let wrote = phases(&record, "write")[0].clone();
    let wall = &wrote["stonewall"];
    let pairs = wall["operations_max"].as_u64().expect("a number");
    assert_eq!(
        wrote["operations"],
        3 * pairs,
        "all wear out to the most of any"
    );
    assert!(
        wall["operations_min"].as_u64() <= Some(pairs)
            && wall["bytes"].as_u64() <= wrote["bytes"].as_u64()
    );
    assert!(number(&wall["seconds"]) >= 1.0 && number(&wall["tail_s"]) >= 0.0);
    let rate = number(&wall["bytes"]) / number(&wall["seconds"]);
    assert!((number(&wall["bytes_per_s"]) / rate - 1.0).abs() < 1e-9);
    for rank in 0..3 {
        let file = dir.path().join(format!("s.{rank:08}"));
        assert_eq!(fs::metadata(file).expect("kept").len(), 4096 * pairs);
    }
    let (record, _) = good(&dir, &format!("ior --np 3 {common} -r"));
    assert_eq!(phases(&record, "read")[0]["operations"], 3 * pairs);
}

#[test]
fn mdtest_makes_and_removes_what_it_says() {
    let dir = place();
    for line in [
        "-n 30",
        "-n 30 -u -N 1",
        "-n 28 -b 3 -z 2 -u -R --random-seed 3",
        "-n 12 -b 2 -z 2 -L",
        "-n 20 -I 5",
        "-n 10 -c",
        "-n 10 -S",
        "-n 10 -F -w 100 -e 100 -X -N 1 --dataPacketType=o",
        "-n 10 -F -k -y",
    ] {
        let (record, _) = good(&dir, &format!("mdtest --np 3 -d DIR/md {line}"));
        assert!(!dir.path().join("md").exists(), "{line}: something is left");
        for p in record["phases"].as_array().expect("phases") {
            let done = p["latency_ns"]["samples"].as_u64();
            // with -c and -S one rank may do the work of all
            if done.is_some() && !line.contains("-c") && !line.contains("-S") {
                assert_eq!(done, p["operations"].as_u64(), "{line}: {}", p["name"]);
            }
        }
    }
    let (_, printed) = good(&dir, "mdtest --np 3 -d DIR/md -n 20 -F -C -u");
    assert!(printed.contains("3 tasks, 60 files"), "{printed}");
    let made = walk(&dir.path().join("md"))
        .iter()
        .filter(|p| p.contains("/file.mdtest."))
        .count();
    assert_eq!(made, 60);
}

fn walk(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        found.push(path.to_string_lossy().into_owned());
        if path.is_dir() {
            found.extend(walk(&path));
        }
    }
    found
}

#[test]
fn a_stonewalled_mdtest_can_be_gone_on_with() {
    let dir = place();
    let common = "mdtest --np 2 -d DIR/md -n 5000000 -F -x DIR/st";
    let (record, _) = good(&dir, &format!("{common} -C -W 1 -N 1"));
    let made: u64 = fs::read_to_string(dir.path().join("st"))
        .expect("status")
        .parse()
        .expect("bare");
    assert_eq!(phases(&record, "File creation")[0]["operations"], 2 * made);
    assert_eq!(
        phases(&record, "File creation")[0]["stonewall"]["operations_max"],
        made
    );
    let (record, _) = good(&dir, &format!("{common} -T -r -N 1"));
    assert_eq!(phases(&record, "File stat")[0]["operations"], 2 * made);
    assert!(!dir.path().join("md").join("test-dir.0-0").exists());
}

#[test]
fn mdtest_finds_wrong_data() {
    let dir = place();
    good(&dir, "mdtest --np 2 -d DIR/md -n 5 -F -C -w 64 -G 9");
    let files = walk(&dir.path().join("md"));
    let file = files
        .iter()
        .find(|f| f.contains("/file.mdtest.1.3"))
        .expect("a file");
    fs::write(file, [7; 64]).expect("written");
    let (ended, printed) = start(&dir, "mdtest --np 2 -d DIR/md -n 5 -F -E -r -e 64 -X -G 9");
    let ended = ended.expect("ends");
    assert_eq!(ended.code, 1, "{printed}");
    assert!(
        printed.contains("verifying the data on read (1 errors)"),
        "{printed}"
    );
    let record = ended.record.expect("a record");
    assert_eq!(phases(&record, "File read")[0]["errors"], 1);
    assert_eq!(
        (&record["complete"], &record["failed_operations"]),
        (&false.into(), &1.into())
    );
    assert_eq!(
        record["why_incomplete"],
        format!("an operation failed: {file}: its data are wrong")
    );
}

/// The rank that finds it reads it again with one rank, with two and with three.
#[test]
fn mdtest_counts_wrong_data_once_where_several_counts_of_tasks_read_them() {
    let dir = place();
    good(&dir, "mdtest --np 3 -d DIR/md -n 5 -F -C -w 64 -G 9");
    let files = walk(&dir.path().join("md"));
    let file = files.iter().find(|f| f.contains("/file.mdtest.0.3"));
    fs::write(file.expect("a file"), [7; 64]).expect("written");
    let line = "mdtest --np 3 -f 1 -l 3 -d DIR/md -n 5 -F -E -e 64 -X -G 9";
    let (ended, printed) = start(&dir, line);
    let ended = ended.expect("ends");
    for errors in 1..=3 {
        let told = format!("verifying the data on read ({errors} errors)");
        assert!(printed.contains(&told), "{told}: {printed}");
    }
    let record = ended.record.expect("a record");
    assert_eq!((ended.code, &record["failed_operations"]), (3, &3.into()));
}

#[test]
fn mdsrate_makes_one_file_for_each_number() {
    let dir = place();
    let (record, printed) = good(
        &dir,
        "mdsrate --np 4 --mknod --nfiles 25 --ndirs 2 --dirfmt DIR/d%d --filefmt f%%d",
    );
    assert_eq!(record["phases"][0]["operations"], 50);
    assert!(
        printed.contains("(total: 4 threads 50 mknods 2 dirs 2 threads/dir"),
        "{printed}"
    );
    assert_eq!(walk(dir.path()).len(), 52);
    good(
        &dir,
        "mdsrate --np 4 --stat --nfiles 25 --ndirs 2 --dirfmt DIR/d%d",
    );
    good(
        &dir,
        "mdsrate --np 4 --open --nfiles 25 --iters 40 --ndirs 2 --dirfmt DIR/d%d --readdir_order --ignore",
    );
    let (_, printed) = good(
        &dir,
        "mdsrate --np 4 --unlink --nfiles 25 --ndirs 2 --dirfmt DIR/d%d",
    );
    assert!(
        printed.contains("Warning: only unlinked 50 files instead of 25"),
        "{printed}"
    );
    assert_eq!(walk(dir.path()).len(), 2);
    let (ended, _) = start(
        &dir,
        "mdsrate --np 2 --mknod --nfiles 5 --filefmt same --dirfmt DIR/d0",
    );
    let why = ended.expect_err("the second mknod finds the name taken");
    let why = why.to_string();
    assert!(why.contains("/d0/same: File exists"), "{why}");
}

#[test]
fn mib_says_what_reads_beyond_the_end_cost() {
    let dir = place();
    good(&dir, "mib --np 2 -F -t DIR -s 64k -l 10 -W -n");
    let (record, printed) = good(&dir, "mib --np 2 -F -t DIR -s 64k -l 5000 -R");
    let p = &record["phases"][0];
    assert_eq!(p["bytes"], 2 * 10 * 65536);
    assert_eq!(p["operations"], 10_000);
    assert_eq!(p["printed"]["short_transfers"], 9_980);
    assert!(number(&p["bytes_per_s"]) / 1_048_576.0 > number(&p["printed"]["rate_mib_per_s"]));
    assert!(
        record["notes"][0]
            .as_str()
            .expect("a note")
            .contains("end of a file")
    );
    assert_eq!(printed.lines().count(), 1);
    good(&dir, "mib --np 2 -F -t DIR -s 4k -l 100 -R -b4k -r");
    assert!(walk(dir.path()).is_empty(), "-r removes what was read");
    let (record, _) = good(&dir, "mib --np 2 -F -t DIR -s 4k -l 10 -W -r");
    let told = "-r removes files when they have been read: with -W they stay";
    assert_eq!(record["notes"], serde_json::json!([told]));
    assert_eq!(walk(dir.path()).len(), 2);
}

#[test]
fn what_makes_no_sense_is_refused_and_the_nearest_option_named() {
    let dir = place();
    for (line, said) in [
        (
            "ior -b 2k -o DIR/f",
            "ERROR: block size must be a multiple of transfer size",
        ),
        ("ior --filePerProc", "Error invalid argument: --filePerProc"),
        ("ior -a HDF5", "Unrecognized I/O API"),
        ("ior -c -o DIR/f", "Invalid options"),
        ("ior -P", "Invalid options"),
        ("ior -O blocksiz=1m", "the nearest is blocksize"),
        ("ior -b", "Error, argument missing for option b"),
        ("ior -l zebra -o DIR/f", "Unknown packet type"),
        ("ior -f DIR/none", ""),
        ("mdtest -W 3 -b 2 -z 1 -n 5 -d DIR/x", "branch factor <= 1"),
        ("mdtest -g -d DIR/x", "Invalid options"),
        ("mib -s 64k", "requires a \"-t <test_dir>\""),
        ("mib -t DIR --call_sizes 4k", ""),
        ("mib -t DIR -s 4g", ""),
        ("mdsrate --creates --nfiles 3", ""),
        ("mdsrate --nfiles 3", ""),
        ("mdsrate --create --nfiles 3 --dirfmt DIR/%s", ""),
        ("fio", ""),
        ("ior --np 0", ""),
        // what is written at the end has no place
        (
            "ior -w -b 64k -t 4k -o DIR/f --coral-json DIR/none/r.json",
            "--coral-json",
        ),
        (
            "mdtest -n 1 -d DIR/x --coral-json DIR/none/r.json",
            "no file can be made in",
        ),
        (
            "mib -t DIR -s 4k -l 1 --coral-json DIR",
            "it is a directory: give a file",
        ),
        // more than a machine can have
        (
            "ior -t 4p -b 4p -o DIR/f",
            "no memory for a buffer of 4503599627370496 bytes on each of 1 ranks here",
        ),
        (
            "ior -O memoryPerTask=4p -o DIR/f",
            "no memory for a buffer of 4503599627370496 bytes on each of 1 ranks here",
        ),
        (
            "mdtest -F -w 4p -n 1 -d DIR/x",
            "no memory for buffers of 4503599627370496 bytes on each of 1 ranks here",
        ),
        (
            "mdtest -R -n 1p -d DIR/x",
            "no memory for the order of 1125899906842624 items on each of 1 ranks here",
        ),
        (
            "mdtest -z 64 -b 10 -n 1 -d DIR/x",
            "directories, and 10000000 is the most: give a smaller -z or -b",
        ),
        (
            "mdtest -I 8191p -b 2 -z 1 -d DIR/x",
            "the items of 1 tasks are more than can be counted",
        ),
    ] {
        let (ended, mut printed) = start(&dir, line);
        let Err(why) = ended else {
            panic!("{line} ran:\n{printed}");
        };
        printed += &why.to_string();
        assert!(printed.contains(said), "{line}:\n{printed}");
    }
    assert!(walk(dir.path()).is_empty(), "nothing was made");
}

#[test]
fn a_rank_that_fails_ends_the_run_and_the_record_says_so() {
    let dir = place();
    fs::create_dir(dir.path().join("f.00000002")).expect("made");
    let (ended, printed) = start(
        &dir,
        "ior --np 4 -F -w -E -b 1m -o DIR/f --coral-json DIR/r.json",
    );
    let why = why_incomplete(&dir);
    let said = ended.expect_err(&printed).to_string();
    assert_eq!(said, why, "{printed}");
    assert!(
        why.contains("rank 2") && why.contains("f.00000002"),
        "{why}"
    );
    assert!(!printed.contains("Summary of all tests"), "{printed}");
}

/// Of its own accord, at the first wrong byte.
#[test]
fn a_run_that_ends_itself_says_what_its_ranks_had_done() {
    let dir = place();
    good(&dir, "ior --np 2 -F -w -k -G 27 -l o -b 64k -t 8k -o DIR/f");
    fs::write(dir.path().join("f.00000001"), [7; 65536]).expect("written");
    let line = "ior --np 2 -F -R -k -G 27 -l o -b 64k -t 8k -q -o DIR/f --coral-json DIR/r.json";
    let why = start(&dir, line).0.expect_err("it is wrong").to_string();
    assert!(why.contains("-q ends the run at that"), "{why}");
    let why = why_incomplete(&dir);
    assert!(
        why.contains("-q ends the run at that; ranks 0 to 1 had done "),
        "{why}"
    );
}

/// The other rank would go on to its stonewall. What both had done is in the record.
#[test]
fn a_rank_that_fails_ends_those_that_work() {
    let dir = place();
    fs::create_dir(dir.path().join("f.00000001")).expect("made");
    let (ended, printed) = start(
        &dir,
        "ior --np 3 -F -w -t 4k -b 1g -D 30 -O interIODelay=10000 -o DIR/f --coral-json DIR/r.json",
    );
    let why = why_incomplete(&dir);
    let said = ended.expect_err(&printed).to_string();
    assert_eq!(said, why, "{printed}");
    assert!(why.starts_with("rank 1: Cannot create file "), "{why}");
    let (_, told) = why.split_once("; ranks 0 to 2 had done ").expect(&why);
    let operations = told.split(' ').next().and_then(|n| n.parse().ok());
    let bytes: u64 = ["f.00000000", "f.00000002"]
        .iter()
        .filter_map(|f| Some(fs::metadata(dir.path().join(f)).ok()?.len()))
        .sum();
    assert_eq!(operations, Some(bytes / 4096), "{why}");
    assert!(bytes / 4096 < 2000, "they went on: {why}");
}

#[test]
fn progress_is_read_while_ranks_work() {
    use coral_lab::load::{Run, out::Out, progress::Board, run};
    use std::sync::{Arc, Mutex};
    let seen: Arc<Mutex<Option<Arc<Board>>>> = Arc::default();
    let to = seen.clone();
    let mut start = Run::new(
        "ior",
        &["-a", "DUMMY", "-N", "2", "-w", "-b", "1m", "-t", "4k"],
        Out::silent(),
    );
    start.watch = Some(Box::new(move |board| {
        *to.lock().expect("unbroken") = Some(board)
    }));
    run(start).expect("runs");
    let board = seen.lock().expect("unbroken").take().expect("a board");
    assert_eq!(board.totals(), (512, 2 << 20));
    assert_eq!(board.read().collect::<Vec<_>>(), [(256, 1 << 20); 2]);
}

/// The originals go on after a warning; what was printed has the operations that failed among the others. mdtest's code says so.
#[test]
fn operations_that_fail_are_counted_and_the_record_is_incomplete() {
    let dir = place();
    for (line, count, first) in [
        (
            "mdtest --np 2 -n 5 -F -T -u -d DIR/md",
            10,
            "unable to stat DIR/md/test-dir.0-0/mdtest_tree.0.0/file.mdtest.0.0: No such file",
        ),
        (
            "mdsrate --np 1 --unlink --nfiles 3 --dir DIR --filefmt f%%d --recreate",
            0,
            "",
        ),
    ] {
        let (ended, printed) = start(&dir, &format!("{line} --coral-json DIR/r.json"));
        let code = u8::from(count > 0);
        assert_eq!(ended.expect("it goes on").code, code, "{printed}");
        let record = record(&dir);
        assert_eq!(record["failed_operations"], count, "{line}: {record}");
        assert_eq!(record["complete"], count == 0, "{line}");
        let first = first.replace("DIR", &dir.path().to_string_lossy());
        let why = format!("{count} operations failed, the first: {first}");
        match record["why_incomplete"].as_str() {
            None => assert_eq!(count, 0, "{line}"),
            Some(said) => assert!(said.starts_with(&why), "{said}"),
        }
    }
    // one of three files is not there
    for i in [0, 2] {
        fs::write(dir.path().join(format!("g{i}")), "").expect("made");
    }
    let line =
        "mdsrate --np 1 --unlink --nfiles 3 --dir DIR --filefmt g%%d --coral-json DIR/r.json";
    let (ended, printed) = start(&dir, line);
    ended.expect("it ends well");
    let record = record(&dir);
    assert_eq!(record["failed_operations"], 1, "{printed}");
    let why = record["why_incomplete"].as_str().expect("a reason");
    assert!(
        why.starts_with("an operation failed: ") && why.contains("/g1:"),
        "{why}"
    );
}

/// As mdtest's interface for POSIX does: no rate is told of files that were not made.
#[test]
fn mdtest_ends_where_a_file_cannot_be_made() {
    for (options, taken, why) in [
        ("-C", "file.mdtest.0.3", "rank 0: unable to create file "),
        (
            "-C -w 64",
            "file.mdtest.1.2",
            "rank 1: unable to create file ",
        ),
        ("-C -k", "file.mdtest.0.1", "rank 0: unable to mknod file "),
    ] {
        let dir = place();
        good(&dir, "mdtest --np 2 -n 5 -D -C -d DIR/md");
        let tree = dir.path().join("md/test-dir.0-0/mdtest_tree.0");
        fs::create_dir(tree.join(taken)).expect("made");
        let line = format!("mdtest --np 2 -n 5 -F {options} -d DIR/md --coral-json DIR/r.json");
        let (ended, printed) = start(&dir, &line);
        let said = ended.expect_err("it ends").to_string();
        assert!(
            said.starts_with(why) && said.contains("; ranks 0 to 1 had done "),
            "{said}"
        );
        assert!(!printed.contains("File creation"), "{printed}");
        let record = record(&dir);
        assert_eq!(record["why_incomplete"], said);
        assert!(
            !record["phases"].to_string().contains("File creation"),
            "{record}"
        );
    }
}

#[test]
fn what_is_wrong_with_a_name_is_said_in_words() {
    let dir = place();
    let line = "mdsrate --np 1 --mknod --nfiles 3 --dir DIR --filefmt f%%s";
    let why = start(&dir, line)
        .0
        .expect_err("files have numbers")
        .to_string();
    assert_eq!(
        why,
        "--filefmt 'f%s' may have %d, a width as in %05d, and %% only"
    );
}

/// Where the operations of a rank would go on for ever.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for the ranks of a run that this thread is in"
)]
#[test]
fn a_run_that_is_ended_from_outside_has_a_record() {
    use coral_lab::load::{Ending, Run, out::Out, run};
    let dir = place();
    for line in [
        "ior --np 3 -F -w -r -i 1000000 -b 64k -t 4k -o DIR/f --coral-json DIR/r.json",
        "mdtest --np 3 -n 10 -i 1000000 -u -d DIR/md --coral-json DIR/r.json",
        "mdsrate --np 3 --create --time 100000 --nfiles 100000000 --dir DIR --filefmt f%%d --coral-json DIR/r.json",
        "mib --np 2 -F -t DIR -s 4k -l 100000000 -W -L 100000 --coral-json DIR/r.json",
    ] {
        let line = line.replace("DIR", &dir.path().to_string_lossy());
        let words: Vec<&str> = line.split_whitespace().collect();
        let (out, printed) = Out::memory();
        let ending = Ending::default();
        let mut start = Run::new(words[0], &words[1..], out);
        start.ending = ending.clone();
        start.watch = Some(Box::new(move |board| {
            let ending = ending.clone();
            std::thread::spawn(move || {
                while board.totals().0 < 2000 {
                    std::thread::yield_now();
                }
                ending.end("ended by a test");
            });
        }));
        let why = run(start).expect_err("it is ended").to_string();
        assert!(why.starts_with("ended by a test after "), "{line}: {why}");
        let record = record(&dir);
        assert_eq!(
            (&record["complete"], &record["failed_operations"]),
            (&false.into(), &0.into())
        );
        let why = record["why_incomplete"].as_str().expect("a reason");
        assert!(
            why.contains(" s; ranks 0 to ") && why.contains(" had done "),
            "{why}"
        );
        let phases = record["phases"].as_array().expect("phases");
        let has_repeats = line.contains("-i 1000000");
        assert_eq!(
            phases.is_empty(),
            !has_repeats,
            "those that were over: {line}"
        );
        let said = printed.text();
        assert!(
            !said.contains("unable to") && !said.contains("cannot"),
            "{said}"
        );
    }
}

/// However long it was asked to do nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for the ranks of a run that this thread is in"
)]
#[test]
fn a_run_that_is_ended_in_a_delay_does_not_wait_for_its_end() {
    use coral_lab::load::{Ending, Run, out::Out, run};
    const DELAY_S: u64 = 300;
    let dir = place();
    for (line, operations) in [
        ("ior --np 2 -F -w -d 300 -o DIR/f", 0),
        ("ior --np 2 -F -w -O interIODelay=300000000 -o DIR/f", 2),
        ("mdtest --np 2 -n 1 -p 300 -d DIR/md", 0),
    ] {
        let line = format!("{line} --coral-json DIR/r.json");
        let line = line.replace("DIR", &dir.path().to_string_lossy());
        let words: Vec<&str> = line.split_whitespace().collect();
        let ending = Ending::default();
        let (out, printed) = Out::memory();
        let mut start = Run::new(words[0], &words[1..], out);
        start.ending = ending.clone();
        start.watch = Some(Box::new(move |board| {
            let (ending, printed) = (ending.clone(), printed.clone());
            std::thread::spawn(move || {
                // The ranks have met before rank 0 prints.
                while printed.text().is_empty() || board.totals().0 < operations {
                    std::thread::yield_now();
                }
                ending.end("ended by a test");
            });
        }));
        let why = run(start).expect_err("it is ended").to_string();
        assert!(why.starts_with("ended by a test after "), "{line}: {why}");
        let record = record(&dir);
        let [began, ended] = ["began_unix_s", "ended_unix_s"].map(|at| record[at].as_u64());
        let took = ended.expect("a time") - began.expect("a time");
        assert!(took < DELAY_S, "{line}: {took} s");
    }
}

/// The record has no room either: what is told is why the run ended.
#[test]
fn a_record_that_cannot_be_written_hides_nothing() {
    let dir = place();
    fs::create_dir(dir.path().join("f.00000000")).expect("made");
    let (ended, _) = start(&dir, "ior -F -w -o DIR/f --coral-json /dev/full");
    let why = ended.expect_err("it is a directory").to_string();
    assert!(
        why.starts_with("Cannot create file ") && why.contains("f.00000000"),
        "{why}"
    );
    let (ended, _) = start(&dir, "ior -F -w -o DIR/g --coral-json /dev/full");
    let why = ended.expect_err("a run without its record").to_string();
    assert_eq!(why, "/dev/full: No space left on device (os error 28)");
}
