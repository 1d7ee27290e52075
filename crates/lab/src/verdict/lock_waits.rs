//! Causes that are locks: those that clients take from each other, those that some have and others want, and the one that the kernel has
//! for each directory.

use super::clients::who;
use super::facts::Facts;
use super::rules::{Cause, CauseKind, SHARE_LEAST, ms};
use super::sharing::{Asked, OneDirectory};
use crate::attribution::Segment;

/// Threads in the mean that wait for a directory, from which on it is they that are told.
const WAITERS_LEAST: f64 = 0.5;
/// Locks given back in an operation, from which on clients take them from each other.
pub(super) const CALLBACKS_LEAST: f64 = 0.2;
/// Who was asked less often than once in so many waits did not have most of the locks that are waited for.
const ASKED_TIMES: u64 = 2;

/// What is known of who waits for a directory in which one operation goes on at a time, and what helps.
pub(super) fn own_directories(f: &Facts, d: &OneDirectory) -> (String, String) {
    let (seq, oid, ver) = d.fid;
    let seen = f.hosts.iter().filter_map(|h| h.lock_waiters);
    let waiters = seen.max_by(f64::total_cmp);
    let said = format!(
        "; {:.0}% of the time is {} and the like in one directory, [{seq:#x}:{oid:#x}:{ver:#x}], by one mount, one at a time",
        100.0 * (d.seconds / f.op_s().max(1e-12)).min(1.0),
        d.op
    );
    match waiters {
        Some(n) if n >= WAITERS_LEAST => (
            format!("{said}: {n:.1} threads wait meanwhile in the kernel, which lets one in at a time"),
            "give each program a directory of its own".to_owned(),
        ),
        // Seen, and nobody waits: it is one program that does one thing at a time.
        Some(_) => (
            format!("{said}; nobody waits for it in the kernel"),
            "more programs, each in a directory of its own".to_owned(),
        ),
        None => (
            format!("{said}: the kernel lets one in at a time, however many programs wait there"),
            "if several programs work in that directory, give each one of its own; if it is one, more programs, each in its own".to_owned(),
        ),
    }
}

/// A lock that is taken away costs the wait of whoever wants it, and an enqueue of whoever had it.
pub(super) fn lock_ping_pong(f: &Facts) -> Option<Cause> {
    let (asked, clients) = f.callbacks;
    let (enqueues, enqueue_s) = f.enqueues;
    let again = enqueue_s * (asked as f64 / enqueues.max(1) as f64).min(1.0);
    let share = f.share(Segment::LockWait, None) + again / f.op_s().max(1e-12);
    let per_op = asked as f64 / f.count().max(1) as f64;
    let worst = f.contended.iter().find(|c| c.clients > 1)?;
    let (seq, oid, ver) = worst.fid;
    let named = share >= SHARE_LEAST && clients > 1 && per_op >= CALLBACKS_LEAST;
    named.then(|| Cause {
        kind: CauseKind::LockPingPong,
        subject: format!("[{seq:#x}:{oid:#x}:{ver:#x}]"),
        fid: Some(worst.fid),
        share: share.min(1.0),
        figure: format!(
            "{clients} clients gave {asked} locks back, {per_op:.2} an operation; {} waited for its lock {} times, {} each",
            worst.clients,
            worst.waits,
            ms(worst.wait_s / worst.waits.max(1) as f64)
        ),
        ceiling: None,
        change: "give each client a file or a directory of its own".to_owned(),
    })
}

/// Several clients write one file: the servers take its locks for them, and every write and read goes out at once.
pub(super) fn shared_file(f: &Facts) -> Option<Cause> {
    let waits = |fid| f.contended.iter().find(|c| c.fid == fid && c.clients > 1);
    let (s, waits) = (f.shared.iter()).find_map(|s| Some((s, waits(s.fid)?)))?;
    let share = s.seconds / f.op_s().max(1e-12);
    let (seq, oid, ver) = s.fid;
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::LockPingPong,
        subject: format!("[{seq:#x}:{oid:#x}:{ver:#x}]"),
        fid: Some(s.fid),
        share: share.min(1.0),
        figure: format!(
            "{} clients write it; {} writes and reads went past their caches, and {} waited for its lock, {} each",
            s.writers,
            s.at_once,
            waits.waits,
            ms(waits.wait_s / waits.waits.max(1) as f64)
        ),
        ceiling: None,
        change: "give each client a file of its own".to_owned(),
    })
}

