//! Why a run ended early.

use std::io;

/// Why a run ended early. What it printed before stays printed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The command line, or what it asks for, is not possible; the text says what is.
    #[error("{0}")]
    Refused(String),
    /// Help was asked for and printed, or the program has said itself what was wrong: the code to end with.
    #[error("ended with code {0}")]
    Said(u8),
    /// The file system under test gave an error.
    #[error("{what} {path}: {why}")]
    Storage {
        /// The operation, as in "cannot open".
        what: &'static str,
        /// The path it was about.
        path: String,
        /// The system's answer.
        why: io::Error,
    },
    /// A file of the run's own (a report, a script, a status file) cannot be read or written.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: String,
        /// The system's answer.
        why: io::Error,
    },
    /// The ranks cannot meet, or one of them went away: who and why.
    #[error("{0}")]
    Apart(String),
}

impl Failed {
    /// For `map_err` on an answer of the file system under test.
    pub fn storage(what: &'static str, path: &str) -> impl FnOnce(io::Error) -> Failed {
        let path = path.to_owned();
        move |why| Failed::Storage { what, path, why }
    }

    /// For `map_err` on a file of the run's own.
    pub fn file(path: impl Into<String>) -> impl FnOnce(io::Error) -> Failed {
        let path = path.into();
        move |why| Failed::File { path, why }
    }
}
