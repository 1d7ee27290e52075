//! Options and numbers of `lst`'s commands.

use super::{Failed, usage};
use coral_lnet::selftest::{BrwParams, Check, Rw, TestParams};
use std::str::FromStr;

/// What a command takes.
pub(crate) struct Spec {
    /// Options with a value: letter and name.
    pub with_value: &'static [(char, &'static str)],
    /// Options without.
    pub flags: &'static [(char, &'static str)],
    /// Fewest and most words besides.
    pub words: (usize, usize),
}

/// A command's words, sorted.
#[derive(Debug, Default)]
pub(crate) struct Given {
    values: Vec<(&'static str, String)>,
    flags: Vec<&'static str>,
    /// Words that belong to no option.
    pub words: Vec<String>,
}

impl Given {
    /// Whether the flag was given.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// An option's text; the last one counts.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values
            .iter()
            .rev()
            .find(|v| v.0 == name)
            .map(|v| v.1.as_str())
    }

    /// All an option was given, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.values
            .iter()
            .filter(|v| v.0 == name)
            .map(|v| v.1.clone())
            .collect()
    }

    /// An option's number.
    pub(crate) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failed> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse()
            .map(Some)
            .map_err(|_| Failed(format!("--{name} '{text}' is no number in its range")))
    }

    /// An option's number of 1 or more, else `default`.
    pub(crate) fn positive(&self, name: &str, default: u32) -> Result<u32, Failed> {
        match self.number(name)? {
            Some(0) => Err(Failed(format!("--{name} has to be 1 or more"))),
            n => Ok(n.unwrap_or(default)),
        }
    }
}

/// Sorts a command's words.
pub(crate) fn parse(command: &str, spec: &Spec, args: &[String]) -> Result<Given, Failed> {
    let wrong = |why: String| {
        Failed(format!(
            "{command}: {why}\n{}",
            usage(command).unwrap_or_default()
        ))
    };
    let mut given = Given::default();
    let mut p = lexopt::Parser::from_args(args);
    loop {
        let (short, long) = match p.next().map_err(|e| wrong(e.to_string()))? {
            None => break,
            Some(lexopt::Arg::Value(w)) => {
                given.words.push(w.to_string_lossy().into_owned());
                continue;
            }
            Some(lexopt::Arg::Short(c)) => (Some(c), String::new()),
            Some(lexopt::Arg::Long(l)) => (None, l.to_owned()),
        };
        let is = |o: &&(char, &'static str)| Some(o.0) == short || o.1 == long;
        if let Some(flag) = spec.flags.iter().find(is) {
            given.flags.push(flag.1);
        } else if let Some(option) = spec.with_value.iter().find(is) {
            let value = p.value().map_err(|e| wrong(e.to_string()))?;
            given
                .values
                .push((option.1, value.to_string_lossy().into_owned()));
        } else {
            let shown = short.map_or(format!("--{long}"), |c| format!("-{c}"));
            return Err(wrong(format!("there is no option {shown}")));
        }
    }
    if given.words.len() < spec.words.0 {
        return Err(wrong(missing(command, given.words.len())));
    }
    if given.words.len() > spec.words.1 {
        return Err(wrong(format!(
            "'{}' is too much",
            given.words[spec.words.1]
        )));
    }
    Ok(given)
}

/// What stands at place `at` in the usage of a command.
fn missing(command: &str, at: usize) -> String {
    let text = usage(command).unwrap_or_default();
    // Words outside of brackets that are no option and no option's value.
    let (mut depth, mut value) = (0, false);
    let mut names = text.split_whitespace().skip(3).filter(|w| {
        let outside = depth == 0 && !w.starts_with('[');
        depth += w.matches('[').count() as i32 - w.matches(']').count() as i32;
        let (option, belongs) = (w.starts_with('-'), value);
        value = outside && option;
        outside && !option && !belongs
    });
    match names.nth(at) {
        Some(name) => format!("{} is missing", name.trim_end_matches('.')),
        None => "a word is missing".to_owned(),
    }
}

/// Bytes of a bulk: a number with K or M, at most 1 MiB.
pub(crate) fn size(text: &str) -> Result<u32, Failed> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .filter(|n| *n > 0);
    let bytes = bytes.ok_or_else(|| {
        Failed(format!(
            "size '{text}' is no number of bytes (K and M may follow)"
        ))
    })?;
    u32::try_from(bytes)
        .ok()
        .filter(|n| *n <= 1 << 20)
        .ok_or_else(|| Failed(format!("size '{text}' is above the limit of 1 MiB")))
}

/// `--distribute CLIENTS:SERVERS`.
pub(crate) fn distribution(text: &str) -> Result<(u32, u32), Failed> {
    let pair = text
        .split_once(':')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    pair.filter(|(a, b)| *a > 0 && *b > 0).ok_or_else(|| {
        Failed(format!(
            "distribution '{text}' is not CLIENTS:SERVERS, both 1 or more"
        ))
    })
}

/// A check's name.
pub(crate) fn check(text: &str) -> Result<Check, Failed> {
    match text.to_ascii_lowercase().as_str() {
        "none" => Ok(Check::None),
        "simple" => Ok(Check::Simple),
        "full" => Ok(Check::Full),
        "discard" => Ok(Check::Discard),
        _ => Err(Failed(format!(
            "check '{text}' is none of simple, full, discard"
        ))),
    }
}

