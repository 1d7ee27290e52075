//! `cargo xtask tidy`: sizes of files and functions, and words that comments and pages do without.
//!
//! The limits, and what was larger when they were set, are data in `tidy.toml`. A listed size is a ceiling that only
//! comes down: what grows above it fails, and so does a ceiling that is no longer needed or much too high, which
//! `--shrink` mends. Test code has no limit: `#[cfg(test)]` items, the files they declare, and everything under `tests/`.
//!
//! Deliberately absent: style, which is rustfmt's and clippy's.

use crate::step;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The list, in the workspace's root.
const LIST: &str = "tidy.toml";

/// Directories with sources and pages of ours.
const PLACES: &[&str] = &["crates", "docs", "fuzz", "xtask"];

/// What a size is counted in, by name.
type Sizes = BTreeMap<String, usize>;

/// `tidy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    limits: Limits,
    /// Words, found without regard to case, that no comment and no page has.
    words: Vec<String>,
    /// Ceilings of files, in lines without test code.
    files: Sizes,
    /// Ceilings of functions, in lines from `fn` to the last brace.
    functions: Sizes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// Lines of a file without its test code.
    file: usize,
    /// Lines of a function.
    function: usize,
    /// How far a ceiling may be above what it is for.
    slack: usize,
}

/// What the sources are like.
#[derive(Debug, Default)]
struct Found {
    files: Sizes,
    functions: Sizes,
    /// Complaints about words.
    words: Vec<String>,
}

/// Checks all sources; `shrink` first lowers the ceilings to what they are for and drops those of no use.
pub(crate) fn run(shrink: bool) -> Result<(), String> {
    let root = step::root();
    let at = root.join(LIST);
    let text = read(&at)?;
    let list: List = toml::from_str(&text).map_err(|e| format!("{LIST}: {e}"))?;
    let found = measure(&root, &list.words)?;
    if shrink {
        std::fs::write(&at, shrunk(&text, &list, &found)).map_err(|e| format!("{LIST}: {e}"))?;
        return run(false);
    }
    let wrong = judge(&list, &found);
    if wrong.is_empty() {
        eprintln!(
            "xtask: tidy: {} files, {} functions",
            found.files.len(),
            found.functions.len()
        );
        return Ok(());
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    Err(format!(
        "tidy: {} places (CONTRIBUTING.md, Sizes)",
        wrong.len()
    ))
}

/// What is wrong, a line each.
fn judge(list: &List, found: &Found) -> Vec<String> {
    let mut wrong = found.words.clone();
    let limits = &list.limits;
    compare(
        &found.files,
        &list.files,
        limits.file,
        limits.slack,
        &mut wrong,
    );
    compare(
        &found.functions,
        &list.functions,
        limits.function,
        limits.slack,
        &mut wrong,
    );
    wrong
}

fn compare(sizes: &Sizes, ceilings: &Sizes, limit: usize, slack: usize, wrong: &mut Vec<String>) {
    for (name, &size) in sizes {
        match ceilings.get(name) {
            Some(&ceiling) if size > ceiling.max(limit) => {
                wrong.push(format!(
                    "{name}: {size} lines; its ceiling in {LIST} is {ceiling}"
                ));
            }
            None if size > limit => {
                wrong.push(format!("{name}: {size} lines; the limit is {limit}"))
            }
            _ => {}
        }
    }
    for (name, &ceiling) in ceilings {
        let size = sizes.get(name).copied().unwrap_or(0);
        if size <= limit {
            wrong.push(format!(
                "{LIST}: {name} needs no ceiling any more: cargo xtask tidy --shrink"
            ));
        } else if ceiling > size + slack {
            wrong.push(format!(
                "{LIST}: {name} has {size} lines, less than {ceiling}: cargo xtask tidy --shrink"
            ));
        }
    }
}

/// The list with every ceiling lowered to what it is for. Nothing is added, and everything above `[files]` stays as it is.
fn shrunk(text: &str, list: &List, found: &Found) -> String {
    let mut out = text.split("[files]").next().unwrap_or_default().to_owned();
    let tables = [
        ("files", &list.files, &found.files, list.limits.file),
        (
            "functions",
            &list.functions,
            &found.functions,
            list.limits.function,
        ),
    ];
    for (i, (title, ceilings, sizes, limit)) in tables.into_iter().enumerate() {
        let between = if i == 0 { "" } else { "\n" };
        let _ = writeln!(out, "{between}[{title}]");
        for (name, &ceiling) in ceilings {
            let size = sizes.get(name).copied().unwrap_or(0);
            if size > limit {
                let _ = writeln!(out, "{name:?} = {}", size.min(ceiling));
            }
        }
    }
    out
}

/// Reads all sources and pages under `root`.
fn measure(root: &Path, words: &[String]) -> Result<Found, String> {
    let mut paths = Vec::new();
    for place in PLACES {
        gather(&root.join(place), &mut paths)?;
    }
    for page in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        paths.push(root.join(page));
    }
    paths.sort();
    let (mut found, mut sources) = (Found::default(), Vec::new());
    for path in paths.iter().filter(|p| p.is_file()) {
        let name = path
            .strip_prefix(root)
            .unwrap_or(path)
            .to_string_lossy()
            .into_owned();
        let text = read(path)?;
        let source = path.extension().is_some_and(|e| e == "rs");
        found.words.extend(forbidden(&name, &text, words, source));
        if source && !name.split('/').any(|part| part == "tests") {
            sources.push((path, name, text));
        }
    }
    let mut tests = BTreeSet::new();
    for (path, name, text) in sources {
        let sized = Sized::of(path, &name, &text)?;
        found.functions.extend(sized.functions);
        tests.extend(sized.test_modules);
        let lines = sized.lines;
        found.files.insert(name, lines);
    }
    // a module of tests may have been read before the file that declares it
    let of_tests = |name: &str| tests.iter().any(|t: &PathBuf| is_of(&root.join(name), t));
    found.files.retain(|name, _| !of_tests(name));
    found
        .functions
        .retain(|name, _| !of_tests(name.split("::").next().unwrap_or(name)));
    Ok(found)
}

