//! Extended attributes.

use std::sync::Arc;

use bytes::Bytes;
use coral_client::llite::types::SetAttr;

use super::{Fut, In, boxed, cred};
use crate::abi::{self, InHeader};
use crate::error::OpError;
use crate::fs::FileSystem;
use crate::reply::{Body, Reply};
use crate::session::Shared;

/// A value, its size when the caller only asks for that, or ERANGE.
fn sized(value: Bytes, room: u32) -> Reply {
    match room as usize {
        0 => Ok(Body::of(&abi::GetxattrOut {
            size: value.len() as u32,
            padding: 0,
        })),
        n if value.len() > n => Err(OpError::SmallBuffer),
        _ => Ok(Body::Bytes(value)),
    }
}

pub(super) fn getxattr<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let g: abi::GetxattrIn = i.get()?;
    let (s, fid, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, 0));
    Ok(boxed(async move {
        let value = s.fs.getxattr(&cred, fid, &name).await;
        sized(value.map_err(OpError::looked_up)?, g.size)
    }))
}

pub(super) fn listxattr<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let g: abi::GetxattrIn = i.get()?;
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        let names = s.fs.listxattr(&cred, fid).await;
        sized(names.map_err(OpError::looked_up)?, g.size)
    }))
}

pub(super) fn setxattr<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let x = if s.setxattr_ext() {
        i.get::<abi::SetxattrIn>()?
    } else {
        let c: abi::SetxattrInCompat = i.get()?;
        abi::SetxattrIn {
            size: c.size,
            flags: c.flags,
            ..Default::default()
        }
    };
    let (s, fid, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, 0));
    let value = Bytes::copy_from_slice(i.0.get(..x.size as usize).ok_or(OpError::Malformed)?);
    s.mode_changed();
    Ok(boxed(async move {
        let set = s.fs.setxattr(&cred, fid, &name, value, x.flags).await;
        set.map_err(OpError::looked_up)?;
        if x.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
            let mode = s.fs.getattr(&cred, fid, None).await?.attr.mode;
            if mode & libc::S_ISGID != 0 {
                let set = SetAttr {
                    mode: Some(mode & 0o7777 & !libc::S_ISGID),
                    ..SetAttr::default()
                };
                s.fs.setattr(&cred, fid, set, None).await?;
            }
        }
        Ok(Body::Empty)
    }))
}

pub(super) fn removexattr<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let (s, fid, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, 0));
    Ok(boxed(async move {
        let removed = s.fs.removexattr(&cred, fid, &name).await;
        removed.map_err(OpError::looked_up)?;
        Ok(Body::Empty)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xattr_sizes() {
        let v = Bytes::from_static(b"value");
        assert!(matches!(sized(v.clone(), 4), Err(OpError::SmallBuffer)));
        assert!(matches!(sized(v.clone(), 5), Ok(Body::Bytes(_))));
        assert!(matches!(sized(v, 0), Ok(Body::Small { .. })));
    }
}
