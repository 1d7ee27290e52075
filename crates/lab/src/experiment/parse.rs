//! What the output of a load generator says, as measures.
//!
//! Only what a program printed is taken. Several iterations in one run are averaged, and how many they were is a measure too.

use super::nearest::unknown;
use super::store::Measure;
use serde_json::Value;
use std::collections::BTreeMap;

/// Names of the parsers.
pub(crate) const PARSERS: &[&str] = &["none", "ior", "mdtest", "mdsrate", "mib", "fio", "json"];

/// Most characters of a line of a program's output that are repeated elsewhere.
const MAX_LINE_CHARS: usize = 300;

/// A line of a program's output as far as it can be shown: it may be anything.
fn one_line(line: &str) -> String {
    let shown = line.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(MAX_LINE_CHARS).collect()
}

fn measure(name: &str, unit: &str, value: f64) -> Measure {
    Measure {
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
    }
}

/// The measures in `text` by the parser of this name. An output without any is an error: it was not what it should have been.
pub fn parse(parser: &str, text: &str) -> Result<Vec<Measure>, String> {
    let found = match parser {
        "none" => return Ok(vec![]),
        "ior" => ior(text),
        "mdtest" => mdtest(text),
        "mdsrate" => mdsrate(text),
        "mib" => mib(text),
        "fio" => fio(text)?,
        "json" => json(text)?,
        other => return Err(unknown("parser", other, PARSERS)),
    };
    if found.is_empty() {
        return Err(format!(
            "the output has no result of {parser}: it ends with '{}'",
            one_line(text.lines().last().unwrap_or(""))
        ));
    }
    if let Some(m) = found.iter().find(|m| !m.value.is_finite()) {
        return Err(format!("the output's {} is no finite number", m.name));
    }
    Ok(found)
}

/// Rows of the table of IOR: a rate, IOPS and the longest times of each iteration.
fn ior(text: &str) -> Vec<Measure> {
    let rows: Vec<(&str, Vec<f64>)> = text
        .lines()
        .skip_while(|l| !l.starts_with("access "))
        .take_while(|l| !l.starts_with("Summary of all tests"))
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            let op = words.next().filter(|op| matches!(*op, "write" | "read"))?;
            let numbers: Vec<f64> = words.map_while(|w| w.parse().ok()).collect();
            (numbers.len() >= 9).then_some((op, numbers))
        })
        .collect();
    let mut out = vec![];
    for op in ["write", "read"] {
        let of: Vec<&Vec<f64>> = rows
            .iter()
            .filter(|(o, _)| *o == op)
            .map(|(_, n)| n)
            .collect();
        if of.is_empty() {
            continue;
        }
        let column = |i: usize| of.iter().map(|n| n[i]).sum::<f64>() / of.len() as f64;
        out.push(measure(op, "MiB/s", column(0)));
        out.push(measure(&format!("{op}_iops"), "1/s", column(1)));
        for (i, time) in [(5, "open_s"), (6, "rdwr_s"), (7, "close_s"), (8, "total_s")] {
            out.push(measure(&format!("{op}_{time}"), "s", column(i)));
        }
        if of.len() > 1 {
            out.push(measure(&format!("{op}_iterations"), "1", of.len() as f64));
        }
    }
    out
}

/// The summary of mdtest: the mean of each row that is not 0 (0 stands for a phase that did not run).
fn mdtest(text: &str) -> Vec<Measure> {
    text.lines()
        .skip_while(|l| !l.contains("SUMMARY rate"))
        .filter_map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            let (kind, what) = (words.first()?, words.get(1)?);
            if !matches!(*kind, "File" | "Directory" | "Tree") {
                return None;
            }
            let numbers: Vec<f64> = words[2..].iter().filter_map(|w| w.parse().ok()).collect();
            let mean = *numbers.get(2)?;
            (mean > 0.0).then(|| measure(&format!("{}_{what}", kind.to_lowercase()), "1/s", mean))
        })
        .collect()
}

/// The line of mdsrate: operations by the time of rank 0, and the sum of the ranks' own rates.
fn mdsrate(text: &str) -> Vec<Measure> {
    let mut out = vec![];
    for l in text.lines().filter(|l| l.starts_with("Rate: ")) {
        let words: Vec<&str> = l.split_whitespace().collect();
        let before = |word: &str| {
            let at = words.iter().position(|w| *w == word)?;
            words[at.checked_sub(1)?].parse::<f64>().ok()
        };
        for (word, name) in [("eff", "eff"), ("aggr", "aggr"), ("avg", "client")] {
            if let Some(v) = before(word) {
                out.push(measure(name, "1/s", v));
            }
        }
    }
    out
}

