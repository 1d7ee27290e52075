//! The known name that a misspelt one is nearest to.

/// The one of `known` nearest to `name` by edits of letters, when at most a third of its letters (two at least) differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (name.chars().count() / 3).max(2);
    known
        .into_iter()
        .map(|k| (edits(name, k), k))
        .filter(|(d, _)| *d <= most)
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

/// What to say of a name that is not known: the nearest, or all that are.
pub(crate) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("unknown {what} '{name}'; did you mean '{near}'?"),
        None => format!("unknown {what} '{name}'; known: {}", known.join(", ")),
    }
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let plain = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    plain.min(rows[i - 2][j - 2] + 1)
                } else {
                    plain
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_named_and_a_stranger_is_not() {
        let known = ["repeats", "order", "seed", "budget"];
        assert_eq!(nearest("repaets", known), Some("repeats"));
        assert_eq!(nearest("repeat", known), Some("repeats"));
        assert_eq!(nearest("ordr", known), Some("order"));
        assert_eq!(nearest("colour", known), None);
        assert!(unknown("key", "sede", &known).ends_with("did you mean 'seed'?"));
        assert!(unknown("key", "colour", &known).contains("known: repeats, order"));
        assert_eq!(edits("ab", "ba"), 1);
        assert_eq!(edits("", "abc"), 3);
    }
}
