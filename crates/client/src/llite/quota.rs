//! `lfs quota`: limits from the first MDT, usage from every target (`quotactl_ioctl` in `lustre/llite/dir.c`).
//!
//! Quotas are shown, not set. Servers that account nothing answer EOPNOTSUPP; one that is still counting, EINPROGRESS, and is
//! asked again.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use coral_ptlrpc::{Import, Request};
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::quota::{ObdQuotactl, cmd};

use super::servers::Servers;
use super::types::Cred;
use crate::ask::ask;
use crate::error::{Error, Refusal, TargetError};

/// Answers the attribute `lustre.quota:KIND:ID`, KIND one of u, g, p: JSON with what each target says. Others' quotas are
/// for root (EPERM), projects' for everybody.
pub(super) async fn json(servers: &Servers, cred: &Cred, asked: &[u8]) -> Result<Bytes, Error> {
    let text = std::str::from_utf8(asked).map_err(|_| Refusal::BadXattr)?;
    let (kind, id) = text.split_once(':').ok_or(Refusal::BadXattr)?;
    let id: u32 = id.parse().map_err(|_| Refusal::BadXattr)?;
    let (r#type, own) = match kind {
        "u" => (0, cred.uid == id),
        "g" => (1, cred.in_group(id)),
        "p" => (2, true),
        _ => return Err(Refusal::BadXattr.into()),
    };
    if cred.uid != 0 && !own {
        return Err(Refusal::OthersQuota.into());
    }
    let ask = |cmd| ObdQuotactl {
        cmd,
        r#type,
        id,
        ..Default::default()
    };
    let limits = quotactl(
        servers.lmv.first()?.import(),
        opc::MDS_QUOTACTL,
        &ask(cmd::GETQUOTA),
    )
    .await?
    .dqblk;
    let mut out = format!(
        "{{\"bsoft_kib\":{},\"bhard_kib\":{},\"isoft\":{},\"ihard\":{},\"btime\":{},\"itime\":{},\"targets\":[",
        limits.bsoftlimit,
        limits.bhardlimit,
        limits.isoftlimit,
        limits.ihardlimit,
        limits.btime,
        limits.itime
    );
    let mdts = servers
        .lmv
        .mdcs()
        .into_iter()
        .map(|m| (m.uuid().to_owned(), m.import().clone(), opc::MDS_QUOTACTL));
    let osts = servers
        .lov
        .oscs()
        .into_iter()
        .map(|o| (o.uuid().to_owned(), o.import().clone(), opc::OST_QUOTACTL));
    for (i, (uuid, import, opcode)) in mdts.chain(osts).enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let mdt = opcode == opc::MDS_QUOTACTL;
        // writing to a String cannot fail
        let _ = match quotactl(&import, opcode, &ask(cmd::GETOQUOTA)).await {
            Ok(q) => write!(
                out,
                "{comma}{{\"uuid\":\"{uuid}\",\"mdt\":{mdt},\"bytes\":{},\"inodes\":{}}}",
                q.dqblk.curspace, q.dqblk.curinodes
            ),
            Err(e) => write!(
                out,
                "{comma}{{\"uuid\":\"{uuid}\",\"mdt\":{mdt},\"errno\":{}}}",
                e.errno().0
            ),
        };
    }
    out.push_str("]}");
    Ok(out.into())
}

async fn quotactl(
    import: &Arc<Import>,
    opcode: u32,
    q: &ObdQuotactl,
) -> Result<ObdQuotactl, TargetError> {
    let to = if opcode == opc::MDS_QUOTACTL {
        portal::MDS_REQUEST
    } else {
        portal::OST_REQUEST
    };
    ask(import, Request::new(to, opcode).push(q)).await?.get(1)
}
