//! What the options mean for one rank. Their order matters: some are checked against the operation named before them.

use std::fmt::Write as _;
use std::fs;

/// Operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Create,
    Lookup,
    Mknod,
    Open,
    Stat,
    Unlink,
    SetXattr,
}

const MODES: [(char, Mode, &str); 6] = [
    ('c', Mode::Create, "create"),
    ('l', Mode::Lookup, "lookup"),
    ('m', Mode::Mknod, "mknod"),
    ('o', Mode::Open, "open"),
    ('s', Mode::Stat, "stat"),
    ('u', Mode::Unlink, "unlink"),
];

/// Numbers are 32 bits wide in the original.
const INT_MAX: i64 = i32::MAX as i64;

/// Why the options are no good.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Usage follows.
    Usage(String),
    /// Said by rank 0.
    Fatal(String),
    /// Of this rank alone.
    Mine(String),
}

impl Wrong {
    /// The reason.
    pub(super) fn why(self) -> String {
        match self {
            Wrong::Usage(why) | Wrong::Fatal(why) | Wrong::Mine(why) => why,
        }
    }
}

/// What one rank is to do.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub mode: Mode,
    pub name: &'static str,
    pub exclusive: bool,
    pub with_xattr: bool,
    pub small_write: bool,
    pub recreate: bool,
    pub ignore: bool,
    pub verbose: bool,
    pub debug: bool,
    pub readdir_order: bool,
    /// Name of a file, with a place for its number.
    pub file_format: String,
    pub nfiles: i64,
    pub iters: i64,
    pub seconds: i64,
    pub seed: Option<u32>,
    /// Numbers of this rank: from, to, step.
    pub begin: i64,
    pub end: i64,
    pub step: i64,
    pub ndirs: i64,
    /// The directory, or "." where none was named.
    pub dir: String,
    pub has_dir: bool,
    pub mdt_count: i64,
}

/// The options before they are put together.
#[derive(Default)]
struct Read {
    mode: Option<(Mode, &'static str)>,
    no_exclusive: bool,
    with_xattr: bool,
    small_write: bool,
    recreate: bool,
    ignore: bool,
    verbose: bool,
    debug: bool,
    readdir_order: bool,
    begin: i64,
    iters: i64,
    seconds: i64,
    nfiles: i64,
    ndirs: Option<i64>,
    dir_format: Option<String>,
    file_format: Option<String>,
    seed: Option<u32>,
    mount_format: Option<String>,
    mount_count: Option<i64>,
    mdt_count: Option<i64>,
}

impl Settings {
    /// For rank `rank` of `size`.
    pub(super) fn of(
        options: &[(char, Option<String>)],
        rank: u32,
        size: u32,
    ) -> Result<Settings, Wrong> {
        let mut read = Read::default();
        for (letter, value) in options {
            read.option(*letter, value.as_deref().unwrap_or(""), rank, size)?;
        }
        read.settle(i64::from(rank), i64::from(size))
    }
}

impl Read {
    fn is(&self, modes: &[Mode]) -> bool {
        self.mode.is_some_and(|(m, _)| modes.contains(&m))
    }

    fn option(&mut self, letter: char, value: &str, rank: u32, size: u32) -> Result<(), Wrong> {
        let usage = |text: &str| Err(Wrong::Usage(text.to_owned()));
        if let Some((_, mode, name)) = MODES.iter().find(|m| m.0 == letter) {
            if self.mode.is_some() {
                return Err(Wrong::Fatal(format!(
                    "Invalid - more than one operation specified: --{name}"
                )));
            }
            self.mode = Some((*mode, name));
            return Ok(());
        }
        match letter {
            'X' if !self.is(&[Mode::Create, Mode::Mknod]) => {
                return usage("--noexcl only applies to --create or --mknod.");
            }
            'X' => self.no_exclusive = true,
            'C' if !self.is(&[Mode::Unlink]) => {
                return usage("--recreate only makes sense with --unlink.");
            }
            'C' => self.recreate = true,
            'x' if self.mode.is_none() => self.mode = Some((Mode::SetXattr, "setxattr")),
            'x' if self.is(&[Mode::Create, Mode::Mknod]) => self.with_xattr = true,
            'x' => return usage("--setxattr only makes sense with --create, --mknod or alone."),
            'w' if !self.is(&[Mode::Create]) => {
                return usage("--smallwrite only applies to --create.");
            }
            'w' => self.small_write = true,
            'i' => {
                self.iters = number(value, 1, "iters")?;
                if !self.is(&[Mode::Lookup, Mode::Open]) {
                    return usage("--iters only makes sense with --lookup or --open.");
                }
            }
            'A' | 'B' if !self.is(&[Mode::Lookup, Mode::Open]) => {
                let name = if letter == 'A' {
                    "random_order"
                } else {
                    "readdir_order"
                };
                return Err(Wrong::Fatal(format!(
                    "--{name} can only be specified with --lookup, or --open."
                )));
            }
            'A' => self.readdir_order = false,
            'B' => self.readdir_order = true,
            'D' => {
                let ndirs = number(value, 1, "ndirs")?;
                if ndirs > i64::from(size) && self.is(&[Mode::Create, Mode::Mknod]) {
                    return Err(Wrong::Fatal(format!(
                        "--ndirs={ndirs} must be less than or equal to the number of threads ({size})."
                    )));
                }
                self.ndirs = Some(ndirs);
            }
            'S' if number(value, 0, "stripes")? != 0 => {
                return Err(Wrong::Fatal(
                    "non-zero --stripes value not yet supported.".to_owned(),
                ));
            }
            'S' => {}
            'f' => self.file_format = Some(print(value, i64::from(rank), "filefmt")?),
            'R' => self.seed = Some(seed_of_file(value, rank)?),
            _ => self.plain(letter, value)?,
        }
        Ok(())
    }

