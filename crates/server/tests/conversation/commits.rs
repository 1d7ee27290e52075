//! Transaction numbers: which of ours belongs to a recorded one, and what of them a restart is to leave.

use super::conversation::{Event, Kind};
use coral_wire::ptlrpc::{Message, PtlrpcBody};
use std::collections::HashMap;

/// Of each recorded connection.
#[derive(Default)]
pub struct Commits {
    /// The target's UUID, by recorded handle; several handles of one target when it was restarted.
    targets: HashMap<u64, String>,
    /// Ours for a target's recorded transno.
    ours: HashMap<(String, u64), u64>,
    /// The last transno of a target that the recorded server had on disk when it was killed.
    kept: HashMap<String, u64>,
}

impl Commits {
    /// The recorded `handle` is one of the target `uuid`.
    pub fn connected(&mut self, handle: u64, uuid: &str) {
        self.targets.insert(handle, uuid.to_string());
    }

    pub fn target(&self, handle: u64) -> Option<&String> {
        self.targets.get(&handle)
    }

    /// Finds what the recorded servers had on disk at the end of `events`, from what they told; connections are known by now.
    pub fn look_ahead(&mut self, events: &[Event]) {
        let mut asked = HashMap::new();
        for e in events {
            let Some(body) = Message::decode(e.bytes.clone())
                .ok()
                .and_then(|m| m.body().ok())
            else {
                continue;
            };
            match e.kind {
                Kind::Request => drop(asked.insert(e.bits, body.handle)),
                Kind::Reply => {
                    if let Some(uuid) = asked.get(&e.bits).and_then(|h| self.targets.get(h)) {
                        let kept = self.kept.entry(uuid.clone()).or_default();
                        *kept = body.last_committed.max(*kept);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes the numbers of two replies to a request on the recorded `handle`; whether the target is to be synced now.
    pub fn learn(&mut self, handle: u64, theirs: &PtlrpcBody, ours: &PtlrpcBody) -> bool {
        let Some(uuid) = self
            .targets
            .get(&handle)
            .filter(|_| theirs.transno != 0 && ours.transno != 0)
        else {
            return false;
        };
        self.ours
            .insert((uuid.clone(), theirs.transno), ours.transno);
        self.kept.get(uuid) == Some(&theirs.transno)
    }

    /// Ours for a recorded number on the recorded `handle`.
    pub fn ours(&self, handle: u64, theirs: u64) -> Option<u64> {
        self.ours
            .get(&(self.targets.get(&handle)?.clone(), theirs))
            .copied()
    }
}
