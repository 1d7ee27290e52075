//! Layout attributes: how a file lies on OSTs (LOV) and a directory on MDTs (LMV).

mod comp;
mod lmv;
mod lov;

pub use comp::{CompEntry, CompMd, LovCompMdEntry, LovCompMdHead, SubLayout, lcm, lcme};
pub use lmv::*;
pub use lov::*;

use crate::raw::DecodeError;
use bytes::Bytes;

/// A file's (or directory default's) LOV attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// v1, v3 or a user's request with an OST list.
    Plain(LovMd),
    /// Several components by extent or mirror.
    Composite(CompMd),
    /// Opaque to Lustre.
    Foreign(ForeignMd),
}

impl Layout {
    /// Reads any LOV attribute.
    pub fn decode(buf: &Bytes) -> Result<Layout, DecodeError> {
        use crate::raw::Wire;
        match u32::decode(buf)? {
            LOV_MAGIC_COMP_V1 | LOV_MAGIC_SEL => Ok(Layout::Composite(CompMd::decode(buf)?)),
            LOV_MAGIC_FOREIGN => Ok(Layout::Foreign(ForeignMd::decode(buf)?)),
            _ => Ok(Layout::Plain(LovMd::decode(buf)?)),
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        match self {
            Layout::Plain(l) => l.encode(),
            Layout::Composite(l) => l.encode(),
            Layout::Foreign(l) => l.encode(),
        }
    }

    /// Generation: grows with each change.
    pub fn layout_gen(&self) -> u32 {
        match self {
            Layout::Plain(l) => l.layout_gen as u32,
            Layout::Composite(l) => l.layout_gen,
            Layout::Foreign(_) => 0,
        }
    }
}
