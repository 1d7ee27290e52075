//! Extended attributes: user, trusted, security, POSIX ACLs, and the views Lustre gives of
//! layout, links and FID (`lustre/mdd/mdd_object.c` mdd_xattr_*, `lustre/mdt/mdt_xattr.c`).
//!
//! `lustre.lov` and `trusted.lov` are the layout field of the record, `trusted.link` the links,
//! `trusted.lma` the FID: they are made when asked for, not stored.

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::acl::{self, Acl};
use super::cred::{FL_APPEND, FL_IMMUTABLE, MAY_READ, MAY_WRITE, Ucred, cap};
use super::record::Inode;
use super::store::{MdtResult, Store, Txn, TxnObject};

/// Largest value, in bytes (`XATTR_SIZE_MAX`).
pub const VALUE_MAX_BYTES: usize = 65536;
/// Most attributes of one object.
pub const COUNT_MAX: usize = 1024;

/// Layout, as users say it.
pub const LUSTRE_LOV: &[u8] = b"lustre.lov";
/// Layout, as Lustre stores it.
pub const TRUSTED_LOV: &[u8] = b"trusted.lov";
/// File capabilities. Writing the file, cutting it or giving it away ends them.
pub const CAPABILITY: &[u8] = b"security.capability";
/// Default layout of subdirectories.
pub const TRUSTED_DMV: &[u8] = b"trusted.dmv";
/// Shards of a striped directory, or which of them it is.
pub const TRUSTED_LMV: &[u8] = b"trusted.lmv";
/// Links of an object.
pub const TRUSTED_LINK: &[u8] = b"trusted.link";
/// FID of an object.
pub const TRUSTED_LMA: &[u8] = b"trusted.lma";
/// Magic of the link EA (`LINK_EA_MAGIC`).
const LINK_EA_MAGIC: u32 = 0x11EA_F1DF;
/// Most bytes of a link EA (`MAX_LINKEA_SIZE`).
const LINK_EA_MAX_BYTES: usize = 4096;

/// How a set treats an existing attribute (`XATTR_CREATE`, `XATTR_REPLACE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetMode {
    /// Either way.
    #[default]
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Whether the name is the layout under either of its names.
pub fn is_layout(name: &[u8]) -> bool {
    name == LUSTRE_LOV || name == TRUSTED_LOV
}

/// The value of `name`; ENODATA if there is none.
pub fn value(store: &Store, cred: &Ucred, fid: &Fid, ino: &Inode, name: &[u8]) -> MdtResult<Bytes> {
    if name.starts_with(b"user.") {
        store.permit(cred, fid, ino, MAY_READ)?;
    }
    if name.starts_with(b"trusted.")
        && !cred.has(cap::SYS_ADMIN)
        && !is_layout(name)
        && name != TRUSTED_DMV
    {
        return Err(Errno::ENODATA.into());
    }
    Ok(any_value(store, fid, ino, name)?.ok_or(Errno::ENODATA)?)
}

/// The value of `name`, whoever asks.
pub fn any_value(store: &Store, fid: &Fid, ino: &Inode, name: &[u8]) -> MdtResult<Option<Bytes>> {
    match name {
        LUSTRE_LOV | TRUSTED_LOV => Ok((!ino.lov.is_empty()).then(|| ino.lov.clone())),
        TRUSTED_LINK => Ok(Some(link_ea(store, fid, ino)?)),
        TRUSTED_LMA => Ok(Some(lma(fid))),
        n => store.xattr(fid, ino, n),
    }
}

