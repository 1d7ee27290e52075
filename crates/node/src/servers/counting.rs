//! While a target is served, its MGS is told again and again that it goes on: so a copy that was made of it since its start is known
//! to be older when it is put back, and not only one that was made before.

use std::sync::Weak;
use std::time::Duration;

use coral_lnet::Node;
use coral_osd::{Kv, Label};
use coral_server::LuTarget;
use coral_server::register::{Formatting, RegisterError, Registering};
use coral_wire::nid::Nid;

/// A target that is counted. Nothing of it is kept from ending.
pub(super) struct Counting {
    pub(super) node: Weak<Node>,
    pub(super) mgs: Vec<Nid>,
    pub(super) label: Label,
    pub(super) kv: Weak<dyn Kv>,
    pub(super) target: Weak<LuTarget>,
    /// The release that this node claims to be.
    pub(super) claimed: u32,
}

impl Counting {
    /// Tells the MGS every so often, where something was changed meanwhile. Ends with the target.
    pub(super) async fn run(self, every: Duration) {
        let Some(mut counted) = self.target.upgrade().map(|t| t.last_transno()) else {
            return;
        };
        loop {
            tokio::time::sleep(every).await;
            let Some(target) = self.target.upgrade() else {
                return;
            };
            let (now, instance) = (target.last_transno(), target.instance());
            drop(target);
            if now == counted {
                continue;
            }
            match self.count(instance).await {
                Ok(true) => counted = now,
                Ok(false) => return,
                Err(why @ (RegisterError::Unreachable { .. } | RegisterError::Store { .. })) => {
                    tracing::debug!(target = %self.label.target_name(), %why, "not counted, and tried again");
                }
                Err(why @ (RegisterError::OlderCopy { .. } | RegisterError::Another { .. })) => {
                    tracing::error!(target = %self.label.target_name(), %why, "the MGS takes a target that is served for another: if a copy of it is served too, stop that one");
                }
                Err(why) => {
                    tracing::error!(target = %self.label.target_name(), %why, "the MGS does not count a target that is served");
                }
            }
        }
    }

    /// False where there is nothing to count with: an MGS of Lustre's, or a target that has ended.
    async fn count(&self, instance: u32) -> Result<bool, RegisterError> {
        let (Some(node), Some(kv)) = (self.node.upgrade(), self.kv.upgrade()) else {
            return Ok(false);
        };
        // what was said of it at its start stays
        let formatting = Formatting {
            fresh: false,
            failover: &[],
        };
        let (mgs, label) = (&self.mgs, &self.label);
        let begun = Registering::begin(&node, mgs, label, &kv, self.claimed, formatting).await?;
        if !begun.is_counted() {
            begun.leave().await;
            return Ok(false);
        }
        begun.register(instance).await.map(|()| true)
    }
}