/// What has a client give back the locks that it does not use, on its mount.
pub(super) const GIVE_BACK: &str = "lctl set_param ldlm.namespaces.*.lru_size=clear";

/// What is to do where who has the lock may not have been asked.
const NAME_ALL: &str = "name the servers and the other mounts too, so that who has the lock is known: `coral explain MOUNT DIR`";

/// What is named, with its figure and the change.
type Told = (String, String, String);

/// Locks are waited for, and nobody takes them away from who waits: other clients have had them, or are asked what they know of a file
/// under theirs, or other requests at the server have them.
pub(super) fn lock_wait(f: &Facts) -> Option<Cause> {
    let share = f.share(Segment::LockWait, None);
    let (locks, sizes) = (others(f, &f.gave_back), others(f, &f.told_sizes));
    let told = match times(&sizes) > times(&locks) {
        true => told_sizes(f, &sizes),
        false => gave_back(f, &locks),
    };
    let told = told.or_else(|| own_locks(f));
    let (subject, figure, change) = told.unwrap_or_else(|| too_few(f, &locks, &sizes));
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::LockWait,
        subject,
        fid: None,
        share: share.min(1.0),
        figure,
        ceiling: None,
        change,
    })
}

/// These clients in words, where they were asked about as often as was waited.
fn asked_enough(f: &Facts, asked: &[&Asked]) -> Option<String> {
    who(asked.iter().map(|a| &a.client)).filter(|_| is_comparable(f, asked))
}

/// Clients that had the locks which are waited for.
fn gave_back(f: &Facts, holders: &[&Asked]) -> Option<Told> {
    let who = asked_enough(f, holders)?;
    let figure = format!(
        "{}; {who} had them, and {} asked for {}{}",
        waited(f, "for locks "),
        was(holders),
        times(holders),
        far(holders)
    );
    let change = format!(
        "use the files where they were made, or let {who} give {} locks back before: `{GIVE_BACK}` on {} mount{}",
        its(holders),
        its(holders),
        if holders.len() == 1 { "" } else { "s" }
    );
    Some((who, figure, change))
}

/// Clients that keep their locks, and are asked how large the files are which they may have written under them.
fn told_sizes(f: &Facts, writers: &[&Asked]) -> Option<Told> {
    let who = asked_enough(f, writers)?;
    let figure = format!(
        "{}, for sizes of files that others have locks to write: stat waits for these clients, and {who} {} asked {} times{}",
        waited(f, ""),
        was(writers),
        times(writers),
        far(writers)
    );
    let (write, them, mounts) = match writers.len() {
        1 => ("writes", "it", "its mount"),
        _ => ("write", "them", "their mounts"),
    };
    let change = format!(
        "no stat of files while {who} {write} them; afterwards let {them} give {} locks back: `{GIVE_BACK}` on {mounts}",
        its(writers)
    );
    Some((who, figure, change))
}

/// The only client that waits had the locks itself: a server takes the lock of the client that truncates a file for that.
fn own_locks(f: &Facts) -> Option<Told> {
    let own: Vec<&Asked> = f
        .gave_back
        .iter()
        .filter(|a| f.lock_waits.clients == [a.client.as_str()])
        .collect();
    let who = asked_enough(f, &own)?;
    let figure = format!(
        "{}, most of it at {}{}; its own locks were taken back from it, {} times",
        waited(f, "for locks "),
        f.lock_waits.target,
        most_wanted(f),
        times(&own)
    );
    let change = "write over the files, or write new ones: where a file is truncated (O_TRUNC) whose data its mount has just written, the server takes the lock of these back first";
    Some((who, figure, change.to_owned()))
}

