//! The option parser of IOR and mdtest, by their rules (hpc/ior: `src/option.c`).
//!
//! It is not getopt. A token is a group of flags or one option with a value, `=` or the next token gives the value, a
//! flag counts how often it was given, and every number may end in k, m, g, t or p. After one error every later token is
//! reported too. One rule is not followed: glued values (`-b4k`) are read as what they mean, with a note. The original
//! also reads their characters as flags.

use super::nearest::nearest;

/// Kinds of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Counts, or takes a number after `=`.
    Flag,
    /// A number with a suffix, of 32 bits in the original.
    Int,
    /// A number with a suffix.
    Long,
    /// A text.
    Text,
    /// Known, and refused with this reason.
    Refused(&'static str),
    /// Known, without effect here; takes a value if true.
    Idle(bool),
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub short: Option<char>,
    pub long: Option<&'static str>,
    pub kind: Kind,
    /// What it sets: the name by which the original knows it.
    pub key: &'static str,
    pub help: &'static str,
}

/// Short constructor for tables.
pub(crate) const fn spec(
    short: &'static str,
    long: &'static str,
    kind: Kind,
    key: &'static str,
    help: &'static str,
) -> Spec {
    let short = match short.as_bytes() {
        [letter] => Some(*letter as char),
        _ => None,
    };
    let long = if long.is_empty() { None } else { Some(long) };
    Spec {
        short,
        long,
        kind,
        key,
        help,
    }
}

/// What an option does with its value; or why it cannot.
type Action<'p> = Box<dyn FnMut(&str) -> Result<(), String> + 'p>;

