//! A value of the wrong kind in words: where it is, what is given, what is expected.

use super::nearest::unknown;

/// A number with more digits than this is told with its exponent.
const DIGITS_MAX: usize = 24;

/// Why a text is no TOML, with its line.
pub(super) fn no_toml(e: &toml::de::Error) -> String {
    let long = e.to_string();
    let long = long.trim_end();
    let is_too_large = e.message().starts_with("invalid type: integer `");
    match long.strip_suffix(e.message()).filter(|_| is_too_large) {
        Some(place) => format!(
            "{place}a whole number is from {} to {}, and this one is not",
            i64::MIN,
            i64::MAX
        ),
        None => long.to_owned(),
    }
}

/// What a type error of the TOML reader means.
pub(super) fn type_error(e: &toml::de::Error) -> String {
    // The key is in the long form only, in a line of its own.
    let long = e.to_string();
    let key = long.lines().find_map(|l| l.strip_prefix("in `"));
    let key = key.and_then(|k| k.strip_suffix('`')).unwrap_or("");
    told(key, e.message())
}

fn told(key: &str, message: &str) -> String {
    let place = match key {
        "" => String::new(),
        key => format!("{key}: "),
    };
    let kinds = ["invalid type: ", "invalid value: "];
    let rest = kinds.iter().find_map(|k| message.strip_prefix(k));
    if let Some((given, expected)) = rest.and_then(|r| r.rsplit_once(", expected ")) {
        let (given, expected) = (given_as(given), expected_as(expected));
        return format!("{place}{given} is given, and {expected} is expected");
    }
    if let Some(rest) = message.strip_prefix("unknown variant `")
        && let Some((given, known)) = rest.split_once("`, expected ")
    {
        // Every second part stands between the marks.
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        return format!("{place}{}", unknown("word", given, &known));
    }
    if let Some(field) = message.strip_prefix("missing field `") {
        return match key {
            "" => format!("the experiment has no `{}", field),
            _ => format!("{key}: there is no `{field}"),
        };
    }
    format!("{place}{message}")
}

/// A value as the reader names it.
fn given_as(text: &str) -> String {
    let (kind, value) = text.split_once(' ').unwrap_or((text, ""));
    let value = value.trim_matches('`');
    match kind {
        "string" => format!("the text {value}"),
        "integer" | "floating" => {
            let digits = value.trim_start_matches("point `");
            match digits.parse::<f64>() {
                Ok(n) if digits.len() > DIGITS_MAX => format!("the number {n:e}"),
                _ => format!("the number {digits}"),
            }
        }
        "boolean" => value.to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => text.to_owned(),
    }
}

fn expected_as(text: &str) -> &str {
    match text {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more,",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text in quotes",
        "a sequence" => "a list in [ ]",
        "a map" => "a table",
        s if s.starts_with("struct ") => "a table",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_reader_are_ours() {
        for (key, message, says) in [
            (
                "run.repeats",
                "invalid type: string \"two, expected\", expected u32",
                "run.repeats: the text \"two, expected\" is given, and a whole number, 0 or more, is expected",
            ),
            (
                "run.repeats",
                "invalid value: integer `-1`, expected u32",
                "run.repeats: the number -1 is given, and a whole number, 0 or more, is expected",
            ),
            (
                "figures.log_x",
                "invalid type: floating point `1.5`, expected a boolean",
                "figures.log_x: the number 1.5 is given, and true or false is expected",
            ),
            (
                "roles",
                "invalid type: map, expected a sequence",
                "roles: a table is given, and a list in [ ] is expected",
            ),
            (
                "run.order",
                "unknown variant `blokced`, expected `interleaved` or `blocked`",
                "run.order: unknown word 'blokced'; did you mean 'blocked'?",
            ),
            (
                "roles",
                "missing field `command`",
                "roles: there is no `command`",
            ),
            ("", "missing field `name`", "the experiment has no `name`"),
            (
                "run.budget",
                "'soon' is no time",
                "run.budget: 'soon' is no time",
            ),
        ] {
            assert_eq!(told(key, message), says);
        }
    }
}
