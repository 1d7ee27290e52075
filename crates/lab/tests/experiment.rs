//! Whole runs of small experiments: what is in the run directory, what a resumed run does, what the report says.

use coral_lab::experiment::{Event, Outcome, Plan, RunDir, Settings, StepKind, load, resume, run};
use coral_lab::report;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn settings() -> Settings {
    Settings {
        coral: "/bin/true".into(),
        mounts: BTreeMap::new(),
        scratch: None,
        ask: Arc::new(|_| Err("nobody is asked".into())),
        trace: Arc::new(|_| Err("nobody is asked".into())),
        tcp: Arc::new(|_| Err("nobody is asked".into())),
        command_line: vec!["test".into()],
        stop: Arc::new(AtomicBool::new(false)),
        begun_by: None,
        say: Arc::new(|_| ()),
    }
}

fn plan(text: &str) -> Plan {
    Plan::of(&load(text, None).unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"))
}

/// Prints a figure that depends on the parameters, so that what is put together can be checked.
const SMALL: &str = r#"
name = "small"
title = "A <small> experiment"
question = "Does 1 & 1 make 2?"
scaled_from = "something larger"
differs = ["It is small."]
[parameters]
size = ["4k", "64k", "1m"]
op = ["write", "read"]
[sums]
all = ["a/rate", "b/rate"]
[run]
repeats = 3
seed = 5
warmup = 1
sample = "100ms"
[[roles]]
name = "a"
parser = "json"
command = ["sh", "-c", "sleep 0.3; echo '{{\"rate[MiB/s]\": 1{rep}, \"size\": 7}}'; echo {size} {op}"]
[[roles]]
name = "b"
parser = "json"
when = { op = "write" }
command = ["sh", "-c", "sleep 0.15; echo '{{\"rate[MiB/s]\": 100}}'"]
[[figures]]
title = "Rate by size"
kind = "lines"
x = "size"
y = ["a/rate"]
series = ["op"]
unit = "MiB/s"
log_x = true
ceiling = 20
ceiling_label = "as much as there is"
[[figures]]
title = "Bars"
kind = "bars"
x = "op"
y = ["a/rate", "all"]
series = ["size"]
unit = "MiB/s"
[[figures]]
title = "CPU over time"
kind = "time"
y = ["host/cpu_busy", "host/busiest_core"]
unit = "cores"
[[published]]
what = "rate"
value = "42"
measure = "a/rate"
when = { op = "write", size = "4k" }
"#;

fn complete(n: usize) -> Outcome {
    Outcome {
        done: n,
        all: n,
        incomplete: None,
    }
}

#[test]
fn a_run_measures_every_step_once_and_its_report_says_what_was_printed() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("run");
    let p = plan(SMALL);
    assert_eq!(run(&dir, &p, &settings()), Ok(complete(6 * 4)));
    let (store, kept) = RunDir::open(&dir).unwrap();
    assert_eq!(kept, p);
    let records = store.records().unwrap();
    let steps: BTreeSet<_> = records.iter().map(|r| r.step.clone()).collect();
    assert_eq!((records.len(), steps.len()), (24, 24));
    assert_eq!(
        records.iter().map(|r| &r.step).collect::<Vec<_>>(),
        p.steps.iter().collect::<Vec<_>>(),
        "in the order of the plan"
    );
    for r in &records {
        let op = p
            .point(&r.step.point)
            .unwrap()
            .param("op")
            .unwrap()
            .to_owned();
        assert_eq!(
            r.measure("a/rate").unwrap().value,
            f64::from(10 + r.step.rep)
        );
        assert_eq!(r.roles.len(), if op == "write" { 2 } else { 1 });
        assert_eq!(
            r.measure("all").map(|m| m.value),
            (op == "write").then(|| f64::from(110 + r.step.rep))
        );
        assert_eq!(r.overlap.is_some(), op == "write");
        assert!(
            r.overlap.is_none_or(|o| o < 0.9),
            "one slept half as long as the other: {r:?}"
        );
        let raw = std::fs::read_to_string(dir.join(&r.roles[0].stdout)).unwrap();
        assert!(raw.ends_with(&format!(
            "{} {op}\n",
            p.point(&r.step.point).unwrap().param("size").unwrap()
        )));
        let samples: coral_lab::collect::Samples = store.read(r.samples.as_ref().unwrap()).unwrap();
        assert!(
            samples.series.contains_key("host/cpu_busy")
                && samples.series.contains_key("proc/a_rss"),
            "{:?}",
            samples.series.keys()
        );
    }
    assert!(matches!(
        store.events().unwrap()[..],
        [
            Event::Started { .. },
            Event::Ended {
                incomplete: None,
                ..
            }
        ]
    ));
    let r = report::of(&dir).unwrap();
    let row = r.json["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| {
            row["measure"] == "a/rate"
                && row["parameters"]["size"] == "4k"
                && row["parameters"]["op"] == "read"
        })
        .unwrap();
    // repeats are 11, 12 and 13; the warm-up, 11 as well, is not among them
    assert_eq!(
        (
            row["n"].as_u64(),
            row["summary"]["mean"].as_f64(),
            row["summary"]["sd_sample"].as_f64()
        ),
        (Some(3), Some(12.0), Some(1.0))
    );
    assert!(
        run(&dir, &p, &settings())
            .unwrap_err()
            .contains("coral lab resume"),
        "a run is never written over"
    );
    assert_eq!(r.csv.lines().count(), 1 + 12 * 2 + 12 * (2 + 1 + 1));
    // what commands are told as {rep} is what the report calls the repeat
    let cells = r.csv.lines().map(|l| l.split(',').collect::<Vec<_>>());
    let rates = cells.filter(|c| c[7] == "a/rate");
    let repeats: Vec<(&str, &str)> = rates.map(|c| (c[3], c[9])).collect();
    assert_eq!(repeats.len(), 24);
    for (repeat, rate) in repeats {
        assert_eq!(rate, format!("1{repeat}"));
    }
    assert_eq!(
        r.json["unmeasured"],
        serde_json::json!([]),
        "all was measured"
    );
    assert!(!r.text.contains("warning"), "{}", r.text);
    page_holds(&r.html);
    let page = r.write(&dir).unwrap();
    assert_eq!(std::fs::read_to_string(&page).unwrap(), r.html);
    in_a_browser(&page);
}

