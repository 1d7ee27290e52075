//! What `-o` of `coral mount` and `mount.coral` says, in the words of mount(8), of Lustre, and of the long flags.

use coral_lnet::Accept;
use coral_wire::connect::{CLAIMABLE, release};
use coral_wire::nid::Nid;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Memory budget of a client, MiB.
pub(crate) const CACHE_MB: RangeInclusive<u32> = 1..=1 << 20;
/// TCP ports a node may listen on.
const PORT: RangeInclusive<u16> = 1..=u16::MAX;

/// Options of one mount. Of two that contradict each other the later one counts.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub read_only: bool,
    pub no_exec: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_atime: bool,
    /// Each close after reading moves the access time.
    pub strict_atime: bool,
    pub sync: bool,
    pub dir_sync: bool,
    /// Changes the flags of a mount that is there.
    pub remount: bool,
    /// Locks stay on this node.
    pub no_flock: bool,
    pub no_user_xattr: bool,
    pub port: Option<u16>,
    pub cache_mb: Option<u32>,
    /// The Lustre release to claim.
    pub version: Option<u32>,
    pub nids: Vec<Nid>,
    pub routes: Vec<String>,
    /// Whose connections are taken.
    pub accept: Option<Accept>,
}

/// Options without effect here: they are for mount(8), or say what is so anyway.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "_netdev",
    "nofail",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "diratime",
    "nodiratime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "acl",
    "lazystatfs",
];
/// What mount(8) reads back of a mount that is there, and says again with `remount`.
const FUSE_WORDS: &[&str] = &[
    "user_id",
    "group_id",
    "rootmode",
    "default_permissions",
    "allow_other",
    "max_read",
    "blksize",
    "relatime",
];
/// What `remount` can change, as a message lists it.
const REMOUNTABLE: &str = "ro, rw, noexec, exec, nosuid, suid, nodev, dev";
/// Options that do something, as messages list them.
const KNOWN: &str = "ro, rw, noexec, nosuid, nodev, noatime, strictatime, sync, dirsync, remount, noflock, localflock, nouser_xattr, port=N, cache_mb=MiB, version=RELEASE, nid=NID, route=ROUTE, accept=secure|user|all|none";

impl Options {
    /// From the words between commas. With `sloppy`, those that nobody knows are left out; else they are errors.
    pub(crate) fn parse(words: &[String], sloppy: bool) -> Result<Options, String> {
        let mut o = Options::default();
        for word in words.iter().filter(|w| !w.is_empty()) {
            match o.take(word) {
                Err(Wrong::Name) if sloppy => {}
                Err(Wrong::Name) => {
                    return Err(format!(
                        "mount option '{word}' is not supported; there are: {KNOWN}"
                    ));
                }
                Err(Wrong::Value(why)) => return Err(format!("mount option '{word}': {why}")),
                Ok(()) => {}
            }
        }
        Ok(o)
    }

    /// What a remount sets and what it clears, of the kernel's flags; the later of two words counts. Other options are the
    /// client's, which goes on as it was mounted: an error names the first that would change it.
    pub(crate) fn remounted(words: &[String]) -> Result<(Vec<&str>, Vec<&str>), String> {
        let (mut set, mut cleared): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for word in words
            .iter()
            .map(String::as_str)
            .filter(|w| !w.is_empty() && *w != "remount")
        {
            let name = word.split_once('=').map_or(word, |(n, _)| n);
            let (flag, on) = match word {
                "ro" | "noexec" | "nosuid" | "nodev" => (word, true),
                "rw" => ("ro", false),
                "exec" => ("noexec", false),
                "suid" => ("nosuid", false),
                "dev" => ("nodev", false),
                _ if FUSE_WORDS.contains(&name)
                    || IGNORED.contains(&name)
                    || name.starts_with("x-")
                    || name.starts_with("X-") =>
                {
                    continue;
                }
                _ => {
                    return Err(format!(
                        "mount option '{word}' is not changed by a remount: unmount and mount again; a remount changes {REMOUNTABLE}"
                    ));
                }
            };
            set.retain(|w| *w != flag);
            cleared.retain(|w| *w != flag);
            if on {
                set.push(flag)
            } else {
                cleared.push(flag)
            }
        }
        Ok((set, cleared))
    }