/// A test's words: its name, then `read`, `size=64K` and the like in any order.
pub(crate) fn test(words: &[String]) -> Result<TestParams, Failed> {
    let Some((name, params)) = words.split_first() else {
        return Err(Failed("the test's name is missing: ping or brw".into()));
    };
    match name.to_ascii_lowercase().as_str() {
        "ping" => match params.first() {
            None => Ok(TestParams::Ping),
            Some(p) => Err(Failed(format!(
                "the ping test takes no parameter, and '{p}' is one"
            ))),
        },
        "brw" => brw(params).map(TestParams::Brw),
        _ => Err(Failed(format!(
            "there is no test '{name}': ping and brw are the tests"
        ))),
    }
}

fn brw(params: &[String]) -> Result<BrwParams, Failed> {
    // The kernel tool's defaults.
    let mut p = BrwParams {
        rw: Rw::Read,
        check: Check::None,
        len_bytes: 4096,
        offset_bytes: 0,
    };
    let (mut checked, mut given) = (None, None);
    for word in params {
        let lower = word.to_ascii_lowercase();
        match lower.split_once('=') {
            Some(("check" | "c", v)) => {
                p.check = check(v)?;
                checked = Some(p.check);
            }
            Some(("size" | "s", v)) => p.len_bytes = size(v)?,
            Some(("off", v)) => {
                let off = v
                    .parse()
                    .ok()
                    .filter(|n: &u32| n.is_multiple_of(8) && *n < 4096);
                p.offset_bytes = off.ok_or_else(|| {
                    Failed(format!("offset '{v}' is not a multiple of 8 below 4096"))
                })?;
            }
            None if matches!(lower.as_str(), "read" | "r" | "write" | "w") => {
                p.rw = if lower.starts_with('r') {
                    Rw::Read
                } else {
                    Rw::Write
                };
                if given.replace(p.rw).is_some_and(|before| before != p.rw) {
                    return Err(Failed(
                        "a brw test reads or writes: add one test for each".to_owned(),
                    ));
                }
            }
            None if matches!(lower.as_str(), "skip_rx_copy" | "skip-rx-copy") => {
                if checked.is_some_and(|c| c != Check::Discard) {
                    return Err(Failed(format!(
                        "{word} and a check of the data exclude each other"
                    )));
                }
                p.check = Check::Discard;
            }
            _ => return Err(Failed(format!("the brw test has no parameter '{word}'"))),
        }
    }
    Ok(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn tests_as_the_kernel_tool_takes_them() {
        let p = |line: &str| test(&words(line)).map_err(|f| f.0);
        let want = BrwParams {
            rw: Rw::Write,
            check: Check::Full,
            len_bytes: 65536,
            offset_bytes: 0,
        };
        assert_eq!(
            p("brw write check=full size=64K"),
            Ok(TestParams::Brw(want))
        );
        assert_eq!(p("BRW s=64k w c=FULL"), Ok(TestParams::Brw(want)));
        assert_eq!(
            p("brw"),
            Ok(TestParams::Brw(BrwParams {
                rw: Rw::Read,
                check: Check::None,
                len_bytes: 4096,
                offset_bytes: 0
            }))
        );
        assert_eq!(p("ping"), Ok(TestParams::Ping));
        for (line, says) in [
            ("", "missing"),
            ("dance", "no test 'dance'"),
            ("ping 7", "no parameter"),
            ("brw size=2M", "1 MiB"),
            ("brw size=x", "'x'"),
            ("brw size=0", "'0'"),
            ("brw off=9", "multiple of 8"),
            ("brw check=some", "'some'"),
            ("brw fast", "'fast'"),
            ("brw check=full skip_rx_copy", "exclude"),
        ] {
            assert!(p(line).unwrap_err().contains(says), "{line}: {:?}", p(line));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let said =
            ["add_group", "stat", "add_test", "update_group", "add_batch"].map(|c| missing(c, 0));
        assert_eq!(
            said,
            [
                "NAME is missing",
                "NAME|NIDS is missing",
                "ping|brw is missing",
                "NAME is missing",
                "NAME is missing"
            ]
        );
        assert_eq!(missing("add_group", 1), "NIDS is missing");
    }

    #[test]
    fn wrong_lines_get_a_sentence_and_the_usage() {
        const SPEC: Spec = Spec {
            with_value: &[('t', "timeout")],
            flags: &[('f', "force")],
            words: (1, 2),
        };
        let p = |line: &str| parse("stop", &SPEC, &words(line));
        let g = p("a --timeout 5 -f b").unwrap();
        assert!(g.has("force") && g.words == ["a", "b"] && g.positive("timeout", 1).unwrap() == 5);
        for (line, says) in [
            ("", "a word is missing"),
            ("a b c", "'c' is too much"),
            ("a --loud", "no option --loud"),
            ("a -x", "no option -x"),
            ("a --timeout", "timeout"),
        ] {
            let why = p(line).unwrap_err().0;
            assert!(
                why.contains(says) && why.contains("usage: lst stop"),
                "{line}: {why}"
            );
        }
        assert!(p("a --timeout 0").unwrap().positive("timeout", 1).is_err());
        assert!(p("a --timeout x").unwrap().positive("timeout", 1).is_err());
        assert!(
            distribution("1:4").is_ok()
                && distribution("4").is_err()
                && distribution("0:1").is_err()
        );
    }
}