/// The result line of mib: `DATE N tasks SIZE xfer N call-limit N time-limit RATE write RATE read`, or the same
/// numbers without the words. A rate that does not stand there or is 0 was not measured.
fn mib(text: &str) -> Vec<Measure> {
    let rate = |op: &str, word: Option<&&str>| {
        let v: f64 = word?.parse().ok()?;
        (v > 0.0).then(|| measure(op, "MiB/s", v))
    };
    let rows = || {
        text.lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>())
    };
    if let Some(w) =
        rows().rfind(|w| w.contains(&"tasks") && w.contains(&"xfer") && w.contains(&"call-limit"))
    {
        let before = |op: &str| rate(op, w.get(w.iter().position(|x| *x == op)?.checked_sub(1)?));
        return ["write", "read"].into_iter().filter_map(before).collect();
    }
    // The date has five words; then tasks, size, two limits and the two rates.
    let day = |w: &[&str]| {
        matches!(
            w.first(),
            Some(&("Mon" | "Tue" | "Wed" | "Thu" | "Fri" | "Sat" | "Sun"))
        )
    };
    match rows().rfind(|w| w.len() == 11 && day(w)) {
        Some(w) => [("write", 9), ("read", 10)]
            .into_iter()
            .filter_map(|(op, at)| rate(op, w.get(at)))
            .collect(),
        None => vec![],
    }
}

/// fio's JSON, before which warnings may stand.
fn fio_json(text: &str) -> Result<Value, String> {
    let start = text
        .find('{')
        .ok_or("fio printed no JSON: run it with --output-format=json")?;
    let mut all = serde_json::Deserializer::from_str(&text[start..]).into_iter();
    let whole = all.next().and_then(Result::ok);
    whole.ok_or_else(|| "fio's JSON is cut short".to_owned())
}

/// How many operations of all jobs took how long, by nanoseconds: of `json+`, which alone has them.
pub(crate) fn fio_latencies(text: &str, operation: &str) -> Option<BTreeMap<u64, u64>> {
    let v = fio_json(text).ok()?;
    let mut all = BTreeMap::new();
    for job in v["jobs"].as_array()? {
        for (ns, n) in job[operation]["clat_ns"]["bins"].as_object()? {
            *all.entry(ns.parse().ok()?).or_default() += n.as_u64()?;
        }
    }
    Some(all).filter(|a| !a.is_empty())
}

/// fio's JSON, all jobs together: rates are summed, latencies weighted by their operations. Percentiles of several jobs cannot be put
/// together, so the largest is given, and called so.
fn fio(text: &str) -> Result<Vec<Measure>, String> {
    let v = fio_json(text)?;
    let jobs = v["jobs"].as_array().ok_or("fio's JSON has no jobs")?;
    if let Some(j) = jobs.iter().find(|j| j["error"].as_i64().unwrap_or(0) != 0) {
        return Err(format!(
            "fio's job {} failed with errno {}",
            j["jobname"], j["error"]
        ));
    }
    let mut out = vec![];
    for op in ["read", "write"] {
        let sum = |f: &dyn Fn(&Value) -> f64| jobs.iter().map(|j| f(&j[op])).sum::<f64>();
        let n = |v: &Value| v.as_f64().unwrap_or(0.0);
        let ios = sum(&|j| n(&j["total_ios"]));
        if ios == 0.0 {
            continue;
        }
        out.push(measure(
            op,
            "MiB/s",
            sum(&|j| n(&j["bw_bytes"])) / f64::from(1 << 20),
        ));
        out.push(measure(
            &format!("{op}_iops"),
            "1/s",
            sum(&|j| n(&j["iops"])),
        ));
        let weighted = sum(&|j| n(&j["clat_ns"]["mean"]) * n(&j["total_ios"])) / ios;
        out.push(measure(
            &format!("{op}_clat_mean_us"),
            "us",
            weighted / 1000.0,
        ));
        for (key, name) in [("50.000000", "p50"), ("99.000000", "p99")] {
            let most = jobs
                .iter()
                .map(|j| n(&j[op]["clat_ns"]["percentile"][key]))
                .fold(0.0, f64::max);
            if most > 0.0 {
                let of = if jobs.len() > 1 { "_slowest_job" } else { "" };
                out.push(measure(
                    &format!("{op}_clat_{name}{of}_us"),
                    "us",
                    most / 1000.0,
                ));
            }
        }
    }
    Ok(out)
}