/// Tags that have no end.
const VOID: &[&str] = &["meta", "br", "link", "img"];

/// Walks the tags of a page: every one that is opened is closed, in order. Returns each with its attributes and its depth.
fn tags(html: &str) -> Vec<(String, String, usize)> {
    let (mut open, mut out): (Vec<String>, Vec<(String, String, usize)>) = (vec![], vec![]);
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').expect("a tag that ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(
                open.pop().as_deref(),
                Some(name),
                "closed in the order they were opened"
            );
            continue;
        }
        let name: String = tag
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric())
            .collect();
        out.push((name.clone(), tag[name.len()..].to_owned(), open.len()));
        if !tag.ends_with('/') && !VOID.contains(&name.as_str()) {
            if name == "script" || name == "style" {
                let close = format!("</{name}>");
                rest = &rest[rest.find(&close).expect("its end") + close.len()..];
            } else {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    out
}

fn page_holds(html: &str) {
    let tags = tags(html);
    for scheme in ["http:", "https:", "//", "@import", "url(h"] {
        let bare = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!bare.contains(scheme), "the page asks nobody: {scheme}");
    }
    for (name, attributes, _) in &tags {
        let local = |a: &str| {
            !attributes.contains(&format!("{a}="))
                || ["data.csv", "report.json", "points.jsonl"]
                    .iter()
                    .any(|f| attributes.contains(&format!("{a}=\"{f}\"")))
        };
        assert!(local("href") && local("src"), "{name}{attributes}");
        assert!(
            !matches!(name.as_str(), "img" | "iframe" | "link" | "object"),
            "{name}"
        );
    }
    let figures: Vec<&str> = html
        .split("<figure>")
        .skip(1)
        .map(|f| f.split("</figure>").next().unwrap())
        .collect();
    assert_eq!(figures.len(), 3);
    for f in &figures {
        assert!(f.contains("<svg") && f.contains("<table>") && f.contains("<figcaption>"));
        assert!(f.matches("<tr>").count() >= 3, "a table with rows: {f}");
        for svg in f.split("<svg").skip(1) {
            assert!(
                svg.contains("role=\"img\"") && svg.contains("<title"),
                "a text for who does not see it"
            );
        }
    }
    let ids: Vec<&str> = html
        .split(" id=\"")
        .skip(1)
        .map(|t| t.split('"').next().unwrap())
        .collect();
    assert_eq!(
        ids.iter().collect::<BTreeSet<_>>().len(),
        ids.len(),
        "ids are unique"
    );
    for said in [
        "A &lt;small&gt; experiment",
        "1 &amp; 1",
        "Scaled down from something larger.",
        "It is small.",
        "as much as there is",
        "<td>42</td>",
        "Environment",
        "warm-up",
    ] {
        assert!(html.contains(said), "{said}");
    }
    assert!(!html.contains("Incomplete"));
    // six points: a panel each
    assert_eq!(figures[2].matches("class=\"panel\"").count(), 6);
}

