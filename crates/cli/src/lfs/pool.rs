//! `lfs pool_list`: pools of a file system, or the OSTs of one (`llapi_get_poollist` and `llapi_get_poolmembers` in
//! `lustre/utils/liblustreapi.c`).

use super::{Failure, MountPoint, USAGE, mount_named, mount_of, xattr};
use coral_wire::Errno;
use lexopt::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Pool name -> uuids of its OSTs (attribute `lustre.pools.json`).
pub(super) type Pools = BTreeMap<String, Vec<String>>;

pub(crate) fn pool_list(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut name = None;
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) if name.is_none() => name = Some(v.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let name = name.ok_or_else(|| {
        Failure::new(
            "lfs pool_list: say which: lfs pool_list FSNAME[.POOL] | PATH",
            USAGE,
        )
    })?;
    let (mount, pool) = if name.contains('/') {
        (mount_of(Path::new(&name))?, None)
    } else {
        let (fsname, pool) = name
            .split_once('.')
            .map_or((name.as_str(), None), |(f, p)| (f, Some(p)));
        let found = mount_named(fsname)?;
        let missing = || {
            Failure::new(
                format!("lfs pool_list: no file system '{fsname}' is mounted here"),
                Errno::ENOENT.0 as u8,
            )
        };
        (found.ok_or_else(missing)?, pool)
    };
    print!("{}", text(mount.fsname(), &pools(&mount)?, pool)?);
    Ok(())
}

pub(super) fn pools(mount: &MountPoint) -> Result<Pools, Failure> {
    let raw = xattr(&mount.path, "lustre.pools.json").map_err(|e| {
        Failure::errno(
            format_args!(
                "lfs: '{}' does not answer as a Coral mount",
                mount.path.display()
            ),
            e,
        )
    })?;
    serde_json::from_slice(&raw).map_err(|e| {
        Failure::new(
            format!(
                "lfs: '{}': unreadable list of pools: {e}",
                mount.path.display()
            ),
            5,
        )
    })
}

fn text(fsname: &str, pools: &Pools, pool: Option<&str>) -> Result<String, Failure> {
    let lines: Vec<String> = match pool {
        None => [format!("Pools from {fsname}:")]
            .into_iter()
            .chain(pools.keys().map(|p| format!("{fsname}.{p}")))
            .collect(),
        Some(p) => {
            let members = pools.get(p).ok_or_else(|| {
                Failure::new(
                    format!("lfs pool_list: file system '{fsname}' has no pool '{p}'"),
                    Errno::ENOENT.0 as u8,
                )
            })?;
            [format!("Pool: {fsname}.{p}")]
                .into_iter()
                .chain(members.iter().cloned())
                .collect()
        }
    };
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heading is what a real Lustre printed (golden/client-commands.txt), the rest as its source has it.
    #[test]
    fn prints_what_lustre_prints() {
        assert_eq!(
            text("lfs", &Pools::new(), None).unwrap(),
            "Pools from lfs:\n"
        );
        let pools: Pools =
            serde_json::from_str(r#"{"flash":["lfs-OST0000_UUID","lfs-OST0002_UUID"],"slow":[]}"#)
                .unwrap();
        assert_eq!(
            text("lfs", &pools, None).unwrap(),
            "Pools from lfs:\nlfs.flash\nlfs.slow\n"
        );
        assert_eq!(
            text("lfs", &pools, Some("flash")).unwrap(),
            "Pool: lfs.flash\nlfs-OST0000_UUID\nlfs-OST0002_UUID\n"
        );
        assert_eq!(
            text("lfs", &pools, Some("slow")).unwrap(),
            "Pool: lfs.slow\n"
        );
        assert_eq!(text("lfs", &pools, Some("none")).unwrap_err().code, 2);
    }
}
