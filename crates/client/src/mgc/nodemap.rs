//! Nodemaps as a server of Coral gets them of an MGS of Coral: read under a lock, read again whenever that is called back
//! (`mgc_process_recover_nodemap_log` in `lustre/mgc/mgc_request.c`). The form is Coral's own and is asked for only of an MGS that
//! agreed on it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_ptlrpc::{Bulk, Request};
use coral_wire::connect::ConnectFlags2;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, Policy, ResId};
use coral_wire::mgs::{MGS_CFG_T_NODEMAP, MgsConfigBody, MgsConfigRes};
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::raw::c_array;
use tokio::sync::watch;

use super::{Mgc, MgcError};
use crate::ask::ask;
use crate::error::TargetError;

/// Name of what is locked and read (`LUSTRE_NODEMAP_NAME`).
const NAME: &str = "nodemap";
/// Bytes of one answer.
const ROOM: u32 = 1 << 20;
/// log2 of the unit room is counted in.
const UNIT_BITS: u8 = 12;
/// Most bytes there may be.
const TEXT_MAX: u64 = 64 << 20;
/// Pause before reading is tried again.
const PAUSE: Duration = Duration::from_secs(2);

impl Mgc {
    /// The nodemaps as text, and again whenever they change. `None`: the MGS is not Coral's and gives none in this form. An MGC that
    /// is used for this watches nothing else.
    pub async fn watch_nodemaps(
        self: &Arc<Self>,
    ) -> Result<Option<watch::Receiver<Bytes>>, MgcError> {
        if !self.import().granted().has2(ConnectFlags2::CORAL) {
            return Ok(None);
        }
        let (tx, rx) = watch::channel(self.locked_nodemaps().await?);
        let me = Arc::downgrade(self);
        tokio::spawn(async move { follow(me, tx).await });
        Ok(Some(rx))
    }

    async fn locked_nodemaps(&self) -> Result<Bytes, MgcError> {
        let res = ResId::config(NAME, MGS_CFG_T_NODEMAP);
        let ns = &self.target.namespace;
        let lock = ns
            .enqueue(
                res,
                LdlmType::PLAIN,
                LdlmMode::CR,
                Policy::Plain,
                LdlmFlags::empty(),
                0,
            )
            .await;
        let lock = lock.map_err(|e| MgcError::Failed {
            what: "locking the nodemaps",
            why: TargetError::of_lock(e, self.import(), Fid::ZERO),
        })?;
        let text = self.read_nodemaps().await;
        drop(lock);
        text
    }

    async fn read_nodemaps(&self) -> Result<Bytes, MgcError> {
        let failed = |why| MgcError::Failed {
            what: "reading the nodemaps",
            why,
        };
        'anew: loop {
            let (mut text, mut size) = (Vec::new(), None);
            while size.is_none_or(|s| (text.len() as u64) < s) {
                let body = MgsConfigBody {
                    name: c_array(NAME.as_bytes()),
                    offset: text.len() as u64,
                    r#type: MGS_CFG_T_NODEMAP,
                    bits: UNIT_BITS,
                    units: ROOM >> UNIT_BITS,
                    ..Default::default()
                };
                let rq = Request::new(portal::MGS_REQUEST, opc::MGS_CONFIG_READ).push(&body);
                let rq = rq.bulk(Bulk::Sink {
                    portal: portal::MGS_BULK,
                    lens: vec![ROOM],
                });
                let reply = ask(self.import(), rq).await.map_err(failed)?;
                let res: MgsConfigRes = reply.get(1).map_err(failed)?;
                let part: Vec<u8> = reply
                    .bulk
                    .iter()
                    .flatten()
                    .flat_map(|b| b.iter().copied())
                    .collect();
                // they changed between two parts
                if size.is_some_and(|s| s != res.size) {
                    continue 'anew;
                }
                if res.size > TEXT_MAX || part.is_empty() {
                    return Err(failed(
                        reply.bad("no part of the nodemaps, or too many bytes"),
                    ));
                }
                text.extend_from_slice(&part);
                size = Some(res.size);
            }
            return Ok(text.into());
        }
    }
}

async fn follow(mgc: Weak<Mgc>, tx: watch::Sender<Bytes>) {
    let Some(changed) = mgc.upgrade().map(|m| m.changed.clone()) else {
        return;
    };
    loop {
        tokio::select! {
            biased;
            () = changed.notified() => {}
            () = tx.closed() => return,
        }
        loop {
            let Some(mgc) = mgc.upgrade().filter(|m| !m.closing()) else {
                return;
            };
            match mgc.locked_nodemaps().await {
                Ok(text) => {
                    tx.send_if_modified(|old| std::mem::replace(old, text.clone()) != text);
                    break;
                }
                Err(e) => {
                    tracing::warn!(error = %e, "the nodemaps changed but cannot be read; those known count on, and it is tried again")
                }
            }
            drop(mgc);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
