//! llite as a FUSE mount.
