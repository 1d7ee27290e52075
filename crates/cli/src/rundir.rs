//! Where processes of this user leave what others of his find: sockets and logs.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `$XDG_RUNTIME_DIR`, when it says something.
pub(crate) fn xdg() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|d| !d.is_empty())
        .map(PathBuf::from)
}

/// `$XDG_RUNTIME_DIR/NAME`, else `NAME-UID` in `other`.
pub(crate) fn named(name: &str, other: &Path) -> PathBuf {
    xdg().map_or_else(
        || other.join(format!("{name}-{}", rustix::process::getuid().as_raw())),
        |d| d.join(name),
    )
}

/// Makes `dir` if it is not there, for this user alone. Where temporary files go anybody could have made it: only what is ours
/// is used.
pub(crate) fn private(dir: &Path) -> Result<(), String> {
    let shown = dir.display();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| format!("cannot make '{shown}': {e}"))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| format!("'{shown}': {e}"))?;
    match meta.is_dir() && meta.uid() == rustix::process::getuid().as_raw() {
        true => Ok(()),
        false => Err(format!("'{shown}' belongs to another user")),
    }
}
