//! The nodemaps that count for the targets of a node: as the MGS has them, here or elsewhere.

use std::sync::{Arc, Weak};

use coral_osd::Label;
use coral_server::nodemap::Command;
use coral_server::nodemap::store::decode_membership;
use coral_server::{Membership, ServerNode};
use coral_wire::Errno;

use super::{Servers, ServersError};

/// Why nodemaps were not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NodemapError {
    /// They are changed where the MGS runs.
    #[error("the MGS does not run on this node")]
    Elsewhere,
    /// The MGS refuses.
    #[error(transparent)]
    Refused(#[from] Errno),
}

impl Servers {
    /// The nodemaps that count.
    pub fn nodemaps(&self) -> Arc<Membership> {
        self.server.nodemaps()
    }

    /// Changes the nodemaps of the MGS, if it is here.
    pub async fn change_nodemaps(&self, command: &Command) -> Result<(), NodemapError> {
        let mgs = self.mgs.as_ref().ok_or(NodemapError::Elsewhere)?;
        mgs.nodemap_command(command).await?;
        self.server.set_nodemaps(mgs.membership());
        Ok(())
    }

    /// Keeps the nodemaps of this node's targets as the MGS has them.
    pub(super) async fn follow_nodemaps(&mut self, label: &Label) -> Result<(), ServersError> {
        if self.nodemaps.is_some() {
            return Ok(());
        }
        if let Some(here) = &self.mgs {
            self.server.set_nodemaps(here.membership());
            // once for all targets: a change finds its way to each of them
            if self.follows_own_mgs {
                return Ok(());
            }
            self.follows_own_mgs = true;
            let mut changes = here.membership_changes();
            let (mgs, server) = (Arc::downgrade(here), Arc::downgrade(&self.server));
            self.followers.push(tokio::spawn(async move {
                while changes.changed().await.is_ok() {
                    let (Some(mgs), Some(server)) = (mgs.upgrade(), server.upgrade()) else {
                        return;
                    };
                    server.set_nodemaps(mgs.membership());
                }
            }));
            return Ok(());
        }
        let mgc = self.connect_mgs(label).await?;
        let Some(mut text) = mgc.watch_nodemaps().await? else {
            tracing::warn!(
                "the MGS is not Coral's: nodemaps that it has do not count for the targets of this node"
            );
            mgc.disconnect().await;
            return Ok(());
        };
        let now = decode_membership(&text.borrow_and_update());
        self.server
            .set_nodemaps(now.map_err(ServersError::Nodemaps)?);
        let server: Weak<ServerNode> = Arc::downgrade(&self.server);
        self.followers.push(tokio::spawn(async move {
            while text.changed().await.is_ok() {
                let Some(server) = server.upgrade() else {
                    return;
                };
                match decode_membership(&text.borrow_and_update()) {
                    Ok(now) => server.set_nodemaps(now),
                    Err(error) => {
                        tracing::error!(%error, "nodemaps of the MGS; those known count on")
                    }
                }
            }
        }));
        self.nodemaps = Some(mgc);
        Ok(())
    }
}
