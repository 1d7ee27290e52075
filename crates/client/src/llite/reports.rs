//! What `lfs` and `statfs(2)` show of the targets: space, whether they answer, pools, quotas, requests sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ost::ObdStatfs;
use futures_util::future::{join, join_all};

use super::servers::Servers;
use super::types::{Cred, StatFs};
use super::{pools, quota};
use crate::error::{Error, TargetError};
use crate::mdc::Ids;
use crate::mgc::Mgc;

/// Reports on the targets.
pub(super) struct Reports {
    servers: Arc<Servers>,
    mgc: Arc<Mgc>,
}

impl Reports {
    /// On those of one mount.
    pub fn new(servers: Arc<Servers>, mgc: Arc<Mgc>) -> Self {
        Self { servers, mgc }
    }

    /// Sum over the targets: space of the OSTs, inodes of the MDTs.
    pub async fn statfs(&self) -> Result<StatFs, Error> {
        const BSIZE: u64 = 4096;
        let mdts = any_ok(join_all(self.servers.lmv.mdcs().iter().map(|m| m.statfs(false))).await)?;
        let osts = any_ok(join_all(self.servers.lov.oscs().iter().map(|o| o.statfs())).await)?;
        let mut sum = StatFs {
            bsize: BSIZE as u32,
            namelen: 255,
            ..Default::default()
        };
        for m in &mdts {
            sum.files += m.files;
            sum.ffree += m.ffree;
        }
        for o in &osts {
            let scale = |blocks: u64| (blocks as u128 * o.bsize as u128 / BSIZE as u128) as u64;
            sum.blocks += scale(o.blocks);
            sum.bfree += scale(o.bfree);
            sum.bavail += scale(o.bavail);
        }
        Ok(sum)
    }

    /// The LOV EA as stored on the MDT.
    pub async fn layout(&self, fid: Fid) -> Result<bytes::Bytes, Error> {
        let mdc = self.servers.lmv.of(fid).await?;
        Ok(mdc.getattr(&Ids::root(), fid).await?.md)
    }
    /// Every target with what `lfs osts` and `lfs check` show.
    pub fn targets(&self) -> Bytes {
        let mdts = self
            .servers
            .lmv
            .mdcs()
            .iter()
            .map(|m| target_json(m.index, m.uuid(), m.is_connected()))
            .collect();
        let osts = self
            .servers
            .lov
            .oscs()
            .iter()
            .map(|o| (o.index, target_json(o.index, o.uuid(), o.is_connected())))
            .collect();
        self.all_json(mdts, osts)
    }

    /// Every target with what `lfs df` shows, all asked at once; one that is not connected is EAGAIN without waiting, as in
    /// Lustre (lazystatfs). Sizes in bytes.
    pub async fn statfs_json(&self) -> Bytes {
        let (mdcs, oscs) = (self.servers.lmv.mdcs(), self.servers.lov.oscs());
        let mdts = join_all(mdcs.iter().map(|m| async {
            let space = match m.is_connected() {
                true => m.statfs(false).await.map_err(Errno::from),
                false => Err(Errno::EAGAIN),
            };
            space_json(m.index, m.uuid(), space)
        }));
        let osts = join_all(oscs.iter().map(|o| async {
            (
                o.index,
                space_json(o.index, o.uuid(), o.statfs().await.map_err(Errno::from)),
            )
        }));
        let (mdts, osts) = join(mdts, osts).await;
        self.all_json(mdts, osts.into_iter().collect())
    }

    /// OSTs by index; deactivated ones are added: they say nothing.
    fn all_json(&self, mdts: Vec<String>, mut osts: BTreeMap<u32, String>) -> Bytes {
        let config = self.servers.config.borrow();
        let left = config
            .osts
            .iter()
            .filter(|(i, _)| self.servers.lov.osc(**i).is_err());
        osts.extend(left.map(|(i, c)| (*i, space_json(*i, &c.uuid, Err(Errno::ENODATA)))));
        let osts: Vec<String> = osts.into_values().collect();
        let mgs = self.mgc.import().state() == coral_ptlrpc::ImportState::Full;
        let (mdts, osts) = (mdts.join(","), osts.join(","));
        format!(
            "{{\"fsname\":\"{}\",\"mdts\":[{mdts}],\"osts\":[{osts}],\"mgs_active\":{mgs}}}",
            self.servers.opts.fsname
        )
        .into()
    }

