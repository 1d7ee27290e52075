//! `lctl nodemap_*` (`jt_nodemap_*` in `lustre/utils/obd.c` is the grammar and what is printed).
//!
//! Left out: offsets, lists of banned NIDs, alternate filesets, capabilities, SELinux policies, dynamic nodemaps, and the properties
//! `audit_mode`, `forbid_encryption`, `child_raise_privileges`, `rbac` and `gssonly_identification`.

use super::lctl::{get_params, list_params};
use super::{AskedNode, Failed};
use crate::control::{Ask, NodemapAsk};
use coral_server::nodemap::{Command, IdType};

/// Commands with their usage.
const COMMANDS: &[(&str, &str)] = &[
    ("activate", "nodemap_activate {0|1}"),
    ("add", "nodemap_add --name NODEMAP_NAME"),
    ("new", "nodemap_new --name NODEMAP_NAME"),
    ("del", "nodemap_del --name NODEMAP_NAME"),
    (
        "add_range",
        "nodemap_add_range --name NODEMAP_NAME --range NID_RANGE",
    ),
    (
        "del_range",
        "nodemap_del_range --name NODEMAP_NAME --range NID_RANGE",
    ),
    (
        "add_idmap",
        "nodemap_add_idmap --name NODEMAP_NAME --idtype {uid|gid|projid} --idmap CLIENTID[-CLIENTID_END]:FSID[-FSID_END]",
    ),
    (
        "del_idmap",
        "nodemap_del_idmap --name NODEMAP_NAME --idtype {uid|gid|projid} --idmap CLIENTID[-CLIENTID_END]:FSID[-FSID_END]",
    ),
    (
        "modify",
        "nodemap_modify --name NODEMAP_NAME --property PROPERTY[=VALUE] [--value VALUE]",
    ),
    (
        "set_fileset",
        "nodemap_set_fileset --name NODEMAP_NAME --fileset SUBDIRECTORY",
    ),
    (
        "fileset_add",
        "nodemap_fileset_add --name NODEMAP_NAME --fileset SUBDIRECTORY",
    ),
    (
        "fileset_del",
        "nodemap_fileset_del --name NODEMAP_NAME {--all | --fileset SUBDIRECTORY}",
    ),
    ("test_nid", "nodemap_test_nid --nid NID"),
    (
        "test_id",
        "nodemap_test_id --nid NID --idtype {uid|gid|projid} --id ID",
    ),
    (
        "info",
        "nodemap_info [--list | --name NODEMAP_NAME] [--property PROPERTY]",
    ),
];

/// What can be modified, as `nodemap_modify` names it, and as `nodemap_info --list` describes what there is to see.
const PROPERTIES: &[(&str, &str)] = &[
    ("admin_nodemap", "root is not squashed on policy group"),
    ("deny_mount", "disable client mounts"),
    ("deny_unknown", "deny access for unknown (squashed) users"),
    (
        "exports",
        "list of client connections (NIDs) for this nodemap",
    ),
    ("fileset", "fileset restrictions for this nodemap"),
    ("id", "unique identifier for this nodemap"),
    (
        "idmap",
        "identity mapping rules for UID/GID/PROJID translation",
    ),
    ("map_mode", "identity mapping mode"),
    ("ranges", "NID ranges assigned to this nodemap"),
    ("readonly_mount", "force clients to mount read-only"),
    ("squash_gid", "GID for unmapped users"),
    ("squash_projid", "project ID for unmapped projects"),
    ("squash_uid", "UID for unmapped users"),
    (
        "trusted_nodemap",
        "accept client identities without mapping",
    ),
];

/// The long name of a single letter's option, where all commands agree on it.
const SHORT: &[(&str, &str)] = &[
    ("-n", "--name"),
    ("-r", "--range"),
    ("-m", "--idmap"),
    ("-p", "--property"),
    ("-v", "--value"),
    ("-f", "--fileset"),
    ("-t", "--idtype"),
    ("-l", "--list"),
];

/// The words of a command, sorted.
struct Words {
    verb: &'static str,
    options: Vec<(String, String)>,
    free: Vec<String>,
}

/// Whether `lctl` knows it as one of these; the verb.
pub(super) fn verb(command: &str) -> Option<&'static str> {
    let name = command.strip_prefix("nodemap_")?;
    COMMANDS.iter().map(|(v, _)| *v).find(|v| *v == name)
}

