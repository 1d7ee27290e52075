//! Charts as SVG.
//!
//! Written here because the two charts that are needed, with hatches, dashes, markers, error bars and raw points that survive a
//! black-and-white printer, are fewer lines than a library's styles for them.

use super::{escape, short};
use std::fmt::Write as _;

/// Colours that the colour-blind tell apart (Okabe and Ito), dark enough on white.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#8c6d00", "#56789a",
];
/// Dashes of lines.
const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4"];
/// Hatches of bars: path within a tile of 8 by 8.
const HATCHES: [&str; 10] = [
    "M0 0H8V8H0Z",
    "M0 8L8 0M-2 2L2 -2M6 10L10 6",
    "M0 4H8",
    "M0 0L8 8M-2 6L2 10M6 -2L10 2",
    "M4 0V8",
    "M2 2h1v1h-1zM6 6h1v1h-1z",
    "M0 4H8M4 0V8",
    "M0 2H8M0 6H8",
    "M2 0V8M6 0V8",
    "M0 8L8 0M0 0L8 8",
];

const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 54.0;
/// Height of a row of the legend, and width of an entry.
const LEGEND_ROW: f64 = 18.0;
const LEGEND_WIDTH: f64 = 250.0;
/// Most points of a time series that get a marker.
const MARKED: usize = 20;

/// One value with what it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Place on the x axis: a number, or the index of a category.
    pub x: f64,
    /// Its height.
    pub y: f64,
    /// Smallest and largest value it stands for.
    pub range: Option<(f64, f64)>,
    /// The values themselves.
    pub raw: Vec<f64>,
}

/// Marks that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its marks, by x.
    pub marks: Vec<Mark>,
}

/// The x axis.
#[derive(Debug, Clone, PartialEq)]
pub enum XAxis {
    /// Words, at 0, 1, 2 and so on; as bars when `bars` is set.
    Words {
        /// The words.
        words: Vec<String>,
        /// Bars instead of lines.
        bars: bool,
    },
    /// Numbers.
    Numbers,
    /// Numbers, each tick twice the one before.
    Doubling,
    /// Numbers, with ticks at powers of ten.
    Tens,
}

/// A stretch of the x axis that is shaded, with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Shade {
    /// Begin and end.
    pub range: (f64, f64),
    /// What it is.
    pub name: String,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it shows, in one sentence, for those who do not see it.
    pub finding: String,
    /// What is along x.
    pub x_label: String,
    /// What is along y, with its unit.
    pub y_label: String,
    /// The x axis.
    pub x: XAxis,
    /// What is drawn.
    pub lines: Vec<Line>,
    /// Shaded stretches.
    pub shades: Vec<Shade>,
    /// A known limit and its name.
    pub ceiling: Option<(f64, String)>,
    /// Width and height of the whole.
    pub size: (f64, f64),
}

/// Round steps for an axis from 0 to `most`.
pub(crate) fn ticks(most: f64) -> Vec<f64> {
    if !(most.is_finite() && most > 0.0) {
        return vec![0.0, 1.0];
    }
    let rough = most / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|s| *s >= rough)
        .unwrap_or(power * 10.0);
    // A multiple of the step is itself the last one, also where it is not exact.
    let n = (most / step - 1e-9).ceil() as usize;
    (0..=n.max(1)).map(|i| i as f64 * step).collect()
}

/// Powers of ten between two numbers.
fn powers_of_ten((least, most): (f64, f64)) -> Vec<f64> {
    let power = |v: f64| v.max(1e-12).log10();
    let (from, to) = (power(least).ceil() as i32, power(most).floor() as i32);
    (from..=to).map(|p| 10f64.powi(p)).collect()
}

/// Where the plotted area is, and what it spans.
struct Frame {
    width: f64,
    height: f64,
    x: (f64, f64),
    top: f64,
    doubling: bool,
}

impl Frame {
    fn x(&self, v: f64) -> f64 {
        let at = |v: f64| {
            if self.doubling {
                v.max(f64::MIN_POSITIVE).log2()
            } else {
                v
            }
        };
        let (a, b) = (at(self.x.0), at(self.x.1));
        LEFT + (at(v) - a) / (b - a).max(1e-12) * self.width
    }

    fn y(&self, v: f64) -> f64 {
        TOP + self.height - (v / self.top).clamp(0.0, 1.0) * self.height
    }
}

