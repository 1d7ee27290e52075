//! What can go wrong below the storage trait.

use std::io;
use std::path::PathBuf;

/// Why a storage call failed. Nothing of the call took effect unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// The file system under the target is full (or its quota is used up). A write may have
    /// stored a prefix of its bytes.
    #[error("no space left under the target")]
    NoSpace,
    /// An offset or size beyond what the device can address.
    #[error("file too large: {0} bytes")]
    TooLarge(u64),
    /// An argument that makes no sense, such as an inverted range.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The file system under the target cannot do this.
    #[error("not supported by the file system under the target: {0}")]
    NotSupported(&'static str),
    /// Stored bytes fail their checksum or do not parse.
    #[error("corrupt storage: {0}")]
    Corrupt(String),
    /// The tables refuse all writes since an earlier failure to write their journal.
    #[error("the store is read-only after an earlier write error: {0}")]
    Poisoned(String),
    /// Any other failure of the operating system.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A failure ordered by a test through [`crate::OsdMem::inject`].
    #[error("injected fault")]
    Injected,
}

impl OsdError {
    /// Wraps an I/O error, giving the ones with a meaning of their own their variant.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSPC) | Some(libc::EDQUOT) => OsdError::NoSpace,
            Some(libc::EFBIG) => OsdError::TooLarge(0),
            _ => OsdError::Io {
                what: what.into(),
                source,
            },
        }
    }

    /// The positive errno a client sees.
    pub fn errno(&self) -> i32 {
        match self {
            OsdError::NoSpace => libc::ENOSPC,
            OsdError::TooLarge(_) => libc::EFBIG,
            OsdError::Invalid(_) => libc::EINVAL,
            OsdError::NotSupported(_) => libc::EOPNOTSUPP,
            OsdError::Poisoned(_) => libc::EROFS,
            OsdError::Corrupt(_) | OsdError::Injected => libc::EIO,
            OsdError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Why a target directory could not be formatted or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no `CORAL` label, and the directory is not empty or does not exist.
    #[error("{dir}: not a Coral target ({why}); `coral format` makes one in an empty directory")]
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// What was found instead.
        why: &'static str,
    },
    /// `format` on a directory that is a Coral target already.
    #[error("{dir}: is a Coral target already ({what}); remove it first if it is really to go")]
    AlreadyFormatted {
        /// The directory.
        dir: PathBuf,
        /// Which target.
        what: String,
    },
    /// Formatted by a newer version of Coral.
    #[error("{dir}: format version {found}, this program knows up to {known}; use a newer coral")]
    Newer {
        /// The directory.
        dir: PathBuf,
        /// Version in the label.
        found: u32,
        /// Version we write.
        known: u32,
    },
    /// Another process has it open.
    #[error("{dir}: in use by process {pid}; stop that one first (`coral down`)")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// That process, 0 when it did not say.
        pid: u32,
    },
    /// The label is torn or was changed.
    #[error("{path}: damaged label ({why}); restore the file from a copy, the data are untouched")]
    BadLabel {
        /// The label file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The tables do not open.
    #[error(
        "{dir}: the tables are damaged: {why}; restore the target directory from a copy, or see \"Damaged tables\" in docs/guide.md"
    )]
    BadKv {
        /// The store's directory.
        dir: PathBuf,
        /// The store's own words.
        why: String,
    },
    /// The directory of the objects is not there.
    #[error(
        "{dir}: the directory is gone, and with it the data of the files that had objects there; restore it from a copy, or make an empty one to serve the rest: what is lost reads as holes then"
    )]
    NoObjects {
        /// That directory.
        dir: PathBuf,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// What was stored is damaged or gone, and other targets are not concerned.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            OpenError::BadLabel { .. } | OpenError::BadKv { .. } | OpenError::NoObjects { .. }
        )
    }
}

impl From<&OsdError> for coral_wire::Errno {
    fn from(e: &OsdError) -> Self {
        coral_wire::Errno(e.errno())
    }
}

impl From<OsdError> for coral_wire::Errno {
    fn from(e: OsdError) -> Self {
        coral_wire::Errno(e.errno())
    }
}
