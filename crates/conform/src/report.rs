//! The table of a run, for people and as JSON.

use serde::Serialize;
use std::fmt;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As expected.
    Ok,
    /// Not as expected.
    Differs,
    /// The file system does not have it, or the run was not given what it needs.
    NotSupported,
}

/// One row: a check and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Group of the check.
    pub group: &'static str,
    /// Its name.
    pub check: &'static str,
    /// How it ended.
    pub state: CheckState,
    /// What had to be seen.
    pub expected: &'static str,
    /// What was seen.
    pub seen: String,
}

/// A whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// In the order they ran.
    pub rows: Vec<Row>,
}

impl Report {
    /// How many rows ended so.
    pub fn count(&self, state: CheckState) -> usize {
        self.rows.iter().filter(|r| r.state == state).count()
    }

    /// As JSON: `{"rows": [{group, check, state, expected, seen}, ...]}`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            CheckState::Ok => "ok",
            CheckState::Differs => "DIFFERS",
            CheckState::NotSupported => "not supported",
        };
        write!(
            f,
            "{:<11} {:<62} {:<14} {:<22} {}",
            self.group, self.check, state, self.expected, self.seen
        )
    }
}

impl fmt::Display for Report {
    /// The sum of a run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} checks: {} ok, {} differ, {} not supported",
            self.rows.len(),
            self.count(CheckState::Ok),
            self.count(CheckState::Differs),
            self.count(CheckState::NotSupported)
        )?;
        // once more at the end, where a reader of a long log looks first
        self.rows
            .iter()
            .filter(|r| r.state == CheckState::Differs)
            .try_for_each(|row| write!(f, "\n{row}"))
    }
}
