//! Files that one message holds.

use coral_buffers::Payload;
use coral_wire::fid::Fid;

use super::layout::FileLayout;
use super::{Lov, ObjectLock};
use crate::error::Error;
use crate::osc::ObjectAttr;

impl Lov {
    /// The data of a small file with one object, with its attributes and the lock that covers both. `None`: it is to be asked in the
    /// usual way.
    pub async fn read_small(
        &self,
        layout: &FileLayout,
        fid: Fid,
    ) -> Result<Option<(Payload, ObjectAttr, ObjectLock)>, Error> {
        let mut stripes = layout.stripes();
        let (Some(s), None) = (stripes.next(), stripes.next()) else {
            return Ok(None);
        };
        if layout.parts().len() > 1 {
            return Ok(None);
        }
        let object = s.object(fid);
        let found = self.store(&s, fid).await?.read_locked(&object).await?;
        let Some((data, Some((attr, lock)))) = found else {
            return Ok(None);
        };
        let whole = data.len() as u64 == attr.size;
        let lock = ((s.ost(), object.oi.res_id()), lock);
        Ok(whole.then_some((data, attr, lock)))
    }
}
