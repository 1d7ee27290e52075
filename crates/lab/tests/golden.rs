//! What the generators print has the shape of what the originals print: every word, the columns, the digits of each number.
//!
//! The files in `golden/` are of the project. Where outputs of the originals are at hand, in the directory that
//! CORAL_GOLDEN names, they are compared with as well.

mod common;

use common::{good, place};
use std::path::PathBuf;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The text with what differs from run to run taken out.
fn masked(text: &str, dir: &str) -> String {
    let mut lines = Vec::new();
    for line in text.replace(dir, "/mnt/t").lines() {
        let mut line = line.to_owned();
        while let Some(at) = DAYS.iter().find_map(|d| line.find(&format!("{d} "))) {
            let Some(date) = line.get(at..at + 24).filter(|d| d.contains(':')) else {
                break;
            };
            line = line.replace(date, &"DATE".repeat(6));
        }
        let keep = |line: &str, head: &str| line.starts_with(head).then(|| head.to_owned());
        let heads = [
            "Command line",
            "  \"Command line\"",
            "Machine",
            "  \"Machine\"",
            "      \"platform\"",
            "-- started at",
            "-- finished at",
            "Testing a file system of type",
            "profiles",
            "testdir",
            "mib-",
            "0: ",
        ];
        lines.push(heads.iter().find_map(|h| keep(&line, h)).unwrap_or(line));
    }
    lines.join("\n")
}

