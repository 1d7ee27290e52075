//! Values of an experiment file: texts for commands, and times.

use std::time::Duration;
use toml::Value;

/// A value as it is put into commands.
pub(crate) fn text(v: &Value) -> Result<String, String> {
    Ok(match v {
        Value::String(s) => s.clone(),
        Value::Integer(n) => n.to_string(),
        Value::Float(f) => f.to_string(),
        Value::Boolean(b) => b.to_string(),
        Value::Datetime(d) => d.to_string(),
        Value::Array(_) | Value::Table(_) => {
            return Err("a list or table within a list, or where one value belongs".to_owned());
        }
    })
}

/// A value in a message.
pub(super) fn shown(v: &Value) -> String {
    let many = match v {
        Value::Array(_) => "a list",
        _ => "a table",
    };
    text(v).unwrap_or_else(|_| many.to_owned())
}

/// A value that may be given as a text, a number or true and false.
pub(super) fn scalar<'de, D: serde::Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    use serde::Deserialize;
    text(&Value::deserialize(d)?).map_err(serde::de::Error::custom)
}

/// Longest time of an experiment: a year.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A time as an experiment's file has it, in the largest unit that leaves a whole number.
pub(super) fn duration(d: &Duration) -> String {
    let ms = d.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let whole = units
        .iter()
        .find(|(_, of)| ms > 0 && ms.is_multiple_of(*of));
    whole.map_or_else(
        || format!("{ms}ms"),
        |(unit, of)| format!("{}{unit}", ms / of),
    )
}

/// `90s`, `500ms`, `10m`, `2h`: a number alone might be of any of these units.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let n: u64 = digits.parse().ok()?;
    let ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    n.checked_mul(ms).map(Duration::from_millis)
}

/// Times as text.
pub(super) mod time {
    use super::{Duration, LONGEST, duration, parse_time};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ms", d.as_millis()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = super::scalar(d)?;
        parse_time(&text).ok_or_else(|| {
            let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let what = match (text.parse::<f64>(), number.parse::<f64>()) {
                (Ok(_), _) => "has no unit",
                (_, Ok(n)) if n > LONGEST.as_millis() as f64 => "is too long",
                (_, Ok(n)) if n < 0.0 => "is less than nothing",
                (_, Ok(n)) if n.fract() != 0.0 => "is not a whole number",
                _ => "is no time",
            };
            serde::de::Error::custom(format!(
                "'{text}' {what}: give a text as \"200ms\", \"90s\", \"10m\" or \"2h\", at most \"{}\"",
                duration(&LONGEST)
            ))
        })
    }
}
