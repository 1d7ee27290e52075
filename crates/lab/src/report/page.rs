//! The page: everything of a run that a reader needs, in one file.

use super::analysis::{Analysis, Row};
use super::tables::{is_main, verdict, verdicts as told_verdicts};
use super::{escape, figure, short};
use crate::collect::Samples;
use crate::experiment::{Cache, Order, RunDir, applies};
use crate::stats::{BOOTSTRAP_MIN, Interval, OUTLIER_RULE, PHASE_RULE};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const STYLE: &str = "
:root{color-scheme:light}
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:1.5rem auto;padding:0 1rem;color:#111;background:#fff}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{margin-top:2rem;border-bottom:1px solid #999}h3{margin-bottom:.3rem}h4{margin:.2rem 0;font-weight:normal}
table{border-collapse:collapse;font-size:.85rem;margin:.6rem 0}th,td{border:1px solid #999;padding:.15rem .45rem;text-align:left;vertical-align:top}th{background:#eee}
.wide,pre{overflow-x:auto}code{overflow-wrap:anywhere}figure{margin:1.2rem 0;break-inside:avoid}figcaption{margin:.3rem 0}
svg.chart{width:100%;height:auto;background:#fff;font:12px sans-serif}.panels{display:grid;grid-template-columns:1fr 1fr;gap:.5rem}
.grid{stroke:#ccc}.axis{fill:none;stroke:#000}.range{fill:none;stroke:#000;stroke-width:1.2}.raw{fill:#fff;stroke:#000}
.shade{fill:#000;opacity:.08}.small{font-size:10px}.ceiling{stroke:#000;stroke-dasharray:10 3 3 3}
.warn{border:2px solid #000;padding:.4rem .7rem;font-weight:bold}.out{font-weight:bold;text-decoration:underline}
@media(max-width:45rem){.panels{grid-template-columns:1fr}}
@media print{body{max-width:none}}
";

/// Makes charts zoomable where it runs: the wheel zooms, a double click resets. Without it nothing is missing.
const SCRIPT: &str = "
for(const s of document.querySelectorAll('svg.chart')){const v=s.viewBox.baseVal,o=[v.x,v.y,v.width,v.height];
s.addEventListener('wheel',e=>{if(!e.ctrlKey&&!e.shiftKey)return;e.preventDefault();const r=s.getBoundingClientRect(),k=e.deltaY<0?.8:1.25;
const x=v.x+(e.clientX-r.left)/r.width*v.width,y=v.y+(e.clientY-r.top)/r.height*v.height;
v.width=Math.min(o[2],v.width*k);v.height=Math.min(o[3],v.height*k);
v.x=Math.max(o[0],Math.min(o[0]+o[2]-v.width,x-(e.clientX-r.left)/r.width*v.width));
v.y=Math.max(o[1],Math.min(o[1]+o[3]-v.height,y-(e.clientY-r.top)/r.height*v.height))},{passive:false});
s.addEventListener('dblclick',()=>{[v.x,v.y,v.width,v.height]=o})}
";

/// The whole page.
pub(crate) fn page(a: &Analysis) -> String {
    let spec = &a.plan.spec;
    let title = if spec.title.is_empty() {
        &spec.name
    } else {
        &spec.title
    };
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escape(title)
    );
    head(&mut out, a);
    out += "<h2>Results</h2>\n";
    results(&mut out, a);
    comparisons(&mut out, a);
    if !spec.figures.is_empty() {
        out += "<h2>Figures</h2>\n<p>Bars and lines are means; the black bar goes from the smallest to the largest value, and each dot is one value. Series over time are those of the first repeat. Ctrl or Shift with the wheel zooms, a double click resets.</p>\n";
    }
    for (i, f) in spec.figures.iter().enumerate() {
        out += &figure::html(a, f, &format!("f{i}"));
    }
    verdicts(&mut out, a);
    published(&mut out, a);
    failures(&mut out, a);
    method(&mut out, a);
    environment(&mut out, a);
    let _ = write!(out, "<script>{SCRIPT}</script>\n</body></html>\n");
    out
}

fn head(out: &mut String, a: &Analysis) {
    let spec = &a.plan.spec;
    let mut p = |text: &str| {
        let _ = writeln!(out, "<p>{text}</p>");
    };
    if !spec.question.is_empty() {
        p(&format!("Question: {}", escape(&spec.question)));
    }
    if let Some(why) = a.incomplete() {
        p(&format!(
            "<span class=\"warn\">Incomplete: {}</span>",
            escape(&why)
        ));
    }
    for r in a.resumptions() {
        p(&escape(&r));
    }
    for name in &a.unmeasured {
        p(&format!("<span class=\"warn\">{}</span>", escape(name)));
    }
    for stood in a.stood_still() {
        p(&format!("<span class=\"warn\">{}</span>", escape(&stood)));
    }
    if !spec.scaled_from.is_empty() {
        p(&format!(
            "Scaled down from {}.",
            escape(spec.scaled_from.trim_end_matches('.'))
        ));
    }
    if !spec.differs.is_empty() {
        let items: Vec<String> = spec
            .differs
            .iter()
            .map(|d| format!("<li>{}</li>", escape(d)))
            .collect();
        let _ = writeln!(
            out,
            "<p>What differs from the original:</p><ul>{}</ul>",
            items.join("")
        );
    }
    let _ = writeln!(
        out,
        "<p>Begun {}; {} points, {} of {} steps with a result. Data: <a href=\"data.csv\">data.csv</a>, <a href=\"report.json\">report.json</a>, <a href=\"points.jsonl\">points.jsonl</a>.</p>",
        a.began(),
        a.plan.points.len(),
        a.done,
        a.plan.steps.len()
    );
}

fn interval(i: Option<Interval>) -> String {
    i.map_or("-".into(), |i| {
        format!("{} to {}", short(i.low), short(i.high))
    })
}

/// The cells of a row of a table of summaries.
pub(crate) fn summary_row(r: &Row) -> String {
    let s = &r.summary;
    let values: Vec<String> = s
        .values
        .iter()
        .zip(&s.outliers)
        .map(|(v, o)| {
            if *o {
                format!(
                    "<span class=\"out\" title=\"stands apart\">{} (!)</span>",
                    short(*v)
                )
            } else {
                short(*v)
            }
        })
        .collect();
    let mut mean95 = interval(s.t95);
    if s.bootstrap95.is_some() {
        let _ = write!(mean95, "; bootstrap {}", interval(s.bootstrap95));
    }
    format!(
        "<tr><td>{}</td><td>{}, {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{mean95}</td><td>{}</td></tr>\n",
        escape(&r.label),
        escape(&r.measure),
        escape(&r.unit),
        s.values.len(),
        short(s.mean),
        short(s.max),
        short(s.min),
        s.sd_sample.map_or("-".into(), short),
        short(s.sd_population),
        values.join(" ")
    )
}

fn results(out: &mut String, a: &Analysis) {
    const HEAD: &str = "<table><thead><tr><th>point</th><th>measure</th><th>n</th><th>mean</th><th>max</th><th>min</th><th>deviation (n - 1)</th><th>deviation (n)</th><th>95% interval of the mean</th><th>values</th></tr></thead><tbody>\n";
    let table = |rows: &[&Row]| {
        format!(
            "<div class=\"wide\">{HEAD}{}</tbody></table></div>\n",
            rows.iter().map(|r| summary_row(r)).collect::<String>()
        )
    };
    let (main, rest): (Vec<&Row>, Vec<&Row>) = a.rows.iter().partition(|r| is_main(a, &r.measure));
    if a.rows.is_empty() {
        *out += "<p>Nothing was measured.</p>\n";
        return;
    }
    *out += &table(&main);
    overlaps(out, a);
    if !rest.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>All other measures</summary>{}</details>",
            table(&rest)
        );
    }
}

/// Of what ran at once: how much of the time all ran.
fn overlaps(out: &mut String, a: &Analysis) {
    let rows: Vec<String> = a
        .plan
        .points
        .iter()
        .filter_map(|p| {
            let shares: Vec<String> = a
                .measured(&p.id)
                .iter()
                .filter_map(|r| r.overlap)
                .map(|o| format!("{:.0}%", o * 100.0))
                .collect();
            (!shares.is_empty()).then(|| {
                format!(
                    "<tr><td>{}</td><td>{}</td></tr>",
                    escape(&p.label),
                    shares.join(" ")
                )
            })
        })
        .collect();
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "<p>Commands that started at one instant: the share of the time, until the last had ended, in which all ran. Rates of what ran at once hold for that part only.</p><table><thead><tr><th>point</th><th>overlap by repeat</th></tr></thead><tbody>{}</tbody></table>",
            rows.join("\n")
        );
    }
}