/// Browsers that open a page without a screen, a line each, with a word about the package. `cargo xtask setup` looks for the same, and
/// as this test does: what is on the path and does not answer is none.
const BROWSERS: &str = include_str!("browsers.txt");

fn browsers() -> impl Iterator<Item = &'static str> {
    BROWSERS.lines().filter_map(|l| l.split(' ').next())
}

/// Runs in the page: writes down what is to be seen of it. Colours are given as the contrast that their grey has with white.
const LOOK: &str = r#"<script>
const grey = colour => {
  const [r, g, b] = colour.match(/[\d.]+/g).map(c => c / 255).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return 1.05 / (.2126 * r + .7152 * g + .0722 * b + .05);
};
const shown = e => { const r = e.getBoundingClientRect(); return e.checkVisibility() && r.width > 0 && r.height > 0 };
const all = (e, what) => [...e.querySelectorAll(what)];
const within = svg => { const o = svg.getBoundingClientRect(); return all(svg, 'text').every(t => {
  const r = t.getBoundingClientRect(); return r.left >= o.left - 1 && r.right <= o.right + 1 && r.top >= o.top - 1 && r.bottom <= o.bottom + 1 }) };
const apart = svg => { const rs = all(svg, 'text').filter(shown).map(t => t.getBoundingClientRect()); return rs.every((a, i) => rs.slice(i + 1).every(b =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) < 2 || Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) < 4)) };
const seen = {
  figures: all(document, 'figure').map(f => ({
    shown: shown(f), tables: all(f, 'table').filter(shown).length, caption: all(f, 'figcaption').every(shown),
    charts: all(f, 'svg').map(s => ({shown: shown(s), within: within(s), apart: apart(s), drawn: all(s, 'path,polyline,rect').filter(shown).length})),
  })),
  requests: performance.getEntriesByType('resource').length,
  failed: window.failed, fits: document.documentElement.scrollWidth <= innerWidth,
  words: Math.min(...all(document.body, 'p,td,th,li,h1,h2,figcaption').map(e => grey(getComputedStyle(e).color))),
  labels: Math.min(...all(document, 'svg text').map(e => grey(getComputedStyle(e).fill))),
  lines: Math.min(...all(document, 'svg polyline').map(e => grey(getComputedStyle(e).stroke))),
};
document.title = 'SEEN' + JSON.stringify(seen) + 'END';
</script>"#;

