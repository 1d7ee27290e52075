//! Paths: walked name by name from the mounted directory, symbolic links followed.

use coral_wire::Errno;
use coral_wire::fid::Fid;

use crate::error::{Error, Refusal};
use crate::llite::Llite;
use crate::llite::types::{Attr, Cred};

/// Symbolic links followed in one path (Linux: `MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Times a path is walked of which a directory moves meanwhile.
const WALKS_MAX: usize = 4;

/// Where a path ends.
pub(super) enum End {
    /// At an object.
    There(Attr),
    /// There is no such name; it would be made in that directory.
    Missing(Fid, Vec<u8>),
}

/// Walks `path`; what it ends at is followed if it is a symbolic link and `follow` says so. What is missing before the end is
/// ENOENT. A link that begins with "/" leads on from the mounted directory.
pub(super) async fn walk(fs: &Llite, cred: &Cred, path: &[u8], follow: bool) -> Result<End, Error> {
    for _ in 1..WALKS_MAX {
        let mut last = fs.root();
        let ended = walk_once(fs, cred, path, follow, &mut last).await;
        let missed = match &ended {
            Ok(End::Missing(..)) => true,
            Ok(End::There(_)) => false,
            Err(e) => e.is(Errno::ENOENT),
        };
        // a directory that moves to another MDT in between has another FID there
        if !missed || !fs.has_any_moved(&[last]).await {
            return ended;
        }
    }
    walk_once(fs, cred, path, follow, &mut fs.root()).await
}

/// The same by the directories as they are when they are looked at; `last` is the last of them.
async fn walk_once(
    fs: &Llite,
    cred: &Cred,
    path: &[u8],
    follow: bool,
    last: &mut Fid,
) -> Result<End, Error> {
    let mut links = 0;
    let mut at = fs.getattr(cred, fs.root(), None).await?.attr;
    let mut left = names(path);
    while let Some(name) = left.pop() {
        if !at.is_dir() {
            return Err(Refusal::NotADirectory.into());
        }
        *last = at.fid;
        let found = match fs.lookup(cred, at.fid, &name).await {
            Ok(entry) => entry.attr,
            Err(e) if e.is(Errno::ENOENT) && left.is_empty() => {
                return Ok(End::Missing(at.fid, name));
            }
            Err(e) => return Err(e),
        };
        if !found.is_symlink() || left.is_empty() && !follow {
            at = found;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Refusal::TooManyLinks.into());
        }
        let target = fs.readlink(cred, found.fid).await?;
        if target.starts_with(b"/") {
            at = fs.getattr(cred, fs.root(), None).await?.attr;
        }
        left.extend(names(&target));
    }
    Ok(End::There(at))
}

/// The directory and the name in it that a path ends with, which is to be made, removed or given another name. EINVAL for a path
/// without a name, or one that ends with "." or "..".
pub(super) async fn parent<'a>(
    fs: &Llite,
    cred: &Cred,
    path: &'a [u8],
) -> Result<(Fid, &'a [u8]), Error> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let path = &path[..end];
    let at = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    let (dir, name) = path.split_at(at);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Refusal::NoNameInPath.into());
    }
    match walk(fs, cred, dir, true).await? {
        End::There(dir) if dir.is_dir() => Ok((dir.fid, name)),
        End::There(_) => Err(Refusal::NotADirectory.into()),
        End::Missing(..) => Err(Refusal::NoName.into()),
    }
}

/// The names of a path, the last one first.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/')
        .filter(|n| !n.is_empty())
        .rev()
        .map(<[u8]>::to_vec)
        .collect()
}
