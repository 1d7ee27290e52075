//! What is mounted, as mount(8) is told it.

use std::str::FromStr;

use coral_wire::nid::Nid;

/// Longest file system name, characters.
const FSNAME_MAX: usize = 8;

/// `NID[:NID...]:/fsname[/subdir]`, with commas between NIDs of one node as Lustre writes them.
///
/// ```
/// use coral_client::Source;
///
/// let source: Source = "10.0.0.1@tcp:10.0.0.2@tcp:/scratch/users".parse()?;
/// assert_eq!((source.nids.len(), source.fsname.as_str()), (2, "scratch"));
/// assert_eq!(source.subdir.as_deref(), Some("users"));
/// # Ok::<(), coral_client::SourceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// NIDs of the MGS, tried in turn.
    pub nids: Vec<Nid>,
    /// File system name.
    pub fsname: String,
    /// Directory to mount instead of the root, without leading slash.
    pub subdir: Option<String>,
}

/// Why a text is no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// There is no `:/` in it.
    #[error("'{0}' is no Lustre source: give NID[:NID...]:/fsname, as in 10.0.0.1@tcp:/coral")]
    NoSource(String),
    /// A part before `:/` is no NID.
    #[error("'{nid}' in '{source_text}' is no NID; NIDs look like 10.0.0.1@tcp")]
    BadNid {
        /// The part.
        nid: String,
        /// The whole.
        source_text: String,
    },
    /// The name is empty, too long, or has other characters.
    #[error("'{0}' is no file system name: 1 to 8 letters, digits, '-' or '_'")]
    BadFsname(String),
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (nids, path) = text
            .split_once(":/")
            .ok_or_else(|| SourceError::NoSource(text.to_owned()))?;
        let nid = |n: &str| {
            n.parse().map_err(|_| SourceError::BadNid {
                nid: n.to_owned(),
                source_text: text.to_owned(),
            })
        };
        let nids = nids
            .split([':', ','])
            .map(nid)
            .collect::<Result<Vec<Nid>, _>>()?;
        let path = path.trim_end_matches('/');
        let (fsname, subdir) = path
            .split_once('/')
            .map_or((path, None), |(f, s)| (f, Some(s.to_owned())));
        let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if fsname.is_empty() || fsname.len() > FSNAME_MAX || !fsname.bytes().all(good) {
            return Err(SourceError::BadFsname(fsname.to_owned()));
        }
        Ok(Self {
            nids,
            fsname: fsname.to_owned(),
            subdir,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_as_lustre_writes_them() {
        let s: Source = "10.0.0.1@tcp,10.0.1.1@tcp1:10.0.0.2@tcp:/scratch/users/a"
            .parse()
            .expect("a source");
        assert_eq!(
            (s.nids.len(), s.fsname.as_str(), s.subdir.as_deref()),
            (3, "scratch", Some("users/a"))
        );
        let refused = |text: &str| text.parse::<Source>().expect_err(text).to_string();
        assert!(refused("10.0.0.1@tcp").contains("NID[:NID...]:/fsname"));
        assert!(refused("nonsense:/fs").contains("is no NID"));
        assert!(refused("10.0.0.1@tcp:/waytoolongname").contains("1 to 8"));
    }
}