fn usage(verb: &str) -> String {
    COMMANDS
        .iter()
        .find(|(v, _)| *v == verb)
        .map_or_else(String::new, |(_, u)| format!("usage: lctl {u}"))
}

/// Whether the usage of `verb` names the option.
fn takes(verb: &str, option: &str) -> bool {
    usage(verb)
        .split(|c: char| !c.is_ascii_alphabetic() && c != '-')
        .any(|w| w == option)
}

impl Words {
    fn parse(verb: &'static str, words: &[String]) -> Result<Words, Failed> {
        let (mut options, mut free) = (Vec::new(), Vec::new());
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let short = match (word.as_str(), verb) {
                ("-n", "test_nid" | "test_id") => Some("--nid"),
                ("-i", "test_id") => Some("--id"),
                ("-i", _) => Some("--idtype"),
                (w, _) => SHORT.iter().find(|(s, _)| *s == w).map(|(_, l)| *l),
            };
            let (name, inline) = match word.split_once('=').filter(|_| word.starts_with("--")) {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (short.unwrap_or(word), None),
            };
            if !name.starts_with("--") {
                free.push(word.clone());
            } else if matches!(name, "--list" | "--all") && takes(verb, name) {
                options.push((name.to_owned(), String::new()));
            } else if takes(verb, name) {
                let value = inline.or_else(|| rest.next().cloned()).ok_or_else(|| {
                    format!("nodemap_{verb}: {name} needs a value\n{}", usage(verb))
                })?;
                options.push((name.to_owned(), value));
            } else {
                return Err(
                    format!("nodemap_{verb}: there is no option {name}\n{}", usage(verb)).into(),
                );
            }
        }
        Ok(Words {
            verb,
            options,
            free,
        })
    }

    fn given(&self, option: &str) -> Option<String> {
        self.options
            .iter()
            .rev()
            .find(|(n, _)| n == option)
            .map(|(_, v)| v.clone())
    }

    fn must(&self, option: &str, what: &str) -> Result<String, Failed> {
        self.given(option).ok_or_else(|| {
            format!(
                "nodemap_{}: missing {what}\n{}",
                self.verb,
                usage(self.verb)
            )
            .into()
        })
    }

    /// The value of an option that may also stand alone.
    fn alone(&self, option: &str, what: &str) -> Result<String, Failed> {
        match &self.free[..] {
            [one] if self.given(option).is_none() => Ok(one.clone()),
            [] => self.must(option, what),
            [.., last] => Err(format!(
                "nodemap_{}: '{last}' is too much\n{}",
                self.verb,
                usage(self.verb)
            )
            .into()),
        }
    }

    fn kind(&self) -> Result<IdType, Failed> {
        let text = self.must("--idtype", "ID type")?;
        let wrong = || {
            format!(
                "nodemap_{}: incorrect ID type, must be one of uid, gid, projid.\n{}",
                self.verb,
                usage(self.verb)
            )
        };
        IdType::of(&text).ok_or_else(|| wrong().into())
    }
}

/// What `errno` means.
fn strerror(errno: i64) -> String {
    let text = std::io::Error::from_raw_os_error(errno as i32).to_string();
    text.split(" (os error").next().unwrap_or("").to_owned()
}

/// A complaint about a name that is there, or is not, as `lctl` has it, which looks before it asks.
fn already(verb: &str, why: &str, errno: i32, says: &str) -> String {
    match why == strerror(errno.into()) {
        true => format!("{says}\nnodemap_{verb}: {}", strerror(libc::EINVAL.into())),
        false => format!("nodemap_{verb}: {why}"),
    }
}

/// Asks the servers; a refusal as `failed` makes a line of it, with the reason when it is not one of Lustre's.
fn ask(t: &AskedNode, what: NodemapAsk, failed: impl Fn(&str) -> String) -> Result<String, Failed> {
    let answer = t.ask_client(&Ask::Nodemap(what))?;
    match (answer["error"].as_str(), answer["errno"].as_i64()) {
        (Some(why), Some(errno)) if errno == libc::ENODEV as i64 => Err(failed(why).into()),
        (Some(_), Some(errno)) => Err(failed(&strerror(errno)).into()),
        (Some(why), None) => Err(failed(why).into()),
        (None, _) => Ok(answer["text"]
            .as_str()
            .map_or_else(String::new, |t| format!("{t}\n"))),
    }
}