/// The numbers of the last line that is a JSON object; a name that ends in a unit, as `rate[MiB/s]`, gives it.
fn json(text: &str) -> Result<Vec<Measure>, String> {
    let whole = serde_json::from_str::<Value>(text.trim()).ok();
    let v = whole
        .or_else(|| {
            text.lines()
                .rev()
                .find_map(|l| serde_json::from_str::<Value>(l).ok())
        })
        .ok_or("the output has no line of JSON")?;
    let object = v.as_object().ok_or("the JSON is no object")?;
    Ok(object
        .iter()
        .filter_map(|(k, v)| {
            let (name, unit) = match k.split_once('[') {
                Some((name, unit)) => (name, unit.trim_end_matches(']')),
                None => (k.as_str(), "1"),
            };
            v.as_f64().map(|v| measure(name, unit, v))
        })
        .collect())
}

/// Lines of its errors that are repeated.
const ERROR_LINES: usize = 5;

/// The last lines of what a program said of its failure. Where it tells at the end how it is called, what was wrong comes before.
pub(super) fn errors(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let is_usage = |l: &&str| {
        let line = l.trim_start().to_ascii_lowercase();
        line.starts_with("usage:") || line.starts_with("synopsis ")
    };
    let rest = |from: usize| lines[from + 1..].iter().all(|l| is_of_usage(l));
    let before = match lines.iter().position(is_usage) {
        Some(usage) if usage > 0 && rest(usage) => &lines[..usage],
        _ => &lines[..],
    };
    let last = before[before.len().saturating_sub(ERROR_LINES)..].iter();
    last.map(|l| one_line(l)).collect()
}

/// Headings of the options of IOR and mdtest (hpc/ior: `src/option.c`).
const HEADINGS: [&str; 3] = ["Flags", "Required arguments", "Optional arguments"];