impl Chart {
    /// As SVG; `id` is unique in the page.
    pub fn svg(&self, id: &str) -> String {
        let rows = self.legend_rows();
        let frame = self.frame(rows);
        let (w, h) = self.size;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-labelledby=\"{id}-t\" class=\"chart\"><title id=\"{id}-t\">{}</title>\n",
            escape(&self.finding)
        );
        self.patterns(&mut out, id);
        self.shades(&mut out, &frame);
        self.axes(&mut out, &frame);
        if let Some((v, name)) = &self.ceiling {
            let y = frame.y(*v);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"ceiling\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT + frame.width,
                LEFT + frame.width - 4.0,
                y - 4.0,
                escape(name)
            );
        }
        if matches!(self.x, XAxis::Words { bars: true, .. }) {
            self.bars(&mut out, &frame, id);
        } else {
            self.curves(&mut out, &frame);
        }
        self.legend(&mut out, &frame, id);
        out + "</svg>\n"
    }

    fn legend_rows(&self) -> f64 {
        let per_row = (((self.size.0 - LEFT) / LEGEND_WIDTH).floor() as usize).max(1);
        self.lines.len().div_ceil(per_row) as f64
    }

    fn frame(&self, rows: f64) -> Frame {
        let marks = || self.lines.iter().flat_map(|l| &l.marks);
        let most = marks()
            .flat_map(|m| [m.y, m.range.map_or(0.0, |r| r.1)])
            .chain(self.ceiling.iter().map(|c| c.0))
            .fold(0.0, f64::max);
        let x = match &self.x {
            XAxis::Words { words, .. } => (-0.5, words.len() as f64 - 0.5),
            XAxis::Numbers => (
                0.0,
                marks()
                    .map(|m| m.x)
                    .chain(self.shades.iter().map(|s| s.range.1))
                    .fold(0.0, f64::max)
                    .max(1e-9),
            ),
            XAxis::Doubling | XAxis::Tens => {
                let least = marks().map(|m| m.x).fold(f64::INFINITY, f64::min);
                let most = marks().map(|m| m.x).fold(0.0, f64::max);
                if least < most {
                    (least, most)
                } else {
                    (most.max(1.0) / 2.0, most.max(1.0) * 2.0)
                }
            }
        };
        Frame {
            width: self.size.0 - LEFT - RIGHT,
            height: self.size.1 - TOP - BOTTOM - rows * LEGEND_ROW,
            x,
            top: ticks(most).last().copied().unwrap_or(1.0),
            doubling: matches!(self.x, XAxis::Doubling | XAxis::Tens),
        }
    }

    fn patterns(&self, out: &mut String, id: &str) {
        if !matches!(self.x, XAxis::Words { bars: true, .. }) {
            return;
        }
        *out += "<defs>";
        for i in 0..self.lines.len() {
            let (hatch, colour) = (HATCHES[i % HATCHES.len()], COLOURS[i % COLOURS.len()]);
            let fill = if i % HATCHES.len() == 0 {
                colour
            } else {
                "none"
            };
            let _ = write!(
                out,
                "<pattern id=\"{id}-p{i}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><rect width=\"8\" height=\"8\" fill=\"white\"/><path d=\"{hatch}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"{fill}\"/></pattern>"
            );
        }
        *out += "</defs>\n";
    }

    fn shades(&self, out: &mut String, f: &Frame) {
        for s in &self.shades {
            let (a, b) = (f.x(s.range.0), f.x(s.range.1));
            let _ = writeln!(
                out,
                "<rect x=\"{a:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" class=\"shade\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" class=\"small\">{}</text>",
                (b - a).max(0.0),
                f.height,
                a.midpoint(b),
                TOP + 11.0,
                escape(&s.name)
            );
        }
    }

    fn axes(&self, out: &mut String, f: &Frame) {
        let bottom = TOP + f.height;
        for t in ticks(f.top) {
            let y = f.y(t);
            let _ = write!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT + f.width,
                LEFT - 6.0,
                y + 4.0,
                trim(t)
            );
        }
        let mut tick = |x: f64, text: &str| {
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escape(text)
            );
        };
        match &self.x {
            XAxis::Words { words, .. } => words
                .iter()
                .enumerate()
                .for_each(|(i, w)| tick(f.x(i as f64), w)),
            XAxis::Numbers => ticks(f.x.1)
                .iter()
                .filter(|t| **t <= f.x.1 * 1.0001)
                .for_each(|t| tick(f.x(*t), &trim(*t))),
            XAxis::Tens => powers_of_ten(f.x)
                .into_iter()
                .for_each(|x| tick(f.x(x), &trim(x))),
            XAxis::Doubling => {
                let mut at: Vec<f64> = self
                    .lines
                    .iter()
                    .flat_map(|l| &l.marks)
                    .map(|m| m.x)
                    .collect();
                at.sort_by(f64::total_cmp);
                at.dedup();
                at.iter().for_each(|x| tick(f.x(*x), &trim(*x)));
            }
        }
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {TOP}V{bottom:.1}H{:.1}\" class=\"axis\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"14\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {4:.1})\">{}</text>",
            LEFT + f.width,
            LEFT + f.width / 2.0,
            bottom + 34.0,
            escape(&self.x_label),
            TOP + f.height / 2.0,
            escape(&self.y_label)
        );
    }

    fn bars(&self, out: &mut String, f: &Frame, id: &str) {
        let slot = f.x(1.0) - f.x(0.0);
        let width = (slot * 0.85 / self.lines.len().max(1) as f64).min(60.0);
        for (i, l) in self.lines.iter().enumerate() {
            let shift = (i as f64 + 0.5 - self.lines.len() as f64 / 2.0) * width;
            for m in &l.marks {
                let (x, y) = (f.x(m.x) + shift, f.y(m.y));
                let _ = write!(
                    out,
                    "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"url(#{id}-p{i})\" stroke=\"{}\"><title>{}: {}</title></rect>",
                    x - width * 0.45,
                    width * 0.9,
                    TOP + f.height - y,
                    COLOURS[i % COLOURS.len()],
                    escape(&l.name),
                    short(m.y)
                );
                spread(out, f, x, m);
            }
        }
        *out += "\n";
    }

    fn curves(&self, out: &mut String, f: &Frame) {
        for (i, l) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let at: Vec<String> = l
                .marks
                .iter()
                .map(|m| format!("{:.1},{:.1}", f.x(m.x), f.y(m.y)))
                .collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{}\"/>",
                at.join(" "),
                DASHES[i % DASHES.len()]
            );
            let every = l.marks.len().div_ceil(MARKED).max(1);
            for m in l.marks.iter().step_by(every) {
                marker(out, i + i / DASHES.len(), f.x(m.x), f.y(m.y), colour);
                spread(out, f, f.x(m.x), m);
            }
        }
    }

    fn legend(&self, out: &mut String, f: &Frame, id: &str) {
        let per_row = (((self.size.0 - LEFT) / LEGEND_WIDTH).floor() as usize).max(1);
        let bars = matches!(self.x, XAxis::Words { bars: true, .. });
        for (i, l) in self.lines.iter().enumerate() {
            let x = LEFT + (i % per_row) as f64 * LEGEND_WIDTH;
            let y = TOP + f.height + BOTTOM + (i / per_row) as f64 * LEGEND_ROW;
            let colour = COLOURS[i % COLOURS.len()];
            if bars {
                let _ = write!(
                    out,
                    "<rect x=\"{x}\" y=\"{:.1}\" width=\"24\" height=\"11\" fill=\"url(#{id}-p{i})\" stroke=\"{colour}\"/>",
                    y - 9.0
                );
            } else {
                let _ = write!(
                    out,
                    "<line x1=\"{x}\" x2=\"{}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{2}\"/>",
                    x + 24.0,
                    y - 4.0,
                    DASHES[i % DASHES.len()]
                );
                marker(out, i + i / DASHES.len(), x + 12.0, y - 4.0, colour);
            }
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{y:.1}\">{}</text>",
                x + 30.0,
                escape(&l.name)
            );
        }
    }
}

