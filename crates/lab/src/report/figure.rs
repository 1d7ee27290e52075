//! The figures an experiment asks for, each a chart with its table.

use super::analysis::Analysis;
use super::chart::{Chart, Line, Mark, Shade, XAxis};
use super::{escape, short};
use crate::collect::{Bin, Samples, Series};
use crate::experiment::{Figure, FigureKind, Point, RunDir, applies, is_unit};
use crate::stats::{phases, slowest};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Most panels of a figure over time; the rest is in the run directory.
const MAX_PANELS: usize = 24;
pub(super) const WIDE: (f64, f64) = (800.0, 380.0);
const PANEL: (f64, f64) = (400.0, 230.0);

/// Fewer samples are a burst, and nothing that is steady.
const STEADY_LEAST: usize = 3;

/// A figure in HTML.
pub(crate) fn html(a: &Analysis, f: &Figure, id: &str) -> String {
    match f.kind {
        FigureKind::Time => over_time(a, f, id),
        FigureKind::Cdf => super::cdf::html(a, f, id),
        FigureKind::Lines | FigureKind::Bars => over_parameter(a, f, id),
    }
}

pub(super) fn points<'a>(a: &'a Analysis, f: &'a Figure) -> impl Iterator<Item = &'a Point> {
    a.plan.points.iter().filter(|p| applies(&f.when, &p.params))
}

/// The parameters that tell the lines of a figure apart: those of `series`, and others in which points differ that are alike in these
/// and have the same place on the x axis.
pub(super) fn series(f: &Figure, drawn: &[&Point]) -> Vec<String> {
    let mut all = f.series.clone();
    while let Some(further) = told_apart_by(&f.x, &all, drawn) {
        all.push(further);
    }
    all
}

/// A parameter in which points differ that are alike in those of `series` and in `x`.
fn told_apart_by(x: &str, series: &[String], drawn: &[&Point]) -> Option<String> {
    let mut groups: BTreeMap<Vec<Option<&str>>, &Point> = BTreeMap::new();
    drawn.iter().find_map(|p| {
        let named = series.iter().map(String::as_str).chain([x]);
        let key = named.map(|name| p.param(name)).collect();
        let first = *groups.entry(key).or_insert(p);
        let differs = |(name, value): &&(String, String)| first.param(name) != Some(value);
        p.params.iter().find(differs).map(|(name, _)| name.clone())
    })
}

/// `NAME=VALUE` of these parameters, with the measure where that is needed.
pub(super) fn called(f: &Figure, series: &[String], p: &Point, y: &str) -> String {
    let of = |s: &String| Some(format!("{s}={}", p.param(s)?));
    let mut name: Vec<String> = series.iter().filter_map(of).collect();
    if f.y.len() > 1 || name.is_empty() {
        name.insert(0, y.to_owned());
    }
    name.join(" ")
}

/// A number with a suffix of powers of 1024, as generators take it.
fn size(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let n: f64 = digits.parse().ok()?;
    let power = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    Some(n * 1024f64.powi(power))
}

/// What the figure calls the unit of its data, where it may call it so: else the data's own, as nothing is converted but by `scale`.
fn unit_of<'a>(f: &'a Figure, of_data: &'a str) -> &'a str {
    let is_scaled = f.kind == FigureKind::Time && f.scale != 1.0;
    match is_scaled || (!f.unit.is_empty() && is_unit(of_data, &f.unit)) {
        true => &f.unit,
        false => of_data,
    }
}

/// Whether a number is a mere number, as of a program that prints no unit.
pub(super) fn has_no_unit(unit: &str) -> bool {
    ["", "1"].contains(&unit)
}

/// A number with its unit, if it has one.
fn with_unit(v: f64, unit: &str) -> String {
    match has_no_unit(unit) {
        true => short(v),
        false => format!("{} {unit}", short(v)),
    }
}

/// Units that a y axis has, each once.
fn y_label<'a>(units: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = vec![];
    for unit in units.filter(|u| !has_no_unit(u)) {
        if !all.contains(&unit) {
            all.push(unit);
        }
    }
    all.join(", ")
}