/// A browser opens the page, as it is and without its script: every figure is to be seen with its table, nothing is asked of anybody,
/// and words and lines are dark enough on white without colour.
fn in_a_browser(page: &Path) {
    let mut installed = browsers().filter(|b| {
        let asked = std::process::Command::new(b).arg("--version").output();
        asked.is_ok_and(|out| out.status.success())
    });
    let browser = installed.next().unwrap_or_else(|| {
        let known: Vec<&str> = browsers().collect();
        panic!("no browser is installed ({known:?}): `cargo xtask setup` installs one")
    });
    let html = std::fs::read_to_string(page).unwrap();
    let (before, script) = html.split_once("<script>").expect("a script");
    let (_, after) = script.split_once("</script>").expect("its end");
    for (name, text) in [
        ("with", html.clone()),
        ("without", format!("{before}{after}")),
    ] {
        let watch = "<head><script>window.failed=[];window.onerror=e=>{failed.push(e)}</script>";
        let text = text.replacen("<head>", watch, 1);
        let copy = page.with_file_name(format!("{name}.html"));
        std::fs::write(
            &copy,
            text.replacen("</body>", &format!("{LOOK}</body>"), 1),
        )
        .unwrap();
        let seen = opened(browser, &copy);
        println!("{name} its script: {seen:#}");
        let figures = seen["figures"].as_array().unwrap();
        assert_eq!(figures.len(), 3);
        let charts = figures.iter().flat_map(|f| f["charts"].as_array().unwrap());
        assert_eq!(charts.clone().count(), 2 + 6);
        for chart in charts {
            assert!(chart["shown"] == true && chart["within"] == true, "{chart}");
            assert!(
                chart["drawn"].as_u64() > Some(2) && chart["apart"] == true,
                "{chart}"
            );
        }
        for figure in figures {
            assert!(
                figure["shown"] == true && figure["caption"] == true,
                "{figure}"
            );
            assert!(figure["tables"].as_u64() > Some(0), "{figure}");
        }
        assert_eq!(
            (&seen["requests"], &seen["failed"]),
            (&0.into(), &serde_json::json!([]))
        );
        assert_eq!(seen["fits"], true, "as wide as the window");
        // WCAG's limits for text and for what is drawn.
        for (what, least) in [("words", 4.5), ("labels", 4.5), ("lines", 3.0)] {
            assert!(seen[what].as_f64() >= Some(least), "{what}: {}", seen[what]);
        }
    }
}

/// What the page says of itself, in a browser that has no network.
fn opened(browser: &str, page: &Path) -> serde_json::Value {
    let home = tempfile::tempdir().unwrap();
    let out = std::process::Command::new("timeout")
        // One that does not end when it is told to is killed.
        .args(["-k", "10", "120", browser])
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg("--window-size=1200,900")
        .args([
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--disable-background-networking",
        ])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    let dom = String::from_utf8_lossy(&out.stdout);
    // With the tags, which the script itself does not hold: it is in what is dumped, also when it has thrown.
    let seen = dom
        .split_once("<title>SEEN")
        .and_then(|(_, rest)| rest.split_once("END</title>"));
    let (seen, _) = seen.unwrap_or_else(|| panic!("the page was not looked at: {dom} {errors}"));
    serde_json::from_str(seen).unwrap()
}

/// A step that has failed, or was killed, left what it had made; when it is made again its cleanup comes first.
#[test]
fn remains_of_a_step_are_gone_before_it_is_made_again() {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, made) = (tmp.path().join("run"), tmp.path().join("made"));
    let (made, flag) = (made.display(), tmp.path().join("flag"));
    let text = format!(
        "name='f'\n[parameters]\nn=[1]\n[run]\nrepeats=1\n[[prepare]]\nname='p'\ncommand=['mkdir','-p','{made}']\n[[roles]]\nname='r'\nparser='json'\ncommand=['sh','-c','mkdir {made}/d && test -e {} && echo \"{{{{\\\"v\\\": 1}}}}\"']\n[[cleanup]]\nname='c'\ncommand=['rm','-r','{made}']\n",
        flag.display()
    );
    let first = run(&dir, &plan(&text), &settings()).unwrap();
    assert!(first.incomplete.is_some(), "{first:?}");
    std::fs::write(&flag, "").unwrap();
    assert_eq!(resume(&dir, &settings()), Ok(complete(1)));
}

