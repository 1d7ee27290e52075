//! Which ids a server believes of which node: nodemaps as a plain value (`lustre/ptlrpc/nodemap_handler.c`,
//! `nodemap_range.c`). No lock, no I/O; a command gives the next value or an errno and leaves this one as it was.
//!
//! Invariants: ranges of NIDs do not overlap; there is always a nodemap `default`, with id 0, which has neither ranges nor pairs of
//! ids and holds every node that no range names.
//!
//! Left out of Lustre 2.17: offsets, roles (`rbac`), nodemaps below nodemaps, lists of banned NIDs, alternate filesets, SELinux
//! policies, capabilities, `audit_mode` and `forbid_encryption` (there is nothing here they could switch).

use std::collections::BTreeMap;
use std::sync::Arc;

use coral_wire::Errno;
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};

use super::idmap::{self, IdMap};
use crate::nidlist::NidList;

/// Name of the nodemap of all nodes that no range names.
pub const DEFAULT: &str = "default";
/// Longest name of a nodemap (`LUSTRE_NODEMAP_NAME_LENGTH`).
const NAME_MAX: usize = 16;
/// Most nodemaps.
const NODEMAPS_MAX: usize = 1024;
/// Most ranges of one nodemap.
const RANGES_MAX: usize = 1024;
/// Longest path of a fileset (`PATH_MAX`).
const FILESET_MAX: usize = 4096;
/// What unknown ids become unless set otherwise (`NODEMAP_NOBODY_UID`).
const NOBODY: u32 = 65_534;

/// Kind of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdType {
    /// User.
    Uid,
    /// Group.
    Gid,
    /// Project.
    Projid,
}

impl IdType {
    /// All of them.
    pub const ALL: [IdType; 3] = [IdType::Uid, IdType::Gid, IdType::Projid];

    /// As it is written.
    pub fn text(self) -> &'static str {
        ["uid", "gid", "projid"][self as usize]
    }

    /// The one of that name.
    pub fn of(text: &str) -> Option<IdType> {
        IdType::ALL.into_iter().find(|t| t.text() == text)
    }
}

/// Way of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToFs,
    ToClient,
}

/// NIDs of one network, ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Number among all ranges ever made.
    pub id: u32,
    #[serde(with = "nid_text")]
    start: Nid,
    #[serde(with = "nid_text")]
    end: Nid,
}

mod nid_text {
    use coral_wire::nid::Nid;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(nid: &Nid, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(nid)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Nid, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Range {
    /// Lowest and highest.
    pub fn ends(&self) -> (Nid, Nid) {
        (self.start, self.end)
    }

    fn has(&self, nid: Nid) -> bool {
        // NIDs sort by network first
        (self.start..=self.end).contains(&nid)
    }

    fn overlaps(&self, (start, end): (Nid, Nid)) -> bool {
        self.start <= end && start <= self.end
    }
}

/// One nodemap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodemap {
    /// Name.
    pub name: String,
    /// Number; 0 is the default's.
    pub id: u32,
    /// Root is not squashed.
    pub admin: bool,
    /// Other ids are believed.
    pub trusted: bool,
    /// Squashed users are refused.
    pub deny_unknown: bool,
    /// No new mounts.
    pub deny_mount: bool,
    /// Nothing may be changed.
    pub readonly_mount: bool,
    /// Kinds of ids that are mapped, in the order of [`IdType::ALL`].
    pub map_mode: [bool; 3],
    /// What unknown ids become, in the same order.
    pub squash: [u32; 3],
    /// Directory that clients mount instead of the root; empty: the root.
    pub fileset: String,
    /// Its nodes.
    pub ranges: Vec<Range>,
    /// Its pairs of ids, by kind.
    pub idmap: [IdMap; 3],
}

impl Nodemap {
    fn new(name: &str, id: u32) -> Nodemap {
        Nodemap {
            name: name.into(),
            id,
            admin: false,
            trusted: false,
            deny_unknown: false,
            deny_mount: false,
            readonly_mount: false,
            map_mode: [true; 3],
            squash: [NOBODY; 3],
            fileset: String::new(),
            ranges: Vec::new(),
            idmap: Default::default(),
        }
    }

    fn is_default(&self) -> bool {
        self.id == 0
    }