/// Every name, each with its value, in the order Lustre lists them.
pub fn all(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<Vec<(Bytes, Bytes)>> {
    let mut list = Vec::new();
    for name in [TRUSTED_LMA, TRUSTED_LOV, TRUSTED_LINK] {
        if let Some(v) = any_value(store, fid, ino, name)? {
            list.push((Bytes::from_static(name), v));
        }
    }
    for (name, _) in &ino.xattrs {
        if let Some(v) = store.xattr(fid, ino, name)? {
            list.push((name.clone(), v));
        }
    }
    Ok(list)
}

/// `lustre_mdt_attrs`: two zero words and the FID.
fn lma(fid: &Fid) -> Bytes {
    let mut w = vec![0; 8];
    w.extend_from_slice(&fid.seq.to_le_bytes());
    w.extend_from_slice(&fid.oid.to_le_bytes());
    w.extend_from_slice(&fid.ver.to_le_bytes());
    w.into()
}

/// The link EA: a 24-byte head {magic, records, length, overflow time}, then for each link
/// {length, parent FID, name}, lengths and FIDs big-endian (`lustre/obdclass/linkea.c`).
fn link_ea(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<Bytes> {
    let mut body = Vec::new();
    let mut count = 0u32;
    for l in store.links(fid, ino, 256)? {
        let len = 18 + l.name.len();
        if 24 + body.len() + len > LINK_EA_MAX_BYTES {
            break;
        }
        body.extend_from_slice(&(len as u16).to_be_bytes());
        body.extend_from_slice(&super::table::fid_key(&l.parent));
        body.extend_from_slice(&l.name);
        count += 1;
    }
    let mut w = Vec::with_capacity(24 + body.len());
    w.extend_from_slice(&LINK_EA_MAGIC.to_le_bytes());
    w.extend_from_slice(&count.to_le_bytes());
    w.extend_from_slice(&(24 + body.len() as u64).to_le_bytes());
    w.extend_from_slice(&[0; 8]);
    w.extend_from_slice(&body);
    Ok(w.into())
}

/// Sets (`Some`) or removes (`None`) an ordinary attribute or an ACL.
pub fn set(
    t: &mut Txn<'_>,
    cred: &Ucred,
    fid: &Fid,
    name: &[u8],
    new: Option<Bytes>,
    mode: SetMode,
    time: Time,
) -> MdtResult<TxnObject> {
    let h = t.get(fid)?;
    check(t, cred, h, name, new.as_ref())?;
    let exists = t.ino(h).xattr(name).is_some();
    match (mode, exists, new.is_some()) {
        (SetMode::Create, true, true) => return Err(Errno::EEXIST.into()),
        (SetMode::Replace, false, true) | (_, false, false) if !name.starts_with(b"system.") => {
            return Err(Errno::ENODATA.into());
        }
        _ => (),
    }
    match name {
        acl::ACCESS => set_access_acl(t, cred, h, new)?,
        acl::DEFAULT => set_default_acl(t, h, new)?,
        _ => t.put_xattr(h, name, new),
    }
    t.change(h).ctime = time;
    Ok(h)
}

fn check(
    t: &Txn<'_>,
    cred: &Ucred,
    h: TxnObject,
    name: &[u8],
    new: Option<&Bytes>,
) -> MdtResult<()> {
    let ino = t.ino(h);
    if name.len() > 255 {
        return Err(Errno::ERANGE.into());
    }
    if new.is_some_and(|v| v.len() > VALUE_MAX_BYTES) {
        return Err(Errno::E2BIG.into());
    }
    if ino.flags & (FL_IMMUTABLE | FL_APPEND) != 0 {
        return Err(Errno::EPERM.into());
    }
    if new.is_some() && ino.xattrs.len() >= COUNT_MAX {
        return Err(Errno::ENOSPC.into());
    }
    // it is what the directory is, not what is said of it
    if name == TRUSTED_LMV {
        return Err(Errno::EPERM.into());
    }
    let (prefix, key) = name.split_at(name.iter().position(|&b| b == b'.').map_or(0, |i| i + 1));
    match prefix {
        b"user." if !key.is_empty() => {
            // symbolic links and devices carry none; in a sticky directory they are the owner's
            if !ino.is_reg() && (!ino.is_dir() || (ino.mode & 0o1000 != 0 && !cred.owns(ino))) {
                return Err(Errno::EPERM.into());
            }
            t.store.permit(cred, &t.fid(h), ino, MAY_WRITE)
        }
        b"trusted." if !key.is_empty() => match cred.has(cap::SYS_ADMIN) {
            true => Ok(()),
            false => Err(Errno::EPERM.into()),
        },
        // file capabilities make superusers of who runs the file: an owner may end them, and no more
        b"security." if name == CAPABILITY && new.is_some() && !gives_capabilities(cred) => {
            Err(Errno::EPERM.into())
        }
        b"security." if !key.is_empty() => match cred.owns(ino) || cred.has(cap::SYS_ADMIN) {
            true => Ok(()),
            false => Err(Errno::EPERM.into()),
        },
        b"system." if name == acl::ACCESS || name == acl::DEFAULT => match cred.owns(ino) {
            _ if ino.is_symlink() => Err(Errno::EOPNOTSUPP.into()),
            true => Ok(()),
            false => Err(Errno::EPERM.into()),
        },
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// Whether the caller, after mapping and squash, may give a file capabilities (`cap_convert_nscap` of Linux).
fn gives_capabilities(cred: &Ucred) -> bool {
    cred.uid == 0 || cred.has(cap::SETFCAP) || cred.has(cap::SYS_ADMIN)
}

/// An access ACL sets the mode, and is stored only when it says more than the mode. As with a chmod, setgid goes when the
/// caller is outside the group (`posix_acl_update_mode` of Linux).
fn set_access_acl(
    t: &mut Txn<'_>,
    cred: &Ucred,
    h: TxnObject,
    new: Option<Bytes>,
) -> MdtResult<()> {
    let acl = match new {
        Some(raw) => Acl::parse(&raw).map_err(|_| Errno::EINVAL)?,
        None => None,
    };
    let Some(acl) = acl else {
        t.put_xattr(h, acl::ACCESS, None);
        return Ok(());
    };
    let ino = t.change(h);
    ino.mode = ino.mode & !0o777 | acl.mode_bits();
    if !cred.in_group(ino.gid) && !cred.has(cap::FSETID) {
        ino.mode &= !0o2000;
    }
    let stored = (!acl.is_mode_only()).then(|| acl.encode());
    t.put_xattr(h, acl::ACCESS, stored);
    Ok(())
}

fn set_default_acl(t: &mut Txn<'_>, h: TxnObject, new: Option<Bytes>) -> MdtResult<()> {
    if !t.ino(h).is_dir() {
        return if new.is_some() {
            Err(Errno::EACCES.into())
        } else {
            Ok(())
        };
    }
    let acl = match new {
        Some(raw) => Acl::parse(&raw).map_err(|_| Errno::EINVAL)?,
        None => None,
    };
    t.put_xattr(h, acl::DEFAULT, acl.map(|a| a.encode()));
    Ok(())
}