/// A line of a figure over a parameter, with the unit of its marks.
struct Measured {
    line: Line,
    unit: String,
}

/// The lines of a figure over a parameter: one for each measure and each combination of the series' parameters.
fn lines(a: &Analysis, f: &Figure, words: &[String], numbers: bool) -> Vec<Measured> {
    let mut out: Vec<Measured> = vec![];
    let drawn: Vec<&Point> = points(a, f).collect();
    let series = series(f, &drawn);
    for y in &f.y {
        for p in drawn.iter().copied() {
            let Some(row) = a.row(&p.id, y) else {
                continue;
            };
            let value = p.param(&f.x).unwrap_or("");
            let x = if numbers {
                size(value)
            } else {
                words.iter().position(|w| w == value).map(|i| i as f64)
            };
            let Some(x) = x else {
                continue;
            };
            let name = called(f, &series, p, y);
            let s = &row.summary;
            let mark = Mark {
                x,
                y: s.mean,
                range: Some((s.min, s.max)),
                raw: s.values.clone(),
            };
            let unit = unit_of(f, &row.unit);
            let same = |m: &&mut Measured| m.line.name == name && m.unit == unit;
            match out.iter_mut().find(same) {
                Some(m) => m.line.marks.push(mark),
                None => out.push(Measured {
                    unit: unit.to_owned(),
                    line: Line {
                        name,
                        marks: vec![mark],
                    },
                }),
            }
        }
    }
    for m in &mut out {
        m.line.marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    out
}

fn over_parameter(a: &Analysis, f: &Figure, id: &str) -> String {
    let words = a
        .plan
        .spec
        .parameters
        .get(&f.x)
        .map(|v| v.0.clone())
        .unwrap_or_default();
    let numbers = f.log_x && words.iter().all(|w| size(w).is_some());
    let x = match (numbers, f.kind) {
        (true, FigureKind::Lines) => XAxis::Doubling,
        (_, kind) => XAxis::Words {
            words: words.clone(),
            bars: kind == FigureKind::Bars,
        },
    };
    let lines = lines(a, f, &words, x == XAxis::Doubling);
    let chart = Chart {
        finding: finding(f, &lines, &words),
        x_label: f.x.clone(),
        y_label: y_label(lines.iter().map(|m| m.unit.as_str())),
        x,
        lines: lines.into_iter().map(|m| m.line).collect(),
        shades: vec![],
        ceiling: f.ceiling.map(|c| (c, f.ceiling_label.clone())),
        size: WIDE,
    };
    let table = parameter_table(a, f);
    wrap(&f.title, &chart.svg(id), &chart.finding, &table)
}

/// What a chart shows: a sentence for each unit, as numbers of two units are not compared.
fn finding(f: &Figure, lines: &[Measured], words: &[String]) -> String {
    let mut of: Vec<(&str, Vec<&Line>)> = vec![];
    for m in lines {
        match of.iter_mut().find(|(unit, _)| *unit == m.unit) {
            Some((_, lines)) => lines.push(&m.line),
            None => of.push((&m.unit, vec![&m.line])),
        }
    }
    let told = |(unit, lines): &(&str, Vec<&Line>)| extremes(f, unit, lines, words);
    let told: Vec<String> = of.iter().filter_map(told).collect();
    match told.is_empty() {
        true => format!("{}: nothing was measured.", f.title),
        false => format!("{}: {}", f.title, told.join(" ")),
    }
}

/// The highest and the lowest of lines of one unit, and who stands apart; None: there is no mark.
fn extremes(f: &Figure, unit: &str, lines: &[&Line], words: &[String]) -> Option<String> {
    let marks = || {
        let of = lines.iter().copied();
        of.flat_map(|l: &Line| l.marks.iter().map(move |m| (&l.name, m)))
    };
    let by = |a: &(&String, &Mark), b: &(&String, &Mark)| a.1.y.total_cmp(&b.1.y);
    let (high, low) = (marks().max_by(by)?, marks().min_by(by)?);
    let at = |m: &Mark| {
        let word = words.iter().enumerate().find(|(i, w)| {
            if f.log_x && f.kind == FigureKind::Lines {
                size(w) == Some(m.x)
            } else {
                *i as f64 == m.x
            }
        });
        format!("{}={}", f.x, word.map_or("", |(_, w)| w.as_str()))
    };
    let mut out = format!(
        "highest is {} at {} with a mean of {} over {} repeats, lowest is {} at {} with {}.",
        high.0,
        at(high.1),
        with_unit(high.1.y, unit),
        high.1.raw.len(),
        low.0,
        at(low.1),
        with_unit(low.1.y, unit)
    );
    let mean = |l: &&Line| l.marks.iter().map(|m| m.y).sum::<f64>() / l.marks.len().max(1) as f64;
    let means: Vec<(String, f64)> = lines.iter().map(|l| (l.name.clone(), mean(l))).collect();
    if let Some(s) = slowest(&means).filter(|s| s.apart && means.len() > 3) {
        let _ = write!(out, " {} stands apart below the others.", s.name);
    }
    Some(out)
}

fn parameter_table(a: &Analysis, f: &Figure) -> String {
    let mut out = String::from(
        "<table><thead><tr><th>point</th><th>measure</th><th>n</th><th>mean</th><th>max</th><th>min</th><th>deviation (n - 1)</th><th>deviation (n)</th><th>95% interval of the mean</th><th>values</th></tr></thead><tbody>\n",
    );
    for p in points(a, f) {
        for y in &f.y {
            if let Some(row) = a.row(&p.id, y) {
                out += &super::page::summary_row(row);
            }
        }
    }
    out + "</tbody></table>\n"
}

/// Samples of a point's first repeat.
fn samples(a: &Analysis, p: &Point) -> Option<Samples> {
    let (run, _) = RunDir::open(&a.dir).ok()?;
    a.measured(&p.id)
        .iter()
        .find_map(|r| run.read(r.samples.as_ref()?).ok())
}

/// Names of all series that were sampled at these points.
pub(super) fn sampled(a: &Analysis, of: &[&Point]) -> BTreeSet<String> {
    units(a, of).into_keys().collect()
}

/// Their units.
pub(super) fn units(a: &Analysis, of: &[&Point]) -> BTreeMap<String, String> {
    let all = of.iter().filter_map(|p| samples(a, p));
    let series = all.flat_map(|s| s.series);
    series.map(|(name, s)| (name, s.unit)).collect()
}

fn over_time(a: &Analysis, f: &Figure, id: &str) -> String {
    let mut panels = String::new();
    let mut table = String::from(
        "<table><thead><tr><th>point</th><th>series</th><th>mean, all</th><th>mean, steady</th><th>largest</th><th>ramp, s</th><th>steady, s</th><th>tail, s</th></tr></thead><tbody>\n",
    );
    let (mut drawn, mut left) = (0, 0);
    // Of each unit.
    let mut highest: Vec<(String, String, f64)> = vec![];
    let with: Vec<(&Point, Samples)> = points(a, f)
        .filter_map(|p| Some((p, samples(a, p)?)))
        .collect();
    for (p, s) in &with {
        let chosen: Vec<(&String, &Series)> =
            f.y.iter()
                .filter_map(|y| Some((y, s.series.get(y)?)))
                .collect();
        if chosen.is_empty() {
            continue;
        }
        if drawn == MAX_PANELS {
            left += 1;
            continue;
        }
        let chart = panel(f, &chosen);
        for (name, series) in &chosen {
            let most = series.max().unwrap_or(0.0) * f.scale;
            let unit = unit_of(f, &series.unit);
            let what = format!("{name} at {}", p.label);
            match highest.iter_mut().find(|(of, ..)| of == unit) {
                Some((_, at, value)) if most > *value => (*at, *value) = (what, most),
                Some(_) => {}
                None => highest.push((unit.to_owned(), what, most)),
            }
            table += &time_row(p, f, name, series);
        }
        let _ = writeln!(
            panels,
            "<div class=\"panel\"><h4>{}</h4>{}</div>",
            escape(&p.label),
            chart.svg(&format!("{id}-{drawn}"))
        );
        drawn += 1;
    }
    table += "</tbody></table>\n";
    if drawn == 0 {
        panels = format!("<p>None of {} was sampled.</p>", escape(&f.y.join(", ")));
    }
    if left > 0 {
        let _ = write!(panels, "<p>{left} more are in the run directory.</p>");
    }
    let told = |(unit, what, v): &(String, String, f64)| {
        format!("the largest value is {} of {what}", with_unit(*v, unit))
    };
    let told: Vec<String> = highest.iter().map(told).collect();
    let finding = match told.is_empty() {
        true => format!("{}: nothing was sampled.", f.title),
        false => format!("{}: {}.", f.title, told.join("; ")),
    };
    wrap(
        &f.title,
        &format!("<div class=\"panels\">{panels}</div>"),
        &finding,
        &table,
    )
}

/// A series cut into its parts: begin, end of the ramp, end of the steady part, end; seconds. Samples of less than half of their
/// time at the end tell no level: they go with the part before them.
fn cut(series: &Series) -> Option<[f64; 4]> {
    let points = series.points();
    let mut values: Vec<f64> = points.iter().map(|p| p.1).collect();
    let is_short = |b: &Bin| b.weight() < 0.5;
    values.truncate(points.len() - usize::from(series.bins.last().is_some_and(is_short)));
    let mut parts = phases(&values)?;
    if parts.tail.is_empty() {
        parts.steady.end = points.len();
    }
    if parts.steady.len() < STEADY_LEAST {
        return None;
    }
    let half = series.width_ms as f64 / 2000.0;
    let begin = |i: usize| match points.get(i) {
        Some((t, _)) => t - half,
        None => points[points.len() - 1].0 + half,
    };
    Some([0, parts.steady.start, parts.steady.end, points.len()].map(begin))
}

fn panel(f: &Figure, chosen: &[(&String, &Series)]) -> Chart {
    let mut shades = vec![];
    if let Some([a, b, c, d]) = chosen.first().and_then(|(_, s)| cut(s)) {
        for (name, range) in [("ramp", (a, b)), ("tail", (c, d))] {
            if range.1 > range.0 {
                shades.push(Shade {
                    range,
                    name: name.into(),
                });
            }
        }
    }
    let lines: Vec<Line> = chosen
        .iter()
        .map(|(name, s)| Line {
            name: (*name).clone(),
            marks: s
                .points()
                .into_iter()
                .map(|(x, y)| Mark {
                    x,
                    y: y * f.scale,
                    range: None,
                    raw: vec![],
                })
                .collect(),
        })
        .collect();
    let means: Vec<String> = chosen
        .iter()
        .map(|(n, s)| {
            let mean = s.mean().unwrap_or(0.0) * f.scale;
            format!("{n} has a mean of {}", with_unit(mean, unit_of(f, &s.unit)))
        })
        .collect();
    Chart {
        finding: format!("{}.", means.join(", ")),
        x_label: "seconds".into(),
        y_label: y_label(chosen.iter().map(|(_, s)| unit_of(f, &s.unit))),
        x: XAxis::Numbers,
        lines,
        shades,
        ceiling: f.ceiling.map(|c| (c, f.ceiling_label.clone())),
        size: PANEL,
    }
}

fn time_row(p: &Point, f: &Figure, name: &str, series: &Series) -> String {
    let number = |v: Option<f64>| v.map_or("-".into(), |v| short(v * f.scale));
    let (steady, times) = match cut(series) {
        None => (
            None,
            ["too short to tell".into(), String::new(), String::new()],
        ),
        Some([a, b, c, d]) => (series.mean_within(b..c), [b - a, c - b, d - c].map(short)),
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escape(&p.label),
        escape(name),
        number(series.mean()),
        number(steady),
        number(series.max()),
        times[0],
        times[1],
        times[2]
    )
}

pub(super) fn wrap(title: &str, picture: &str, finding: &str, table: &str) -> String {
    format!(
        "<figure>\n<h3>{}</h3>\n{picture}<figcaption>{}</figcaption>\n<div class=\"wide\">{table}</div></figure>\n",
        escape(title),
        escape(finding)
    )
}

#[cfg(test)]
mod tests {
    use crate::collect::Series;
    use crate::experiment::{Plan, Point, load};

    /// `count` steps with `block`: it tells nothing apart that the axis does not.
    #[test]
    fn lines_are_told_apart_by_what_series_leaves_alike() {
        let named = |zip: &str, series: &str| {
            let text = format!(
                "name = 'x'\nzip = {zip}\n[parameters]\nblock = ['4k', '1m']\ncount = [2, 1]\nop = ['a', 'b']\nmode = ['m']\n[[roles]]\nname = 'r'\ncommand = ['true']\nparser = 'json'\n[[figures]]\ntitle = 't'\nkind = 'lines'\nx = 'block'\ny = ['r/v']\nseries = {series}\n"
            );
            let plan = Plan::of(&load(&text, None).unwrap()).unwrap();
            let drawn: Vec<&Point> = plan.points.iter().collect();
            super::series(&plan.spec.figures[0], &drawn)
        };
        assert_eq!(named("[['block', 'count']]", "['op']"), ["op"]);
        assert_eq!(named("[['block', 'count']]", "[]"), ["op"]);
        assert_eq!(named("[]", "['op']"), ["op", "count"]);
    }

    #[test]
    fn a_burst_is_not_steady_and_a_short_end_changes_no_level() {
        let series = |values: &[f64], last: f64| {
            let mut s = Series::new("x/s", 1000);
            for (i, v) in (0_u64..).zip(values) {
                let is_last = i as usize == values.len() - 1;
                s.add_part(1000 * i, *v, if is_last { last } else { 1.0 });
            }
            s
        };
        let burst = [0.0, 0.0, 0.0, 0.0, 90.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(super::cut(&series(&burst, 1.0)), None);
        let flat = [9.0, 10.0, 9.0, 10.0, 9.0, 10.0, 9.0, 10.0, 9.0, 900.0];
        let all = series(&flat, 0.1);
        assert_eq!(super::cut(&all), Some([0.0, 0.0, 10.0, 10.0]));
        let mean = all.mean_within(0.0..10.0).unwrap();
        assert!((mean - 175.0 / 9.1).abs() < 1e-9, "{mean}");
    }

    /// Series in seconds, where the experiment says something else: a factor converts, a name does not.
    #[test]
    fn a_series_is_told_in_its_own_unit_unless_it_is_scaled() {
        let told = |unit: &str, scale: &str| {
            let text = format!(
                "name = 'x'\n[[roles]]\nname = 'r'\ncommand = ['true']\n[[figures]]\ntitle = 't'\nkind = 'time'\ny = ['a/b']\nunit = '{unit}'\n{scale}"
            );
            let spec = load(&text, None).unwrap();
            let mut s = Series::new("s", 1000);
            s.add_part(0, 2.0, 1.0);
            let chart = super::panel(&spec.figures[0], &[(&"a/b".to_owned(), &s)]);
            (chart.finding, chart.y_label)
        };
        let is = |text: &str, label: &str| (text.to_owned(), label.to_owned());
        let own = is("a/b has a mean of 2.000 s.", "s");
        assert_eq!(told("MiB/s", ""), own);
        assert_eq!(told("", ""), own);
        let ms = is("a/b has a mean of 2000 ms.", "ms");
        assert_eq!(told("ms", "scale = 1000.0"), ms);
    }

    #[test]
    fn sizes_are_numbers_on_an_axis() {
        for (text, v) in [
            ("16", Some(16.0)),
            ("4k", Some(4096.0)),
            ("2M", Some(2_097_152.0)),
            ("one", None),
            ("", None),
            ("4x", None),
        ] {
            assert_eq!(super::size(text), v, "{text}");
        }
    }
}
