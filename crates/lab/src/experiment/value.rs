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
    use super::{Duration, parse_time};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ms", d.as_millis()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = super::scalar(d)?;
        parse_time(&text).ok_or_else(|| {
            let is_bare = text.parse::<f64>().is_ok();
            let what = match is_bare {
                true => "has no unit",
                false => "is no time",
            };
            serde::de::Error::custom(format!(
                "'{text}' {what}: give a text as \"200ms\", \"90s\", \"10m\" or \"2h\""
            ))
        })
    }
}
