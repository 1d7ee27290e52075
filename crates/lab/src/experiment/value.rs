//! Values of an experiment file: texts for commands, and times.

use std::time::Duration;
use toml::Value;

/// A value as it is put into commands.
pub(crate) fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Integer(n) => n.to_string(),
        Value::Float(f) => f.to_string(),
        Value::Boolean(b) => b.to_string(),
        other => format!("{other:?}"),
    }
}

/// `90`, `90s`, `500ms`, `10m`, `2h`.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let n: u64 = digits.parse().ok()?;
    let ms = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    n.checked_mul(ms).map(Duration::from_millis)
}

/// Times as text.
pub(super) mod time {
    use super::{Duration, parse_time};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ms", d.as_millis()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = super::text(&toml::Value::deserialize(d)?);
        parse_time(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("'{text}' is no time: give 90s, 500ms, 10m or 2h"))
        })
    }
}