    fn take(&mut self, word: &str) -> Result<(), Wrong> {
        let (name, value) = word
            .split_once('=')
            .map_or((word, None), |(n, v)| (n, Some(v)));
        match (name, value) {
            ("ro" | "rw", None) => self.read_only = name == "ro",
            ("noexec" | "exec", None) => self.no_exec = name == "noexec",
            ("nosuid" | "suid", None) => self.no_suid = name == "nosuid",
            ("nodev" | "dev", None) => self.no_dev = name == "nodev",
            ("noatime" | "atime" | "relatime" | "strictatime", None) => {
                (self.no_atime, self.strict_atime) = (name == "noatime", name == "strictatime");
            }
            ("sync" | "async", None) => self.sync = name == "sync",
            ("dirsync", None) => self.dir_sync = true,
            ("remount", None) => self.remount = true,
            ("noflock" | "localflock" | "flock", None) => self.no_flock = name != "flock",
            ("nouser_xattr" | "user_xattr", None) => self.no_user_xattr = name == "nouser_xattr",
            ("port", v) => self.port = Some(number(v, PORT)?),
            ("cache_mb", v) => self.cache_mb = Some(number(v, CACHE_MB)?),
            ("version", v) => {
                self.version = Some(claimable(v.unwrap_or_default()).map_err(Wrong::Value)?)
            }
            ("nid", Some(v)) => self.nids.push(v.parse().map_err(|_| {
                Wrong::Value(format!("'{v}' is no NID; NIDs look like 10.0.0.1@tcp"))
            })?),
            ("route", Some(v)) => {
                coral_lnet::parse_routes(v).map_err(|e| Wrong::Value(e.to_string()))?;
                self.routes.push(v.to_owned());
            }
            ("accept", Some(v)) => self.accept = Some(v.parse().map_err(Wrong::Value)?),
            ("nid" | "route" | "accept", None) => {
                return Err(Wrong::Value(format!("give {name}=VALUE")));
            }
            ("comment" | "user", Some(_)) => {}
            _ if name.starts_with("x-")
                || name.starts_with("X-")
                || value.is_none() && IGNORED.contains(&name) => {}
            _ => return Err(Wrong::Name),
        }
        Ok(())
    }
}

/// A Lustre release that may be claimed (`--claim-version`), as servers and clients code it.
pub(crate) fn claimable(text: &str) -> Result<u32, String> {
    let parts: Option<Vec<u8>> = text.split('.').map(|n| n.parse().ok()).collect();
    let code = match parts.as_deref() {
        Some([major, minor, patch]) => release(*major, *minor, *patch, 0),
        Some([major, minor, patch, fix]) => release(*major, *minor, *patch, *fix),
        _ => 0,
    };
    let shown = |code: &u32| {
        code.to_be_bytes()[..3]
            .iter()
            .map(u8::to_string)
            .collect::<Vec<_>>()
            .join(".")
    };
    match CLAIMABLE.contains(&code) {
        true => Ok(code),
        false => Err(format!(
            "'{text}' is no Lustre release that can be claimed: give {} to {}",
            shown(CLAIMABLE.start()),
            shown(CLAIMABLE.end())
        )),
    }
}

enum Wrong {
    Name,
    Value(String),
}

