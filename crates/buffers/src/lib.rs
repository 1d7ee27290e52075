//! What holds the bytes of a message, in every layer from a system call to the network: file data are handed on and never copied.
//!
//! Deliberately absent: pools. Each layer that allocates many buffers has one that fits its sizes.

mod payload;

pub use payload::Payload;