/// Where an option's value goes.
pub(crate) enum Slot<'p> {
    Number(&'p mut i64),
    Text(&'p mut String),
    /// It does something of its own; the text is the reason why it could not.
    Act(Action<'p>),
}

/// Parameters that options set.
pub(crate) trait Target {
    /// Where the option of this key puts its value.
    fn slot(&mut self, key: &str) -> Slot<'_>;
}

/// What came of a command line.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// Lines that the original prints on its output.
    pub said: Vec<String>,
    /// What is worth knowing, of ours.
    pub notes: Vec<String>,
    /// Help is due.
    pub help: bool,
    /// Help is due because of an error.
    pub error: bool,
    /// An option without its value ended everything.
    pub fatal: bool,
}

/// Digits with a sign, and what follows them.
fn digits_and_rest(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let end = text
        .char_indices()
        .find(|(i, c)| !(c.is_ascii_digit() || *i == 0 && (*c == '-' || *c == '+')))
        .map_or(text.len(), |(i, _)| i);
    (&text[..end], text[end..].trim_start())
}

/// Powers of two of a suffix; None: it is none.
fn shift(suffix: &str) -> Option<u32> {
    match suffix.bytes().next()?.to_ascii_lowercase() {
        b'k' => Some(10),
        b'm' => Some(20),
        b'g' => Some(30),
        b't' => Some(40),
        b'p' => Some(50),
        _ => None,
    }
}

/// A number with a suffix, as the original reads it: what is no number is -1, and an unknown suffix counts for nothing.
pub(crate) fn number(text: &str) -> i64 {
    let (digits, rest) = digits_and_rest(text);
    let Ok(value) = digits.parse::<i64>() else {
        return -1;
    };
    value
        .checked_mul(1 << shift(rest).unwrap_or(0))
        .unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// What of a number the original passes over in silence.
fn passed_over(text: &str) -> Option<String> {
    let (digits, rest) = digits_and_rest(text);
    let known = "k, m, g, t and p are powers of 1024";
    let of = |suffix: &str| {
        let unit = suffix.to_ascii_lowercase();
        ["", "b", "ib"].iter().any(|end| unit[1..] == **end)
    };
    if digits.parse::<i64>().is_err() {
        return Some(format!(
            "'{text}' is no number: it counts as -1, as in the original"
        ));
    }
    match shift(rest) {
        None if rest.is_empty() => None,
        None => Some(format!(
            "'{rest}' of '{text}' is no suffix: it counts for nothing, as in the original; {known}"
        )),
        Some(_) if of(rest) => None,
        Some(_) => Some(format!(
            "of '{rest}' in '{text}' the first letter counts alone, as in the original; {known}"
        )),
    }
}

/// `atoi`: a number at the start, else 0.
pub(crate) fn atoi(text: &str) -> i64 {
    match text.trim_start().bytes().next() {
        Some(b) if b.is_ascii_digit() || b == b'-' || b == b'+' => {
            let digits = text.trim_start();
            let end = digits[1..]
                .find(|c: char| !c.is_ascii_digit())
                .map_or(digits.len(), |i| i + 1);
            digits[..end].parse().unwrap_or(0)
        }
        _ => 0,
    }
}

/// Reads a command line without the program's name.
pub(crate) fn parse(args: &[String], specs: &[Spec], target: &mut dyn Target) -> Parsed {
    let mut parsed = Parsed::default();
    let mut at = 0;
    while at < args.len() {
        let next = args.get(at + 1).map(String::as_str);
        let took_next = token(&args[at], next, specs, target, &mut parsed);
        if parsed.fatal {
            return parsed;
        }
        at += usize::from(took_next);
        if parsed.error {
            // The token that is named is the last one that was looked at, a value too.
            parsed.said.push(format!(
                "Error invalid argument: {}",
                args[at.min(args.len() - 1)]
            ));
        }
        at += 1;
    }
    if parsed.error {
        parsed.said.push("Invalid options".to_owned());
        parsed.help = true;
    }
    parsed
}

/// Reads `key=value` of a script or of `-O` as an option of this name. False when there is none.
pub(crate) fn directive(
    key: &str,
    value: &str,
    specs: &[Spec],
    target: &mut dyn Target,
) -> Result<(), Parsed> {
    let mut parsed = Parsed::default();
    let dashes = if key.starts_with('-') { "" } else { "--" };
    token(
        &format!("{dashes}{key}={value}"),
        None,
        specs,
        target,
        &mut parsed,
    );
    if parsed.error || parsed.fatal {
        Err(parsed)
    } else {
        Ok(())
    }
}

/// One token; true when it took the next one as its value.
fn token(
    text: &str,
    next: Option<&str>,
    specs: &[Spec],
    target: &mut dyn Target,
    parsed: &mut Parsed,
) -> bool {
    let (name, glued) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let Some(body) = name.strip_prefix('-') else {
        return wrong(text, specs, parsed);
    };
    if body == "h" || body == "-help" {
        parsed.help = true;
        return false;
    }
    if let Some(long) = body.strip_prefix('-') {
        let Some(spec) = specs.iter().find(|s| s.long == Some(long)) else {
            return wrong(text, specs, parsed);
        };
        return apply(spec, long, glued, next, target, parsed);
    }
    let mut known = false;
    for (i, letter) in body.char_indices() {
        let Some(spec) = specs.iter().find(|s| s.short == Some(letter)) else {
            // Letters that mean nothing are passed over where another one of the token means something.
            continue;
        };
        known = true;
        let rest = &body[i + letter.len_utf8()..];
        let takes = matches!(
            spec.kind,
            Kind::Int | Kind::Long | Kind::Text | Kind::Idle(true)
        );
        if takes && !rest.is_empty() {
            let value = &text[name.len() - rest.len()..];
            parsed.notes.push(format!(
                "{text}: '{value}' is the value of -{letter}; IOR would read its characters as flags too"
            ));
            return apply(spec, &letter.to_string(), Some(value), None, target, parsed);
        }
        let took = apply(spec, &letter.to_string(), glued, next, target, parsed);
        if takes || parsed.fatal {
            return took;
        }
    }
    if !known {
        return wrong(text, specs, parsed);
    }
    false
}

fn wrong(text: &str, specs: &[Spec], parsed: &mut Parsed) -> bool {
    if !parsed.error {
        let word = text.trim_start_matches('-');
        let word = word.split('=').next().unwrap_or(word);
        if let Some(name) = suggestion(word, specs) {
            parsed
                .notes
                .push(format!("{text} is no option; the nearest is {name}"));
        }
    }
    parsed.error = true;
    false
}

/// The nearest option, as it is written.
fn suggestion(word: &str, specs: &[Spec]) -> Option<String> {
    let names = specs.iter().flat_map(|s| [s.long.unwrap_or(""), s.key]);
    let name = nearest(word, names.filter(|n| !n.is_empty()))?;
    let spec = specs
        .iter()
        .find(|s| s.long == Some(name) || s.key == name)?;
    Some(match (spec.long, spec.short) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short} ({})", spec.key),
        (None, None) => format!("-O {}=...", spec.key),
    })
}

