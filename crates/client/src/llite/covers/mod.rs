//! Which files this client holds under extent locks, what it keeps back of them, and which are open. State only: no
//! message is sent from here, and no lock is asked for.
//!
//! From below: [`map`] the dirty ranges of one object, [`extents`] the locks on it, [`Dirty`] both of one file, [`Cover`] that, or
//! the locks that pages are under, [`Gate`] who may use the cover of a file, [`Covers`] the gates of a mount; [`OpenInode`] what the handles of a file share.

mod backing;
mod cover;
mod dirty;
mod extents;
mod gate;
mod lost;
mod map;
mod open_files;
mod open_inode;
mod table;

pub(super) use backing::{Asked, Granted};
pub(super) use cover::Cover;
pub(super) use dirty::{Dirty, EVERYTHING, Object, ObjectKey, Piece, Put, Taken};
pub(super) use gate::{Acquiring, Enter, Gate, Writing};
pub(super) use lost::Told;
pub(super) use map::Flight;
pub(super) use open_files::OpenFiles;
pub(super) use open_inode::OpenInode;
pub(super) use table::{Covers, coverable};