#[test]
fn a_failed_step_ends_the_run_and_a_resumed_one_makes_what_is_missing() {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, flag) = (tmp.path().join("run"), tmp.path().join("flag"));
    let script = format!(
        "if test {{n}} = 2 && ! test -e {}; then echo broken disk >&2; exit 5; fi; echo \"{{{{\\\"v\\\": {{n}}}}}}\"",
        flag.display()
    );
    let text = format!(
        "name='f'\n[parameters]\nn=[1,2,3]\n[run]\nrepeats=2\n[[roles]]\nname='r'\nparser='json'\ncommand=['sh','-c','{script}']\n"
    );
    let p = plan(&text);
    let first = run(&dir, &p, &settings()).unwrap();
    let why = first.incomplete.clone().expect("incomplete");
    assert!(
        why.contains("n=2") && why.contains("broken disk") && why.contains("exit status: 5"),
        "{why}"
    );
    assert!(first.done < 3 && first.all == 6);
    let page = report::of(&dir).unwrap().html;
    assert!(
        page.contains("Incomplete")
            && page.contains("broken disk")
            && page.contains("Steps that failed")
    );
    // still broken: the same step fails again, and what is there stays
    let before = RunDir::open(&dir).unwrap().0.records().unwrap();
    let second = resume(&dir, &settings()).unwrap();
    assert!(second.incomplete.is_some());
    std::fs::write(&flag, "").unwrap();
    assert_eq!(resume(&dir, &settings()), Ok(complete(6)));
    let records = RunDir::open(&dir).unwrap().0.records().unwrap();
    assert_eq!(
        records[..before.len()],
        before,
        "nothing that was measured changed"
    );
    let good: Vec<_> = records
        .iter()
        .filter(|r| r.error.is_none())
        .map(|r| &r.step)
        .collect();
    assert_eq!(
        (good.len(), good.iter().collect::<BTreeSet<_>>().len()),
        (6, 6),
        "each step once"
    );
    let page = report::of(&dir).unwrap().html;
    assert!(page.contains("Resumed at") && !page.contains("Incomplete"));
    assert_eq!(
        resume(&dir, &settings()),
        Ok(complete(6)),
        "nothing is left to do"
    );
}

#[test]
fn a_run_that_is_still_ending_is_waited_for() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("run");
    let script = "sleep 0.5; echo '{{\\\"v\\\": 1}}'";
    let text = format!(
        "name='f'\n[run]\nrepeats=2\n[[roles]]\nname='r'\nparser='json'\ncommand=['sh','-c',\"{script}\"]\n"
    );
    let (p, s) = (plan(&text), settings());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&dir, &p, &s));
        while std::fs::read_dir(dir.join("raw")).map_or(0, Iterator::count) == 0 {
            std::thread::yield_now();
        }
        let state = report::state(&dir).unwrap();
        assert!(state.starts_with("f, running, "), "{state}");
        assert_eq!(resume(&dir, &s), Ok(complete(2)));
        assert_eq!(first.join().unwrap(), Ok(complete(2)));
    });
    let records = RunDir::open(&dir).unwrap().0.records().unwrap();
    assert_eq!(records.len(), 2, "each step was made once");
}

#[test]
fn what_is_not_there_ends_it_and_says_so() {
    let tmp = tempfile::tempdir().unwrap();
    let go = |name: &str, text: &str| run(&tmp.path().join(name), &plan(text), &settings());
    let gone = go(
        "gone",
        "name='g'\n[[roles]]\nname='r'\ncommand=['no-such-program-at-all']\n",
    )
    .unwrap();
    assert!(
        gone.incomplete
            .unwrap()
            .contains("the program 'no-such-program-at-all' is not there")
    );
    let needs = go("needs", "name='g'\n[needs]\nprograms=['no-such-program-at-all']\n[[roles]]\nname='r'\ncommand=['true']\n").unwrap_err();
    assert!(needs.contains("needs the program") && !tmp.path().join("needs").exists());
    let room = go(
        "room",
        "name='g'\n[needs]\nfree_mib=99999999999\n[[roles]]\nname='r'\ncommand=['true']\n",
    )
    .unwrap_err();
    assert!(room.contains("of free space"));
    let mounts = go(
        "mounts",
        "name='g'\n[[roles]]\nname='r'\ncommand=['ls', '{fs1}']\n",
    )
    .unwrap_err();
    assert!(mounts.contains("--mount fs1=DIR"), "{mounts}");
    let silent = go(
        "silent",
        "name='g'\n[[roles]]\nname='r'\nparser='ior'\ncommand=['echo', 'hello']\n",
    )
    .unwrap();
    assert!(
        silent
            .incomplete
            .unwrap()
            .contains("no result of ior: it ends with 'hello'")
    );
    let slow = go(
        "slow",
        "name='g'\n[run]\ntimeout='300ms'\n[[roles]]\nname='r'\ncommand=['sleep', '60']\n",
    )
    .unwrap();
    assert!(slow.incomplete.unwrap().contains("took longer"));
    let budget = go(
        "budget",
        "name='g'\n[run]\nbudget='0s'\n[[roles]]\nname='r'\ncommand=['true']\n",
    )
    .unwrap();
    assert_eq!(
        (budget.done, budget.incomplete.unwrap().contains("budget")),
        (0, true)
    );
    let within = go(
        "within",
        "name='g'\n[run]\nbudget='1s'\ntimeout='20s'\n[[roles]]\nname='r'\ncommand=['sleep', '60']\n",
    )
    .unwrap();
    let why = within.incomplete.unwrap();
    assert!(why.ends_with("the budget of 1 s was used up"), "{why}");
    let tidied = go(
        "tidied",
        "name='g'\n[run]\nbudget='2s'\nrepeats=1\n[[roles]]\nname='r'\ncommand=['true']\n[[cleanup]]\nname='c'\ncommand=['sleep', '2.5']\n",
    );
    assert_eq!(tidied, Ok(complete(1)), "the budget is of measuring");
}