/// Gives an option its value; true when that was the next token.
fn apply(
    spec: &Spec,
    name: &str,
    glued: Option<&str>,
    next: Option<&str>,
    target: &mut dyn Target,
    parsed: &mut Parsed,
) -> bool {
    let mut took_next = false;
    let mut value = || match glued {
        Some("") => None,
        Some(value) => Some(value),
        None => {
            took_next = next.is_some();
            next
        }
    };
    match spec.kind {
        Kind::Flag => {
            if let Slot::Number(n) = target.slot(spec.key) {
                match glued.filter(|v| !v.is_empty()) {
                    Some(v) => *n = atoi(v).max(0),
                    None => *n += 1,
                }
            }
            return false;
        }
        Kind::Refused(why) => {
            parsed.notes.push(format!("-{name} is refused: {why}"));
            parsed.error = true;
            return false;
        }
        Kind::Idle(false) => {
            parsed
                .notes
                .push(format!("{name} has no effect here: {}", spec.help));
            return false;
        }
        Kind::Idle(true) => {
            if value().is_some() {
                parsed
                    .notes
                    .push(format!("{name} has no effect here: {}", spec.help));
                return took_next;
            }
        }
        Kind::Int | Kind::Long | Kind::Text => {
            if let Some(text) = value() {
                set(spec, text, target, parsed);
                return took_next;
            }
        }
    }
    let name = spec.long.map_or_else(|| name.to_owned(), str::to_owned);
    parsed
        .said
        .push(format!("Error, argument missing for option {name}"));
    parsed.fatal = true;
    false
}

fn set(spec: &Spec, text: &str, target: &mut dyn Target, parsed: &mut Parsed) {
    match target.slot(spec.key) {
        Slot::Number(n) => {
            *n = number(text);
            if let Some(what) = passed_over(text) {
                let name = spec
                    .short
                    .map_or(format!("--{}", spec.key), |c| format!("-{c}"));
                parsed.notes.push(format!("{name}: {what}"));
            }
            if spec.kind == Kind::Int && i32::try_from(*n).is_err() {
                parsed.said.push(format!(
                    "WARNING: parsing the number {text} to integer, this produced an overflow!"
                ));
                *n = i64::from(*n as i32);
            }
        }
        Slot::Text(t) => text.clone_into(t),
        Slot::Act(mut act) => {
            if let Err(why) = act(text) {
                parsed.said.push(why);
                parsed.fatal = true;
            }
        }
    }
}

