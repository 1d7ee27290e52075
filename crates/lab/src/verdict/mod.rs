//! What limits a run: facts in, verdict out. Pure: who collects the facts is beside it.
//!
//! - [`Facts`]: what was seen. [`Facts::of`] reads most of it off joined stopwatches.
//! - [`explain`]: Little's law first, then the causes that account for a share of the operations' time, with figures.
//! - [`trial`]: what tells the first two causes apart, and what came out of it.
//!
//! # Invariants
//! - A cause is named only with a share of the time, a figure and a rule that this figure breaks; what is merely the largest
//!   segment is told as such, and accuses nobody.
//! - Where the stamps do not account for the time the verdict is 'unknown'.

/// The file of a run that has the records of its last step.
pub const STOPWATCHES: &str = "stopwatches.json";

/// Why nothing is said of a run on directories that are on no mount of Coral's.
pub const NOT_CORAL: &str = "not Coral: nothing to explain";

mod accused;
mod alike;
mod clients;
mod credits;
mod explain;
mod facts;
mod far;
mod gathered;
mod given_back;
mod going;
mod hosts;
mod links;
mod load;
mod lock_waits;
mod machine;
mod notes;
mod paging;
mod queue;
mod requests;
mod resends;
mod rules;
mod seen;
mod sharing;
mod slots;
mod slow_kinds;
mod slow_links;
mod stood;
mod stored;
mod stray;
mod text;
mod time;
mod trial;
mod users;

pub use accused::accused;
pub use clients::Clients;
pub use explain::{Little, Verdict, explain};
pub use facts::{Data, Facts, Host, OpKind, Path, RouterBuffers, SMALL_BYTES, Transfers};
pub use given_back::{LockKind, LockWindow, Waiting, given_back};
pub use going::{Going, Holder};
pub use links::{Answers, Link, Look, Looks, Tcp};
pub use load::{Fid, Load};
pub use machine::{Processors, Used, this_host};
pub use paging::{Paging, PagingWatch};
pub use queue::Queued;
pub use requests::{Requests, Spent};
pub use resends::Silence;
pub use rules::{Cause, CauseKind};
pub use seen::{Granted, Judged, Seen};
pub use sharing::{Asked, Contended, LockWaits, OneDirectory, Shared};
pub use stood::Standstill;
pub use time::{Earlier, Span};
pub use trial::{
    LEAST_COUNT, Outcome, Rates, Trial, Was, Window, Windows, again, alone, elsewhen, locks, swap,
    threads, trial, two_at_once,
};
