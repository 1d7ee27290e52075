//! A mounted file system and the node it speaks through. That it is a mount for the kernel too is FUSE's affair.

use std::ops::Deref;
use std::sync::Arc;

use coral_client::{Llite, MountError, MountOptions};
use coral_lnet::Node;

/// A client: [`Llite`] on a node that is its own. Everything a mounted file system can do is behind [`Deref`].
pub struct Client {
    llite: Arc<Llite>,
}

impl Client {
    /// Mounts on `node`, which ends with the mount, and at once when there is none.
    pub async fn mount(node: Arc<Node>, options: MountOptions) -> Result<Client, MountError> {
        match Llite::mount(node.clone(), options).await {
            Ok(llite) => Ok(Client { llite }),
            Err(why) => {
                node.shutdown().await;
                Err(why)
            }
        }
    }

    /// The mounted file system.
    pub fn llite(&self) -> &Arc<Llite> {
        &self.llite
    }

    /// The node it speaks through.
    pub fn node(&self) -> &Arc<Node> {
        self.llite.node()
    }

    /// Writes out dirty data, says goodbye to the servers and ends the node.
    pub async fn umount(&self) {
        self.llite.umount().await;
        self.node().shutdown().await;
    }
}

impl Deref for Client {
    type Target = Arc<Llite>;

    fn deref(&self) -> &Arc<Llite> {
        &self.llite
    }
}