/// The help of the original's form.
pub(crate) fn help(program: &str, specs: &[Spec], target: &mut dyn Target) -> String {
    let mut text = format!("Synopsis {program}\n");
    for (title, flags) in [("Flags", true), ("Optional arguments", false)] {
        text += &format!("\n{title}\n");
        for s in specs {
            let shown = match s.kind {
                Kind::Flag => flags,
                Kind::Int | Kind::Long | Kind::Text => !flags,
                Kind::Refused(_) | Kind::Idle(_) => false,
            };
            if !shown {
                continue;
            }
            let mut line = match (s.short, s.long) {
                (Some(c), Some(l)) => format!("-{c}, --{l}"),
                (Some(c), None) => format!("-{c}"),
                (None, Some(l)) => format!("--{l}"),
                (None, None) => continue,
            };
            match target.slot(s.key) {
                Slot::Number(n) if flags && *n != 0 => line += &format!(" ({n})"),
                Slot::Number(n) if !flags => line += &format!("={n} "),
                Slot::Text(t) if !t.is_empty() => line += &format!("={t}"),
                Slot::Text(_) | Slot::Act(_) => line += "=STRING",
                Slot::Number(_) => {}
            }
            text += &format!("  {line:<30}{}\n", s.help);
        }
    }
    text + "\n" + super::launch::OWN_HELP
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Any {
        numbers: BTreeMap<String, i64>,
        text: String,
    }

    impl Target for Any {
        fn slot(&mut self, key: &str) -> Slot<'_> {
            match key {
                "testFile" => Slot::Text(&mut self.text),
                key => Slot::Number(self.numbers.entry(key.to_owned()).or_default()),
            }
        }
    }

    const SPECS: [Spec; 9] = [
        spec("b", "", Kind::Long, "blockSize", ""),
        spec("D", "", Kind::Int, "deadline", ""),
        spec("F", "", Kind::Flag, "filePerProc", ""),
        spec("k", "", Kind::Flag, "keepFile", ""),
        spec("m", "", Kind::Flag, "multiFile", ""),
        spec("o", "", Kind::Text, "testFile", ""),
        spec("v", "verbose", Kind::Flag, "verbose", ""),
        spec("", "posix.odirect", Kind::Flag, "odirect", ""),
        spec(
            "P",
            "",
            Kind::Refused("there is no shared pointer"),
            "P",
            "",
        ),
    ];

    fn parse_line(line: &str) -> (Any, Parsed) {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut any = Any::default();
        let parsed = parse(&args, &SPECS, &mut any);
        (any, parsed)
    }

    #[test]
    fn values_come_by_equals_sign_or_by_the_next_token_with_suffixes() {
        let (any, parsed) = parse_line("-b 4k -D=1k -o /f -Fk --verbose -v -v=7");
        assert!(!parsed.error && parsed.notes.is_empty());
        assert_eq!(any.numbers["blockSize"], 4096);
        assert_eq!(any.numbers["deadline"], 1024);
        assert_eq!(
            (any.numbers["filePerProc"], any.numbers["keepFile"]),
            (1, 1)
        );
        assert_eq!(any.numbers["verbose"], 7);
        assert_eq!(any.text, "/f");
        assert_eq!(number("12t"), 12 << 40);
        assert_eq!(number("x"), -1);
        assert_eq!(number("3z"), 3);
    }

    #[test]
    fn what_is_passed_over_in_a_number_is_told() {
        for fine in ["4k", "4 M", "1MiB", "2gb", "-1", "+3"] {
            assert_eq!(passed_over(fine), None, "{fine}");
        }
        for (odd, says) in [
            ("10x", "'x' of '10x' is no suffix"),
            ("1k3", "the first letter counts alone"),
            ("4kx", "the first letter counts alone"),
            ("1mö", "the first letter counts alone"),
            ("ö", "is no number"),
            ("x", "'x' is no number: it counts as -1"),
        ] {
            assert!(passed_over(odd).unwrap().contains(says), "{odd}");
        }
        let (any, parsed) = parse_line("-b 10x -D 2k");
        assert_eq!(
            (any.numbers["blockSize"], any.numbers["deadline"]),
            (10, 2048)
        );
        assert_eq!(parsed.notes.len(), 1, "{:?}", parsed.notes);
        assert!(parsed.notes[0].starts_with("-b: 'x'"), "{:?}", parsed.notes);
    }

    #[test]
    fn glued_values_are_values_with_a_note() {
        let (any, parsed) = parse_line("-b4k -oDIR/mbr -Fo x");
        assert_eq!(any.numbers["blockSize"], 4096);
        assert!(!any.numbers.contains_key("keepFile"));
        assert!(!any.numbers.contains_key("multiFile"));
        assert_eq!(any.text, "x");
        assert_eq!(parsed.notes.len(), 2, "{:?}", parsed.notes);
        let (any, _) = parse_line("-oDIR/a=b");
        assert_eq!(any.text, "DIR/a=b");
    }

    #[test]
    fn an_error_sticks() {
        let (_, parsed) = parse_line("-F --filePerProcs -b 4k -k");
        let errors = parsed
            .said
            .iter()
            .filter(|s| s.starts_with("Error invalid argument"));
        assert_eq!(
            errors.collect::<Vec<_>>(),
            [
                "Error invalid argument: --filePerProcs",
                "Error invalid argument: 4k",
                "Error invalid argument: -k"
            ]
        );
        assert!(parsed.help && parsed.error);
        assert!(
            parsed.notes[0].contains("nearest is -F (filePerProc)"),
            "{:?}",
            parsed.notes
        );
    }

    #[test]
    fn what_is_missing_or_refused_says_so() {
        let (_, parsed) = parse_line("-F -b");
        assert!(parsed.fatal);
        assert_eq!(parsed.said, ["Error, argument missing for option b"]);
        let (_, parsed) = parse_line("-P");
        assert!(parsed.error && parsed.notes[0].contains("shared pointer"));
        let (_, parsed) = parse_line("-D 3g");
        assert!(parsed.said[0].starts_with("WARNING: parsing the number 3g"));
    }
}
