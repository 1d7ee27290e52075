//! NID lists as `lst` takes them: `10.0.0.[1-4/2,9]@tcp`, several brackets in one word (`lnet/utils/lst.c`).

use crate::Nid;
use crate::routes::range;

/// NIDs one word may stand for.
pub const MAX_NIDS: usize = 65_536;

/// Why a word is no list of NIDs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NidListError {
    /// What stands in brackets is no list of numbers, LOW-HIGH and LOW-HIGH/STEP.
    #[error(
        "syntax error in '{0}': in brackets stand numbers, LOW-HIGH or LOW-HIGH/STEP, with commas between them"
    )]
    Syntax(String),
    /// It expands to something that is no NID.
    #[error("'{0}' is no NID")]
    Nid(String),
    /// It expands to more than [`MAX_NIDS`].
    #[error("'{0}' stands for more than {MAX_NIDS} NIDs")]
    TooMany(String),
}

/// The NIDs a word stands for, in its order.
pub fn expand(word: &str) -> Result<Vec<Nid>, NidListError> {
    let mut all = vec![word.to_owned()];
    while all.iter().any(|w| w.contains('[')) {
        let mut next = Vec::new();
        for w in all {
            expand_first(&w, &mut next).ok_or_else(|| NidListError::Syntax(word.to_owned()))?;
            if next.len() > MAX_NIDS {
                return Err(NidListError::TooMany(word.to_owned()));
            }
        }
        all = next;
    }
    all.into_iter()
        .map(|w| w.parse().map_err(|_| NidListError::Nid(w)))
        .collect()
}

/// Expands the first brackets of `w`.
fn expand_first(w: &str, out: &mut Vec<String>) -> Option<()> {
    let Some((head, rest)) = w.split_once('[') else {
        out.push(w.to_owned());
        return Some(());
    };
    let (list, tail) = rest.split_once(']')?;
    for item in list.split(',') {
        let (lo, hi, step) = range(item)?;
        // More than a word may stand for is refused by our caller; no need to make it first.
        out.extend(
            (lo..=hi)
                .step_by(step)
                .take(MAX_NIDS + 1)
                .map(|n| format!("{head}{n}{tail}")),
        );
        if out.len() > MAX_NIDS {
            break;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(word: &str) -> Vec<String> {
        expand(word)
            .unwrap()
            .iter()
            .map(|n| n.to_string())
            .collect()
    }

    #[test]
    fn lists_ranges_steps_and_several_brackets() {
        assert_eq!(show("10.0.0.7@tcp"), ["10.0.0.7@tcp"]);
        assert_eq!(show("10.0.0.[1-4/2]@tcp"), ["10.0.0.1@tcp", "10.0.0.3@tcp"]);
        assert_eq!(show("10.0.[0,1].[2-3,9]@tcp1").len(), 6);
        assert_eq!(show("10.0.[0,1].[2-3,9]@tcp1")[2], "10.0.0.9@tcp1");
    }

    #[test]
    fn nonsense_is_refused() {
        for word in [
            "10.0.0.[@tcp",
            "10.0.0.[]@tcp",
            "10.0.0.[4-1]@tcp",
            "10.0.0.[1-4/0]@tcp",
            "10.0.0.[x]@tcp",
            "10.0.0.[1--2]@tcp",
        ] {
            assert_eq!(expand(word), Err(NidListError::Syntax(word.into())));
        }
        assert_eq!(
            expand("10.0.0.[254-256]@tcp"),
            Err(NidListError::Nid("10.0.0.256@tcp".into()))
        );
        assert!(matches!(expand("server1@tcp"), Err(NidListError::Nid(_))));
        assert!(matches!(
            expand("10.[0-255].[0-255].[0-255]@tcp"),
            Err(NidListError::TooMany(_))
        ));
        assert!(matches!(
            expand("10.0.0.[0-4294967295]@tcp"),
            Err(NidListError::TooMany(_))
        ));
    }
}