#[test]
fn a_given_directory_takes_the_place_of_a_file_system() {
    let tmp = tempfile::tempdir().unwrap();
    let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
    for d in [&a, &b] {
        std::fs::create_dir(d).unwrap();
    }
    let text = "name='m'\n[run]\nrepeats=1\n[rig]\nsystems=[{name='fs1'}]\n[[prepare]]\nname='p'\ncommand=['touch', '{fs1.0}/prepared']\n[[roles]]\nname='r'\ncommand=['sh', '-c', 'test -e {fs1}/prepared && touch {fs1.1}/second && echo {fs1.*/f}']\n[[cleanup]]\nname='c'\ncommand=['rm', '{fs1.0}/prepared']\n";
    let mut s = settings();
    s.mounts.insert("fs1".into(), vec![a.clone(), b.clone()]);
    let dir = tmp.path().join("run");
    assert_eq!(run(&dir, &plan(text), &s), Ok(complete(1)));
    assert!(!a.join("prepared").exists() && b.join("second").exists());
    let records = RunDir::open(&dir).unwrap().0.records().unwrap();
    let said = std::fs::read_to_string(dir.join(&records[0].roles[0].stdout)).unwrap();
    assert_eq!(said, format!("{0}/f@{1}/f\n", a.display(), b.display()));
    s.mounts = BTreeMap::from([("fs2".to_owned(), vec![a])]);
    assert!(
        run(&tmp.path().join("other"), &plan(text), &s)
            .unwrap_err()
            .contains("did you mean 'fs1'")
    );
}

#[test]
fn an_ab_has_its_noise_floor_and_its_verdict() {
    let tmp = tempfile::tempdir().unwrap();
    let text = "name='ab'\n[parameters]\nhow=['old','new']\n[ab]\nparameter='how'\n[run]\nrepeats=4\n[[roles]]\nname='r'\nparser='json'\ncommand=['sh','-c','if test {how} = old; then echo {{\"v\": 10{rep}}}; else echo {{\"v\": 20{rep}}}; fi']\n"
        .replace("{{\"v\"", "{{\\\\\"v\\\\\"")
        .replace("\\\\\"", "\\\"");
    // In a literal string of TOML a backslash is itself: the shell takes it away.
    let dir = tmp.path().join("run");
    assert_eq!(run(&dir, &plan(&text), &settings()), Ok(complete(12)));
    let (store, _) = RunDir::open(&dir).unwrap();
    assert_eq!(
        store
            .records()
            .unwrap()
            .iter()
            .filter(|r| r.step.kind == StepKind::Again)
            .count(),
        4
    );
    let r = report::of(&dir).unwrap();
    let c = &r.json["against"][0]["comparison"];
    assert_eq!(
        (
            c["verdict"].as_str(),
            c["pairs"].as_u64(),
            c["noise_floor"].as_f64()
        ),
        (Some("higher"), Some(4), Some(0.0))
    );
    assert!((c["ratio"].as_f64().unwrap() - 2.0).abs() < 0.05);
    assert!(r.html.contains("B is higher") && r.text.contains("B is higher"));
}

