//! OST pools, as the file system's configuration names them (`lustre/lov/lov_pool.c`).
//!
//! A pool is made and changed on the MGS (`lctl pool_new`, `pool_add`); clients learn of it from the configuration log, and
//! the MDT places files in it. Here they are told only.

use std::collections::BTreeMap;

/// The name of each pool with the uuids of its OSTs.
pub(super) fn json(pools: &BTreeMap<String, Vec<String>>) -> String {
    let quoted = |uuids: &[String]| {
        uuids
            .iter()
            .map(|u| format!("\"{u}\""))
            .collect::<Vec<_>>()
            .join(",")
    };
    let entries: Vec<String> = pools
        .iter()
        .map(|(name, osts)| format!("\"{name}\":[{}]", quoted(osts)))
        .collect();
    format!("{{{}}}", entries.join(","))
}

#[cfg(test)]
mod tests {
    use super::json;

    #[test]
    fn pools_are_told_as_json() {
        let osts = |names: &[&str]| {
            names
                .iter()
                .map(|n| format!("lfs-{n}_UUID"))
                .collect::<Vec<_>>()
        };
        let pools = [
            ("empty".to_owned(), vec![]),
            ("flash".to_owned(), osts(&["OST0000", "OST0002"])),
        ]
        .into();
        assert_eq!(
            json(&pools),
            r#"{"empty":[],"flash":["lfs-OST0000_UUID","lfs-OST0002_UUID"]}"#
        );
        assert_eq!(json(&Default::default()), "{}");
    }
}
