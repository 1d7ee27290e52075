//! The run as text for a terminal, as CSV and as JSON.

use super::analysis::{Analysis, Row};
use super::short;
use crate::clock::utc;
use crate::experiment::StepKind;
use crate::stats::{OUTLIER_RULE, Verdict};
use crate::verdict::NOT_CORAL;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A field of CSV: quoted where it has to be.
fn field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Columns before and after those of the parameters.
const BEFORE: [&str; 5] = ["point", "started", "kind", "repeat", "error"];
const AFTER: [&str; 5] = ["measure", "unit", "value", "seconds", "cpu_s"];

/// The column of a parameter: no two columns have one name.
fn column(parameter: &str) -> String {
    match BEFORE.iter().chain(&AFTER).any(|c| *c == parameter) {
        true => field(&format!("parameter {parameter}")),
        false => field(parameter),
    }
}

/// Every measure of every step, also of warm-up and of failed steps, one a line.
pub(crate) fn csv(a: &Analysis) -> String {
    let params: Vec<&String> = a.plan.spec.parameters.keys().collect();
    let columns = BEFORE.iter().map(|c| (*c).to_owned());
    let columns = columns.chain(params.iter().map(|p| column(p)));
    let columns: Vec<String> = columns.chain(AFTER.map(str::to_owned)).collect();
    let mut out = columns.join(",") + "\n";
    for r in &a.records {
        let point = a.plan.point(&r.step.point);
        let kind = match r.step.kind {
            StepKind::Warmup => "warm-up",
            StepKind::Measure => "measure",
            StepKind::Again => "again",
        };
        let mut head = vec![
            r.step.point.clone(),
            utc(r.started_ms),
            kind.into(),
            r.step.rep.to_string(),
            r.error.clone().unwrap_or_default(),
        ];
        head.extend(
            params
                .iter()
                .map(|p| point.and_then(|q| q.param(p)).unwrap_or("").to_owned()),
        );
        let head: Vec<String> = head.iter().map(|t| field(t)).collect();
        let head = head.join(",");
        let mut line = |measure: &str, unit: &str, value: String, times: String| {
            let _ = writeln!(
                out,
                "{head},{},{},{value},{times}",
                field(measure),
                field(unit)
            );
        };
        for role in &r.roles {
            let times = format!("{},{}", role.seconds, role.cpu_s);
            for m in &role.measures {
                line(
                    &format!("{}/{}", role.name, m.name),
                    &m.unit,
                    m.value.to_string(),
                    times.clone(),
                );
            }
        }
        for m in &r.sums {
            line(&m.name, &m.unit, m.value.to_string(), ",".into());
        }
        if r.roles.iter().all(|role| role.measures.is_empty()) {
            line("", "", String::new(), ",".into());
        }
    }
    out
}

/// Summaries, comparisons and how complete it is.
pub(crate) fn json(a: &Analysis) -> Value {
    let spec = &a.plan.spec;
    let row = |r: &Row| {
        let params: serde_json::Map<String, Value> = a
            .plan
            .point(&r.point)
            .into_iter()
            .flat_map(|p| &p.params)
            .map(|(n, v)| (n.clone(), json!(v)))
            .collect();
        json!({"point": r.point, "parameters": params, "measure": r.measure, "unit": r.unit, "n": r.summary.values.len(), "summary": r.summary})
    };
    json!({
        "experiment": spec.name,
        "title": spec.title,
        "scaled_down_from": spec.scaled_from,
        "complete": a.incomplete().is_none(),
        "incomplete": a.incomplete(),
        "resumed": a.resumptions(),
        "unmeasured": a.unmeasured,
        "stood_still": a.stood_still(),
        "steps_done": a.done,
        "steps": a.plan.steps.len(),
        "outlier_rule": OUTLIER_RULE,
        "rows": a.rows.iter().map(row).collect::<Vec<_>>(),
        "against": a.against.iter().map(|r| json!({"parameters": r.label, "measure": r.measure, "comparison": r.comparison})).collect::<Vec<_>>(),
        "published": spec.published,
        "verdicts": verdicts(a).into_iter().map(|v| json!({"point": v.point, "text": v.text, "of_repeats": v.repeats})).collect::<Vec<_>>(),
        "environment": a.environment,
    })
}

/// The measures that figures and published numbers are about come first; times of phases are left to the page.
pub(crate) fn is_main(a: &Analysis, measure: &str) -> bool {
    let spec = &a.plan.spec;
    let mut named = spec
        .figures
        .iter()
        .flat_map(|f| &f.y)
        .chain(spec.published.iter().map(|p| &p.measure))
        .filter(|m| !m.is_empty())
        .peekable();
    named.peek().is_none() || named.any(|m| m == measure)
}

pub(crate) fn verdict(v: Verdict) -> &'static str {
    match v {
        Verdict::Higher => "B is higher",
        Verdict::Lower => "B is lower",
        Verdict::WithinNoise => "within noise",
        Verdict::NotEnoughRuns => "not enough runs",
    }
}

/// What limited a point.
pub(crate) struct Told<'a> {
    /// Its label.
    pub(crate) point: &'a str,
    /// The verdict of its last step.
    pub(crate) text: &'a str,
    /// What the verdicts of its repeats name, in their order.
    pub(crate) repeats: Vec<(u32, &'a str)>,
}