/// Smallest and largest value as a bar, the values as dots.
fn spread(out: &mut String, f: &Frame, x: f64, m: &Mark) {
    if let Some((a, b)) = m.range.filter(|(a, b)| a < b) {
        let (a, b) = (f.y(a), f.y(b));
        let _ = write!(
            out,
            "<path d=\"M{x:.1} {a:.1}V{b:.1}M{0:.1} {a:.1}H{1:.1}M{0:.1} {b:.1}H{1:.1}\" class=\"range\"/>",
            x - 4.0,
            x + 4.0
        );
    }
    for v in &m.raw {
        let _ = write!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2\" class=\"raw\"/>",
            f.y(*v)
        );
    }
}

fn marker(out: &mut String, i: usize, x: f64, y: f64, colour: &str) {
    let d = match i % 6 {
        0 => format!("M{} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", x - 3.5),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l4 7.5h-8z", y - 4.5),
        3 => format!("M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5z", y - 4.5),
        4 => format!("M{:.1} {:.1}l7 7m0 -7l-7 7", x - 3.5, y - 3.5),
        _ => format!("M{x:.1} {:.1}v8m-4 -4h8", y - 4.0),
    };
    let _ = write!(
        out,
        "<path d=\"{d}\" fill=\"{}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        if i.is_multiple_of(2) { colour } else { "white" }
    );
}