/// Nobody is known who had the locks, or had most of them.
fn too_few(f: &Facts, locks: &[&Asked], sizes: &[&Asked]) -> Told {
    let names = |all: &[&Asked]| who(all.iter().map(|a| &a.client));
    let asked = |all: &[&Asked], what: &str| {
        names(all).map(|who| format!("{who} {} asked for {}{what} only", was(all), times(all)))
    };
    let (locks, sizes) = (asked(locks, ""), asked(sizes, " sizes"));
    let own = f.gave_back.first().map(|a| {
        let (client, times) = (&a.client, a.times);
        format!("nobody but {client} itself was asked for any, for {times}")
    });
    let known = match (locks, sizes) {
        (Some(locks), Some(sizes)) => format!("{locks}, {sizes}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => own.unwrap_or("no client that was asked here gave one back".to_owned()),
    };
    let target = &f.lock_waits.target;
    let figure = format!(
        "{}, most of it at {target}{}; {known}, so that another request at that server has it, or a client that was not asked",
        waited(f, "for locks "),
        most_wanted(f)
    );
    let change =
        "have fewer operations at once on one file or directory: give each program one of its own";
    let change = match f.lock_waits.not_all_asked {
        true => format!("{NAME_ALL}; where nobody else has it, {change}"),
        false => change.to_owned(),
    };
    (target.clone(), figure, change)
}

/// Who waited, how often and how long.
fn waited(f: &Facts, what: &str) -> String {
    let w = &f.lock_waits;
    let waiters = who(&w.clients).unwrap_or_else(|| "operations".to_owned());
    let each = ms(w.seconds / w.waits.max(1) as f64);
    format!("{waiters} waited {what}{} times, {each} each", w.waits)
}

/// Of who was asked, all but a client that is the only one which waits: it does not wait for itself.
fn others<'a>(f: &Facts, asked: &'a [Asked]) -> Vec<&'a Asked> {
    let is_other = |a: &&Asked| f.lock_waits.clients != [a.client.as_str()];
    asked.iter().filter(is_other).collect()
}

fn was(asked: &[&Asked]) -> &'static str {
    if asked.len() == 1 { "was" } else { "were" }
}

fn its(asked: &[&Asked]) -> &'static str {
    if asked.len() == 1 { "its" } else { "their" }
}

fn times(asked: &[&Asked]) -> u64 {
    asked.iter().map(|a| a.times).sum()
}

/// It may have been for these that operations waited: nothing else joins what clients were asked for with the waits.
fn is_comparable(f: &Facts, asked: &[&Asked]) -> bool {
    ASKED_TIMES * times(asked) >= f.lock_waits.waits
}

/// How far who had the locks is from the servers, of the farthest, where that is known.
fn far(holders: &[&Asked]) -> String {
    let known = holders.iter().map(|g| g.rtt_s).filter(|s| s.is_finite());
    match known.max_by(f64::total_cmp) {
        Some(s) if holders.len() == 1 => {
            format!("; the nearest server is {} there and back from it", ms(s))
        }
        Some(s) => format!(
            "; of the farthest of them the nearest server is {} there and back",
            ms(s)
        ),
        None => String::new(),
    }
}