#[test]
fn a_name_that_no_step_has_is_told() {
    let tmp = tempfile::tempdir().unwrap();
    let text = SMALL
        .replace("y = [\"a/rate\"]", "y = [\"a/raet\"]")
        .replace("y = [\"host/cpu_busy\", ", "y = [\"host/cpu_bsy\", ")
        .replace("measure = \"a/rate\"", "measure = \"a/tare\"")
        .replace(
            "all = [\"a/rate\", \"b/rate\"]",
            "all = [\"a/rate\", \"b/rat\"]",
        )
        + "[[figures]]\ntitle = \"Latency\"\nkind = \"cdf\"\ny = [\"a/write\"]\n";
    let dir = tmp.path().join("run");
    let stopped = Settings {
        stop: Arc::new(AtomicBool::new(true)),
        ..settings()
    };
    run(&dir, &plan(&text), &stopped).unwrap();
    let none = report::of(&dir).unwrap();
    assert!(
        !none.text.contains("warning"),
        "nothing was measured at all: {}",
        none.text
    );
    assert_eq!(resume(&dir, &settings()), Ok(complete(24)));
    let r = report::of(&dir).unwrap();
    let told = r.json["unmeasured"].as_array().unwrap();
    for says in [
        "the figure 'Rate by size': nothing was measured as 'a/raet'; did you mean 'a/rate'?",
        "the figure 'CPU over time': nothing was sampled as 'host/cpu_bsy'; did you mean 'host/cpu_busy'?",
        "the figure 'Latency': nothing was recorded by a load generator as 'a/write'",
        "the figure 'Bars': nothing was measured as 'all'",
        "the sum 'all': no step has all of a/rate, b/rat",
        "beside the published 'rate': nothing was measured as 'a/tare'",
    ] {
        assert!(
            told.iter().any(|t| t.as_str().unwrap().starts_with(says)),
            "{says}: {told:?}"
        );
        assert!(r.text.contains(&format!("warning: {says}")), "{}", r.text);
        let html = says.replace('\'', "&#39;");
        assert!(r.html.contains(&html), "{says}");
    }
    assert_eq!(told.len(), 6, "{told:?}");
    let empty = r.html.contains("<th>shortest, us</th>");
    assert!(!empty, "a distribution of nothing has no table: {}", r.html);
}

/// Each load generator leaves a record in which the repeat is the number of operations: the figure has all of them, and lines of
/// names of their own also where `series` does not name what differs.
#[test]
fn a_distribution_has_all_repeats_and_lines_have_names_of_their_own() {
    let tmp = tempfile::tempdir().unwrap();
    let record = r#"{{\"phases\": [{{\"name\": \"write\", \"latency_ns\": {{\"samples\": 10{rep}, \"min\": 1, \"max\": 5, \"cdf\": [[5, 1.0]]}}}}]}}"#;
    let text = format!(
        "name = 'cdf'\n[parameters]\nsize = ['4k', '1m']\nop = ['a', 'b']\n[[roles]]\nname = 'w'\ncommand = ['sh', '-c', 'echo \"{record}\" > $CORAL_LAB_RECORD']\n[[figures]]\ntitle = 'Latency'\nkind = 'cdf'\ny = ['w/write']\nseries = ['size']\n"
    );
    let dir = tmp.path().join("run");
    run(&dir, &plan(&text), &settings()).unwrap();
    let html = report::of(&dir).unwrap().html;
    for (size, op) in [("4k", "a"), ("4k", "b"), ("1m", "a"), ("1m", "b")] {
        let row = format!("<td>size={size} op={op}</td><td>3</td><td>306</td>");
        assert_eq!(html.matches(&row).count(), 1, "{row}: {html}");
    }
}