/// A tick's text.
fn trim(v: f64) -> String {
    if v != 0.0 && !(1e-3..1e6).contains(&v.abs()) {
        return format!("{v:.1e}");
    }
    let text = format!("{v:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: XAxis, lines: usize) -> Chart {
        Chart {
            finding: "A <finding>".into(),
            x_label: "block".into(),
            y_label: "MiB/s".into(),
            x,
            lines: (0..lines)
                .map(|i| Line {
                    name: format!("line {i}"),
                    marks: (1..4)
                        .map(|x| Mark {
                            x: f64::from(x),
                            y: f64::from(x) * 10.0,
                            range: Some((5.0, 40.0)),
                            raw: vec![5.0, 40.0],
                        })
                        .collect(),
                })
                .collect(),
            shades: vec![Shade {
                range: (1.0, 2.0),
                name: "ramp".into(),
            }],
            ceiling: Some((50.0, "the link".into())),
            size: (760.0, 340.0),
        }
    }

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        for most in [0.003, 0.7, 1.0, 7.3, 99.0, 100.0, 12345.0] {
            let t = ticks(most);
            assert!(
                t[0] == 0.0 && *t.last().unwrap() >= most * 0.9999 && (2..=7).contains(&t.len()),
                "{most}: {t:?}"
            );
        }
        for i in 1..2000 {
            let t = ticks(f64::from(i) * 0.01);
            assert_eq!(
                ticks(*t.last().unwrap()),
                t,
                "the axis ends at its last tick"
            );
        }
        assert_eq!(ticks(0.0), [0.0, 1.0]);
        assert_eq!(ticks(f64::NAN), [0.0, 1.0]);
        assert_eq!(
            (trim(2.5), trim(1000.0), trim(0.0), trim(2e7)),
            ("2.5".into(), "1000".into(), "0".into(), "2.0e7".into())
        );
    }

    #[test]
    fn every_kind_is_drawn_within_its_size() {
        let words = |bars| XAxis::Words {
            words: vec!["a".into(), "b".into(), "c".into(), "d".into()],
            bars,
        };
        for x in [words(true), words(false), XAxis::Numbers, XAxis::Doubling] {
            let svg = chart(x.clone(), 3).svg("f1");
            let turned: f64 = svg
                .split("rotate(-90 14 ")
                .nth(1)
                .unwrap()
                .split(')')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert!(
                (0.0..340.0).contains(&turned),
                "the y axis's label is upright at its middle"
            );
            assert!(
                svg.contains("A &lt;finding&gt;")
                    && svg.contains("line 2")
                    && svg.contains("the link")
            );
            assert_eq!(
                svg.matches("class=\"raw\"").count(),
                3 * 3 * 2,
                "every raw value is a dot"
            );
            assert_eq!(svg.matches("class=\"range\"").count(), 3 * 3);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            for (at, _) in svg.match_indices("cx=\"") {
                let v: f64 = svg[at + 4..].split('"').next().unwrap().parse().unwrap();
                assert!((LEFT - 1.0..=760.0).contains(&v), "{x:?}: {v}");
            }
        }
    }

    #[test]
    fn without_colour_lines_differ_in_dash_or_marker_and_bars_in_hatch() {
        let look = |svg: &str, from: &str, key: &str| {
            svg.split(from)
                .skip(1)
                .map(|p| {
                    p.split(key)
                        .nth(1)
                        .unwrap()
                        .split('"')
                        .next()
                        .unwrap()
                        .to_owned()
                })
                .collect::<std::collections::BTreeSet<_>>()
        };
        let bars = chart(
            XAxis::Words {
                words: vec!["a".into(); 4],
                bars: true,
            },
            10,
        )
        .svg("f");
        assert_eq!(look(&bars, "<pattern", "<path d=\"").len(), 10);
        let lines = chart(XAxis::Numbers, 6).svg("f");
        assert_eq!(look(&lines, "<polyline", "stroke-dasharray=\"").len(), 6);
    }

    #[test]
    fn nothing_to_draw_is_drawn_too() {
        for x in [
            XAxis::Numbers,
            XAxis::Doubling,
            XAxis::Words {
                words: vec![],
                bars: true,
            },
        ] {
            let c = Chart {
                lines: vec![],
                shades: vec![],
                ceiling: None,
                ..chart(x, 0)
            };
            assert!(!c.svg("e").contains("NaN"));
        }
    }
}