    /// Whether a server that is in use cannot be reached now, or is not back in service: requests to it may wait long.
    pub fn is_cut_off(&self) -> bool {
        use coral_ptlrpc::{Import, ImportState as S};
        let waits = |import: &Import| {
            !matches!(
                import.state(),
                S::New | S::Full | S::Leaving | S::Idle | S::Closed
            )
        };
        self.servers.lmv.mdcs().iter().any(|m| waits(m.import()))
            || self.servers.lov.oscs().iter().any(|o| waits(o.import()))
    }

    /// RPCs sent so far per opcode name, sorted by name, summed over all targets.
    pub fn statistics(&self) -> Vec<(String, u64)> {
        let mut sum = BTreeMap::new();
        let imports = self
            .servers
            .lmv
            .mdcs()
            .into_iter()
            .map(|m| m.import().clone())
            .chain(
                self.servers
                    .lov
                    .oscs()
                    .into_iter()
                    .map(|o| o.import().clone()),
            );
        for import in imports {
            for (name, n) in import.stats().by_opcode() {
                *sum.entry(name.to_owned()).or_insert(0) += n;
            }
        }
        sum.into_iter().collect()
    }

    /// Answers the attribute `lustre.pools.json`: the name of each pool with the uuids of its OSTs.
    pub fn pools(&self) -> Bytes {
        pools::json(&self.servers.config.borrow().pools).into()
    }

    /// Answers the attribute `lustre.quota:KIND:ID`, KIND one of u, g, p.
    pub async fn quota(&self, cred: &Cred, asked: &[u8]) -> Result<Bytes, Error> {
        quota::json(&self.servers, cred, asked).await
    }
}

/// What `statfs` and friends use: an error of one target is not the end when others answer.
pub(super) fn any_ok<T>(results: Vec<Result<T, TargetError>>) -> Result<Vec<T>, TargetError> {
    let mut out = Vec::new();
    let mut last = None;
    for r in results {
        match r {
            Ok(v) => out.push(v),
            Err(e) => last = Some(e),
        }
    }
    match (out.is_empty(), last) {
        (true, Some(e)) => Err(e),
        _ => Ok(out),
    }
}

fn target_json(index: u32, uuid: &str, active: bool) -> String {
    format!("{{\"index\":{index},\"uuid\":\"{uuid}\",\"active\":{active}}}")
}

fn space_json(index: u32, uuid: &str, s: Result<ObdStatfs, Errno>) -> String {
    match s {
        Ok(s) => format!(
            "{{\"index\":{index},\"uuid\":\"{uuid}\",\"active\":true,\"bsize\":{},\"blocks\":{},\"bfree\":{},\"bavail\":{},\"files\":{},\"ffree\":{}}}",
            s.bsize, s.blocks, s.bfree, s.bavail, s.files, s.ffree
        ),
        Err(e) => format!(
            "{{\"index\":{index},\"uuid\":\"{uuid}\",\"active\":false,\"errno\":{}}}",
            e.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statfs_json_is_json() {
        let there = space_json(
            0,
            "c-OST0000_UUID",
            Ok(ObdStatfs {
                bsize: 4096,
                blocks: 7,
                ..Default::default()
            }),
        );
        assert_eq!(
            there,
            "{\"index\":0,\"uuid\":\"c-OST0000_UUID\",\"active\":true,\"bsize\":4096,\"blocks\":7,\"bfree\":0,\"bavail\":0,\"files\":0,\"ffree\":0}"
        );
        assert_eq!(
            space_json(1, "c-OST0001_UUID", Err(Errno::EIO)),
            "{\"index\":1,\"uuid\":\"c-OST0001_UUID\",\"active\":false,\"errno\":5}"
        );
        assert_eq!(
            target_json(1, "c-OST0001_UUID", true),
            "{\"index\":1,\"uuid\":\"c-OST0001_UUID\",\"active\":true}"
        );
    }
}