/// The file whose lock was waited for longest.
fn most_wanted(f: &Facts) -> String {
    match f.contended.first() {
        Some(c) => {
            let (seq, oid, ver) = c.fid;
            format!(", {} of them on [{seq:#x}:{oid:#x}:{ver:#x}]", c.waits)
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Host, OpKind};
    use super::super::rules::causes;
    use super::super::sharing::{Contended, LockWaits};
    use super::super::trial::{Trial, trial};
    use super::*;

    fn asked(all: &[(&str, u64, f64)]) -> Vec<Asked> {
        let one = |(client, times, rtt_s): &(&str, u64, f64)| Asked {
            client: (*client).to_owned(),
            times: *times,
            rtt_s: *rtt_s,
        };
        all.iter().map(one).collect()
    }

    /// A client waits 9.5 ms of the 10 ms that each of its operations takes, for locks that so many clients were asked for.
    fn waits(gave_back: &[(&str, u64, f64)]) -> Facts {
        Facts {
            window_s: 1.0,
            under_way: 1.0,
            ops: vec![OpKind {
                op: "UNLINK".into(),
                count: 100,
                seconds: 1.0,
            }],
            seconds: [((Segment::LockWait, "fs-MDT0000".to_owned()), 0.95)].into(),
            contended: vec![Contended {
                fid: (1, 2, 0),
                clients: 1,
                wait_s: 0.95,
                waits: 100,
            }],
            gave_back: asked(gave_back),
            lock_waits: LockWaits {
                clients: vec!["near@tcp".into()],
                waits: 100,
                seconds: 0.95,
                target: "fs-MDT0000".into(),
                not_all_asked: false,
            },
            ..Facts::default()
        }
    }

    fn first(f: &Facts) -> Cause {
        let mut all = causes(f);
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        all.remove(0)
    }

    #[test]
    fn who_had_the_locks_that_are_waited_for_is_named() {
        let c = first(&waits(&[("far@tcp", 90, 0.02), ("near@tcp", 3, 0.000_1)]));
        assert_eq!(
            (c.kind, c.subject.as_str()),
            (CauseKind::LockWait, "far@tcp")
        );
        let told = "near@tcp waited for locks 100 times, 9.50 ms each; far@tcp had them, and was asked for 90; the nearest server is 20.00 ms there and back from it";
        assert_eq!(c.figure, told);
        assert!(
            c.change
                .ends_with("`lctl set_param ldlm.namespaces.*.lru_size=clear` on its mount")
        );
        let unknown = first(&waits(&[("far@tcp", 90, f64::INFINITY)]));
        assert!(unknown.figure.ends_with("was asked for 90"), "{unknown:?}");
        let two = first(&waits(&[("a@tcp", 90, 0.02), ("b@tcp", 9, 0.03)]));
        assert_eq!(two.subject, "2 clients, a@tcp for one");
        assert!(two.figure.ends_with("were asked for 99; of the farthest of them the nearest server is 30.00 ms there and back"), "{two:?}");
    }

    #[test]
    fn nobody_is_named_who_gave_back_much_less_than_was_waited_for() {
        let of = |gave_back: &[(&str, u64, f64)]| {
            let c = first(&waits(gave_back));
            let is_mended = c.change.contains(GIVE_BACK);
            assert_eq!(is_mended, c.subject != "fs-MDT0000", "{c:?}");
            (c.subject, c.figure)
        };
        let (subject, figure) = of(&[("far@tcp", 1, 0.02)]);
        assert_eq!(subject, "fs-MDT0000");
        assert!(
            figure.contains("; far@tcp was asked for 1 only, so that another request"),
            "{figure}"
        );
        assert_eq!(of(&[("far@tcp", 49, 0.02)]).0, "fs-MDT0000");
        assert_eq!(of(&[("far@tcp", 50, 0.02)]).0, "far@tcp");
        assert_eq!(
            of(&[("a@tcp", 30, 0.02), ("b@tcp", 20, 0.02)]).0,
            "2 clients, a@tcp for one"
        );
        // few of its own
        let (subject, figure) = of(&[("near@tcp", 9, 0.02)]);
        assert_eq!(subject, "fs-MDT0000");
        assert!(
            figure.contains("; nobody but near@tcp itself was asked for any, for 9, so that"),
            "{figure}"
        );
    }

    /// A mount that truncates the files which it has just written.
    #[test]
    fn a_client_whose_own_locks_are_taken_back_is_told_so() {
        for others in [0, 1] {
            let c = first(&waits(&[("near@tcp", 90, 0.02), ("far@tcp", others, 0.02)]));
            let named = (c.kind, c.subject.as_str());
            assert_eq!(named, (CauseKind::LockWait, "near@tcp"));
            let told = "near@tcp waited for locks 100 times, 9.50 ms each, most of it at fs-MDT0000, 100 of them on [0x1:0x2:0x0]; its own locks were taken back from it, 90 times";
            assert_eq!(c.figure, told);
            assert!(c.change.contains("O_TRUNC"), "{c:?}");
        }
    }

    #[test]
    fn who_may_have_the_lock_and_was_not_asked_is_to_be_named() {
        let mut f = waits(&[("near@tcp", 9, 0.02)]);
        let whole = first(&f).change;
        assert!(
            whole.starts_with("have fewer operations at once"),
            "{whole}"
        );
        f.lock_waits.not_all_asked = true;
        let change = first(&f).change;
        let told = "name the servers and the other mounts too, so that who has the lock is known: `coral explain MOUNT DIR`; where nobody else has it, have fewer";
        assert!(change.starts_with(told), "{change}");
        let known = first(&Facts {
            lock_waits: f.lock_waits,
            ..waits(&[("far@tcp", 90, 0.02)])
        });
        assert!(known.change.starts_with("use the files where"), "{known:?}");
    }

    /// stat of files that a far client writes: it keeps its locks.
    #[test]
    fn who_is_asked_for_sizes_is_named_for_that() {
        let of = |gave_back: &[(&str, u64, f64)], sizes: u64| {
            let mut f = waits(gave_back);
            f.told_sizes = asked(&[("far@tcp", sizes, 0.02)]);
            first(&f)
        };
        let c = of(&[("other@tcp", 60, 0.02)], 100);
        assert_eq!(
            (c.kind, c.subject.as_str()),
            (CauseKind::LockWait, "far@tcp")
        );
        let told = "near@tcp waited 100 times, 9.50 ms each, for sizes of files that others have locks to write: stat waits for these clients, and far@tcp was asked 100 times; the nearest server is 20.00 ms there and back from it";
        assert_eq!(c.figure, told);
        assert!(
            c.change.starts_with("no stat of files while far@tcp"),
            "{c:?}"
        );
        let locks = of(&[("other@tcp", 90, 0.02)], 60);
        assert_eq!(locks.subject, "other@tcp");
        let few = of(&[("other@tcp", 1, 0.02)], 2);
        assert_eq!(few.subject, "fs-MDT0000");
        let told = "; other@tcp was asked for 1 only, far@tcp was asked for 2 sizes only, so that";
        assert!(few.figure.contains(told), "{few:?}");
    }

    #[test]
    fn a_lock_that_no_client_gave_back_is_another_request_s() {
        let c = first(&waits(&[]));
        assert_eq!(
            (c.kind, c.subject.as_str()),
            (CauseKind::LockWait, "fs-MDT0000")
        );
        let told = "9.50 ms each, most of it at fs-MDT0000, 100 of them on [0x1:0x2:0x0]; no client that was asked here gave one back";
        assert!(c.figure.contains(told), "{c:?}");
        assert!(!c.change.contains("lru_size"), "{c:?}");
    }

    #[test]
    fn a_wait_for_locks_is_tried_by_giving_them_back() {
        let of = |f: &Facts| trial(&super::super::explain(f));
        assert_eq!(
            of(&waits(&[("far@tcp", 90, 0.02)])),
            Some(Trial::ClearCache)
        );
        assert_eq!(of(&waits(&[])), Some(Trial::LookAgain));
    }

    /// Requests that wait 20 ms on the way each in the background, while other programs fill the machine.
    #[test]
    fn while_locks_have_the_time_no_other_program_is_first() {
        let mut f = waits(&[("far@tcp", 90, 0.02)]);
        f.paths = vec![super::super::facts::Path {
            target: "fs-MDT0000".into(),
            rpcs: 100,
            rtt_s: 0.000_1,
            seconds: [(Segment::Network, 2.0)].into(),
            ..Default::default()
        }];
        f.hosts = vec![Host {
            name: "here".into(),
            busiest_core: 1.0,
            cores: 1.0,
            cpu_wait: 1.5,
            others: 1.9,
            ..Host::default()
        }];
        let mut all = causes(&f);
        assert!(all.iter().all(|c| c.kind != CauseKind::BusyCore), "{all:?}");
        // what is on the way of operations may wait for a processor
        f.seconds
            .insert((Segment::Network, "fs-MDT0000".into()), 0.3);
        f.seconds
            .insert((Segment::LockWait, "fs-MDT0000".into()), 0.6);
        all = causes(&f);
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        let kinds: Vec<_> = all.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::LockWait, CauseKind::BusyCore]);
    }

    /// Two mounts use one file in turns, on a machine that other programs fill: a quarter of the time is a wait for its lock, and too few
    /// are given back for clients that take it from each other all the time.
    #[test]
    fn a_wait_for_locks_is_told_beside_what_has_more_of_the_time() {
        let mut f = waits(&[("a@tcp", 5, 0.000_1), ("b@tcp", 5, 0.000_1)]);
        f.contended[0].clients = 2;
        f.callbacks = (10, 2);
        f.lock_waits.clients = vec!["a@tcp".into(), "b@tcp".into()];
        let at = |s: Segment| (s, "fs-MDT0000".to_owned());
        f.seconds = [
            (at(Segment::LockWait), 0.27),
            (at(Segment::ServerCpu), 0.3),
            (at(Segment::ClientCpu), 0.3),
        ]
        .into();
        f.hosts = vec![Host {
            name: "here".into(),
            busiest_core: 1.0,
            cores: 1.0,
            cpu_wait: 1.5,
            others: 1.2,
            ..Host::default()
        }];
        let v = super::super::explain(&f);
        let kinds: Vec<_> = v.causes.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::BusyCore, CauseKind::LockWait]);
        assert!((v.causes[1].share - 0.27).abs() < 1e-9, "{v}");
        assert!(v.next.contains("it is lock wait (fs-MDT0000)"), "{v}");
        f.seconds.insert(at(Segment::LockWait), 0.19);
        let few = super::super::explain(&f).causes;
        assert!(few.iter().all(|c| c.kind != CauseKind::LockWait), "{few:?}");
    }

    #[test]
    fn clients_that_take_locks_from_each_other_are_told_as_such() {
        let mut f = waits(&[("a@tcp", 90, 0.02), ("b@tcp", 90, 0.02)]);
        f.contended[0].clients = 2;
        f.callbacks = (180, 2);
        let kinds: Vec<_> = causes(&f).iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::LockPingPong]);
    }
}