    /// What an id of a client is in the file system, and whether that is a squash id because the id is unknown. That -1 is
    /// nobody's id is so for clients whose ids are believed too.
    pub fn to_fs(&self, kind: IdType, id: u32) -> (u32, bool) {
        match id {
            u32::MAX => (self.squash[kind as usize], true),
            _ => self.map(kind, Way::ToFs, id),
        }
    }

    /// What an id of the file system is for a client, and whether it is unknown there.
    pub fn to_client(&self, kind: IdType, id: u32) -> (u32, bool) {
        self.map(kind, Way::ToClient, id)
    }

    /// `__nodemap_map_id`.
    fn map(&self, kind: IdType, way: Way, id: u32) -> (u32, bool) {
        let root = kind != IdType::Projid && id == 0;
        let believed = if root {
            self.admin
        } else {
            self.trusted || !self.map_mode[kind as usize]
        };
        if believed {
            return (id, false);
        }
        let pairs = &self.idmap[kind as usize];
        let found = match way {
            _ if self.is_default() => None,
            Way::ToFs => pairs.to_fs(id),
            Way::ToClient => pairs.to_client(id),
        };
        found.map_or((self.squash[kind as usize], true), |id| (id, false))
    }

    /// Path a client gets that asks for `asked` (`nodemap_fileset_get_root`). EINVAL: the path goes up (`mdt_lookup_fileset`).
    pub fn root_of(&self, asked: &str) -> Result<String, Errno> {
        let (set, asked) = (self.fileset.as_str(), asked.trim_end_matches('/'));
        if goes_up(set) || goes_up(asked) {
            return Err(Errno::EINVAL);
        }
        let below = asked
            .strip_prefix(set)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        Ok(match asked {
            _ if set.is_empty() || (below && !asked.is_empty()) => asked.into(),
            "" => set.into(),
            _ => format!("{set}/{}", asked.trim_start_matches('/')),
        })
    }
}

/// Whether a path has `.` or `..` in it: what begins with a fileset must stay below it.
fn goes_up(path: &str) -> bool {
    path.split('/').any(|name| name == "." || name == "..")
}

/// A change, as `lctl nodemap_*` asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words of the command line")]
pub enum Command {
    /// `nodemap_activate`.
    Activate(bool),
    /// `nodemap_add`.
    Add { name: String },
    /// `nodemap_del`.
    Del { name: String },
    /// `nodemap_add_range`.
    AddRange { name: String, range: String },
    /// `nodemap_del_range`.
    DelRange { name: String, range: String },
    /// `nodemap_add_idmap`.
    AddIdmap {
        name: String,
        kind: IdType,
        map: String,
    },
    /// `nodemap_del_idmap`.
    DelIdmap {
        name: String,
        kind: IdType,
        map: String,
    },
    /// `nodemap_modify`.
    Modify {
        name: String,
        property: String,
        value: String,
    },
    /// `nodemap_set_fileset`; empty: none.
    SetFileset { name: String, fileset: String },
}

/// All nodemaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodemaps {
    /// Ids are mapped at all.
    pub active: bool,
    highest_id: u32,
    highest_range: u32,
    #[serde(with = "by_name")]
    maps: BTreeMap<String, Arc<Nodemap>>,
}

/// A list of nodemaps in place of a table.
mod by_name {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::Nodemap;

