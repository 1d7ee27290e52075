//! A mounted file system and the node it speaks through. That it is a mount for the kernel too is FUSE's affair.

use std::ops::Deref;
use std::sync::Arc;

use coral_client::{Llite, MountError, MountOptions};
use coral_lnet::Node;

/// A client: [`Llite`] on a node. Everything a mounted file system can do is behind [`Deref`].
pub struct Client {
    llite: Arc<Llite>,
    /// The node ends with the mount.
    owns_node: bool,
}

impl Client {
    /// Mounts on `node`, which ends with the mount, and at once when there is none.
    pub async fn mount(node: Arc<Node>, options: MountOptions) -> Result<Client, MountError> {
        match Llite::mount(node.clone(), options).await {
            Ok(llite) => Ok(Client {
                llite,
                owns_node: true,
            }),
            Err(why) => {
                node.shutdown().await;
                Err(why)
            }
        }
    }

    /// Mounts on the node of servers, which goes on without the mount: what the servers reach, the mount reaches.
    pub async fn mount_beside(
        node: Arc<Node>,
        options: MountOptions,
    ) -> Result<Client, MountError> {
        let llite = Llite::mount(node, options).await?;
        Ok(Client {
            llite,
            owns_node: false,
        })
    }

    /// The mounted file system.
    pub fn llite(&self) -> &Arc<Llite> {
        &self.llite
    }

    /// The node it speaks through.
    pub fn node(&self) -> &Arc<Node> {
        self.llite.node()
    }

    /// Writes out dirty data, says goodbye to the servers and ends the node when it is the mount's own.
    pub async fn umount(&self) {
        self.llite.umount().await;
        if self.owns_node {
            self.node().shutdown().await;
        }
    }
}

impl Deref for Client {
    type Target = Arc<Llite>;

    fn deref(&self) -> &Arc<Llite> {
        &self.llite
    }
}
