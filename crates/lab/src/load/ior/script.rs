//! Script files: `key=value` lines between `IOR START` and `IOR STOP`; `RUN` ends a test, and the next one begins as a
//! copy of it.

use super::params::Params;
use crate::load::Failed;
use crate::load::out::Out;
use std::fs;

/// The tests of the script that `initial` names.
pub(super) fn read(initial: &Params, out: &Out) -> Result<Vec<Params>, Failed> {
    let text = fs::read_to_string(&initial.script).map_err(Failed::file(&initial.script))?;
    parse(&text, initial, out)
}

fn parse(text: &str, initial: &Params, out: &Out) -> Result<Vec<Params>, Failed> {
    let mut tests: Vec<Params> = Vec::new();
    let mut current = initial.clone();
    let mut ran = false;
    let lines = text.lines().map(str::trim);
    for line in lines
        .skip_while(|l| !l.eq_ignore_ascii_case("ior start"))
        .skip(1)
    {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.eq_ignore_ascii_case("ior stop") {
            break;
        }
        if line.eq_ignore_ascii_case("run") {
            tests.push(finished(&current, tests.len(), out)?);
            ran = true;
            continue;
        }
        ran = false;
        if let Err(why) = current.directives(line) {
            out.line(why);
            return Err(Failed::Said(1));
        }
    }
    // Directives after the last RUN are a test as well, as is a script that has no RUN.
    if !ran {
        tests.push(finished(&current, tests.len(), out)?);
    }
    let first = tests.first().map_or("", |t| t.interface());
    if let Some(other) = tests.iter().find(|t| t.interface() != first) {
        out.line(format!(
            "ERROR: test {} of the script works through {}, and the first through {first}: give each a script of its own",
            other.id,
            other.interface()
        ));
        return Err(Failed::Said(1));
    }
    Ok(tests)
}

fn finished(current: &Params, id: usize, out: &Out) -> Result<Params, Failed> {
    let mut test = current.clone();
    test.settle(out)?;
    test.id = id as i64;
    Ok(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_inherits_from_the_one_before() {
        let text = "noise\nIOR START\n api=POSIX # why\nblockSize=4m,transferSize=1m\n# a comment\nRUN\n\
                    filePerProc=1\nRUN\nRUN\nIOR STOP\nblockSize=8m\n";
        let tests = parse(text, &Params::default(), &Out::silent()).expect("fine");
        let seen: Vec<_> = tests
            .iter()
            .map(|t| (t.id, t.block_size, t.file_per_proc))
            .collect();
        assert_eq!(seen, [(0, 4 << 20, 0), (1, 4 << 20, 1), (2, 4 << 20, 1)]);
    }

    #[test]
    fn what_is_wrong_in_a_script_ends_it() {
        let (out, printed) = Out::memory();
        let bad = parse(
            "IOR START\nblockSise=1m\nRUN\nIOR STOP",
            &Params::default(),
            &out,
        );
        assert!(bad.is_err());
        assert!(
            printed
                .text()
                .contains("Unrecognized parameter \"blockSise\"")
        );
        // All tests would have worked through what the first names.
        let (out, printed) = Out::memory();
        let text = "IOR START\napi=DUMMY\nRUN\napi=POSIX\nRUN\nIOR STOP";
        assert!(parse(text, &Params::default(), &out).is_err());
        let said = "ERROR: test 1 of the script works through POSIX, and the first through DUMMY";
        assert!(printed.text().contains(said), "{}", printed.text());
    }
}
