//! Reports: one HTML file per run that needs nothing else, with CSV and JSON beside it.
//!
//! Every figure is a picture that is drawn here and stands in the page itself, has its numbers in a table below, and is told apart
//! by dashes, markers and hatches as well as by colour. Nothing is fetched, and without JavaScript only zooming is missing.

mod analysis;
mod cdf;
mod chart;
mod figure;
mod page;
mod tables;
mod unmeasured;

pub use analysis::{Analysis, Row, state};
pub use chart::{Chart, Line, Mark, Shade, XAxis};

use crate::experiment::{RunDir, StoreError};
use std::path::{Path, PathBuf};

/// A report, ready to be written.
#[derive(Debug)]
pub struct Report {
    /// The page.
    pub html: String,
    /// Every measure of every step.
    pub csv: String,
    /// Summaries, comparisons, completeness.
    pub json: serde_json::Value,
    /// The summary for a terminal.
    pub text: String,
}

/// The report of the run in this directory.
pub fn of(dir: &Path) -> Result<Report, StoreError> {
    let mut a = Analysis::of(dir)?;
    a.unmeasured = unmeasured::told(&a);
    Ok(Report {
        html: page::page(&a),
        csv: tables::csv(&a),
        json: tables::json(&a),
        text: tables::text(&a),
    })
}

impl Report {
    /// Writes `report.html`, `data.csv` and `report.json` into the run directory; the page's path is returned.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, StoreError> {
        let (run, _) = RunDir::open(dir)?;
        run.write_text("data.csv", &self.csv)?;
        run.write("report.json", &self.json)?;
        run.write_text("report.html", &self.html)?;
        Ok(dir.join("report.html"))
    }
}

/// A number with as many digits as tell it apart: four.
pub(crate) fn short(v: f64) -> String {
    let a = v.abs();
    if v == 0.0 {
        "0".into()
    } else if !(1e-3..1e7).contains(&a) {
        format!("{v:.3e}")
    } else if a >= 1000.0 {
        format!("{v:.0}")
    } else {
        let digits = 3 - (a.log10().floor() as i32).clamp(-3, 2);
        format!("{v:.*}", digits as usize)
    }
}

/// A text inside HTML or SVG, also inside quotes of an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Control characters are not allowed in a page, and a command may have printed some.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (v, text) in [
            (0.0, "0"),
            (1.0, "1.000"),
            (12.3456, "12.35"),
            (535.73, "535.7"),
            (1234.5, "1234"),
            (0.0123, "0.01230"),
            (-2.5, "-2.500"),
            (1e9, "1.000e9"),
            (1e-5, "1.000e-5"),
        ] {
            assert_eq!(short(v), text, "{v}");
        }
    }

    #[test]
    fn what_a_command_printed_cannot_become_markup() {
        assert_eq!(
            escape("<b a=\"x\">&'\u{1b}[0m"),
            "&lt;b a=&quot;x&quot;&gt;&amp;&#39;\u{fffd}[0m"
        );
    }
}
