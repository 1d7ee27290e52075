//! What is to do where operations stand still, and a process that was asked is known to be stopped.

use crate::lnetctl::find;
use coral_lab::verdict::{CauseKind, Verdict};

/// What stands still goes on with a process that a signal has stopped: that is the first thing to try.
pub(super) fn advise(verdict: &mut Verdict, stopped: &[u32]) {
    let named = |pid: &u32| (*pid, find::described(*pid));
    advise_of(verdict, &stopped.iter().map(named).collect::<Vec<_>>());
}

/// The same of processes with the words by which a user knows them.
fn advise_of(verdict: &mut Verdict, stopped: &[(u32, String)]) {
    let first = verdict.causes.first_mut();
    let is_still = match &first {
        Some(cause) => cause.kind == CauseKind::StandsStill,
        None => verdict.going.as_ref().is_some_and(|g| !g.of_programs),
    };
    if stopped.is_empty() || !is_still {
        return;
    }
    let who: Vec<&str> = stopped.iter().map(|(_, who)| who.as_str()).collect();
    let pids: Vec<String> = stopped.iter().map(|(pid, _)| pid.to_string()).collect();
    let change = format!(
        "let {} go on, `kill -CONT {}`, and ask again",
        who.join(" and "),
        pids.join(" ")
    );
    if let Some(cause) = first {
        cause.change.clone_from(&change);
    }
    verdict.next = change;
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_lab::verdict::{Cause, Facts, explain};

    #[test]
    fn a_process_that_is_stopped_is_to_go_on() {
        let of = |kind: Option<CauseKind>, stopped: &[(u32, String)]| {
            let mut v = explain(&Facts::default());
            v.causes.extend(kind.map(|kind| Cause {
                kind,
                subject: "fs-OST0000".into(),
                fid: None,
                share: 0.9,
                figure: String::new(),
                ceiling: None,
                change: "see".into(),
            }));
            v.next = "see".to_owned();
            advise_of(&mut v, stopped);
            let changes: Vec<String> = v.causes.into_iter().map(|c| c.change).collect();
            (v.next, changes)
        };
        let server = (
            12,
            "process 12 (coral serve /d), which is stopped,".to_owned(),
        );
        let told = "let process 12 (coral serve /d), which is stopped, go on, `kill -CONT 12`, and ask again".to_owned();
        let still = Some(CauseKind::StandsStill);
        let server = [server];
        assert_eq!(of(still, &server), (told.clone(), vec![told]));
        let as_before = |kind, stopped| assert_eq!(of(kind, stopped).0, "see");
        as_before(still, &[]);
        as_before(Some(CauseKind::BusyCore), &server);
        as_before(None, &server);
    }
}