/// Whether `path` is the module at `module` (a path without extension) or one inside it.
fn is_of(path: &Path, module: &Path) -> bool {
    path.with_extension("") == module || path.starts_with(module)
}

fn gather(dir: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", dir.display()))?.path();
        if path.is_dir() {
            gather(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            into.push(path);
        }
    }
    Ok(())
}

/// Complaints about words of `text`: of its comments if it is a source.
fn forbidden(name: &str, text: &str, words: &[String], source: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let said = match line.find("//") {
            _ if !source => line,
            Some(at) => &line[at..],
            None => continue,
        };
        let said = said.to_lowercase();
        for word in words.iter().filter(|w| has_word(&said, w)) {
            wrong.push(format!("{name}:{}: {word:?} in a comment or page", i + 1));
        }
    }
    wrong
}

/// Whether `word` stands in `line` with no letter or digit on either side.
fn has_word(line: &str, word: &str) -> bool {
    let word = word.to_lowercase();
    line.match_indices(&word).any(|(at, _)| {
        let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next())
    })
}

/// The sizes in one file.
struct Sized<'a> {
    /// The file, as the list names it.
    name: &'a str,
    /// The directory of the modules it declares.
    children: PathBuf,
    /// Lines without test code.
    lines: usize,
    functions: Sizes,
    /// Modules of tests in files of their own, as paths without extension.
    test_modules: BTreeSet<PathBuf>,
    /// Modules, types and functions around what is visited.
    within: Vec<String>,
}