/// Does one of the commands.
pub(super) fn run(t: &AskedNode, verb: &'static str, words: &[String]) -> Result<String, Failed> {
    let w = Words::parse(verb, words)?;
    let name = || w.must("--name", "nodemap name");
    let change = |c: Command| {
        ask(t, NodemapAsk::Change(c), |why| {
            format!("nodemap_{verb}: {why}")
        })
    };
    match verb {
        "activate" => match w.free.first().map(String::as_str) {
            Some("0") => change(Command::Activate(false)),
            Some("1") => change(Command::Activate(true)),
            _ => Err(usage(verb).into()),
        },
        "add" | "new" => {
            let name = w.alone("--name", "nodemap name")?;
            let failed = |why: &str| {
                already(
                    verb,
                    why,
                    libc::EEXIST,
                    &format!("error: nodemap '{name}' already exists"),
                )
            };
            ask(
                t,
                NodemapAsk::Change(Command::Add { name: name.clone() }),
                failed,
            )
        }
        "del" => {
            let name = w.alone("--name", "nodemap name")?;
            let failed = |why: &str| {
                already(
                    verb,
                    why,
                    libc::ENOENT,
                    &format!("error: nodemap '{name}' does not exist"),
                )
            };
            ask(
                t,
                NodemapAsk::Change(Command::Del { name: name.clone() }),
                failed,
            )
        }
        "add_range" => change(Command::AddRange {
            name: name()?,
            range: w.must("--range", "NID range")?,
        }),
        "del_range" => change(Command::DelRange {
            name: name()?,
            range: w.must("--range", "NID range")?,
        }),
        "add_idmap" => change(Command::AddIdmap {
            name: name()?,
            kind: w.kind()?,
            map: w.must("--idmap", "ID map")?,
        }),
        "del_idmap" => change(Command::DelIdmap {
            name: name()?,
            kind: w.kind()?,
            map: w.must("--idmap", "ID map")?,
        }),
        "modify" => modify(t, &w),
        "set_fileset" | "fileset_add" => {
            let (name, fileset) = (name()?, w.must("--fileset", "fileset SUBDIRECTORY")?);
            let note = if verb == "set_fileset" {
                "This command is deprecated, please use nodemap_fileset_{add/del} instead.\n"
            } else {
                ""
            };
            let failed = |why: &str| {
                format!(
                    "error: cannot 'nodemap_{verb}' with fileset '{fileset}' on nodemap '{name}': {why}"
                )
            };
            let set = Command::SetFileset {
                name: name.clone(),
                fileset: fileset.clone(),
            };
            ask(t, NodemapAsk::Change(set), failed).map(|out| format!("{note}{out}"))
        }
        "fileset_del" => {
            let (name, all) = (name()?, w.given("--all").is_some());
            let given = if all {
                None
            } else {
                Some(w.must("--fileset", "fileset SUBDIRECTORY")?)
            };
            let value = get_params(t, &format!("nodemap.{name}.fileset"), true)?;
            if given.is_some_and(|f| !value.contains(&format!("primary:     {f} "))) {
                return Err(format!("nodemap_{verb}: {}", strerror(libc::ENOENT.into())).into());
            }
            change(Command::SetFileset {
                name,
                fileset: String::new(),
            })
        }
        "test_nid" => ask(t, NodemapAsk::TestNid(w.alone("--nid", "NID")?), |why| {
            format!("nodemap_{verb}: {why}")
        }),
        "test_id" => {
            let id = w.must("--id", "ID")?;
            let id = id
                .parse()
                .map_err(|_| format!("nodemap_{verb}: '{id}' is no ID"))?;
            let test = NodemapAsk::TestId {
                nid: w.must("--nid", "NID")?,
                kind: w.kind()?,
                id,
            };
            ask(t, test, |why| format!("nodemap_{verb}: {why}"))
        }
        _ => info(t, &w),
    }
}