/// An option, a heading of several, or what leads to the manual.
fn is_of_usage(line: &str) -> bool {
    let begins = |with: &str| line.starts_with(with);
    let is_option = begins(" ") || begins("\t") || begins("-");
    let is_heading = line.trim_end().ends_with(':') || HEADINGS.contains(&line.trim_end());
    is_option || is_heading || begins("For more information") || begins("Try ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(m: &[Measure], name: &str) -> f64 {
        m.iter()
            .find(|m| m.name == name)
            .unwrap_or_else(|| panic!("{name} in {m:?}"))
            .value
    }

    const IOR: &str = "\
Options:
access              : file-per-process

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     150.00     9000       0.000374    1024.00    64.00      0.016079   0.011982   0.015985   0.050000   0
read      300.00     16000      0.000007    1024.00    64.00      0.004048   0.008219   0.004866   0.025000   0
write     250.00     11000      0.000115    1024.00    64.00      0.006223   0.010876   0.006644   0.030000   1

Summary of all tests:
Operation   Max(MiB)   Min(MiB)  Mean(MiB)
write         250.00     150.00     200.00
";

    #[test]
    fn iors_rows_are_averaged_and_its_summary_is_left_alone() {
        let m = parse("ior", IOR).unwrap();
        assert_eq!((get(&m, "write"), get(&m, "read")), (200.0, 300.0));
        assert_eq!(
            (get(&m, "write_iops"), get(&m, "write_iterations")),
            (10_000.0, 2.0)
        );
        assert!((get(&m, "write_total_s") - 0.04).abs() < 1e-9);
        assert!(m.iter().all(|m| m.name != "read_iterations"));
        assert!(
            parse("ior", "ior: ERROR: cannot open\n")
                .unwrap_err()
                .contains("cannot open")
        );
    }

    #[test]
    fn mdtest_mdsrate_and_mib() {
        let m = parse("mdtest", "SUMMARY rate (in ops/sec): (of 2 iterations)\n   File creation    17404.1  16640.2  17022.1  540.1\n   File read  0.000 0.000 0.000 0.000\n   Tree removal 41.9 35.6 38.7 4.3\n-- finished\n").unwrap();
        assert_eq!(m.len(), 2);
        assert_eq!(
            (get(&m, "file_creation"), get(&m, "tree_removal")),
            (17022.1, 38.7)
        );
        let m = parse("mdsrate", "0: vm starting\nRate: 13334.12 eff 20602.04 aggr 5107.60 avg client mknods/sec (total: 4 threads 800 mknods 2 dirs 2 threads/dir 0.06 secs)\n").unwrap();
        assert_eq!(
            (get(&m, "eff"), get(&m, "aggr"), get(&m, "client")),
            (13334.12, 20602.04, 5107.6)
        );
        let headed = "date tasks xfer call time write read\n  limit limit MB/s MB/s\n---- ----\nFri Nov 20 23:26:23 2026      2 1024k   200     2     361.46   17196.12\n";
        let m = parse("mib", headed).unwrap();
        assert_eq!((get(&m, "write"), get(&m, "read")), (361.46, 17196.12));
        let m = parse("mib", "x\nFri Nov 20 23:26:21 2026       2 tasks 1024k xfer   200 call-limit     2 time-limit     353.47 write     900.25 read\n").unwrap();
        assert_eq!((get(&m, "write"), get(&m, "read")), (353.47, 900.25));
    }

    #[test]
    fn the_output_of_the_originals_is_read() {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        for (parser, file, name) in [
            ("ior", "ior_default.txt", "write"),
            ("mdtest", "mdtest.txt", "file_creation"),
            ("mdsrate", "mdsrate.txt", "eff"),
            ("mib", "mib.txt", "write"),
        ] {
            let text = std::fs::read_to_string(golden.join(file)).unwrap();
            assert!(get(&parse(parser, &text).unwrap(), name) > 0.0, "{file}");
        }
    }

    #[test]
    fn fios_jobs_are_put_together() {
        let job = |iops: f64, lat: f64, ios: u32| serde_json::json!({"jobname": "j", "error": 0, "read": {"total_ios": ios, "bw_bytes": iops * 4096.0, "iops": iops, "clat_ns": {"mean": lat, "percentile": {"50.000000": lat, "99.000000": lat * 3.0}}}, "write": {"total_ios": 0}});
        let text = format!(
            "fio: a warning\n{}",
            serde_json::json!({"jobs": [job(1000.0, 100_000.0, 10), job(3000.0, 200_000.0, 30)]})
        );
        let m = parse("fio", &text).unwrap();
        assert_eq!(
            (
                get(&m, "read_iops"),
                get(&m, "read"),
                get(&m, "read_clat_mean_us")
            ),
            (4000.0, 15.625, 175.0)
        );
        assert_eq!(get(&m, "read_clat_p99_slowest_job_us"), 600.0);
        let failed = text.replace("\"error\":0", "\"error\":28");
        assert!(parse("fio", &failed).unwrap_err().contains("errno 28"));
        assert!(parse("fio", "fio: no such file").is_err());
        assert!(parse("fio", &text[..text.len() / 2]).is_err());
        assert_eq!(fio_latencies(&text, "read"), None);
        let with = |bins: Value| serde_json::json!({"read": {"clat_ns": {"bins": bins}}});
        let jobs = [
            with(serde_json::json!({"100": 2, "200": 1})),
            with(serde_json::json!({"200": 3})),
        ];
        let plus = serde_json::json!({"jobs": jobs}).to_string();
        assert_eq!(
            fio_latencies(&plus, "read"),
            Some(BTreeMap::from([(100, 2), (200, 4)]))
        );
    }

    #[test]
    fn json_of_any_program() {
        let m = parse(
            "json",
            "starting\n{\"rate[MiB/s]\": 5.5, \"n\": 3, \"name\": \"x\"}\n",
        )
        .unwrap();
        assert_eq!((m.len(), get(&m, "rate"), get(&m, "n")), (2, 5.5, 3.0));
        assert_eq!(m.iter().find(|m| m.name == "rate").unwrap().unit, "MiB/s");
        for bad in ["", "[1]", "words"] {
            assert!(parse("json", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_failure_is_what_was_said_before_the_usage() {
        let long = (0..9).map(|i| format!("{i}\n")).collect::<String>();
        for (text, told) in [
            (long.as_str(), "4 5 6 7 8"),
            (
                "error: no -z\n\nUsage: x [-y]\n  -y  more\n",
                "error: no -z",
            ),
            (
                "error: no -z\n\nUsage: x [-y]\n\nOptions:\n  -y  more\n\nFor more information, try '--help'.\n",
                "error: no -z",
            ),
            (
                "Error invalid argument: --bogus\nInvalid options\nSynopsis ior\n\nFlags\n  -C  more\n\nOptional arguments\n  -a=POSIX  more\n\nOptions of Coral's, before or between the others:\n  --np N  ranks\n",
                "Error invalid argument: --bogus Invalid options",
            ),
            (
                "x starts\nusage: x\n  -a\nx: no -z\n",
                "x starts usage: x   -a x: no -z",
            ),
            ("usage: x\n-a\n-b\n\nx: no -z\n", "usage: x -a -b x: no -z"),
            ("\n", ""),
        ] {
            assert_eq!(errors(text).join(" "), told);
        }
    }
}