impl<'a> Sized<'a> {
    fn of(path: &Path, name: &'a str, text: &str) -> Result<Self, String> {
        let parsed =
            syn::parse_file(text).map_err(|e| format!("{name}:{}: {e}", e.span().start().line))?;
        let dir = path.parent().unwrap_or(path);
        let stem = path.file_stem().unwrap_or_default();
        let root = matches!(stem.to_str(), Some("lib" | "main" | "mod"));
        let mut sized = Sized {
            name,
            children: if root { dir.to_owned() } else { dir.join(stem) },
            lines: text.lines().count(),
            functions: Sizes::new(),
            test_modules: BTreeSet::new(),
            within: Vec::new(),
        };
        sized.visit_file(&parsed);
        Ok(sized)
    }

    /// Notes a function, which has a body from `start` on.
    fn function(&mut self, ident: &syn::Ident, start: proc_macro2::Span, body: &syn::Block) {
        let lines = body.brace_token.span.close().end().line + 1 - start.start().line;
        let name = format!("{}::{}{ident}", self.name, self.prefix());
        let size = self.functions.entry(name).or_default();
        *size = lines.max(*size);
    }

    fn prefix(&self) -> String {
        self.within.iter().map(|w| format!("{w}::")).collect()
    }

    fn inside(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.within.push(name);
        visit(self);
        self.within.pop();
    }
}