fn modify(t: &AskedNode, w: &Words) -> Result<String, Failed> {
    let (name, given) = (
        w.must("--name", "nodemap name")?,
        w.must("--property", "property name")?,
    );
    let (property, inline) = given
        .split_once('=')
        .map_or((given.as_str(), None), |(p, v)| {
            (p, Some(v.to_owned()).filter(|v| !v.is_empty()))
        });
    if inline.is_some() && w.given("--value").is_some() {
        return Err(format!("error: nodemap_modify: use of both '--property=<value>' and '--value <value>' is invalid\n{}", usage("modify")).into());
    }
    let value = inline.map_or_else(|| w.must("--value", "value for property"), Ok)?;
    let command = Command::Modify {
        name: name.clone(),
        property: property.to_owned(),
        value: value.clone(),
    };
    let failed = |why: &str| {
        format!(
            "error: nodemap_modify: cannot modify nodemap '{name}' to param '{property}': value '{value}': {why}"
        )
    };
    ask(t, NodemapAsk::Change(command), failed)
}

fn info(t: &AskedNode, w: &Words) -> Result<String, Failed> {
    let (name, property) = (w.given("--name"), w.given("--property"));
    let pattern = |n: &str, p: &str| format!("nodemap.{n}.{p}");
    if w.given("--list").is_some() {
        if name.is_some() || property.is_some() {
            return Err(format!(
                "error: using both --list and --name or --property is not allowed\n{}",
                usage("info")
            )
            .into());
        }
        let active = get_params(t, "nodemap.active", true)?.trim() == "1";
        let names = list_params(t, "nodemap.*", false)?;
        let mut out = format!(
            "Global nodemap state:\n\t{}\n\nDefined nodemaps:\n",
            if active { "active" } else { "inactive" }
        );
        for n in names
            .lines()
            .filter_map(|l| l.strip_prefix("nodemap."))
            .filter(|n| *n != "active")
        {
            out += &format!("\t{n}\n");
        }
        out += "\nAvailable nodemap parameters:\n";
        for (p, what) in PROPERTIES {
            out += &format!("\t{p:<20} {what}\n");
        }
        return Ok(out);
    }
    match (&w.free[..], name, property) {
        ([], None, None) => {
            Ok(get_params(t, "nodemap.active", false)? + &get_params(t, "nodemap.*.*", false)?)
        }
        ([], name, property) => get_params(
            t,
            &pattern(
                name.as_deref().unwrap_or("*"),
                property.as_deref().unwrap_or("*"),
            ),
            false,
        ),
        ([one], None, None) => {
            let note =
                "Positional parameters are deprecated. Please use --name and --property instead.\n";
            let names = match one.as_str() {
                "list" => list_params(t, "nodemap.*", false)?,
                "all" => list_params(t, "nodemap.*.*", false)?,
                _ => list_params(t, &pattern(one, "*"), false).map_err(|_| {
                    format!("error: nodemap_info: cannot find nodemap or property {one}")
                })?,
            };
            Ok(format!("{note}{names}"))
        }
        _ => Err(format!(
            "error: using both positional and named arguments is not allowed\n{}",
            usage("info")
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(verb: &'static str, line: &str) -> Result<Words, Failed> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Words::parse(verb, &words)
    }

    #[test]
    fn options_in_all_their_forms_and_no_others() {
        let w = parse("add_idmap", "-n far --idtype=uid -m 1-2:3")
            .ok()
            .unwrap();
        let given = |o: &str| w.given(o).unwrap_or_default();
        assert_eq!(
            (
                given("--name").as_str(),
                given("--idtype").as_str(),
                given("--idmap").as_str()
            ),
            ("far", "uid", "1-2:3")
        );
        assert_eq!(
            parse("test_nid", "-n 1@lo")
                .ok()
                .unwrap()
                .given("--nid")
                .as_deref(),
            Some("1@lo")
        );
        assert_eq!(
            parse("modify", "-n a -p admin -v 1")
                .ok()
                .unwrap()
                .given("--value")
                .as_deref(),
            Some("1")
        );
        for (verb, line, says) in [
            ("add_idmap", "--id 5", "there is no option --id"),
            ("info", "--nam x", "there is no option --nam"),
            ("add", "--list", "there is no option --list"),
            ("add_range", "--name", "--name needs a value"),
        ] {
            let said = parse(verb, line).err().map(|f| f.text).unwrap_or_default();
            assert!(said.contains(says), "{verb} {line}: {said}");
        }
        for (verb, usage_of) in COMMANDS {
            assert!(usage_of.starts_with(&format!("nodemap_{verb}")), "{verb}");
        }
    }
}