/// Programs of one's own say their units when they have run.
#[test]
fn figures_of_two_units_are_not_added_up() {
    let tmp = tempfile::tempdir().unwrap();
    let text = SMALL.replace(r#"rate[MiB/s]\": 100"#, r#"rate[1/s]\": 100"#);
    assert_ne!(text, SMALL);
    let ended = run(&tmp.path().join("run"), &plan(&text), &settings()).unwrap();
    let why = ended.incomplete.expect("it ends");
    let said = "the sum 'all': 'a/rate' is in MiB/s and 'b/rate' is in 1/s: figures of different units cannot be added up";
    assert!(why.contains(said), "{why}");
}

/// A figure that is to show MiB/s, of programs that print seconds, a number without a unit, and a rate.
#[test]
fn what_a_figure_shows_is_told_in_the_unit_of_its_data() {
    let tmp = tempfile::tempdir().unwrap();
    let text = r#"
name = 'units'
[parameters]
size = ['4k', '1m']
[[roles]]
name = 'w'
command = ['sh', '-c', 'echo "{{\"took[s]\": 2.5, \"n\": 7, \"rate[MiB/s]\": 100, \"made[1/s]\": 40}}"']
parser = 'json'
[[figures]]
title = 'Mixed'
kind = 'lines'
x = 'size'
y = ['w/took', 'w/n', 'w/rate']
unit = 'MiB/s'
[[figures]]
title = 'Counted'
kind = 'bars'
x = 'size'
y = ['w/made']
unit = 'files/s'
[[figures]]
title = 'Unsaid'
kind = 'bars'
x = 'size'
y = ['w/took']
"#;
    let dir = tmp.path().join("run");
    run(&dir, &plan(text), &settings()).unwrap();
    let html = report::of(&dir).unwrap().html;
    let repeats = "over 3 repeats, lowest is";
    for told in [
        format!(
            "highest is w/took at size=1m with a mean of 2.500 s {repeats} w/took at size=4k with 2.500 s."
        ),
        format!(
            "highest is w/n at size=1m with a mean of 7.000 {repeats} w/n at size=4k with 7.000."
        ),
        format!(
            "highest is w/rate at size=1m with a mean of 100.0 MiB/s {repeats} w/rate at size=4k with 100.0 MiB/s."
        ),
        format!(
            "Counted: highest is w/made at size=1m with a mean of 40.00 files/s {repeats} w/made at size=4k with 40.00 files/s."
        ),
        format!(
            "Unsaid: highest is w/took at size=1m with a mean of 2.500 s {repeats} w/took at size=4k with 2.500 s."
        ),
        "the figure &#39;Mixed&#39;: &#39;w/took&#39; is in s, where the experiment says MiB/s"
            .to_owned(),
        "the figure &#39;Mixed&#39;: &#39;w/n&#39; has no unit, where the experiment says MiB/s"
            .to_owned(),
    ] {
        assert!(html.contains(&told), "{told}: {html}");
    }
    assert!(!html.contains("2.500 MiB/s"), "{html}");
}

/// What the record of a load generator says of ranks that stood still is beside its figures.
#[test]
fn ranks_that_stood_still_are_in_the_report() {
    let tmp = tempfile::tempdir().unwrap();
    let stood = r#"{"ranks": [2, 3], "process": 77, "host": "anna", "from_s": 1.5, "for_s": 7.25}"#;
    let file = tmp.path().join("record");
    let record = format!(r#"{{"complete": true, "stood_still": [{stood}]}}"#);
    std::fs::write(&file, record).unwrap();
    let plan = plan(&format!(
        "name = 'still'\n[run]\nrepeats = 2\n[[roles]]\nname = 'w'\ncommand = ['sh', '-c', 'test {{rep}} = 1 || cp {} $CORAL_LAB_RECORD']\n",
        file.display()
    ));
    let dir = tmp.path().join("run");
    assert_eq!(run(&dir, &plan, &settings()), Ok(complete(2)));
    let told = "repeat 2: w: ranks 2 to 3 (process 77 on anna) stood still for 7.2 s";
    let report = report::of(&dir).unwrap();
    assert_eq!(report.text.matches(told).count(), 1, "{}", report.text);
    report.write(&dir).unwrap();
    for file in ["report.html", "report.json"] {
        let text = std::fs::read_to_string(dir.join(file)).unwrap();
        assert_eq!(text.matches(told).count(), 1, "{file}");
    }
}