impl Visit<'_> for Sized<'_> {
    fn visit_item(&mut self, item: &syn::Item) {
        if attributes(item).iter().any(is_cfg_test) {
            match item {
                syn::Item::Mod(m) if m.content.is_none() => {
                    self.test_modules
                        .insert(self.children.join(m.ident.to_string()));
                }
                _ => {}
            }
            self.lines -= item.span().end().line + 1 - item.span().start().line;
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, m: &syn::ItemMod) {
        self.inside(m.ident.to_string(), |me| visit::visit_item_mod(me, m));
    }

    fn visit_item_impl(&mut self, i: &syn::ItemImpl) {
        let of = match &*i.self_ty {
            syn::Type::Path(p) => p.path.segments.last().map(|s| s.ident.to_string()),
            _ => None,
        };
        self.inside(of.unwrap_or_else(|| "impl".into()), |me| {
            visit::visit_item_impl(me, i)
        });
    }

    fn visit_item_trait(&mut self, t: &syn::ItemTrait) {
        self.inside(t.ident.to_string(), |me| visit::visit_item_trait(me, t));
    }

    fn visit_item_fn(&mut self, f: &syn::ItemFn) {
        self.function(&f.sig.ident, f.sig.span(), &f.block);
        self.inside(f.sig.ident.to_string(), |me| visit::visit_item_fn(me, f));
    }

    fn visit_impl_item_fn(&mut self, f: &syn::ImplItemFn) {
        self.function(&f.sig.ident, f.sig.span(), &f.block);
        self.inside(f.sig.ident.to_string(), |me| {
            visit::visit_impl_item_fn(me, f)
        });
    }

    fn visit_trait_item_fn(&mut self, f: &syn::TraitItemFn) {
        if let Some(body) = &f.default {
            self.function(&f.sig.ident, f.sig.span(), body);
        }
        self.inside(f.sig.ident.to_string(), |me| {
            visit::visit_trait_item_fn(me, f)
        });
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Const(i) => &i.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let tokens = list.tokens.to_string().replace(' ', "");
    list.path.is_ident("cfg") && (tokens == "test" || tokens.starts_with("all(test,"))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> List {
        let head = "words = [\"soonish\"]\n[limits]\nfile = 10\nfunction = 4\nslack = 2\n";
        toml::from_str(&format!("{head}{text}")).unwrap()
    }

    /// A directory with these files, measured.
    fn measured(files: &[(&str, &str)]) -> Found {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let at = dir.path().join(name);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(at, text).unwrap();
        }
        measure(dir.path(), &["soonish".into()]).unwrap()
    }

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    const NONE: &str = "[files]\n[functions]\n";

    #[test]
    fn a_too_large_file_is_found() {
        let found = measured(&[
            ("crates/a/src/lib.rs", &"const A: u8 = 1;\n".repeat(11)),
            ("xtask/src/b.rs", &"use a;\n".repeat(10)),
        ]);
        assert_eq!(
            judge(&list(NONE), &found),
            ["crates/a/src/lib.rs: 11 lines; the limit is 10"]
        );
    }

    #[test]
    fn a_too_large_function_is_found_wherever_it_is() {
        let method = format!("impl<T> B<T> {{ {} }}", function("long", 5));
        let text = format!(
            "{}mod m {{ {} }}\n{method}",
            function("short", 4),
            function("inner", 5)
        );
        let found = measured(&[("crates/a/src/lib.rs", &text)]);
        let wrong = judge(
            &list("[files]\n\"crates/a/src/lib.rs\" = 16\n[functions]\n"),
            &found,
        );
        assert_eq!(
            wrong,
            [
                "crates/a/src/lib.rs::B::long: 5 lines; the limit is 4",
                "crates/a/src/lib.rs::m::inner: 5 lines; the limit is 4"
            ]
        );
    }

    #[test]
    fn test_code_has_no_limit() {
        let long = function("long", 30);
        let inline = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let declares = "#[cfg(test)]\nmod checks;\n#[cfg(not(test))]\nmod real;\n";
        let found = measured(&[
            ("crates/a/src/lib.rs", &inline),
            ("crates/a/src/noun.rs", declares),
            ("crates/a/src/noun/checks.rs", &long),
            ("crates/a/src/noun/checks/deep.rs", &long),
            ("crates/a/tests/long.rs", &long),
        ]);
        assert_eq!(judge(&list(NONE), &found), [""; 0]);
        assert_eq!(found.files["crates/a/src/lib.rs"], 1);
        assert_eq!(found.files["crates/a/src/noun.rs"], 2);
    }

    #[test]
    fn a_ceiling_holds_and_only_comes_down() {
        let found = measured(&[("crates/a/src/lib.rs", &"use a;\n".repeat(15))]);
        let with = |ceiling: usize| {
            judge(
                &list(&format!(
                    "[files]\n\"crates/a/src/lib.rs\" = {ceiling}\n[functions]\n"
                )),
                &found,
            )
        };
        assert_eq!(
            with(14),
            ["crates/a/src/lib.rs: 15 lines; its ceiling in tidy.toml is 14"]
        );
        assert_eq!(with(15), [""; 0]);
        assert_eq!(with(17), [""; 0]);
        assert_eq!(
            with(18),
            [
                "tidy.toml: crates/a/src/lib.rs has 15 lines, less than 18: cargo xtask tidy --shrink"
            ]
        );
    }

    #[test]
    fn shrinking_lowers_drops_and_adds_nothing() {
        let found = measured(&[
            ("crates/a/src/grown.rs", &"use a;\n".repeat(20)),
            ("crates/a/src/less.rs", &"use a;\n".repeat(15)),
            ("crates/a/src/more.rs", &"use a;\n".repeat(15)),
            ("crates/a/src/small.rs", "use a;\n"),
        ]);
        let tables = "[files]\n\"crates/a/src/gone.rs\" = 30\n\"crates/a/src/grown.rs\" = 12\n\"crates/a/src/less.rs\" = 30\n\"crates/a/src/small.rs\" = 11\n\n[functions]\n";
        let out = shrunk(&format!("# why\n{tables}"), &list(tables), &found);
        assert_eq!(
            out,
            "# why\n[files]\n\"crates/a/src/grown.rs\" = 12\n\"crates/a/src/less.rs\" = 15\n\n[functions]\n"
        );
    }

    #[test]
    fn words_are_found_in_comments_and_pages_alone() {
        let found = measured(&[
            (
                "crates/a/src/lib.rs",
                "fn soonish() {} // said Soonish.\n// soonishly\n",
            ),
            ("docs/a.md", "All of it soonish\n"),
        ]);
        assert_eq!(
            found.words,
            [
                "crates/a/src/lib.rs:1: \"soonish\" in a comment or page",
                "docs/a.md:1: \"soonish\" in a comment or page"
            ]
        );
    }

    #[test]
    fn the_sources_of_this_repository_are_tidy() {
        run(false).unwrap();
    }
}