fn comparisons(out: &mut String, a: &Analysis) {
    let Some(ab) = &a.plan.spec.ab else {
        return;
    };
    let values = &a.plan.spec.parameters[&ab.parameter].0;
    let _ = writeln!(
        out,
        "<h3>A against B: {} = {} against {}</h3>\n<table><thead><tr><th>point</th><th>measure</th><th>pairs</th><th>B / A</th><th>95% interval</th><th>noise floor (A / A)</th><th>verdict</th></tr></thead><tbody>",
        escape(&ab.parameter),
        escape(&values[0]),
        escape(&values[1])
    );
    for r in a.against.iter().filter(|r| is_main(a, &r.measure)) {
        let c = &r.comparison;
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.3}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&r.label),
            escape(&r.measure),
            c.pairs,
            c.ratio,
            interval(c.ratio95),
            c.noise_floor
                .map_or("not measured".into(), |n| format!("{:.1}%", n * 100.0)),
            verdict(c.verdict)
        );
    }
    *out += "</tbody></table>\n";
}

fn published(out: &mut String, a: &Analysis) {
    if a.plan.spec.published.is_empty() {
        return;
    }
    *out += "<h2>Published figures beside ours</h2>\n<table><thead><tr><th>what</th><th>published</th><th>here</th></tr></thead><tbody>\n";
    for p in &a.plan.spec.published {
        let ours: Vec<String> = a
            .rows
            .iter()
            .filter(|r| {
                r.measure == p.measure
                    && a.plan
                        .point(&r.point)
                        .is_some_and(|q| applies(&p.when, &q.params))
            })
            .map(|r| {
                let s = &r.summary;
                let deviation = s.sd_sample.map_or("-".into(), short);
                format!(
                    "{}: mean {}, max {}, min {}, deviation {deviation} {}, n {}",
                    escape(&r.label),
                    short(s.mean),
                    short(s.max),
                    short(s.min),
                    escape(&r.unit),
                    s.values.len()
                )
            })
            .collect();
        let ours = if p.measure.is_empty() {
            "see the figures over time".into()
        } else if ours.is_empty() {
            "not measured".into()
        } else {
            ours.join("<br>")
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{ours}</td></tr>",
            escape(&p.what),
            escape(&p.value)
        );
    }
    *out += "</tbody></table>\n";
}

