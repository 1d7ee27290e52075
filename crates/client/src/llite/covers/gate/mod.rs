//! The gate in front of one file's pages in the kernel's page cache: who may fill a page, and what must be dropped before a
//! lock is given back. The rules are a plain state machine ([`core`], [`writes`]); [`Gate`] is the mutex around it, and wakes
//! those that wait.
//!
//! The kernel locks pages first and asks us second; dropping a page waits for its lock. So a read of pages must never wait for
//! an extent lock while somebody drops these very pages to give an extent lock back, or two clients wait in a circle.
//! Invariants:
//! - pages are filled and written back only under a [`super::Cover`]: locks on the whole of every object, taken in stripe order;
//! - while a cover is drained its locks are still held. A read that began to wait before a round of dropping is left out of that
//!   round: its pages are locked and empty, there is nothing to drop. A read that comes while its pages are being dropped is let
//!   in under the old cover, and its pages are dropped once more. So dropping waits for nobody who waits for a lock;
//! - what was read ahead is stored into the kernel's cache only under a cover for reading, and not while it is drained: no page
//!   that a store goes over is dirty. Dropping begins when stores under way have ended. A store waits for pages that reads hold, so
//!   reads that come meanwhile are let in under the old cover: all is dropped after that;
//! - the cover's locks go when a round of dropping ended in which nobody was let in;
//! - a new cover is asked for only when no cover is there and no truncate of this client is under way, nor an append under locks of
//!   its own (the kernel holds write-back of dirty pages up while it truncates, so a truncate must not wait for a cover of our own
//!   to be drained; such an append and a cover would share one lock and not notice each other);
//! - a cover serves either pages or dirty data of write(2) ([`super::Dirty`]), never both: the kernel drops pages
//!   before a write, but not those that a read filled beside it. Who wants the other use drains the cover first; a read of pages
//!   that waits keeps new covers for writes away ([`writes`]).

mod core;
mod shell;
mod writes;

pub(in crate::llite) use shell::{Acquiring, Enter, Gate, Writing};
