//! Filling `{name}` into the texts of an experiment.

use super::nearest::nearest;
use super::spec::SpecError;

/// Fills every `{name}` of `text` with what `value` says; `{{` and `}}` stand for braces. A name nobody knows is refused, with the
/// nearest of `known`.
pub(crate) fn fill(
    text: &str,
    known: &[&str],
    value: &dyn Fn(&str) -> Result<Option<String>, SpecError>,
) -> Result<String, SpecError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out += &rest[..at];
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out += brace;
            rest = after;
        } else if brace == "}" {
            return Err(SpecError::Wrong(format!(
                "'{text}': a '}}' without '{{'; write '}}}}' for the brace itself"
            )));
        } else {
            let Some((name, after)) = rest.split_once('}') else {
                return Err(SpecError::Wrong(format!(
                    "'{text}': a '{{' that is not closed; write '{{{{' for the brace itself"
                )));
            };
            let Some(v) = value(name)? else {
                let hint = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean '{near}'?"),
                    None => format!("known: {}", known.join(", ")),
                };
                return Err(SpecError::Wrong(format!(
                    "unknown name '{{{name}}}' in a command; {hint}"
                )));
            };
            out += &v;
            rest = after;
        }
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_and_braces_kept() {
        let v = |n: &str| Ok((n == "size").then(|| "4k".to_owned()));
        let fill = |t| fill(t, &["size"], &v).map_err(|e| e.to_string());
        assert_eq!(fill("-b {size} -t{size}").unwrap(), "-b 4k -t4k");
        assert_eq!(fill("{{\"a\": 1}}").unwrap(), "{\"a\": 1}");
        assert!(fill("{sise}").unwrap_err().contains("did you mean 'size'"));
        assert!(fill("{size").unwrap_err().contains("not closed"));
        assert!(fill("size}").unwrap_err().contains("without"));
    }
}
