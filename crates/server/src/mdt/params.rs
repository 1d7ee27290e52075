//! Parameters of an MDT (`mdt.<name>.*`): what they are, and those that it keeps. A setting that says who is believed must not be
//! gone after a restart, so what is set is kept in the tables, as `lctl set_param -P` and `conf_param` do with Lustre's
//! configuration logs.

use coral_osd::{Batch, Device, Kv, OsdError};

use super::core::MdtOpenError;
use super::handler::MdtOps;
use super::table;

/// Rows of kept parameters: this, then the name; the value is its text.
const PREFIX: &[u8] = b"param.";
/// Parameters that hold for longer than the moment.
const KEPT: [&str; 5] = [
    "identity_acquire_expire",
    "identity_expire",
    "identity_upcall",
    "nosquash_nids",
    "root_squash",
];

impl MdtOps {
    /// Names below `mdt.<name>.` with their values.
    pub(super) fn params(&self) -> Vec<(&'static str, String)> {
        let mut all = self.identities.params();
        all.extend(self.squash.read().params());
        all
    }

    /// Sets one and keeps it. `None`: there is no such parameter.
    pub(super) async fn set_param(
        &self,
        kv: &Device,
        name: &str,
        value: &str,
    ) -> Option<Result<(), String>> {
        let applied = self.apply(name, value)?;
        if applied.is_err() || !KEPT.contains(&name) {
            return Some(applied);
        }
        let kept = keep(kv, name, value).await;
        Some(kept.map_err(|e| {
            format!("it holds until the MDT stops, and is not kept for its next start: {e}")
        }))
    }

    /// Sets those that were kept. One that cannot be set as it was is no reason not to serve, but for those that say who is root.
    pub(super) fn load_params(&self, kv: &dyn Kv) -> Result<(), MdtOpenError> {
        for name in KEPT {
            let Some(row) = kv.get(table::META, &[PREFIX, name.as_bytes()].concat())? else {
                continue;
            };
            let value = String::from_utf8_lossy(&row);
            match self.apply(name, &value) {
                Some(Err(why)) if name.contains("squash") => {
                    return Err(MdtOpenError::Param { name, why });
                }
                Some(Err(why)) => tracing::warn!(name, %value, why, "a parameter that was kept"),
                Some(Ok(())) | None => {}
            }
        }
        Ok(())
    }

    fn apply(&self, name: &str, value: &str) -> Option<Result<(), String>> {
        self.identities
            .set_param(name, value)
            .or_else(|| self.squash.write().set_param(name, value))
    }
}

/// Puts a parameter on disk.
async fn keep(kv: &Device, name: &str, value: &str) -> Result<(), OsdError> {
    let mut b = Batch::new();
    let key = [PREFIX, name.as_bytes()].concat();
    b.put(table::META, key, value.as_bytes().to_vec());
    kv.commit_synced(b).await
}
