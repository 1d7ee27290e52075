//! A target that was put back from an older copy, and is to be served as it is.

use coral_osd::{Batch, Kv, OsdError};

use crate::mdt;
use crate::target::{Registration, forget_clients, put_registration};

/// What makes a target ready for that. Clients of before do not come back to it: what they would replay follows what it does not
/// have. An MDT destroys nothing because no file of its has it: files that it does not know may be on other MDTs, and what is left
/// of lost ones is all that there is of them.
fn changes(kv: &dyn Kv) -> Result<Batch, OsdError> {
    let (mut batch, _) = forget_clients(kv)?;
    mdt::orphans::put_nothing_left(kv, &mut batch)?;
    Ok(batch)
}

/// The same, on disk.
pub(crate) async fn prepare(kv: &dyn Kv) -> Result<(), OsdError> {
    kv.commit(changes(kv)?).await?;
    kv.sync().await
}

/// The same for a target that is not running, and whose MGS knows the registration `known` of it; `None`: it knows none.
pub fn accept(kv: &dyn Kv, known: Option<(u32, u64)>) -> Result<Batch, OsdError> {
    let mut batch = changes(kv)?;
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