fn failures(out: &mut String, a: &Analysis) {
    let failed: Vec<String> = a
        .records
        .iter()
        .filter_map(|r| {
            let label = a.plan.point(&r.step.point).map_or("", |p| p.label.as_str());
            Some(format!(
                "<li>{}, repeat {}: {}</li>",
                escape(label),
                r.step.rep,
                escape(r.error.as_ref()?)
            ))
        })
        .collect();
    if !failed.is_empty() {
        let _ = writeln!(
            out,
            "<h2>Steps that failed</h2><ul>{}</ul>",
            failed.join("\n")
        );
    }
}

fn method(out: &mut String, a: &Analysis) {
    let run = &a.plan.spec.run;
    let order = match run.order {
        Order::Interleaved => "every round over all points in another random order",
        Order::Blocked => "all repeats of a point together",
    };
    let cache = match run.cache {
        Cache::AsIs => "as they were",
        Cache::Warm => "warm",
        Cache::Remount => "of clients cold (remount)",
        Cache::Drop => "of the machine cold (drop)",
        Cache::Cold => "cold (remount and drop)",
    };
    let _ = writeln!(
        out,
        "<h2>Method</h2>\n<p>{} repeats, {order}, seed {}; {} rounds of warm-up, which are counted nowhere. Caches: {cache}.</p>",
        run.repeats, run.seed, run.warmup
    );
    let counted =
        |pick: &dyn Fn(&crate::experiment::Did) -> Vec<String>| -> BTreeMap<String, usize> {
            let mut n = BTreeMap::new();
            for t in a.records.iter().flat_map(|r| pick(&r.cache)) {
                *n.entry(t).or_default() += 1;
            }
            n
        };
    for (text, what) in [
        ("done", counted(&|d| d.done.clone())),
        ("not done", counted(&|d| d.not_done.clone())),
    ] {
        for (t, n) in what {
            let _ = writeln!(
                out,
                "<p>Caches, {text} before {n} steps: {}.</p>",
                escape(&t)
            );
        }
    }
    let _ = writeln!(
        out,
        "<p>Outliers are marked (!) and never left out: {}. Ramp, steady part and tail: {}. The interval of the mean is Student's t; a bootstrap stands beside it from {BOOTSTRAP_MIN} values on.</p>",
        escape(OUTLIER_RULE),
        escape(PHASE_RULE)
    );
    let mut roles = BTreeSet::new();
    let mut commands = vec![];
    for r in a.records.iter().flat_map(|r| &r.roles) {
        if roles.insert(&r.name) {
            commands.push(format!(
                "<li>{}: <code>{}</code></li>",
                escape(&r.name),
                escape(&r.command.join(" "))
            ));
        }
    }
    let _ = writeln!(
        out,
        "<p>Commands, each as it was first run:</p><ul>{}</ul>",
        commands.join("")
    );
    collectors(out, a);
}

