//! The targets, by where their bytes come from.

pub(crate) mod disk;
pub(crate) mod lnet;
pub(crate) mod states;
pub(crate) mod texts;
pub(crate) mod wire;
