//! OST pools, as the file system's configuration names them (`lustre/lov/lov_pool.c`).
//!
//! A pool is made and changed on the MGS (`lctl pool_new`, `pool_add`); clients learn of it from the configuration log, and
//! the MDT places files in it. Here they are told only.

use std::fmt::Write;

use bytes::Bytes;

use super::Llite;

impl Llite {
    /// Answers the attribute `lustre.pools.json`: the name of each pool with the uuids of its OSTs.
    pub(super) fn pools_json(&self) -> Bytes {
        let mut out = String::from("{");
        for (i, (name, osts)) in self.config.borrow().pools.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let uuids: Vec<String> = osts.iter().map(|o| format!("\"{o}\"")).collect();
            // writing to a String cannot fail
            let _ = write!(out, "{comma}\"{name}\":[{}]", uuids.join(","));
        }
        out.push('}');
        out.into()
    }
}
