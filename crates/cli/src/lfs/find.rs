//! `lfs find`: files by name, type, owner, time, size and layout.
//!
//! Every test stands for itself and all must hold, as in Lustre: there is no `-o`.

use super::{Failure, dirstripe, getstripe, parse_size, show, xattr};
use coral_wire::layout::Layout;
use lexopt::prelude::*;
use std::cmp::Ordering;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Greatest index of a target.
const INDEX_MAX: u32 = 0xffff;

/// `+N`, `-N` or `N`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Compare {
    than: Ordering,
    value: i128,
    /// Values within `unit` above `value` count as equal.
    unit: i128,
}

impl Compare {
    fn holds(&self, actual: i128) -> bool {
        match self.than {
            Ordering::Greater => actual > self.value,
            Ordering::Less => actual < self.value,
            Ordering::Equal => actual > self.value - self.unit && actual <= self.value,
        }
    }

    fn parse(text: &str, number: impl Fn(&str) -> Option<(i128, i128)>) -> Option<Compare> {
        let (than, rest) = match text.as_bytes().first()? {
            b'+' => (Ordering::Greater, &text[1..]),
            b'-' => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let (value, unit) = number(rest)?;
        Some(Compare { than, value, unit })
    }
}

#[derive(Debug)]
enum Test {
    Age(Stamp, Compare),
    Gid(u32),
    Links(Compare),
    Mdt(Vec<u32>),
    MdtCount(Compare),
    Name(String),
    Ost(Vec<u32>),
    Size(Compare),
    StripeCount(Compare),
    StripeSize(Compare),
    Type(char),
    Uid(u32),
}

#[derive(Debug, Clone, Copy)]
enum Stamp {
    Atime,
    Ctime,
    Mtime,
}

struct Search {
    tests: Vec<(bool, Test)>,
    maxdepth: usize,
    mindepth: usize,
    print0: bool,
    /// Seconds since the epoch at the start, for the time tests.
    now: i64,
}

pub(crate) fn find(mut p: lexopt::Parser) -> Result<(), Failure> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a command at the edge of the program: the user's clock"
    )]
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    let mut s = Search {
        tests: Vec::new(),
        maxdepth: usize::MAX,
        mindepth: 0,
        print0: false,
        now,
    };
    let (mut starts, mut negate) = (Vec::new(), false);
    while let Some(arg) = p.next()? {
        let test = match arg {
            Value(v) if v == "!" => {
                negate = true;
                continue;
            }
            Value(v) => {
                starts.push(PathBuf::from(v));
                continue;
            }
            Long("maxdepth") | Short('D') => {
                s.maxdepth = p.value()?.parse()?;
                continue;
            }
            Long("mindepth") => {
                s.mindepth = p.value()?.parse()?;
                continue;
            }
            Long("print") | Short('P') => continue,
            Long("lazy") | Short('l') => continue,
            Long("print0") | Short('0') => {
                s.print0 = true;
                continue;
            }
            Long("name") | Short('n') => Test::Name(p.value()?.string()?),
            Long("type") | Short('t') => Test::Type(file_type(&p.value()?.string()?)?),
            Long("size") | Short('s') => Test::Size(compare(&p.value()?.string()?, size_number)?),
            Long("links") => Test::Links(compare(&p.value()?.string()?, plain_number)?),
            Long("stripe-count") | Short('c') => {
                Test::StripeCount(compare(&p.value()?.string()?, plain_number)?)
            }
            Long("stripe-size") | Short('S') => {
                Test::StripeSize(compare(&p.value()?.string()?, |t| {
                    parse_size(t).map(|v| (v as i128, 1))
                })?)
            }
            Long("ost") | Short('O') => Test::Ost(targets(&p.value()?.string()?, "-OST")?),
            Long("mdt" | "mdt-index" | "mdt_index") | Short('m') => {
                Test::Mdt(targets(&p.value()?.string()?, "-MDT")?)
            }
            Long("mdt-count") | Short('T') => {
                Test::MdtCount(compare(&p.value()?.string()?, plain_number)?)
            }
            Long("uid" | "user") | Short('u' | 'U') => {
                Test::Uid(id(&p.value()?.string()?, "/etc/passwd")?)
            }
            Long("gid" | "group") | Short('g' | 'G') => {
                Test::Gid(id(&p.value()?.string()?, "/etc/group")?)
            }
            Long("atime") | Short('A') => {
                Test::Age(Stamp::Atime, compare(&p.value()?.string()?, age_number)?)
            }
            Long("ctime") | Short('C') => {
                Test::Age(Stamp::Ctime, compare(&p.value()?.string()?, age_number)?)
            }
            Long("mtime") | Short('M') => {
                Test::Age(Stamp::Mtime, compare(&p.value()?.string()?, age_number)?)
            }
            other => return Err(other.unexpected().into()),
        };
        s.tests.push((std::mem::take(&mut negate), test));
    }
    if starts.is_empty() {
        return Err(Failure::new(
            "lfs find: give at least one directory or file",
            super::USAGE,
        ));
    }
    let mut failed = None;
    for start in &starts {
        if let Err(e) = s.walk(start, 0) {
            failed = Some(e);
        }
    }
    failed.map_or(Ok(()), Err)
}

