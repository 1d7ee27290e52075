//! Which name was meant by one that does not exist.

/// Changes that a slip may take: more is another word.
const MOST_CHANGES: usize = 4;

/// The name that is fewest changes away, if it is near.
pub(crate) fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let word = word.to_ascii_lowercase();
    names
        .into_iter()
        .map(|name| (changes(&word, &name.to_ascii_lowercase()), name))
        .filter(|(changes, name)| *changes <= MOST_CHANGES.min(name.len() / 2))
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, name)| name)
}

/// Letters to add, take away or change. The start of a name is near it.
fn changes(word: &str, name: &str) -> usize {
    if word.len() > 2 && name.starts_with(word) {
        return 1;
    }
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (i, a) in word.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in name.bytes().enumerate() {
            let change = corner + usize::from(a != b);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[name.len()]
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
        assert_eq!(nearest("", names), None);
    }
}