/// A line as words, of which numbers are given by their digits after the point; in tables also by their columns.
fn shape(line: &str) -> String {
    let words: Vec<(usize, &str)> = line
        .split([' ', ','])
        .scan(0, |at, word| {
            let start = *at;
            *at += word.len() + 1;
            Some((start, word))
        })
        .filter(|(_, w)| !w.is_empty())
        .collect();
    let results = matches!(words.first(), Some((0, "write" | "read"))) && words.len() == 11;
    let table = line.contains("  ") && !line.contains([':', '=', '"']);
    let shown = words.iter().map(|(start, word)| {
        let bare = word.trim_matches(['(', ')', '%', '"', '}']);
        let Ok(value) = bare.parse::<f64>() else {
            return (*word).to_owned();
        };
        let digits = bare.split('.').nth(1).map_or(0, str::len);
        if results && *start > 0 && words.last() != Some(&(*start, word)) {
            // the digits of this table follow from the number
            let due = if value < 1.0 {
                6
            } else if value < 3600.0 {
                2
            } else {
                0
            };
            assert_eq!(digits, due, "{line}");
            format!("#@{start}")
        } else if table {
            format!("#.{digits}@{}", start + word.len())
        } else {
            format!("#.{digits}")
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Compares line by line. Phases of a run may print their warnings or not, so lines of the kinds in `optional` are left out.
fn same(name: &str, printed: &str, golden: &str, optional: &[&str]) {
    let lines = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter(|l| !optional.iter().any(|o| l.starts_with(o)));
        lines.map(shape).collect()
    };
    let (ours, theirs) = (lines(printed), lines(golden));
    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(a, b, "{name}, line {}:\n{printed}", i + 1);
    }
    assert_eq!(ours.len(), theirs.len(), "{name}:\n{printed}");
}

/// Compares with the project's file, and with the original's where it is.
fn check(name: &str, printed: &str, dir: &str, optional: &[&str]) {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let more = std::env::var_os("CORAL_GOLDEN").map(PathBuf::from);
    for from in [Some(own), more].into_iter().flatten() {
        let Ok(golden) = std::fs::read_to_string(from.join(name)) else {
            panic!("no {name} in {}", from.display());
        };
        let golden = masked(&golden, "/mnt/t").replace("OUT/", "/mnt/t/");
        same(name, &masked(printed, dir), &golden, optional);
    }
}

fn file(dir: &tempfile::TempDir, name: &str) -> String {
    std::fs::read_to_string(dir.path().join(name)).expect("a file of the run")
}

#[test]
fn ior_prints_what_ior_prints() {
    let dir = place();
    let at = dir.path().to_string_lossy().into_owned();
    let (_, text) = good(
        &dir,
        "ior --np 4 -a POSIX -F -t 64k -b 1m -s 2 -i 3 -e -C -Q 1 -g -k -o DIR/f",
    );
    check("ior_default.txt", &text, &at, &["FS "]);
}

#[test]
fn ior_prints_stonewalls_and_files_of_ranks() {
    let dir = place();
    let at = dir.path().to_string_lossy().into_owned();
    let (_, text) = good(
        &dir,
        "ior --np 4 -F -t 64k -b 512m -D 1 -O stoneWallingWearOut=1 -w -k -o DIR/s -O stoneWallingStatusFile=DIR/sw \
         -O saveRankPerformanceDetailsCSV=DIR/ranks.csv -O savePerOpDataCSV=DIR/perop -O interIODelay=3000",
    );
    check("ior_stonewall.txt", &text, &at, &["FS "]);
    check("ior_rank.csv", &file(&dir, "ranks.csv"), &at, &[]);
    let pairs: u64 = file(&dir, "sw").parse().expect("a bare number");
    let per_op = file(&dir, "perop-0-00003.csv");
    assert_eq!(per_op.lines().next(), Some("time,runtime,tp"));
    assert_eq!(per_op.lines().count() as u64, pairs + 1);
}

#[test]
fn ior_prints_csv_and_json() {
    let dir = place();
    let at = dir.path().to_string_lossy().into_owned();
    let line = "ior --np 4 -a POSIX -F -t 64k -b 1m -i 2 -e -o DIR/g";
    let (_, text) = good(
        &dir,
        &format!("{line} -O summaryFormat=JSON -O summaryFile=DIR/ior.json"),
    );
    assert_eq!(text, format!("Writing output to {at}/ior.json\n"));
    let json = file(&dir, "ior.json");
    serde_json::from_str::<serde_json::Value>(&json).expect("JSON");
    check("ior.json", &json, &at, &["    \"StartTime\""]);
    let (_, text) = good(&dir, &format!("{line} -O summaryFormat=CSV"));
    check("ior.csv.txt", &text, &at, &[]);
}

#[test]
fn json_of_several_tests_is_json() {
    let dir = place();
    let script = "IOR START\nwriteFile=1,readFile=1,blockSize=64k,transferSize=4k\nRUN\nfilePerProc=1\nRUN\nIOR STOP\n";
    std::fs::write(dir.path().join("script"), script).expect("written");
    let (_, text) = good(
        &dir,
        "ior --np 2 -v -o DIR/f -f DIR/script -O summaryFormat=JSON",
    );
    let json: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(json["tests"].as_array().expect("tests").len(), 2);
    assert_eq!(json["summary"].as_array().expect("summary").len(), 4);
    assert_eq!(json["tests"][1]["Options"]["access"], "file-per-process");
}

#[test]
fn mdtest_prints_what_mdtest_prints() {
    let dir = place();
    let at = dir.path().to_string_lossy().into_owned();
    let (_, text) = good(
        &dir,
        "mdtest --np 4 -n 100 -i 2 -F -C -T -r -u -d DIR --saveRankPerformanceDetails=DIR.csv",
    );
    check("mdtest.txt", &text, &at, &["FS ", "Command line"]);
    let ranks = std::fs::read_to_string(format!("{at}.csv")).expect("the file of ranks");
    std::fs::remove_file(format!("{at}.csv")).expect("removed");
    check("mdtest_rank.csv", &ranks, &at, &[]);
}

/// The headings of times are those of mdtest 4.1 (hpc/ior: `src/mdtest.c`); what stands below them is seconds, as there.
#[test]
fn mdtest_prints_the_headings_of_times() {
    let dir = place();
    let heading = |line: &str| -> Vec<String> {
        let (_, text) = good(&dir, line);
        let all = text.lines().filter(|l| l.starts_with("SUMMARY "));
        all.map(str::to_owned).collect()
    };
    let times = "SUMMARY time (in ms/op): (of 1 iterations)";
    assert_eq!(heading("mdtest -n 2 -F -Z -d DIR/z"), [times]);
    let rates = "SUMMARY rate (in ops/sec): (of 1 iterations)";
    assert_eq!(heading("mdtest -n 2 -F -P -d DIR/p"), [rates, times]);
}

/// Of directories nothing is read, and one rank makes the tree for all: what is printed counts otherwise, as mdtest does.
#[test]
fn the_record_of_mdtest_has_what_was_done() {
    let dir = place();
    let line = "mdtest --np 3 -n 4 -b 2 -z 1 -d DIR/md --print-all-procs";
    let (record, text) = good(&dir, line);
    assert!(text.contains("Test Directory read "), "{text}");
    let done = |name: &str| {
        let phases = record["phases"].as_array().expect("a list");
        let of = |p: &&serde_json::Value| p["name"] == name;
        let phase = phases.iter().find(of).expect("such a phase");
        let rate = phase["printed"]["rate_per_s"].as_f64().expect("a rate");
        (phase["operations"].as_u64().expect("a count"), rate > 0.0)
    };
    assert_eq!(
        done("Directory creation"),
        (9, true),
        "3 in each of 3 directories"
    );
    assert_eq!(done("Directory read"), (0, true));
    assert_eq!(done("Tree creation"), (3, true));
    assert_eq!(done("Tree removal"), (3, true));
    let said = record["notes"].to_string();
    for note in [
        "Directory read: no directory is read",
        "File read: files are opened and closed",
    ] {
        assert!(said.contains(note), "{note}: {said}");
    }
    let summary = record["summary"].as_object().expect("figures");
    assert!(
        !summary.keys().any(|k| k.contains("Directory read")),
        "{summary:?}"
    );
}

#[test]
fn mib_prints_what_mib_prints() {
    let dir = place();
    let at = dir.path().to_string_lossy().into_owned();
    let (_, text) = good(
        &dir,
        "mib --np 2 -t DIR -F -l 20 -L 2 -s 1m -p DIR/prof -S -H -E -I -n",
    );
    check("mib.txt", &text, &at, &[]);
    // a row for each call and one for the start, a column for each task
    for name in ["prof.write", "prof.read"] {
        let rows = file(&dir, name);
        assert_eq!(rows.lines().count(), 21);
        assert!(
            rows.lines()
                .all(|l| l.split_terminator('\t').count() == 2 && l.ends_with('\t'))
        );
    }
}

#[test]
fn mdsrate_prints_what_mdsrate_prints() {
    let dir = place();
    let at = dir.path().to_string_lossy().into_owned();
    let (_, mut text) = good(
        &dir,
        "mdsrate --np 4 --mknod --nfiles 400 --ndirs 2 --dirfmt DIR/d%d",
    );
    text += &good(
        &dir,
        "mdsrate --np 4 --mknod --time 1 --ndirs 4 --dirfmt DIR/e%d",
    )
    .1;
    check("mdsrate.txt", &text, &at, &[]);
}
