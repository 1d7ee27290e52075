//! Groups of nodes: joining the session and leaving it.

use coral_wire::raw::c_array;
use coral_wire::srpc::*;
use tokio::time::Instant;

use super::{
    Console, ConsoleError, Group, NodeResult, NodeState, Peer, ROUND_TIMEOUT, Update, check_name,
};
use crate::Nid;
use crate::selftest::Service;
use crate::selftest::rpc::status_of;

impl Console {
    /// An empty group.
    pub fn add_group(&self, name: &str) -> Result<(), ConsoleError> {
        check_name(name)?;
        let mut st = self.st.lock();
        if st.group(name).is_ok() {
            return Err(ConsoleError::Exists("group", name.into()));
        }
        st.groups.push(Group {
            name: name.into(),
            nids: Vec::new(),
        });
        Ok(())
    }

    /// Adds nodes to a group, each of which is asked to join the session unless it has.
    pub async fn add_nodes(
        &self,
        group: &str,
        nids: &[Nid],
    ) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        self.voice()?;
        let new = {
            let mut st = self.st.lock();
            st.check_unused(group)?;
            let members = &mut st.group(group)?.nids;
            let mut new = Vec::new();
            for nid in nids {
                if !members.contains(nid) {
                    members.push(*nid);
                    new.push(*nid);
                }
            }
            for nid in &new {
                let peer = Peer {
                    state: NodeState::Unknown,
                    heard: Instant::now(),
                    timeout: ROUND_TIMEOUT,
                };
                st.nodes.entry(*nid).or_insert(peer);
            }
            new.into_iter()
                .filter(|n| st.state(*n) != NodeState::Active)
                .collect::<Vec<_>>()
        };
        self.make_session(&new).await
    }

    async fn make_session(&self, to: &[Nid]) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let (sid, name) = (self.sid(), c_array(self.name.as_bytes()));
        let make = |_: usize, rpyid, _: u64| {
            (
                SrpcBody::MksnReqst(MksnReqst {
                    rpyid,
                    sid,
                    force: self.force as u32,
                    name,
                }),
                None,
            )
        };
        let feats = self.feats;
        let take = |m: SrpcMsg| match status_of(&m) {
            0 if m.head.ses_feats != feats => Err(libc::EPROTO as u32),
            0 => Ok(()),
            e => Err(e),
        };
        self.round(to, Service::MakeSession, ROUND_TIMEOUT, make, take)
            .await
    }

    pub(super) async fn end_on(&self, to: &[Nid]) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| (SrpcBody::RmsnReqst(RmsnReqst { rpyid, sid }), None);
        // No session there is what we want.
        let take = |m: SrpcMsg| match status_of(&m) as i32 {
            0 | libc::ESRCH => Ok(()),
            e => Err(e as u32),
        };
        self.round(to, Service::RemoveSession, ROUND_TIMEOUT, make, take)
            .await
    }

    /// Removes nodes from a group; those in no other group leave the session.
    async fn remove_nodes(
        &self,
        group: &str,
        nids: &[Nid],
    ) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let gone = {
            let mut st = self.st.lock();
            st.group(group)?.nids.retain(|n| !nids.contains(n));
            st.only_in(group, nids)
        };
        let active: Vec<Nid> = gone
            .iter()
            .copied()
            .filter(|n| self.st.lock().state(*n) == NodeState::Active)
            .collect();
        let done = if active.is_empty() {
            Ok(Vec::new())
        } else {
            self.end_on(&active).await
        };
        let mut st = self.st.lock();
        st.nodes.retain(|n, _| !gone.contains(n));
        done
    }

    /// Removes a group.
    pub async fn del_group(&self, name: &str) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let nids = {
            let mut st = self.st.lock();
            st.check_unused(name)?;
            st.group(name)?.nids.clone()
        };
        let done = self.remove_nodes(name, &nids).await;
        self.st.lock().groups.retain(|g| g.name != name);
        done
    }

    /// Changes a group.
    pub async fn update_group(
        &self,
        name: &str,
        update: Update,
    ) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let members = {
            let mut st = self.st.lock();
            st.check_unused(name)?;
            let nids = st.group(name)?.nids.clone();
            st.with_states(&nids)
        };
        let nids = |keep: &dyn Fn(&(Nid, NodeState)) -> bool| {
            members
                .iter()
                .filter(|m| keep(m))
                .map(|m| m.0)
                .collect::<Vec<_>>()
        };
        match update {
            Update::Refresh => {
                self.make_session(&nids(&|m| m.1 != NodeState::Active))
                    .await
            }
            Update::Clean(states) => {
                self.remove_nodes(name, &nids(&|m| states.contains(&m.1)))
                    .await
            }
            Update::Remove(gone) => {
                self.remove_nodes(name, &nids(&|m| gone.contains(&m.0)))
                    .await
            }
        }
    }

    /// Names of the groups.
    pub fn groups(&self) -> Vec<String> {
        self.st
            .lock()
            .groups
            .iter()
            .map(|g| g.name.clone())
            .collect()
    }

    /// Nodes of a group.
    pub fn group(&self, name: &str) -> Result<Vec<(Nid, NodeState)>, ConsoleError> {
        let mut st = self.st.lock();
        let nids = st.group(name)?.nids.clone();
        Ok(st.with_states(&nids))
    }
}
