//! The built-in studies, each run as a whole with points that take seconds: the laboratory's own file systems, every role, figure
//! and table, and the published figures beside ours.

mod common;

use common::{coral, ok};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Repeats of every point.
const REPEATS: usize = 2;

/// A study that was run with a profile `smallest`.
struct Done {
    _tmp: tempfile::TempDir,
    run: PathBuf,
    report: Value,
    page: String,
}

/// Runs it. `smallest` is laid over the study as a profile; its keys begin with `profile.smallest`.
fn run(study: &str, smallest: &str) -> Done {
    let tmp = tempfile::tempdir().unwrap();
    let text = coral_lab::study::study(study).unwrap().text;
    let file = tmp.path().join(format!("{study}.toml"));
    let more = format!("[profile.smallest.run]\nrepeats = {REPEATS}\nsample = '100ms'\n");
    std::fs::write(&file, format!("{text}\n{smallest}\n{more}")).unwrap();
    let run = tmp.path().join("run");
    ok(coral()
        .args(["lab", "run"])
        .arg(&file)
        .args(["--profile", "smallest", "--dir"])
        .arg(&run));
    let read = |name: &str| std::fs::read_to_string(run.join(name)).unwrap();
    let done = Done {
        report: serde_json::from_str(&read("report.json")).unwrap(),
        page: read("report.html"),
        _tmp: tmp,
        run,
    };
    done.is_whole(&coral_lab::experiment::load(text, None).unwrap());
    done
}

impl Done {
    /// Nothing is missing in its report.
    fn is_whole(&self, spec: &coral_lab::experiment::Spec) {
        let r = &self.report;
        assert_eq!(r["complete"], true, "{}", r["incomplete"]);
        assert_eq!(r["steps_done"], r["steps"]);
        assert_eq!(r["unmeasured"], Value::Array(Vec::new()));
        let verdicts = r["verdicts"].as_array().unwrap();
        let points = r["steps"].as_u64().unwrap() as usize / REPEATS;
        assert_eq!(verdicts.len(), points);
        for v in verdicts {
            assert!(!v["text"].as_str().unwrap().is_empty(), "{v}");
        }
        assert_eq!(r["scaled_down_from"], spec.scaled_from);
        let published = spec.published.iter().map(|p| &p.what);
        for text in spec.figures.iter().map(|f| &f.title).chain(published) {
            assert!(self.page.contains(text), "the page lacks '{text}'");
        }
        assert!(!self.page.contains("Incomplete"));
        for heading in ["mean", "max", "min", "deviation (n - 1)"] {
            assert!(self.page.contains(&format!("<th>{heading}</th>")));
        }
        assert!(!self.run.join("rig").exists(), "targets are left");
    }

    /// The rows of a measure where the parameters have these values.
    fn rows(&self, measure: &str, parameters: &[(&str, &str)]) -> Vec<&Value> {
        let all = self.report["rows"].as_array().unwrap().iter();
        all.filter(|row| {
            row["measure"] == measure
                && (parameters.iter()).all(|(name, value)| row["parameters"][name] == *value)
        })
        .collect()
    }

    /// There is one such row, with all that is said of repeats.
    fn has(&self, measure: &str, parameters: &[(&str, &str)]) {
        let rows = self.rows(measure, parameters);
        assert_eq!(rows.len(), 1, "{measure} where {parameters:?}");
        let (n, s) = (&rows[0]["n"], &rows[0]["summary"]);
        assert_eq!(n, REPEATS, "{}", rows[0]);
        let of = |name: &str| s[name].as_f64().unwrap_or_else(|| panic!("{name}: {s}"));
        let (mean, max, min) = (of("mean"), of("max"), of("min"));
        assert!(0.0 < min && min <= mean && mean <= max, "{s}");
        // of two values the deviation is their distance by the root of two
        let apart = (max - min) / 2_f64.sqrt();
        assert!((of("sd_sample") - apart).abs() <= apart * 1e-9, "{s}");
    }

    /// The largest rate of a series in any step.
    fn most(&self, series: &str) -> f64 {
        let most = |step: std::fs::DirEntry| of_samples(&step.path().join("samples.json"), series);
        let steps = std::fs::read_dir(self.run.join("raw")).unwrap().flatten();
        steps.filter_map(most).fold(0.0, f64::max)
    }
}