    pub fn serialize<S: Serializer>(
        maps: &BTreeMap<String, Arc<Nodemap>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_seq(maps.values().map(|m| &**m))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<BTreeMap<String, Arc<Nodemap>>, D::Error> {
        Ok(Vec::<Nodemap>::deserialize(d)?
            .into_iter()
            .map(|m| (m.name.clone(), Arc::new(m)))
            .collect())
    }
}

impl Default for Nodemaps {
    fn default() -> Nodemaps {
        let default = Arc::new(Nodemap::new(DEFAULT, 0));
        Nodemaps {
            active: false,
            highest_id: 0,
            highest_range: 0,
            maps: BTreeMap::from([(DEFAULT.into(), default)]),
        }
    }
}

/// A name of up to 16 letters, digits and `_` (`nodemap_name_is_valid`).
fn check_name(name: &str) -> Result<(), Errno> {
    match name.len() {
        0 => Err(Errno::EINVAL),
        n if n > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// `kstrtobool` of Linux.
fn boolean(text: &str) -> Result<bool, Errno> {
    let mut letters = text.bytes().map(|b| b.to_ascii_lowercase());
    match (letters.next(), letters.next()) {
        (Some(b'y' | b't' | b'1'), _) | (Some(b'o'), Some(b'n')) => Ok(true),
        (Some(b'n' | b'f' | b'0'), _) | (Some(b'o'), Some(b'f')) => Ok(false),
        _ => Err(Errno::EINVAL),
    }
}

/// `all`, or kinds between commas; `both` are users and groups.
fn map_mode(text: &str) -> Result<[bool; 3], Errno> {
    let mut mode = [false; 3];
    for word in text.split(',') {
        match word {
            "all" => mode = [true; 3],
            "both" => (mode[0], mode[1]) = (true, true),
            _ => {
                let kind =
                    IdType::of(word.strip_suffix("_only").unwrap_or(word)).ok_or(Errno::EINVAL)?;
                mode[kind as usize] = true;
            }
        }
    }
    Ok(mode)
}

/// `NID:NID`, or a pattern with nothing missing between its ends.
fn range(text: &str) -> Result<(Nid, Nid), Errno> {
    let ends = match text.split_once(':') {
        Some((start, end)) => Some((
            start.parse().map_err(|_| Errno::EINVAL)?,
            end.parse().map_err(|_| Errno::EINVAL)?,
        )),
        None => NidList::parse(text).map_err(|_| Errno::EINVAL)?.bounds(),
    };
    ends.filter(|(s, e): &(Nid, Nid)| s.net() == e.net() && s <= e)
        .ok_or(Errno::EINVAL)
}

impl Nodemaps {
    /// The nodemap of a node.
    pub fn of(&self, nid: Nid) -> &Arc<Nodemap> {
        let named = self
            .maps
            .values()
            .find(|m| m.ranges.iter().any(|r| r.has(nid)));
        named.unwrap_or_else(|| &self.maps[DEFAULT])
    }

    /// All, by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Nodemap>> {
        self.maps.values()
    }

    /// The one of that name.
    pub fn named(&self, name: &str) -> Option<&Arc<Nodemap>> {
        self.maps.get(name)
    }

    /// These nodemaps after a command.
    pub fn with(&self, command: &Command) -> Result<Nodemaps, Errno> {
        let mut next = self.clone();
        next.apply(command)?;
        Ok(next)
    }

    fn apply(&mut self, command: &Command) -> Result<(), Errno> {
        match command {
            Command::Activate(on) => self.active = *on,
            Command::Add { name } => self.add(name)?,
            Command::Del { name } => {
                self.not_default(name)?;
                self.maps.remove(name);
            }
            Command::AddRange { name, range: text } => {
                let ends = range(text)?;
                let taken = self
                    .maps
                    .values()
                    .any(|m| m.ranges.iter().any(|r| r.overlaps(ends)));
                let id = self.highest_range + 1;
                let map = self.not_default(name)?;
                match taken {
                    true => return Err(Errno::EEXIST),
                    false if map.ranges.len() >= RANGES_MAX => return Err(Errno::ENOSPC),
                    false => map.ranges.push(Range {
                        id,
                        start: ends.0,
                        end: ends.1,
                    }),
                }
                self.highest_range = id;
            }
            Command::DelRange { name, range: text } => {
                let ends = range(text)?;
                let map = self.not_default(name)?;
                let at = map
                    .ranges
                    .iter()
                    .position(|r| r.ends() == ends)
                    .ok_or(Errno::EINVAL)?;
                map.ranges.remove(at);
            }
            Command::AddIdmap { name, kind, map } => {
                let (client, fs, count) = idmap::parse(map)?;
                let pairs = &mut self.not_default(name)?.idmap[*kind as usize];
                (0..count).try_for_each(|i| pairs.add(client + i, fs + i))?;
            }
            Command::DelIdmap { name, kind, map } => {
                let (client, _, count) = idmap::parse(map)?;
                let pairs = &mut self.not_default(name)?.idmap[*kind as usize];
                (0..count).try_for_each(|i| pairs.del(client + i))?;
            }
            Command::Modify {
                name,
                property,
                value,
            } => self.map(name)?.modify(property, value)?,
            Command::SetFileset { name, fileset } => {
                let good = fileset.is_empty()
                    || (fileset.starts_with('/')
                        && fileset.len() <= FILESET_MAX
                        && !goes_up(fileset));
                let map = self.map(name)?;
                map.fileset = fileset.strip_suffix('/').unwrap_or(fileset).to_owned();
                return if good { Ok(()) } else { Err(Errno::EINVAL) };
            }
        }
        Ok(())
    }

    /// A new nodemap, which is as the default is.
    fn add(&mut self, name: &str) -> Result<(), Errno> {
        check_name(name)?;
        if self.maps.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if self.maps.len() >= NODEMAPS_MAX {
            return Err(Errno::ENOSPC);
        }
        let id = self.highest_id.checked_add(1).ok_or(Errno::ENOSPC)?;
        let like = (*self.maps[DEFAULT]).clone();
        let map = Nodemap {
            name: name.into(),
            id,
            fileset: String::new(),
            ..like
        };
        self.maps.insert(name.into(), Arc::new(map));
        self.highest_id = id;
        Ok(())
    }

    fn map(&mut self, name: &str) -> Result<&mut Nodemap, Errno> {
        check_name(name)?;
        self.maps
            .get_mut(name)
            .map(Arc::make_mut)
            .ok_or(Errno::ENOENT)
    }

    fn not_default(&mut self, name: &str) -> Result<&mut Nodemap, Errno> {
        let map = self.map(name)?;
        if map.is_default() {
            Err(Errno::EINVAL)
        } else {
            Ok(map)
        }
    }
}

impl Nodemap {
    fn modify(&mut self, property: &str, value: &str) -> Result<(), Errno> {
        match property {
            "admin" => self.admin = boolean(value)?,
            "trusted" => self.trusted = boolean(value)?,
            "deny_unknown" => self.deny_unknown = boolean(value)?,
            "deny_mount" => self.deny_mount = boolean(value)?,
            "readonly_mount" => self.readonly_mount = boolean(value)?,
            "map_mode" => self.map_mode = map_mode(value)?,
            _ => {
                let kind = property
                    .strip_prefix("squash_")
                    .and_then(IdType::of)
                    .ok_or(Errno::EOPNOTSUPP)?;
                let id = value.parse().map_err(|_| Errno::EINVAL)?;
                if id == 0 && kind != IdType::Projid {
                    return Err(Errno::EINVAL);
                }
                self.squash[kind as usize] = id;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn modify(name: &str, property: &str, value: &str) -> Command {
        Command::Modify {
            name: name.into(),
            property: property.into(),
            value: value.into(),
        }
    }

    fn add_range(name: &str, range: &str) -> Command {
        Command::AddRange {
            name: name.into(),
            range: range.into(),
        }
    }

    fn idmap(kind: IdType, map: &str) -> Command {
        Command::AddIdmap {
            name: "far".into(),
            kind,
            map: map.into(),
        }
    }

    /// `default`, and `far` with 10.0.0.[2-9]@tcp.
    fn two() -> Nodemaps {
        Nodemaps::default()
            .with(&Command::Add { name: "far".into() })
            .unwrap()
            .with(&add_range("far", "10.0.0.[2-9]@tcp"))
            .unwrap()
    }

    #[test]
    fn nodes_are_in_the_nodemap_of_their_range_or_in_the_default() {
        let n = two();
        assert_eq!(n.of(nid("10.0.0.2@tcp")).name, "far");
        for other in ["10.0.0.1@tcp", "10.0.0.10@tcp", "10.0.0.2@tcp1", "1@lo"] {
            assert_eq!(n.of(nid(other)).name, "default", "{other}");
        }
        for (bad, errno) in [
            (
                add_range("far", "10.0.0.9@tcp:10.0.0.20@tcp"),
                Errno::EEXIST,
            ),
            (add_range("far", "10.0.[0-9].2@tcp"), Errno::EINVAL),
            (add_range("far", "10.0.1.9@tcp:10.0.1.2@tcp"), Errno::EINVAL),
            (add_range("default", "10.0.1.2@tcp"), Errno::EINVAL),
            (add_range("none", "10.0.1.2@tcp"), Errno::ENOENT),
            (
                Command::DelRange {
                    name: "far".into(),
                    range: "10.0.0.2@tcp".into(),
                },
                Errno::EINVAL,
            ),
            (Command::Add { name: "far".into() }, Errno::EEXIST),
            (Command::Add { name: "a-b".into() }, Errno::EINVAL),
            (
                Command::Add {
                    name: "x".repeat(17),
                },
                Errno::ENAMETOOLONG,
            ),
            (
                Command::Del {
                    name: "default".into(),
                },
                Errno::EINVAL,
            ),
            (modify("far", "squash_uid", "0"), Errno::EINVAL),
            (modify("far", "admin", "maybe"), Errno::EINVAL),
            (modify("far", "map_mode", "uid,what"), Errno::EINVAL),
            (modify("far", "rbac", "all"), Errno::EOPNOTSUPP),
            (
                Command::SetFileset {
                    name: "far".into(),
                    fileset: "sub".into(),
                },
                Errno::EINVAL,
            ),
            (
                Command::SetFileset {
                    name: "far".into(),
                    fileset: "/sub/../..".into(),
                },
                Errno::EINVAL,
            ),
            (
                Command::SetFileset {
                    name: "far".into(),
                    fileset: "/./sub".into(),
                },
                Errno::EINVAL,
            ),
            (idmap(IdType::Uid, "5-4:1"), Errno::ERANGE),
            (idmap(IdType::Uid, "1-3:5-6"), Errno::EINVAL),
            (idmap(IdType::Uid, "1-4294967295:0"), Errno::ENOSPC),
        ] {
            assert_eq!(n.with(&bad), Err(errno), "{bad:?}");
        }
        let n = n
            .with(&Command::DelRange {
                name: "far".into(),
                range: "10.0.0.[2-9]@tcp".into(),
            })
            .unwrap();
        assert_eq!(n.of(nid("10.0.0.2@tcp")).name, "default");
    }

    #[test]
    fn root_is_squashed_unless_admin_and_others_unless_trusted_or_mapped() {
        let n = two()
            .with(&idmap(IdType::Uid, "500-502:1500"))
            .unwrap()
            .with(&idmap(IdType::Gid, "0:60"))
            .unwrap();
        let m = n.named("far").unwrap();
        assert_eq!(
            (m.to_fs(IdType::Uid, 501), m.to_client(IdType::Uid, 1501)),
            ((1501, false), (501, false))
        );
        assert_eq!(
            (m.to_fs(IdType::Uid, 503), m.to_fs(IdType::Uid, 0)),
            ((65534, true), (65534, true))
        );
        assert_eq!(
            (m.to_fs(IdType::Gid, 0), m.to_client(IdType::Gid, 60)),
            ((60, false), (0, false))
        );
        assert_eq!(
            m.to_fs(IdType::Projid, 0),
            (65534, true),
            "project 0 is a project as others"
        );
        let n = n
            .with(&modify("far", "admin", "1"))
            .unwrap()
            .with(&modify("far", "map_mode", "gid"))
            .unwrap();
        let m = n.named("far").unwrap();
        assert_eq!(
            (
                m.to_fs(IdType::Uid, 0),
                m.to_fs(IdType::Uid, 9),
                m.to_fs(IdType::Gid, 9)
            ),
            ((0, false), (9, false), (65534, true))
        );
        let n = n.with(&modify("far", "trusted", "on")).unwrap();
        assert_eq!(n.named("far").unwrap().to_fs(IdType::Gid, 9), (9, false));
        assert_eq!(
            n.named("far").unwrap().to_fs(IdType::Uid, u32::MAX),
            (65534, true),
            "no id, whoever says it"
        );
        let back: Nodemaps = serde_json::from_str(&serde_json::to_string(&n).unwrap()).unwrap();
        assert_eq!(back, n);
    }

    #[test]
    fn a_fileset_is_the_root_and_nothing_above_it() {
        let set = |fileset: &str| {
            two()
                .with(&Command::SetFileset {
                    name: "far".into(),
                    fileset: fileset.into(),
                })
                .unwrap()
        };
        let asks = |fileset: &str, asked: &str| set(fileset).named("far").unwrap().root_of(asked);
        let root = |fileset: &str, asked: &str| asks(fileset, asked).unwrap();
        assert_eq!((root("", "/a"), root("", "")), ("/a".into(), String::new()));
        assert_eq!(
            (root("/t/", ""), root("/t", "/t"), root("/t", "/t/x")),
            ("/t".into(), "/t".into(), "/t/x".into())
        );
        assert_eq!(
            (root("/t", "/other"), root("/t", "/tt"), root("/t", "/")),
            ("/t/other".into(), "/t/tt".into(), "/t".into())
        );
        for up in ["/..", "..", "/t/..", "/t/../..", "/a/../b/", "/./a", "."] {
            assert_eq!(
                (asks("/t", up), asks("", up)),
                (Err(Errno::EINVAL), Err(Errno::EINVAL)),
                "{up}"
            );
        }
        assert_eq!(root("/t", "/..a/b.."), "/t/..a/b..");
    }

    /// What a nodemap says, by looking through a list.
    fn naive(
        pairs: &[(u32, u32)],
        admin: bool,
        trusted: bool,
        mapped: bool,
        id: u32,
    ) -> Option<u32> {
        match id {
            0 if admin => Some(0),
            1.. if trusted || !mapped => Some(id),
            _ => pairs.iter().find(|(c, _)| *c == id).map(|(_, f)| *f),
        }
    }

    proptest! {
        #[test]
        fn mapping_agrees_with_a_list(
            ops in proptest::collection::vec((any::<bool>(), 0u32..12, 0u32..12), 0..40),
            admin: bool, trusted: bool, mapped: bool,
        ) {
            let mut n = two();
            n = n.with(&modify("far", "admin", if admin { "1" } else { "0" })).unwrap();
            n = n.with(&modify("far", "trusted", if trusted { "1" } else { "0" })).unwrap();
            n = n.with(&modify("far", "map_mode", if mapped { "all" } else { "gid" })).unwrap();
            let mut list: Vec<(u32, u32)> = Vec::new();
            for (add, c, f) in ops {
                let (name, kind, map) = ("far".to_owned(), IdType::Uid, format!("{c}:{f}"));
                let (has_c, has_f) = (list.iter().any(|p| p.0 == c), list.iter().any(|p| p.1 == f));
                let done = n.with(&if add { Command::AddIdmap { name, kind, map } } else { Command::DelIdmap { name, kind, map } });
                let fails = if add { has_c && has_f } else { !has_c };
                prop_assert_eq!(done.is_err(), fails);
                if let Ok(next) = done {
                    list.retain(|p| p.0 != c && !(add && p.1 == f));
                    if add {
                        list.push((c, f));
                    }
                    n = next;
                }
            }
            let m = n.of(nid("10.0.0.5@tcp")).clone();
            let back: Vec<(u32, u32)> = list.iter().map(|(c, f)| (*f, *c)).collect();
            for id in 0..14 {
                let there = naive(&list, admin, trusted, mapped, id);
                prop_assert_eq!(m.to_fs(IdType::Uid, id), (there.unwrap_or(65534), there.is_none()));
                let here = naive(&back, admin, trusted, mapped, id);
                prop_assert_eq!(m.to_client(IdType::Uid, id), (here.unwrap_or(65534), here.is_none()));
            }
        }

        #[test]
        fn a_node_is_in_one_range_at_most(ranges in proptest::collection::vec((0u8..40, 0u8..8), 0..12), asked in 0u8..50) {
            let (mut n, mut kept) = (Nodemaps::default(), Vec::<(u8, u8)>::new());
            for (i, (low, len)) in ranges.into_iter().enumerate() {
                let (name, high) = (format!("m{i}"), low + len);
                n = n.with(&Command::Add { name: name.clone() }).unwrap();
                let done = n.with(&add_range(&name, &format!("10.0.0.{low}@tcp:10.0.0.{high}@tcp")));
                let free = kept.iter().all(|(l, h)| *h < low || high < *l);
                prop_assert_eq!(done.is_ok(), free);
                kept.push(if free { (low, high) } else { (u8::MAX, u8::MAX) });
                n = done.unwrap_or(n);
            }
            let found = kept.iter().position(|(l, h)| (*l..=*h).contains(&asked));
            let name = found.map_or("default".into(), |i| format!("m{i}"));
            prop_assert_eq!(&n.of(nid(&format!("10.0.0.{asked}@tcp"))).name, &name);
        }
    }
}
