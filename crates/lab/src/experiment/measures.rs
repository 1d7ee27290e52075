//! Which measures an experiment can have, before anything runs: those that the parsers of its roles give, and its sums.

use super::nearest::unknown;
use super::spec::{Figure, FigureKind, Spec, SpecError, wrong};

/// Measures that a parser can give, each with its unit. None: any name, as a program of one's own prints it.
fn of_parser(parser: &str) -> Option<Vec<(String, &'static str)>> {
    let rates = |all: &[&str]| Some(all.iter().map(|m| ((*m).to_owned(), "1/s")).collect());
    let both = |endings: &[(&str, &'static str)]| {
        let of = |op| (endings.iter()).map(move |(e, unit)| (format!("{op}{e}"), *unit));
        Some(["write", "read"].into_iter().flat_map(of).collect())
    };
    match parser {
        "ior" => both(&[
            ("", "MiB/s"),
            ("_iops", "1/s"),
            ("_open_s", "s"),
            ("_rdwr_s", "s"),
            ("_close_s", "s"),
            ("_total_s", "s"),
            ("_iterations", "1"),
        ]),
        "mdtest" => rates(&[
            "directory_creation",
            "directory_stat",
            "directory_rename",
            "directory_removal",
            "file_creation",
            "file_stat",
            "file_read",
            "file_removal",
            "tree_creation",
            "tree_removal",
        ]),
        "mdsrate" => rates(&["eff", "aggr", "client"]),
        "mib" => both(&[("", "MiB/s")]),
        "fio" => both(&[
            ("", "MiB/s"),
            ("_iops", "1/s"),
            ("_clat_mean_us", "us"),
            ("_clat_p50_us", "us"),
            ("_clat_p99_us", "us"),
            ("_clat_p50_slowest_job_us", "us"),
            ("_clat_p99_slowest_job_us", "us"),
        ]),
        "none" => Some(vec![]),
        _ => None,
    }
}

/// Every measure that is asked for is one that a role gives, or a sum.
pub(super) fn check_measures(spec: &Spec) -> Result<(), SpecError> {
    for (name, parts) in &spec.sums {
        for part in parts {
            let part = part.trim_end_matches('?');
            if !part.contains('/') {
                return wrong(format!(
                    "[sums] {name}: '{part}' is no measure of a role: give ROLE/MEASURE"
                ));
            }
            known(spec, "[sums]", part)?;
        }
        one_unit(spec, name, parts)?;
    }
    for f in &spec.figures {
        for y in &f.y {
            right_unit(spec, f, y)?;
            match f.kind {
                // Series of the collectors are known when they have been sampled.
                FigureKind::Time => {}
                // So are the phases of a load generator's record.
                FigureKind::Cdf => known_role(spec, "[[figures]] y", y).map(|_| ())?,
                FigureKind::Lines | FigureKind::Bars => known(spec, "[[figures]] y", y)?,
            }
        }
    }
    let published = spec.published.iter().map(|p| p.measure.as_str());
    for measure in published.filter(|m| !m.is_empty()) {
        known(spec, "[[published]] measure", measure)?;
    }
    Ok(())
}

/// Figures of different units have no sum. Units that only the programs themselves know are compared when they have run.
fn one_unit(spec: &Spec, sum: &str, parts: &[String]) -> Result<(), SpecError> {
    let mut first: Option<(&str, &str)> = None;
    for part in parts.iter().map(|p| p.trim_end_matches('?')) {
        for unit in units(spec, part) {
            let (other, of_other) = *first.get_or_insert((part, unit));
            if of_other != unit {
                return wrong(format!(
                    "[sums] {sum}: '{other}' is in {of_other} and '{part}' is in {unit}: figures of different units cannot be added up"
                ));
            }
        }
    }
    Ok(())
}

/// Whether a figure may call what it draws so: nothing is converted but by `scale`, of what is sampled.
pub(crate) fn is_unit(of: &str, called: &str) -> bool {
    let same = |unit: &str| match unit {
        "core-s/s" | "of a core" => "cores".to_owned(),
        unit => unit.to_owned(),
    };
    // What is counted has a name: files/s.
    let counts = |unit: &str| {
        let is_size = |w: &str| w.starts_with("bit") || w.starts_with("byte");
        let is_name = |w: &str| w.len() > 2 && w.chars().all(|c| c.is_ascii_lowercase());
        unit == "IOPS" || (unit.strip_suffix("/s")).is_some_and(|w| is_name(w) && !is_size(w))
    };
    same(of) == same(called) || (of == "1/s" && counts(called))
}

/// A figure is not called by another unit than what it shows has.
fn right_unit(spec: &Spec, f: &Figure, y: &str) -> Result<(), SpecError> {
    let known = match f.kind {
        // Known when they have been sampled.
        FigureKind::Time => vec![],
        FigureKind::Cdf => vec!["us"],
        FigureKind::Lines | FigureKind::Bars => match spec.sums.get(y) {
            Some(parts) => (parts.iter())
                .flat_map(|p| units(spec, p.trim_end_matches('?')))
                .collect(),
            None => units(spec, y),
        },
    };
    match known.iter().find(|u| !is_unit(u, &f.unit)) {
        Some(unit) if !f.unit.is_empty() => wrong(format!(
            "[[figures]] '{}': '{y}' is in {unit}, not in {}: give unit = \"{unit}\"",
            f.title, f.unit
        )),
        _ => Ok(()),
    }
}

/// The units of ROLE/MEASURE, as far as they are known.
fn units(spec: &Spec, name: &str) -> Vec<&'static str> {
    let Some((role, measure)) = name.split_once('/') else {
        return vec![];
    };
    let of = spec.roles.iter().filter(|r| r.name == role);
    let all = of.filter_map(|r| of_parser(&r.parser)).flatten();
    all.filter(|(m, _)| m == measure).map(|(_, u)| u).collect()
}