    /// Options that are right whatever came before.
    fn plain(&mut self, letter: char, value: &str) -> Result<(), Wrong> {
        match letter {
            'b' => self.begin = number(value, 0, "begin")?,
            't' => self.seconds = number(value, 1, "time")?,
            'F' => self.nfiles = number(value, 1, "nfiles")?,
            'd' => self.dir_format = Some(value.to_owned()),
            'r' => {
                let seed = integer(value)
                    .ok_or_else(|| Wrong::Fatal(format!("bad --seed option {value}")))?;
                self.seed = Some(seed as u32).filter(|s| *s != 0);
            }
            'E' => self.ignore = true,
            'v' => (self.debug, self.verbose) = (true, true),
            'V' => self.verbose = true,
            'M' => self.mount_format = Some(value.to_owned()),
            'N' => self.mount_count = Some(number(value, 1, "mnt_count")?),
            'T' => self.mdt_count = Some(number(value, 1, "mdt_count")?),
            _ => {}
        }
        Ok(())
    }

    fn settle(mut self, rank: i64, size: i64) -> Result<Settings, Wrong> {
        let usage = |text: String| Err(Wrong::Usage(text));
        if self.mount_count.is_some() != self.mount_format.is_some() {
            return usage("mnt_count and mntfmt must be specified at the same time".to_owned());
        }
        let Some((mode, name)) = self.mode else {
            return usage(
                "one --create, --mknod, --open, --stat, --lookup, --unlink or --setxattr must be specifed.".to_owned(),
            );
        };
        if matches!(mode, Mode::Lookup | Mode::Open) {
            if self.seconds == 0 && self.iters == 0 {
                return usage(format!("--iters or --time must be specifed with {name}."));
            }
            if self.iters == 0 {
                self.iters = INT_MAX;
            }
            if self.nfiles == 0 {
                return usage(format!("--nfiles must be specifed with --{name}."));
            }
        } else if self.nfiles == 0 {
            if self.seconds == 0 {
                return usage(format!("--nfiles or --time must be specified with {name}."));
            }
            self.nfiles = INT_MAX;
        }
        let ndirs = self.ndirs.unwrap_or(1);
        let dirnum = rank % ndirs;
        let mut step = size / ndirs;
        if size > ndirs * step + dirnum {
            step += 1;
        }
        let step = step.max(1);
        let offset = rank / ndirs;
        let most = (self.begin + self.nfiles - 1).min(INT_MAX);
        let most = if most <= 0 { INT_MAX } else { most };
        let mut end = self.begin + self.nfiles / step * step + offset;
        if end > most {
            end -= step;
        }
        let (dir, has_dir) = self.directory(rank, size, dirnum)?;
        Ok(Settings {
            mode,
            name,
            exclusive: mode != Mode::Open && !self.no_exclusive,
            with_xattr: self.with_xattr,
            small_write: self.small_write,
            recreate: self.recreate,
            ignore: self.ignore,
            verbose: self.verbose,
            debug: self.debug,
            readdir_order: self.readdir_order,
            file_format: self.file_format.unwrap_or_else(|| "f%d".to_owned()),
            nfiles: self.nfiles,
            iters: self.iters,
            seconds: self.seconds,
            seed: self.seed,
            begin: self.begin + offset,
            end,
            step,
            ndirs,
            dir,
            has_dir,
            mdt_count: self.mdt_count.unwrap_or(1),
        })
    }

    fn directory(&self, rank: i64, size: i64, dirnum: i64) -> Result<(String, bool), Wrong> {
        let Some(format) = &self.dir_format else {
            return Ok((".".to_owned(), false));
        };
        let mut dir = String::new();
        if let (Some(mount), Some(count)) = (&self.mount_format, self.mount_count) {
            let each = (size / count.min(size)).max(1);
            dir = print(mount, rank / each, "mntfmt")? + "/";
        }
        Ok((dir + &print(format, dirnum, "dirfmt")?, true))
    }
}

fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    // strtol with base 0
    let value = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(hex) => i64::from_str_radix(hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(&digits[1..], 8),
        None => digits.parse(),
    };
    value.ok().map(|v| sign * v)
}

fn number(text: &str, least: i64, name: &str) -> Result<i64, Wrong> {
    integer(text)
        .filter(|n| (least..=INT_MAX).contains(n))
        .ok_or_else(|| Wrong::Fatal(format!("Invalid --{name} value {text}.")))
}

