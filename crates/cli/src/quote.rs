//! Paths within commands that a user is to give to a shell.

use std::path::Path;

/// The path as one word of a shell: as it is where nothing in it means anything there, else in quotes.
pub(crate) fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_space_is_one_word() {
        let of = |path: &str| word(Path::new(path));
        assert_eq!(of("/mnt/a-b_1.2"), "/mnt/a-b_1.2");
        assert_eq!(of("/mnt/m sp"), "'/mnt/m sp'");
        assert_eq!(of("/mnt/it's"), r"'/mnt/it'\''s'");
        assert_eq!(of("/mnt/$x"), "'/mnt/$x'");
    }
}
