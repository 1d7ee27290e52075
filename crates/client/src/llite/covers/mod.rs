//! Which files this client holds whole under extent locks, what it keeps back of them, and which are open. State only: no
//! message is sent from here, and no lock is asked for.
//!
//! From below: [`map`] the dirty ranges of one object, [`Dirty`] those of one file, [`Cover`] the locks they are under,
//! [`Gate`] who may use the cover of a file, [`Covers`] the gates of a mount; [`OpenInode`] what the handles of a file share.

mod cover;
mod dirty;
mod gate;
mod lost;
mod map;
mod open_files;
mod open_inode;
mod table;

pub(super) use cover::Cover;
pub(super) use dirty::{Dirty, Object, ObjectKey, Piece, Put, Taken};
pub(super) use gate::{Acquiring, Enter, Gate, Writing};
pub(super) use lost::Told;
pub(super) use map::Flight;
pub(super) use open_files::OpenFiles;
pub(super) use open_inode::OpenInode;
pub(super) use table::{Covers, coverable};
