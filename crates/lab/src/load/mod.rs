//! Load: one engine under the names `ior`, `mdtest`, `mib` and `mdsrate`.