fn bad(text: &str) -> Failure {
    Failure::new(format!("lfs find: bad value '{text}'"), super::USAGE)
}

fn compare(text: &str, number: impl Fn(&str) -> Option<(i128, i128)>) -> Result<Compare, Failure> {
    Compare::parse(text, number).ok_or_else(|| bad(text))
}

fn plain_number(t: &str) -> Option<(i128, i128)> {
    t.parse().ok().map(|v| (v, 1))
}

/// Without a unit the value is in 512-byte blocks in find(1) but in bytes in `lfs find`; with a unit, equality is to that unit.
fn size_number(t: &str) -> Option<(i128, i128)> {
    let value = parse_size(t)? as i128;
    let digits: i128 = t
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
        .parse()
        .ok()?;
    Some((
        value,
        if digits == 0 {
            1
        } else {
            (value / digits).max(1)
        },
    ))
}

/// Age with a unit of s, m, h, d (default), w, y; in seconds.
fn age_number(t: &str) -> Option<(i128, i128)> {
    let digits = t.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: i128 = match &t[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "" | "d" => 86400,
        "w" => 7 * 86400,
        "y" => 365 * 86400,
        _ => return None,
    };
    digits.parse::<i128>().ok().map(|v| (v * unit, unit))
}

fn file_type(t: &str) -> Result<char, Failure> {
    match t {
        "b" | "c" | "d" | "f" | "l" | "p" | "s" => Ok(t.as_bytes()[0] as char),
        _ => Err(bad(t)),
    }
}

/// Indices, ranges of them, or names with `kind` before the index, such as `-OST`, separated by commas.
fn targets(t: &str, kind: &str) -> Result<Vec<u32>, Failure> {
    let mut all = Vec::new();
    for item in t.split(',') {
        let name = item.rsplit_once(kind);
        let (from, to) = match (name, item.split_once('-')) {
            (Some((_, hex)), _) => {
                let index = u32::from_str_radix(hex.trim_end_matches("_UUID"), 16);
                (index.clone(), index)
            }
            (None, Some((from, to))) => (from.parse(), to.parse()),
            (None, None) => (item.parse(), item.parse()),
        };
        match (from, to) {
            (Ok(from), Ok(to)) if from <= to && to <= INDEX_MAX => all.extend(from..=to),
            _ => return Err(bad(item)),
        }
    }
    Ok(all)
}

/// A number, or a name looked up in `/etc/passwd` or `/etc/group`.
fn id(text: &str, file: &str) -> Result<u32, Failure> {
    if let Ok(n) = text.parse() {
        return Ok(n);
    }
    let all = std::fs::read_to_string(file).unwrap_or_default();
    all.lines()
        .map(|l| l.split(':').collect::<Vec<_>>())
        .find(|f| f.first() == Some(&text))
        .and_then(|f| f.get(2)?.parse().ok())
        .ok_or_else(|| Failure::new(format!("lfs find: '{text}' is not in {file}"), super::USAGE))
}