fn known(spec: &Spec, place: &str, name: &str) -> Result<(), SpecError> {
    let Some((role, measure)) = name.split_once('/') else {
        let sums: Vec<&str> = spec.sums.keys().map(String::as_str).collect();
        return match sums.contains(&name) {
            true => Ok(()),
            false if sums.is_empty() => wrong(format!(
                "{place}: '{name}' is neither ROLE/MEASURE nor the name of a sum: there are no [sums]"
            )),
            false => wrong(format!("{place}: {}", unknown("sum", name, &sums))),
        };
    };
    let parsers = known_role(spec, place, name)?;
    // Roles of different points may have one name and different parsers.
    let mut all = vec![];
    for parser in &parsers {
        match of_parser(parser) {
            Some(more) => all.extend(more),
            None => return Ok(()),
        }
    }
    if all.is_empty() {
        return wrong(format!(
            "{place}: '{name}': the role '{role}' has the parser 'none', which reads no measures: give it `parser`"
        ));
    }
    match all.iter().any(|(m, _)| m == measure) {
        true => Ok(()),
        false => {
            let all: Vec<&str> = all.iter().map(|(m, _)| m.as_str()).collect();
            let what = format!("measure of the role '{role}'");
            wrong(format!("{place}: {}", unknown(&what, measure, &all)))
        }
    }
}

/// The parsers of the roles with the name in ROLE/MEASURE.
fn known_role<'a>(spec: &'a Spec, place: &str, name: &str) -> Result<Vec<&'a str>, SpecError> {
    let word = name.split_once('/').map_or(name, |(role, _)| role);
    let of = spec.roles.iter().filter(|r| r.name == word);
    let parsers: Vec<&str> = of.map(|r| r.parser.as_str()).collect();
    match parsers.is_empty() {
        false => Ok(parsers),
        true if is_collector(spec, word) => wrong(format!(
            "{place}: '{name}' is sampled, and no measure of a role: a figure of kind \"time\" draws it"
        )),
        true => {
            let roles: Vec<&str> = spec.roles.iter().map(|r| r.name.as_str()).collect();
            wrong(format!("{place}: {}", unknown("role", word, &roles)))
        }
    }
}

/// Whether series are called by this name.
fn is_collector(spec: &Spec, word: &str) -> bool {
    let elsewhere = spec.hosts.iter().map(|h| &h.name);
    let mut named = elsewhere.chain(spec.sar.iter().map(|s| &s.name));
    ["host", "proc", "lustre"].contains(&word) || named.any(|n| n == word)
}

#[cfg(test)]
mod tests {
    use super::super::parse::{PARSERS, parse};
    use super::super::spec::load;
    use super::*;