/// What was sampled, what was missing, and what it cost.
fn collectors(out: &mut String, a: &Analysis) {
    let Ok((run, _)) = RunDir::open(&a.dir) else {
        return;
    };
    let (mut missing, mut notes, mut cost, mut all): (
        BTreeSet<String>,
        Option<Vec<String>>,
        f64,
        f64,
    ) = (BTreeSet::new(), None, 0.0, 0.0);
    for r in &a.records {
        if let Some(s) = r.samples.as_ref().and_then(|f| run.read::<Samples>(f).ok()) {
            missing.extend(s.missing);
            cost += s.own_cpu_s;
            all += r.roles.iter().map(|r| r.seconds).fold(0.0, f64::max);
            notes.get_or_insert(s.notes);
        }
    }
    if all > 0.0 {
        let _ = writeln!(
            out,
            "<p>The collectors took {:.2}% of one core.</p>",
            cost / all * 100.0
        );
    }
    for n in notes.unwrap_or_default() {
        let _ = writeln!(out, "<p>In the first step: {}.</p>", escape(&n));
    }
    if !missing.is_empty() {
        let items: Vec<String> = missing
            .iter()
            .map(|m| format!("<li>{}</li>", escape(m)))
            .collect();
        let _ = writeln!(
            out,
            "<details><summary>What could not be sampled ({})</summary><ul>{}</ul></details>",
            items.len(),
            items.join("")
        );
    }
}

/// With a capital letter, as a sentence begins.
fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(text.len().min(1));
    first.to_uppercase() + rest
}

/// What limited each point, in its last step.
fn verdicts(out: &mut String, a: &Analysis) {
    let mut told = told_verdicts(a);
    told.retain(|v| !v.is_not_coral());
    if !told.is_empty() {
        *out += "<h2>What limits it</h2>\n<p>Where the time of operations went, of the last step of each point; the rings of the nodes hold the last thousands of operations.</p>\n";
    }
    for v in told {
        let (point, text) = (escape(v.point), escape(v.text));
        *out += &format!("<h3>{point}</h3>\n");
        if let Some(differ) = v.differ() {
            let _ = writeln!(out, "<p>{}.</p>", escape(&capital(&differ)));
        }
        *out += &format!("<pre>{text}</pre>\n");
    }
}

fn environment(out: &mut String, a: &Analysis) {
    *out += "<h2>Environment</h2>\n<table><tbody>\n";
    let mut rows = vec![];
    flatten("", &a.environment, &mut rows);
    for (k, v) in rows {
        let _ = writeln!(
            out,
            "<tr><th>{}</th><td>{}</td></tr>",
            escape(&k),
            escape(&v)
        );
    }
    *out += "</tbody></table>\n";
}

fn flatten(path: &str, v: &Value, out: &mut Vec<(String, String)>) {
    match v {
        Value::Object(o) => {
            for (k, v) in o {
                flatten(
                    &if path.is_empty() {
                        k.clone()
                    } else {
                        format!("{path} {k}")
                    },
                    v,
                    out,
                );
            }
        }
        Value::Null => out.push((path.to_owned(), "unknown".into())),
        Value::String(s) => out.push((path.to_owned(), s.clone())),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            out.push((
                path.to_owned(),
                list.iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(" "),
            ));
        }
        other => out.push((path.to_owned(), other.to_string())),
    }
}
