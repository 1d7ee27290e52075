//! A target that was put back from an older copy, and is to be served as it is.

use coral_osd::{Batch, Kv, OsdError, TargetKind};

use crate::mdt;
use crate::target::{Registration, forget_clients, put_registration};

/// What makes a target ready for that. Clients of before do not come back to it: what they would replay follows what it does not
/// have.
fn changes(kv: &dyn Kv, kind: TargetKind) -> Result<Batch, OsdError> {
    let (mut batch, _) = forget_clients(kv)?;
    if kind == TargetKind::Mdt {
        mdt::orphans::put_older_copy(kv, &mut batch)?;
    }
    Ok(batch)
}

/// Has an MDT whose last transactions may be lost keep the objects of files that it does not know: they are all that is left of
/// them. It gives none of their ids again.
pub async fn keep_objects(kv: &dyn Kv) -> Result<(), OsdError> {
    let mut batch = Batch::new();
    mdt::orphans::put_older_copy(kv, &mut batch)?;
    on_disk(kv, batch).await
}

async fn on_disk(kv: &dyn Kv, batch: Batch) -> Result<(), OsdError> {
    kv.commit(batch).await?;
    kv.sync().await
}

/// Makes a target ready to be served as it is ([`changes`]), on disk.
pub(crate) async fn prepare(kv: &dyn Kv, kind: TargetKind) -> Result<(), OsdError> {
    on_disk(kv, changes(kv, kind)?).await
}

/// The same for a target that is not running, and whose MGS knows the registration `known` of it; `None`: it knows none.
pub fn accept(kv: &dyn Kv, kind: TargetKind, known: Option<(u32, u64)>) -> Result<Batch, OsdError> {
    let mut batch = changes(kv, kind)?;
    let (number, cookie) = known.unwrap_or_default();
    put_registration(
        &mut batch,
        Registration {
            number,
            cookie,
            accepted: true,
        },
    );
    Ok(batch)
}
