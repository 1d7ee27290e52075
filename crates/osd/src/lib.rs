//! Object storage devices: the storage trait, osd-fs on a local directory and osd-mem for tests.
