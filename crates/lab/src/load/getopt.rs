//! Options as getopt_long reads them, for mib and mdsrate: short letters in groups, long names that may be cut short as
//! long as they are told from others, and words that are no options at the end.

use super::nearest::nearest;

/// Whether an option takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    Value,
    /// Only glued to it, or after `=`.
    Perhaps,
}

/// An option: its long name, its letter, whether it takes a value.
pub(crate) type Opt = (&'static str, char, Takes);

/// What was found, in order, and the words that are no options; or what is wrong with a word.
pub(crate) struct Found {
    pub options: Vec<Result<(char, Option<String>), String>>,
    pub words: Vec<String>,
}

/// Reads a command line without the program's name.
pub(crate) fn parse(args: &[String], opts: &[Opt]) -> Found {
    let mut found = Found {
        options: Vec::new(),
        words: Vec::new(),
    };
    let mut at = 0;
    while at < args.len() {
        let arg = &args[at];
        at += 1;
        if arg == "--" {
            found.words.extend(args[at..].iter().cloned());
            break;
        }
        if let Some(long) = arg.strip_prefix("--") {
            found
                .options
                .push(long_option(long, args.get(at), opts, &mut at));
        } else if arg.len() > 1 && arg.starts_with('-') {
            letters(&arg[1..], args.get(at), opts, &mut at, &mut found);
        } else {
            found.words.push(arg.clone());
        }
    }
    found
}

fn long_option(
    text: &str,
    next: Option<&String>,
    opts: &[Opt],
    at: &mut usize,
) -> Result<(char, Option<String>), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let exact = opts.iter().find(|o| o.0 == name);
    let near: Vec<&Opt> = opts.iter().filter(|o| o.0.starts_with(name)).collect();
    let &(name, letter, takes) = match (exact, &near[..]) {
        (Some(opt), _) => opt,
        (None, [opt]) => *opt,
        (None, []) => {
            let hint = nearest(name, opts.iter().map(|o| o.0));
            let hint = hint.map_or_else(String::new, |n| format!("; the nearest is --{n}"));
            return Err(format!("unrecognized option '--{name}'{hint}"));
        }
        (None, several) => {
            let names: Vec<String> = several.iter().map(|o| format!("'--{}'", o.0)).collect();
            return Err(format!(
                "option '--{name}' is ambiguous; possibilities: {}",
                names.join(" ")
            ));
        }
    };
    match (takes, value, next) {
        (Takes::Nothing, None, _) => Ok((letter, None)),
        (Takes::Nothing, Some(_), _) => Err(format!("option '--{name}' doesn't allow an argument")),
        (Takes::Perhaps, value, _) => Ok((letter, value)),
        (Takes::Value, Some(value), _) => Ok((letter, Some(value))),
        (Takes::Value, None, Some(next)) => {
            *at += 1;
            Ok((letter, Some(next.clone())))
        }
        (Takes::Value, None, None) => Err(format!("option '--{name}' requires an argument")),
    }
}

fn letters(group: &str, next: Option<&String>, opts: &[Opt], at: &mut usize, found: &mut Found) {
    for (i, letter) in group.char_indices() {
        let Some(&(_, _, takes)) = opts.iter().find(|o| o.1 == letter) else {
            found
                .options
                .push(Err(format!("invalid option -- '{letter}'")));
            continue;
        };
        let rest = &group[i + letter.len_utf8()..];
        let option = match (takes, rest.is_empty()) {
            (Takes::Nothing, _) => {
                found.options.push(Ok((letter, None)));
                continue;
            }
            (_, false) => Ok((letter, Some(rest.to_owned()))),
            (Takes::Perhaps, true) => Ok((letter, None)),
            (Takes::Value, true) => match next {
                Some(value) => {
                    *at += 1;
                    Ok((letter, Some(value.clone())))
                }
                None => Err(format!("option requires an argument -- '{letter}'")),
            },
        };
        found.options.push(option);
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTS: [Opt; 5] = [
        ("dirfmt", 'd', Takes::Value),
        ("ndirs", 'D', Takes::Value),
        ("debug", 'v', Takes::Nothing),
        ("random_reads", 'b', Takes::Perhaps),
        ("new", 'n', Takes::Nothing),
    ];

    fn read(line: &str) -> Found {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&args, &OPTS)
    }

    #[test]
    fn names_may_be_cut_short_and_letters_grouped() {
        let some = |s: &str| Some(s.to_owned());
        let Found { options, words } = read("--dir /x word -nb4 --nd=3 -D 2 --random_reads -v");
        let expected = [
            ('d', some("/x")),
            ('n', None),
            ('b', some("4")),
            ('D', some("3")),
            ('D', some("2")),
            ('b', None),
            ('v', None),
        ];
        assert_eq!(
            options
                .into_iter()
                .map(|o| o.expect("fine"))
                .collect::<Vec<_>>(),
            expected
        );
        assert_eq!(words, ["word"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |line| read(line).options.remove(0).expect_err(line);
        assert!(wrong("--d x").contains("ambiguous"));
        assert!(wrong("--ndirx 3").contains("nearest is --ndirs"));
        assert!(wrong("--ndirs").contains("requires an argument"));
        assert!(wrong("-x").contains("invalid option"));
        assert!(wrong("--new=1").contains("doesn't allow"));
    }
}