fn of_samples(file: &Path, series: &str) -> Option<f64> {
    let text = std::fs::read_to_string(file).unwrap();
    let samples: Value = serde_json::from_str(&text).unwrap();
    let bins = samples["series"][series]["bins"].as_array()?;
    bins.iter()
        .filter_map(|b| b["max"].as_f64())
        .reduce(f64::max)
}

/// Agents on slices of a link and one client with all of it, writing and reading.
#[test]
fn several_agents_against_one() {
    let done = run(
        "s0",
        "[profile.smallest.ab]\nnoise_floor = false\n\
         [profile.smallest.parameters]\nn = [2]\nlink = ['4gbit', '']\ntransfer = ['100k']\nsize = ['60000k']\n\
         [profile.smallest.rig]\nsystems = [{ name = 'fs1', oss = [1] }]\nclients = 2\n\
         [profile.smallest.needs]\nfree_mib = 1000\nmounts = 2\n",
    );
    for how in ["native", "agents"] {
        done.has("w/write", &[("op", "write"), ("how", how)]);
        done.has("r/read", &[("op", "read"), ("how", how)]);
    }
}

/// Write, read and both at once, of one file system and of two, and what the router carried meanwhile.
#[test]
fn one_router_and_two_file_systems() {
    let done = run(
        "s1",
        "[profile.smallest.parameters]\nblock = ['2m']\ntransfer = ['1m']\nsegments = ['16']\ntasks = [2]\n\
         [profile.smallest.rig]\nclients = 2\nsystems = [{ name = 'fs1', oss = [1] }, { name = 'fs2', oss = [1] }]\n\
         [profile.smallest.needs]\nfree_mib = 100\n",
    );
    for fs in ["one", "two"] {
        done.has("w/write", &[("op", "write"), ("fs", fs)]);
        done.has("r/read", &[("op", "read"), ("fs", fs)]);
        done.has("w/write", &[("op", "both"), ("fs", fs)]);
        done.has("r/read", &[("op", "both"), ("fs", fs)]);
        done.has("both", &[("op", "both"), ("fs", fs)]);
    }
    assert!(done.most("router/routed_bytes") > 0.0);
}

/// Stripe counts and block sizes, here and 19 ms away, of one file and of two.
#[test]
fn one_client_far_away() {
    let done = run(
        "s2",
        "[profile.smallest]\nexclude = [{ files = 2, stripes = 2 }]\n\
         [profile.smallest.parameters]\nstripes = [1, 2]\nblock = ['256k']\nfiles = [1, 2]\nseconds = [1]\nrtt_ms = ['19']\n\
         [profile.smallest.rig]\nsystems = [{ name = 'fs1', oss = [1, 1] }]\nrate = '2gbit'\n\
         [profile.smallest.needs]\nfree_mib = 1000\n",
    );
    for (files, stripes) in [("1", "1"), ("1", "2"), ("2", "1")] {
        let point = [("files", files), ("stripes", stripes)];
        done.has("w/write", &point);
        done.has("r/read", &point);
    }
}

/// fio's small reads, with the series of every node.
#[test]
fn small_reads_of_many_files() {
    let done = run(
        "s3",
        "[profile.smallest.parameters]\njobs = [1]\nrw = ['read', 'randread']\nsize = ['2m']\nseconds = [1]\n\
         [profile.smallest.needs]\nfree_mib = 100\n",
    );
    for rw in ["read", "randread"] {
        done.has("fio/read_iops", &[("rw", rw)]);
    }
    for node in ["fs1-mds", "fs1-oss0", "fs1-oss1"] {
        assert!(done.most(&format!("{node}/requests")) > 0.0, "{node}");
    }
}

/// mdsrate on directories that are striped over the MDTs of one MDS and of several, and with a server per tenant.
#[test]
fn directories_over_servers() {
    let done = run(
        "s4",
        "[profile.smallest]\nexclude = [{ dirs = 1, layout = ['2x1', '4 tenants'] }]\n\
         [profile.smallest.parameters]\nlayout = ['1x2', '2x1', '4 tenants']\nservers = ['one', 'several', 'tenants']\n\
         mds = ['2', '1,1', '1']\nothers2 = ['none', 'none', '1']\nothers4 = ['none', 'none', '1']\nmdts = [2, 2, 1]\n\
         tenants = [1, 1, 4]\ndirs = [1, 4]\nmounts = [4, 4]\nseconds = [1]\n\
         [profile.smallest.needs]\nfree_mib = 100\n",
    );
    for layout in ["1x2", "2x1", "4 tenants"] {
        done.has("all", &[("layout", layout), ("dirs", "4")]);
    }
}