impl Told<'_> {
    /// It was on no mount of Coral's.
    pub(crate) fn is_not_coral(&self) -> bool {
        self.text.trim_end() == NOT_CORAL
    }

    /// What each repeat has, where they differ.
    pub(crate) fn differ(&self) -> Option<String> {
        let (_, first) = self.repeats.first()?;
        let each = self
            .repeats
            .iter()
            .map(|(rep, named)| format!("{rep}: {named}"));
        let all: Vec<String> = each.collect();
        (self.repeats.iter().any(|(_, named)| named != first))
            .then(|| format!("the repeats differ: {}", all.join("; ")))
    }
}

/// What a verdict names: the cause and where it is, without figures.
fn named(text: &str) -> &str {
    let said = text.lines().find_map(|l| l.strip_prefix("verdict: "));
    let said = said.unwrap_or("unknown");
    said.split_once(": ").map_or(said, |(name, _)| name)
}

/// What limited each point.
pub(crate) fn verdicts(a: &Analysis) -> Vec<Told<'_>> {
    let told = |id: &str| {
        let of = a.measured(id).into_iter();
        let all: Vec<(u32, &str)> = of
            .filter_map(|r| Some((r.step.rep, r.verdict.as_deref()?)))
            .collect();
        let (_, text) = all.last()?;
        let repeats = all.iter().map(|(rep, text)| (*rep, named(text)));
        Some((*text, repeats.collect()))
    };
    (a.plan.points.iter())
        .filter_map(|p| {
            let (text, repeats) = told(&p.id)?;
            Some(Told {
                point: &p.label,
                text,
                repeats,
            })
        })
        .collect()
}

/// Whether there are points, and none of them is of Coral.
fn are_not_coral(told: &[Told]) -> bool {
    !told.is_empty() && told.iter().all(Told::is_not_coral)
}

/// The summary for a terminal.
pub(crate) fn text(a: &Analysis) -> String {
    let rows: Vec<&Row> = a.rows.iter().filter(|r| is_main(a, &r.measure)).collect();
    let width = |of: fn(&Row) -> &str, least: usize| {
        rows.iter()
            .map(|r| of(r).chars().count())
            .max()
            .unwrap_or(0)
            .max(least)
    };
    let (l, m) = (width(|r| &r.label, 5), width(|r| &r.measure, 7));
    let mut out = format!(
        "{:<l$}  {:<m$}  {:>3} {:>10} {:>10} {:>10} {:>10}  unit\n",
        "point", "measure", "n", "mean", "max", "min", "deviation"
    );
    for r in rows {
        let s = &r.summary;
        let marked = if s.outliers.iter().any(|o| *o) {
            "  (outlier marked)"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "{:<l$}  {:<m$}  {:>3} {:>10} {:>10} {:>10} {:>10}  {}{marked}",
            r.label,
            r.measure,
            s.values.len(),
            short(s.mean),
            short(s.max),
            short(s.min),
            s.sd_sample.map_or("-".into(), short),
            r.unit
        );
    }
    out += "deviation: of the sample (n - 1)\n";
    for r in a.against.iter().filter(|r| is_main(a, &r.measure)) {
        let c = &r.comparison;
        let _ = writeln!(
            out,
            "A/B {} {}: ratio {:.3} over {} pair{}: {}",
            r.label,
            r.measure,
            c.ratio,
            c.pairs,
            if c.pairs == 1 { "" } else { "s" },
            verdict(c.verdict)
        );
    }
    let told = verdicts(a);
    if are_not_coral(&told) {
        let _ = writeln!(out, "{NOT_CORAL}");
    }
    for v in told.iter().filter(|v| !v.is_not_coral()) {
        let said = v.text.lines().find(|l| l.starts_with("verdict: "));
        let _ = writeln!(out, "{}: {}", v.point, said.unwrap_or("verdict: unknown"));
        if let Some(differ) = v.differ() {
            let _ = writeln!(out, "{}: {differ}", v.point);
        }
    }
    if let Some(why) = a.incomplete() {
        let _ = writeln!(out, "incomplete: {why}");
    }
    for name in &a.unmeasured {
        let _ = writeln!(out, "warning: {name}");
    }
    for stood in a.stood_still() {
        let _ = writeln!(out, "warning: {stood}");
    }
    for r in a.resumptions() {
        let _ = writeln!(out, "{r}");
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_are_quoted_where_they_have_to_be() {
        assert_eq!(super::field("a=1"), "a=1");
        assert_eq!(super::field("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }

    #[test]
    fn repeats_that_differ_are_told() {
        let told = |texts: &[&'static str]| {
            let repeats = (1..).zip(texts.iter().map(|t| super::named(t)));
            let v = super::Told {
                point: "p",
                text: texts.last().unwrap(),
                repeats: repeats.collect(),
            };
            v.differ()
        };
        let slow = "Little's law holds\nverdict: slow storage (fs-OST0000)\n";
        let also = "Little's law holds: 3\nverdict: slow storage (fs-OST0000)\n1. x\n";
        let unknown = "verdict: unknown: 41% of the time is placed nowhere\n";
        assert_eq!(told(&[slow, also]), None);
        assert_eq!(
            told(&[slow, unknown, also]).unwrap(),
            "the repeats differ: 1: slow storage (fs-OST0000); 2: unknown; 3: slow storage (fs-OST0000)"
        );
    }

    #[test]
    fn a_parameter_has_a_column_of_its_own() {
        assert_eq!(super::column("block"), "block");
        assert_eq!(super::column("seconds"), "parameter seconds");
    }
}
