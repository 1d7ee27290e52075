//! Which name was meant by one that does not exist.

/// Changes that a slip may take: more is another word.
const MOST_CHANGES: usize = 4;

/// The name that is fewest changes away, if it is near.
pub fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let word = word.to_ascii_lowercase();
    names
        .into_iter()
        .map(|name| (changes(&word, &name.to_ascii_lowercase()), name))
        .filter(|(changes, name)| *changes <= MOST_CHANGES.min(name.len() / 2))
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, name)| name)
}

/// Letters to add, take away, change, or swap with their neighbour. The start of a name is near it.
fn changes(word: &str, name: &str) -> usize {
    if word.len() > 2 && name.starts_with(word) {
        return 1;
    }
    let (a, b) = (word.as_bytes(), name.as_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let before = &rows[i - 1];
            let changed = before[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let plain = changed.min(before[j] + 1).min(row[j - 1] + 1);
            let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            row.push(if swapped {
                plain.min(rows[i - 2][j - 2] + 1)
            } else {
                plain
            });
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_finds_the_word_and_another_word_finds_none() {
        let names = ["transferSize", "segmentCount", "posix.odirect", "dryRun"];
        assert_eq!(nearest("tranferSize", names), Some("transferSize"));
        assert_eq!(nearest("DRYRUM", names), Some("dryRun"));
        assert_eq!(nearest("posix", names), Some("posix.odirect"));
        assert_eq!(nearest("hdf5", names), None);
        assert_eq!(nearest("oir", ["ior", "mib"]), Some("ior"));
        assert_eq!(nearest("", names), None);
    }
}
