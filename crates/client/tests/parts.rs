//! The parts of llite import what `docs/architecture.md` says, all of it and nothing else, and their files stand in no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A row of the table.
struct Part {
    name: String,
    files: Vec<String>,
    asks: BTreeSet<String>,
}

fn table() -> Vec<Part> {
    let text = fs::read_to_string(Path::new(ROOT).join("../../docs/architecture.md")).unwrap();
    let rows = text
        .lines()
        .skip_while(|l| !l.starts_with("| part of llite |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'));
    let part = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [said, files, asks] = cells[..] else {
            panic!("three cells: {row}")
        };
        let (name, _) = said.split_once(':').expect("a name");
        let files = files.split('`').filter(|f| !f.trim().is_empty());
        let asks = asks.split(", ").filter(|a| !a.is_empty());
        Part {
            name: name.to_owned(),
            files: files.map(str::to_owned).collect(),
            asks: asks.map(str::to_owned).collect(),
        }
    };
    rows.map(part).collect()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries
        .flat_map(|p| if p.is_dir() { sources(&p) } else { vec![p] })
        .filter(|p| !p.ends_with("tests.rs"))
        .collect()
}

/// Where in llite a file is.
#[derive(Clone, Copy)]
enum Place {
    Facade,
    File,
    Folder,
}

/// The modules of llite that a file names in its imports, tests apart.
fn imports(text: &str, place: Place) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let words = |c: char| !(c.is_alphanumeric() || c == '_');
    let mut out = BTreeSet::new();
    for statement in text.split("use ").skip(1) {
        let path: String = statement
            .split(';')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let within = match (path.strip_prefix("crate::llite::"), place) {
            (None, Place::Facade) => Some(&path[..]),
            (None, Place::File) => path.strip_prefix("super::"),
            (within, _) => within,
        };
        let Some(within) = within else { continue };
        match within.strip_prefix('{') {
            Some(several) => out.extend(several.split(words).map(str::to_owned)),
            None => out.extend(within.split(words).next().map(str::to_owned)),
        }
    }
    out
}

#[test]
fn the_parts_ask_whom_the_map_says_and_nobody_else() {
    let (parts, llite) = (table(), Path::new(ROOT).join("src/llite"));
    assert!(parts.len() > 5, "the table is found");
    let owner: BTreeMap<&str, &str> = parts
        .iter()
        .flat_map(|p| p.files.iter().map(|f| (f.as_str(), p.name.as_str())))
        .collect();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut asks: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources(&llite) {
        let within = path.strip_prefix(&llite).unwrap();
        let first = within.iter().next().unwrap().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        let part = *owner
            .get(module)
            .unwrap_or_else(|| panic!("{module} is in no row"));
        let text = fs::read_to_string(&path).unwrap();
        let place = match (module, within.iter().count()) {
            ("mod", 1) => Place::Facade,
            (_, 1) => Place::File,
            _ => Place::Folder,
        };
        let mut all = imports(&text, place);
        all.retain(|m| m != module && owner.contains_key(m.as_str()));
        let of_parts = all.iter().map(|m| owner[m.as_str()]);
        let others = of_parts.filter(|p| *p != part).map(str::to_owned);
        found.entry(part).or_default().extend(others);
        asks.entry(module.to_owned()).or_default().extend(all);
    }
    // who asks nobody that is left is taken out, until nobody is left
    while !asks.is_empty() {
        let left: BTreeSet<String> = asks.keys().cloned().collect();
        asks.retain(|_, of| !of.is_disjoint(&left));
        assert!(asks.len() < left.len(), "a circle among {left:?}");
    }
    let mut above = BTreeSet::new();
    for p in &parts {
        let asked = found.remove(p.name.as_str()).unwrap_or_default();
        assert_eq!(asked, p.asks, "what {} asks", p.name);
        assert!(
            asked.is_subset(&above),
            "{} asks only parts above it",
            p.name
        );
        above.insert(p.name.clone());
    }
}
