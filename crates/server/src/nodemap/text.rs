//! Nodemaps as `lctl get_param nodemap.*` shows them (`lustre/ptlrpc/nodemap_lproc.c`).

use super::core::{IdType, Nodemap, Nodemaps};

/// A client as `nodemap.*.exports` shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// NID it connected from.
    pub nid: String,
    /// Its uuid.
    pub uuid: String,
    /// The target it is connected to.
    pub target: String,
}

/// All parameters with their values, by name. `members` gives the clients of a nodemap.
pub fn params(maps: &Nodemaps, members: impl Fn(&str) -> Vec<Member>) -> Vec<(String, String)> {
    let mut out = vec![(
        "nodemap.active".to_owned(),
        u32::from(maps.active).to_string(),
    )];
    for m in maps.all() {
        out.extend(
            properties(m, &members(&m.name))
                .into_iter()
                .map(|(n, v)| (format!("nodemap.{}.{n}", m.name), v)),
        );
    }
    out
}

fn properties(m: &Nodemap, members: &[Member]) -> Vec<(&'static str, String)> {
    let flag = |on: bool| u32::from(on).to_string();
    let exports = members
        .iter()
        .map(|e| format!("nid: {}, uuid: {}, dev: {}", e.nid, e.uuid, e.target));
    let mut out = vec![
        ("admin_nodemap", flag(m.admin)),
        ("deny_mount", flag(m.deny_mount)),
        ("deny_unknown", flag(m.deny_unknown)),
        ("exports", list(exports.collect())),
        ("fileset", fileset(m)),
        ("id", m.id.to_string()),
    ];
    if m.id != 0 {
        let pairs = IdType::ALL
            .iter()
            .flat_map(|k| m.idmap[*k as usize].pairs().map(|(c, f)| (k.text(), c, f)));
        out.push((
            "idmap",
            list(
                pairs
                    .map(|(k, c, f)| format!("idtype: {k}, client_id: {c}, fs_id: {f}"))
                    .collect(),
            ),
        ));
    }
    out.push(("map_mode", map_mode(m)));
    if m.id != 0 {
        let ranges = m.ranges.iter().map(|r| (r.id, r.ends()));
        out.push((
            "ranges",
            list(
                ranges
                    .map(|(id, (s, e))| format!("id: {id}, start_nid: {s}, end_nid: {e}"))
                    .collect(),
            ),
        ));
    }
    out.extend([
        ("readonly_mount", flag(m.readonly_mount)),
        ("squash_gid", m.squash[IdType::Gid as usize].to_string()),
        (
            "squash_projid",
            m.squash[IdType::Projid as usize].to_string(),
        ),
        ("squash_uid", m.squash[IdType::Uid as usize].to_string()),
        ("trusted_nodemap", flag(m.trusted)),
    ]);
    out
}

fn list(rows: Vec<String>) -> String {
    if rows.is_empty() {
        return "[]".into();
    }
    let rows: Vec<String> = rows.iter().map(|r| format!("\n {{ {r} }}")).collect();
    format!("[{}\n]\n", rows.join(","))
}

fn fileset(m: &Nodemap) -> String {
    if m.fileset.is_empty() {
        "[\n]\n".into()
    } else {
        format!("[\n {{ primary:     {} }}\n]\n", m.fileset)
    }
}

fn map_mode(m: &Nodemap) -> String {
    match m.map_mode {
        [true, true, true] => "all".into(),
        mode => {
            let kinds: Vec<&str> = IdType::ALL
                .iter()
                .filter(|k| mode[**k as usize])
                .map(|k| k.text())
                .collect();
            kinds.join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::core::Command;
    use super::*;

    #[test]
    fn it_looks_as_lustre_shows_it() {
        let name = || "far".to_owned();
        let mut n = Nodemaps::default();
        for c in [
            Command::Add { name: name() },
            Command::AddRange {
                name: name(),
                range: "10.0.0.[2-9]@tcp".into(),
            },
            Command::AddRange {
                name: name(),
                range: "10.0.1.1@tcp".into(),
            },
            Command::AddIdmap {
                name: name(),
                kind: IdType::Gid,
                map: "7:8".into(),
            },
            Command::AddIdmap {
                name: name(),
                kind: IdType::Uid,
                map: "500-501:1500".into(),
            },
            Command::SetFileset {
                name: name(),
                fileset: "/t".into(),
            },
            Command::Modify {
                name: name(),
                property: "map_mode".into(),
                value: "both".into(),
            },
        ] {
            n = n.with(&c).unwrap();
        }
        let member = Member {
            nid: "10.0.0.2@tcp".into(),
            uuid: "u".into(),
            target: "coral-MDT0000".into(),
        };
        let all = params(&n, |m| {
            if m == "far" {
                vec![member.clone()]
            } else {
                Vec::new()
            }
        });
        let value = |n: &str| {
            all.iter()
                .find(|(name, _)| name == n)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(value("nodemap.active"), Some("0"));
        assert_eq!(value("nodemap.default.fileset"), Some("[\n]\n"));
        assert_eq!(
            (
                value("nodemap.default.exports"),
                value("nodemap.default.idmap")
            ),
            (Some("[]"), None)
        );
        assert_eq!(
            (
                value("nodemap.default.map_mode"),
                value("nodemap.far.map_mode")
            ),
            (Some("all"), Some("uid,gid"))
        );
        assert_eq!(
            value("nodemap.far.fileset"),
            Some("[\n { primary:     /t }\n]\n")
        );
        let ranges = "[\n { id: 1, start_nid: 10.0.0.2@tcp, end_nid: 10.0.0.9@tcp },\n { id: 2, start_nid: 10.0.1.1@tcp, end_nid: 10.0.1.1@tcp }\n]\n";
        assert_eq!(value("nodemap.far.ranges"), Some(ranges));
        let idmap = "[\n { idtype: uid, client_id: 500, fs_id: 1500 },\n { idtype: uid, client_id: 501, fs_id: 1501 },\n { idtype: gid, client_id: 7, fs_id: 8 }\n]\n";
        assert_eq!(value("nodemap.far.idmap"), Some(idmap));
        assert_eq!(
            value("nodemap.far.exports"),
            Some("[\n { nid: 10.0.0.2@tcp, uuid: u, dev: coral-MDT0000 }\n]\n")
        );
    }
}