/// The value of an option that is a number.
fn number<T: std::str::FromStr + PartialOrd + Display>(
    value: Option<&str>,
    range: RangeInclusive<T>,
) -> Result<T, Wrong> {
    let n = value
        .and_then(|v| v.parse().ok())
        .filter(|n| range.contains(n));
    n.ok_or_else(|| {
        Wrong::Value(format!(
            "give a number of {} to {}",
            range.start(),
            range.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(
            &text.split(',').map(str::to_owned).collect::<Vec<_>>(),
            false,
        )
    }

    #[test]
    fn what_fstab_has_is_taken_and_later_words_count() {
        let o = parse("rw,defaults,_netdev,user=alice,noexec,nosuid,nodev,noatime,relatime,x-systemd.automount,comment=scratch,suid,ro").unwrap();
        assert_eq!(
            o,
            Options {
                read_only: true,
                no_exec: true,
                no_dev: true,
                ..Options::default()
            }
        );
        let o = parse("port=9988,cache_mb=64,nid=10.0.0.5@tcp,nid=10.0.1.5@tcp1,route=tcp2 10.0.0.4@tcp,noatime,localflock").unwrap();
        let nids = vec![
            "10.0.0.5@tcp".parse().unwrap(),
            "10.0.1.5@tcp1".parse().unwrap(),
        ];
        let routes = vec!["tcp2 10.0.0.4@tcp".to_owned()];
        assert_eq!(
            o,
            Options {
                port: Some(9988),
                cache_mb: Some(64),
                nids,
                routes,
                no_atime: true,
                no_flock: true,
                ..Options::default()
            }
        );
        assert_eq!(
            parse("noflock,nouser_xattr,flock,user_xattr").unwrap(),
            Options::default()
        );
        assert!(
            parse("flock,localflock,user_xattr,nouser_xattr")
                .is_ok_and(|o| o.no_flock && o.no_user_xattr)
        );
    }

    #[test]
    fn times_and_syncs() {
        let o = parse("strictatime,nodiratime,lazytime,sync,dirsync").unwrap();
        assert_eq!(
            o,
            Options {
                strict_atime: true,
                sync: true,
                dir_sync: true,
                ..Options::default()
            }
        );
        assert_eq!(
            parse("strictatime,sync,relatime,async").unwrap(),
            Options::default()
        );
    }

    #[test]
    fn a_remount_changes_flags_of_the_kernel_and_nothing_else() {
        let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let given = words(
            "rw,nosuid,relatime,user_id=0,group_id=0,default_permissions,allow_other,_netdev,remount,ro,suid",
        );
        assert_eq!(
            Options::remounted(&given).unwrap(),
            (vec!["ro"], vec!["nosuid"])
        );
        for other in [
            "noatime",
            "port=9",
            "noflock",
            "cache_mb=7",
            "sync",
            "nonsense",
        ] {
            let given = words(&format!("remount,{other}"));
            assert!(
                Options::remounted(&given)
                    .unwrap_err()
                    .contains(&format!("'{other}' is not changed by a remount"))
            );
        }
    }

    #[test]
    fn releases_are_claimed_within_bounds() {
        assert_eq!(claimable("2.15.7"), Ok(0x020f_0700));
        assert_eq!(
            parse("version=2.16.0.3").unwrap().version,
            Some(0x0210_0003)
        );
        for bad in [
            "2.14.9",
            "2.19.0",
            "2.17",
            "2.17.256",
            "2.17.x",
            "",
            "2.17.1.1.1",
        ] {
            assert_eq!(
                claimable(bad).unwrap_err(),
                format!(
                    "'{bad}' is no Lustre release that can be claimed: give 2.15.0 to 2.18.255"
                )
            );
        }
        assert!(
            parse("version")
                .unwrap_err()
                .contains("mount option 'version': '' is no Lustre release")
        );
    }

    #[test]
    fn a_bad_value_names_option_value_and_range() {
        for bad in ["port=abc", "port=99999", "port=0", "port=", "port"] {
            assert_eq!(
                parse(bad).unwrap_err(),
                format!("mount option '{bad}': give a number of 1 to 65535")
            );
        }
        assert_eq!(
            parse("ro,cache_mb=0").unwrap_err(),
            "mount option 'cache_mb=0': give a number of 1 to 1048576"
        );
        assert!(
            parse("nid=nonsense")
                .unwrap_err()
                .contains("'nonsense' is no NID")
        );
        assert_eq!(parse("accept=all").unwrap().accept, Some(Accept::All));
        assert!(
            parse("accept=some")
                .unwrap_err()
                .contains("secure, user, all or none")
        );
        assert!(
            parse("route=tcp1")
                .unwrap_err()
                .contains("mount option 'route=tcp1': ")
        );
        assert!(
            parse("ro=1")
                .unwrap_err()
                .contains("'ro=1' is not supported")
        );
        assert!(
            Options::parse(&["ro".into(), "quota".into()], true)
                .unwrap()
                .read_only,
            "sloppy"
        );
        assert!(
            Options::parse(&["quota".into()], false)
                .unwrap_err()
                .contains("'quota' is not supported")
        );
        assert!(
            Options::parse(&["port=x".into()], true).is_err(),
            "a bad value is one for the sloppy too"
        );
    }
}
