//! What is said of a name that nobody knows.

pub use crate::load::nearest::nearest;

/// The nearest name, or all that are.
pub(crate) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("unknown {what} '{name}'; did you mean '{near}'?"),
        None => format!("unknown {what} '{name}'; known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_named_and_a_stranger_is_told_all() {
        let known = ["repeats", "order", "seed", "budget"];
        assert!(unknown("key", "sede", &known).ends_with("did you mean 'seed'?"));
        assert!(unknown("key", "repaets", &known).ends_with("did you mean 'repeats'?"));
        assert!(unknown("key", "colour", &known).contains("known: repeats, order"));
    }
}
