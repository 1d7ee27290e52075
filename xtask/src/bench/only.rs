//! Which rows of a benchmark are wanted (`--rows`).

/// Rows with one of these in their name; with none, all.
pub(super) struct Only(Vec<String>);

impl Only {
    /// From a list separated by commas; each part is in one of the `names` at least.
    pub(super) fn of<'a>(
        list: Option<&str>,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Only, String> {
        let names: Vec<&str> = names.into_iter().collect();
        let parts = list.into_iter().flat_map(|l| l.split(',')).map(str::trim);
        let parts: Vec<String> = parts.map(str::to_owned).collect();
        let unknown = |part: &&String| !names.iter().any(|n| n.contains(part.as_str()));
        match parts.iter().find(unknown) {
            None => Ok(Only(parts)),
            Some(part) => Err(format!(
                "--rows: no row has '{part}' in its name; the rows are:\n  {}",
                names.join("\n  ")
            )),
        }
    }

    pub(super) fn wants(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|part| name.contains(part.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_parts_of_their_names() {
        let names = ["create+close, 1 process", "remove, 1 process"];
        let of = |list: Option<&str>| {
            let only = Only::of(list, names).map(|o| names.map(|n| o.wants(n)));
            only.map_err(|e| e.lines().next().unwrap_or_default().to_owned())
        };
        assert_eq!(of(None), Ok([true, true]));
        assert_eq!(of(Some("remove")), Ok([false, true]));
        assert_eq!(of(Some("remove, close")), Ok([true, true]));
        let told = "--rows: no row has 'removes' in its name; the rows are:";
        assert_eq!(of(Some("create,removes")), Err(told.to_owned()));
    }
}