fn seed_of_file(path: &str, rank: u32) -> Result<u32, Wrong> {
    let text =
        fs::read_to_string(path).map_err(|e| Wrong::Mine(format!("fopen({path}) error: {e}")))?;
    let Some(line) = text.lines().nth(rank as usize) else {
        return Err(Wrong::Mine(format!(
            "File '{path}' too short. Does not contain a seed for thread {rank}."
        )));
    };
    match line.trim().parse::<u32>() {
        Ok(seed) if i64::from(seed) <= INT_MAX => Ok(seed),
        _ => Err(Wrong::Mine(format!(
            "Invalid seed value '{line}' at line {rank} in {path}."
        ))),
    }
}

/// `sprintf(format, number)`: %d with a width, and %%. Other conversions would read what is not there.
pub(super) fn print(format: &str, number: i64, option: &str) -> Result<String, Wrong> {
    let mut text = String::new();
    print_to(&mut text, format, number, option).map(|()| text)
}

/// The same, behind what `text` has.
pub(super) fn print_to(
    text: &mut String,
    format: &str,
    number: i64,
    option: &str,
) -> Result<(), Wrong> {
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        *text += before;
        let digits = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len());
        let (width, kind) = (&after[..digits], after[digits..].chars().next());
        let pad = width.starts_with('0');
        let wide: usize = width.parse().unwrap_or(0).min(64);
        match kind {
            Some('%') if width.is_empty() => text.push('%'),
            Some('d' | 'i' | 'u') => {
                // a String takes all that is written
                let _ = match pad {
                    true => write!(text, "{number:0wide$}"),
                    false => write!(text, "{number:wide$}"),
                };
            }
            _ => {
                return Err(Wrong::Fatal(format!(
                    "--{option} '{format}' may have %d, a width as in %05d, and %% only"
                )));
            }
        }
        rest = &after[digits + 1..];
    }
    *text += rest;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::getopt;

    fn of(line: &str, rank: u32, size: u32) -> Result<Settings, Wrong> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let options = getopt::parse(&args, &super::super::OPTS).options;
        let options: Vec<_> = options.into_iter().map(|o| o.expect("an option")).collect();
        Settings::of(&options, rank, size)
    }

    #[test]
    fn the_order_of_options_matters_as_in_the_original() {
        assert!(of("--ndirs 8 --create --nfiles 5", 0, 4).is_ok());
        assert!(matches!(
            of("--create --ndirs 8 --nfiles 5", 0, 4),
            Err(Wrong::Fatal(_))
        ));
        assert!(matches!(
            of("--noexcl --create --nfiles 5", 0, 4),
            Err(Wrong::Usage(_))
        ));
        assert!(of("--create --noexcl --nfiles 5", 0, 4).is_ok());
        assert!(of("--create --mknod --nfiles 5", 0, 4).is_err());
        assert!(of("--create", 0, 4).is_err());
        assert!(of("--open --nfiles 5", 0, 4).is_err());
    }

    #[test]
    fn files_of_a_directory_are_dealt_to_its_threads() {
        // 4 ranks on 2 directories, 400 files each
        let numbers = |rank| {
            let s = of("--mknod --nfiles 400 --ndirs 2 --dirfmt /x/d%d", rank, 4).expect("fine");
            (
                s.dir.clone(),
                (s.begin..=s.end)
                    .step_by(s.step as usize)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(numbers(0).0, "/x/d0");
        assert_eq!(numbers(3).0, "/x/d1");
        let mut all = [numbers(0).1, numbers(2).1].concat();
        all.sort_unstable();
        assert_eq!(all, (0..400).collect::<Vec<_>>());
        // a number of files that the threads do not divide
        let mut odd: Vec<i64> = (0..4)
            .flat_map(|rank| {
                let s = of("--mknod --nfiles 10", rank, 4).expect("fine");
                (s.begin..=s.end).step_by(s.step as usize)
            })
            .collect();
        odd.sort_unstable();
        assert_eq!(odd, (0..10).collect::<Vec<_>>());
        let s = of("--mknod --time 1", 1, 2).expect("fine");
        assert_eq!((s.begin, s.step), (1, 2));
    }

    #[test]
    fn mounts_are_dealt_in_blocks() {
        let dir = |rank| {
            of(
                "--mknod --nfiles 1 --mntfmt /m%d --mntcount 2 --dirfmt d%d --ndirs 1",
                rank,
                4,
            )
            .expect("fine")
            .dir
        };
        assert_eq!(
            [dir(0), dir(1), dir(2), dir(3)],
            ["/m0/d0", "/m0/d0", "/m1/d0", "/m1/d0"]
        );
        assert!(of("--mknod --nfiles 1 --mntcount 2", 0, 4).is_err());
    }

    #[test]
    fn formats_are_printed_twice() {
        assert_eq!(print("f%%d-%d", 3, "filefmt"), Ok("f%d-3".to_owned()));
        assert_eq!(print("f%05d", 42, "filefmt"), Ok("f00042".to_owned()));
        assert!(print("%s", 1, "filefmt").is_err());
        assert!(print("%", 1, "filefmt").is_err());
    }
}