impl Search {
    fn walk(&self, at: &Path, depth: usize) -> Result<(), Failure> {
        let meta = std::fs::symlink_metadata(at)
            .map_err(|e| Failure::errno(format_args!("lfs find: '{}'", at.display()), e.into()))?;
        if depth >= self.mindepth && self.matches(at, &meta) {
            print!("{}{}", at.display(), if self.print0 { '\0' } else { '\n' });
        }
        if !meta.is_dir() || depth >= self.maxdepth {
            return Ok(());
        }
        let mut failed = None;
        let entries = std::fs::read_dir(at)
            .map_err(|e| Failure::errno(format_args!("lfs find: '{}'", at.display()), e.into()))?;
        for entry in entries.flatten() {
            if let Err(e) = self.walk(&at.join(entry.file_name()), depth + 1) {
                eprintln!("{}", e.message);
                failed = Some(Failure::new("", e.code));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn matches(&self, at: &Path, meta: &std::fs::Metadata) -> bool {
        self.tests
            .iter()
            .all(|(negate, test)| self.holds(test, at, meta) != *negate)
    }

    fn holds(&self, test: &Test, at: &Path, meta: &std::fs::Metadata) -> bool {
        match test {
            Test::Age(stamp, c) => {
                let t = match stamp {
                    Stamp::Atime => meta.atime(),
                    Stamp::Ctime => meta.ctime(),
                    Stamp::Mtime => meta.mtime(),
                };
                c.holds((self.now - t) as i128)
            }
            Test::Gid(g) => meta.gid() == *g,
            Test::Links(c) => c.holds(meta.nlink() as i128),
            Test::Mdt(list) => getstripe::mdt_index(at).is_ok_and(|i| list.contains(&u32::from(i))),
            Test::MdtCount(c) => {
                let shards = || dirstripe::read(at, false).ok().map(|l| l.head.stripe_count);
                meta.is_dir() && shards().is_some_and(|n| c.holds(i128::from(n)))
            }
            Test::Name(pattern) => at
                .file_name()
                .is_some_and(|n| glob(pattern.as_bytes(), n.as_encoded_bytes())),
            Test::Ost(list) => {
                layout(at).is_some_and(|l| show::ost_indices(&l).iter().any(|i| list.contains(i)))
            }
            Test::Size(c) => meta.is_file() && c.holds(meta.len() as i128),
            Test::StripeCount(c) => {
                layout(at).is_some_and(|l| c.holds(show::stripe_count(&l) as i128))
            }
            Test::StripeSize(c) => {
                layout(at).is_some_and(|l| c.holds(show::stripe_size(&l) as i128))
            }
            Test::Type(t) => type_char(meta) == *t,
            Test::Uid(u) => meta.uid() == *u,
        }
    }
}

fn layout(at: &Path) -> Option<Layout> {
    Layout::decode(&xattr(at, "lustre.lov").ok()?.into()).ok()
}

fn type_char(meta: &std::fs::Metadata) -> char {
    let t = meta.file_type();
    if t.is_dir() {
        'd'
    } else if t.is_symlink() {
        'l'
    } else if t.is_fifo() {
        'p'
    } else if t.is_socket() {
        's'
    } else if t.is_block_device() {
        'b'
    } else if t.is_char_device() {
        'c'
    } else {
        'f'
    }
}

/// Shell pattern: `*`, `?`, `[a-z]`, `[!a]`, `\x`.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|i| glob(rest, &name[i..])),
        Some((b'?', rest)) => !name.is_empty() && glob(rest, &name[1..]),
        Some((b'[', rest)) => match (class(rest, name.first().copied()), name.is_empty()) {
            (Some((true, used)), false) => glob(&rest[used..], &name[1..]),
            (Some(_), _) => false,
            (None, _) => name.first() == Some(&b'[') && glob(rest, &name[1..]),
        },
        Some((b'\\', rest)) if !rest.is_empty() => {
            name.first() == rest.first() && glob(&rest[1..], &name[1..])
        }
        Some((c, rest)) => name.first() == Some(c) && glob(rest, &name[1..]),
    }
}

/// Whether `c` is in the class that starts after `[`, and how many bytes the class takes with its `]`.
fn class(p: &[u8], c: Option<u8>) -> Option<(bool, usize)> {
    let negated = matches!(p.first(), Some(b'!' | b'^'));
    let mut i = usize::from(negated);
    let (start, mut found) = (i, false);
    while i < p.len() && (p[i] != b']' || i == start) {
        let (low, high, step) = if p.len() > i + 2 && p[i + 1] == b'-' && p[i + 2] != b']' {
            (p[i], p[i + 2], 3)
        } else {
            (p[i], p[i], 1)
        };
        found |= c.is_some_and(|c| (low..=high).contains(&c));
        i += step;
    }
    (i < p.len()).then_some((found != negated, i + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_the_shell() {
        assert!(glob(b"*.c", b"a.c"));
        assert!(!glob(b"*.c", b"a.cc"));
        assert!(glob(b"f?[0-9]", b"fx7"));
        assert!(!glob(b"f[!a-c]", b"fb"));
        assert!(glob(b"\\*", b"*"));
        assert!(glob(b"[", b"["));
    }

    #[test]
    fn targets_are_indices_ranges_or_names() {
        assert_eq!(targets("1-2", "-MDT").ok(), Some(vec![1, 2]));
        let all = targets("0,fs-MDT000a,a-b-MDT0001_UUID,4-4", "-MDT").ok();
        assert_eq!(all, Some(vec![0, 10, 1, 4]));
        for bad in ["", "2-1", "1-", "-1", "1,x", "0-70000"] {
            assert!(targets(bad, "-MDT").is_err(), "{bad}");
        }
    }

    #[test]
    fn comparisons_follow_find() {
        let c = compare("+1M", size_number).unwrap();
        assert!(c.holds(1048577) && !c.holds(1048576));
        let c = compare("1M", size_number).unwrap();
        assert!(c.holds(1) && c.holds(1048576) && !c.holds(1048577) && !c.holds(0));
        let c = compare("-2", plain_number).unwrap();
        assert!(c.holds(1) && !c.holds(2));
        assert!(compare("x", plain_number).is_err());
        assert!(compare("-1h", age_number).unwrap().holds(30));
    }
}
