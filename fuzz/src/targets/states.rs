//! State machines of PTLRPC and LDLM.

use arbitrary::{Result, Unstructured};
use coral_ldlm::core::{Action, Actions, Namespace, Outcome, Want};
use coral_ptlrpc::state::{Event, Granted, ImportState};
use coral_wire::coral::blocks::Blocks;
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmMode, LdlmType, Policy, ResId};

const REACHED: [ImportState; 3] = [
    ImportState::Replay,
    ImportState::ReplayLocks,
    ImportState::ReplayWait,
];

fn event(u: &mut Unstructured<'_>) -> Result<Event> {
    Ok(match u.int_in_range(0..=12u8)? {
        0 | 1 => Event::ConnectSent,
        2 | 3 => Event::Connected(Granted {
            initial: u.arbitrary()?,
            reconnect: u.arbitrary()?,
            recovering: u.arbitrary()?,
            same_handle: u.arbitrary()?,
            reached: *u.choose(&REACHED)?,
        }),
        4 => Event::ConnectFailed,
        5 => Event::RequestsReplayed,
        6 => Event::LocksReplayed,
        7 => Event::ServerRecovered,
        8 => Event::Invalidated,
        9 => Event::Resent,
        10 => Event::ConnectionLost,
        11 => *u.choose(&[Event::Unused, Event::Left, Event::Wanted])?,
        _ => Event::Close,
    })
}

/// An import in any order of events: a refused event names what it was, closed is for ever, and from every other state there is
/// a way back to use.
pub(crate) fn import(u: &mut Unstructured<'_>) -> Result<()> {
    let mut state = ImportState::New;
    while !u.is_empty() {
        let event = event(u)?;
        match state.after(event) {
            Ok(next) => {
                assert!(state != ImportState::Closed || next == ImportState::Closed);
                state = next;
            }
            Err(bad) => assert_eq!((bad.state, bad.event), (state, event)),
        }
    }
    if state != ImportState::Closed {
        assert_eq!(recovered(state), ImportState::Full);
    }
    Ok(())
}

/// The state after what the shell does in each, with a server that answers.
fn recovered(mut state: ImportState) -> ImportState {
    let granted = Granted {
        initial: false,
        reconnect: true,
        recovering: false,
        same_handle: true,
        reached: ImportState::Replay,
    };
    for _ in 0..12 {
        let event = match state {
            ImportState::New | ImportState::Discon => Event::ConnectSent,
            ImportState::Connecting => Event::Connected(granted),
            ImportState::Replay => Event::RequestsReplayed,
            ImportState::ReplayLocks => Event::LocksReplayed,
            ImportState::ReplayWait => Event::ServerRecovered,
            ImportState::Evicted => Event::Invalidated,
            ImportState::Recover => Event::Resent,
            ImportState::Leaving => Event::Left,
            ImportState::Idle => Event::Wanted,
            ImportState::Full | ImportState::Closed => break,
        };
        state = state.after(event).expect("what the shell does next");
    }
    state
}

/// A lock of any type on one of two resources.
fn want(u: &mut Unstructured<'_>) -> Result<Want> {
    let export = u.int_in_range(1..=4u64)?;
    let (a, b) = (u.int_in_range(0..=31u64)?, u.int_in_range(0..=31u64)?);
    let (ty, policy) = match u.int_in_range(0..=4u8)? {
        0 => (LdlmType::PLAIN, Policy::Plain),
        1 => (
            LdlmType::EXTENT,
            Policy::extent(4096 * a.min(b), 4096 * a.max(b) + 4095),
        ),
        2 => (
            LdlmType::EXTENT,
            Policy::Extent {
                start: 4096 * a,
                end: 4096 * (a + 1 + b % 4) - 1,
                gid: 0,
                blocks: Blocks::new(4096 * (1 + b % 4), 4096 * (2 + b % 4 + b / 8)),
            },
        ),
        3 => (
            LdlmType::IBITS,
            Policy::Ibits {
                bits: Ibits(a & 0x7),
                try_bits: Ibits(b & 0x38),
                gid: 0,
                initiator_id: 0,
            },
        ),
        _ => (
            LdlmType::FLOCK,
            Policy::Flock {
                start: a,
                end: b,
                owner: u.int_in_range(1..=2)?,
                pid: 1,
            },
        ),
    };
    let flags = *u.choose(&[
        LdlmFlags(0),
        LdlmFlags(0),
        LdlmFlags::BLOCK_NOWAIT,
        LdlmFlags::CANCEL_ON_BLOCK,
    ])?;
    Ok(Want {
        res: ResId([u.int_in_range(1..=2)?, 0, 0, 0]),
        ty,
        mode: match ty == LdlmType::FLOCK && u.ratio(3, 4)? {
            true => *u.choose(&[LdlmMode::NL, LdlmMode::PR, LdlmMode::PW])?,
            false => *u.choose(&LdlmMode::ALL)?,
        },
        policy,
        flags,
        export: u.ratio(7, 8)?.then_some(export),
        remote: export * 1000,
        // the server's own locks for a client, which are no flocks
        ignore: (ty != LdlmType::FLOCK && u.ratio(1, 8)?).then_some(export),
    })
}

/// The lock table in any order of requests: granted locks never conflict, cookies name what exists, and when everybody has
/// given back everything the table is empty.
pub(crate) fn locks(u: &mut Unstructured<'_>) -> Result<()> {
    let (mut ns, mut out) = (Namespace::new(0x5eed), Actions::new());
    while !u.is_empty() {
        match u.int_in_range(0..=9u8)? {
            0..=5 => {
                let want = want(u)?;
                // such a lock may have gone for another one at once
                let stays = !want.flags.contains(LdlmFlags::CANCEL_ON_BLOCK);
                if let Ok(Outcome::Granted(c) | Outcome::Waiting(c)) =
                    ns.enqueue(want, false, &mut out)
                {
                    assert!(!stays || ns.info(c).is_some());
                }
            }
            6..=8 => {
                let all: Vec<u64> = ns.locks().map(|l| l.cookie).collect();
                if !all.is_empty() {
                    let cookie = *u.choose(&all)?;
                    assert!(ns.cancel(cookie, None, &mut out));
                    assert!(ns.info(cookie).is_none());
                }
            }
            _ => {
                let export = u.int_in_range(1..=4u64)?;
                ns.export_gone(export, &mut out);
                assert!(ns.locks().all(|l| l.export != Some(export)));
            }
        }
        for action in out.drain(..) {
            if let Action::Blocking { lock, instant, .. } = action {
                assert!(
                    lock.granted_mode != LdlmMode::NONE,
                    "a waiter is asked to go"
                );
                assert!(instant || lock.export.is_some() || lock.remote_cookie == 0);
            }
        }
        ns.check_invariants();
    }
    // one by one: a flock that is granted now may split another
    loop {
        let Some(cookie) = ns.locks().next().map(|l| l.cookie) else {
            break;
        };
        assert!(ns.cancel(cookie, None, &mut out));
        out.clear();
        ns.check_invariants();
    }
    assert_eq!((ns.len(), ns.resource_count()), (0, 0));
    Ok(())
}