    /// Of what the originals print, and of what fio does, everything that is read has a name that is known before.
    #[test]
    fn what_parsers_give_is_known_before() {
        let golden = |file: &str| {
            let file = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(file).unwrap()
        };
        let fio = r#"{"jobs":[{"read":{"total_ios":2,"bw_bytes":8192,"iops":2,"clat_ns":{"mean":5,
            "percentile":{"50.000000":5,"99.000000":9}}},"write":{"total_ios":0}}]}"#;
        for (parser, text) in [
            ("ior", golden("ior_default.txt")),
            ("mdtest", golden("mdtest.txt")),
            ("mdsrate", golden("mdsrate.txt")),
            ("mib", golden("mib.txt")),
            ("fio", fio.to_owned()),
            ("fio", fio.replace("[{", "[{\"read\":{\"total_ios\":0}},{")),
        ] {
            let known = of_parser(parser).unwrap();
            let given = parse(parser, &text).unwrap();
            assert!(!given.is_empty(), "{parser}");
            for m in given {
                let is = |(name, unit): &(String, &str)| *name == m.name && *unit == m.unit;
                assert!(known.iter().any(is), "{parser}: {} in {}", m.name, m.unit);
            }
        }
        for parser in PARSERS {
            assert_eq!(of_parser(parser).is_none(), *parser == "json", "{parser}");
        }
    }

    #[test]
    fn a_measure_that_nobody_gives_is_refused() {
        let text = |more: &str| {
            format!(
                "name='x'\n[parameters]\na=[1,2]\n[[roles]]\nname='w'\nparser='ior'\ncommand=['true']\n[[roles]]\nname='own'\nparser='json'\ncommand=['true']\n[[roles]]\nname='mute'\ncommand=['true']\n{more}"
            )
        };
        let figure = |kind: &str, y: &str| {
            format!("[[figures]]\ntitle='t'\nkind='{kind}'\nx='a'\ny=['{y}']\n")
        };
        let published = |m: &str| format!("[[published]]\nwhat='w'\nvalue='1'\nmeasure='{m}'\n");
        for fine in [
            figure("lines", "w/write"),
            figure("bars", "own/anything"),
            figure("time", "host/cpu_busy"),
            figure("cdf", "w/write"),
            published("w/read_iops"),
            figure("lines", "w/write") + "unit='MiB/s'\n",
            figure("lines", "w/write_iops") + "unit='writes/s'\n",
            figure("lines", "w/write_iops") + "unit='ops/s'\n",
            figure("lines", "w/write_iops") + "unit='IOPS'\n",
            figure("lines", "own/anything") + "unit='apples'\n",
            figure("cdf", "w/write") + "unit='us'\n",
            "[sums]\nall=['w/write','own/x?']\n".to_owned() + &figure("lines", "all"),
        ] {
            load(&text(&fine), None).unwrap();
        }
        for (wrong, says) in [
            (
                figure("lines", "w/wirte"),
                "[[figures]] y: unknown measure of the role 'w' 'wirte'; did you mean 'write'?",
            ),
            (
                figure("lines", "w/write") + "unit='MB/s'\n",
                "[[figures]] 't': 'w/write' is in MiB/s, not in MB/s: give unit = \"MiB/s\"",
            ),
            (
                figure("bars", "w/write_iops") + "unit='bytes/s'\n",
                "'w/write_iops' is in 1/s",
            ),
            (
                figure("cdf", "w/write") + "unit='ms'\n",
                "is in us, not in ms",
            ),
            (
                "[sums]\nall=['w/write','w/read?']\n".to_owned()
                    + &figure("lines", "all")
                    + "unit='GiB/s'\n",
                "'all' is in MiB/s",
            ),
            (figure("lines", "mute/write"), "has the parser 'none'"),
            (figure("lines", "write"), "there are no [sums]"),
            (
                figure("cdf", "v/write"),
                "unknown role 'v'; known: w, own, mute",
            ),
            (
                figure("bars", "host/cpu_busy"),
                "'host/cpu_busy' is sampled, and no measure of a role: a figure of kind \"time\" draws it",
            ),
            (published("w/eff"), "unknown measure of the role 'w' 'eff'"),
            (
                "[sums]\nall=['w/raed?']\n".to_owned(),
                "[sums]: unknown measure of the role 'w' 'raed'; did you mean 'read'?",
            ),
            ("[sums]\nall=['w']\n".to_owned(), "give ROLE/MEASURE"),
            (
                "[sums]\nall=['own/x', 'w/write', 'w/read_iops?']\n".to_owned(),
                "[sums] all: 'w/write' is in MiB/s and 'w/read_iops' is in 1/s: figures of different units cannot be added up",
            ),
            (
                "[sums]\nall=['w/write']\n".to_owned() + &published("al"),
                "unknown sum 'al'; did you mean 'all'?",
            ),
        ] {
            let said = load(&text(&wrong), None).unwrap_err().to_string();
            assert!(said.contains(says), "{wrong}: {said}");
        }
    }
}
