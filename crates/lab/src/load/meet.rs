//! Where the ranks of a run meet.
//!
//! There is one operation: every member gives some bytes and gets everyone's, in the order of ranks. A barrier is that
//! with no bytes, and sums, minima and maxima are computed by each rank from what it got.
//!
//! Members are always the ranks below a number, so a part of the ranks can go on while the others wait for the end.
//! Invariant: when one rank breaks the meeting, every exchange that waits or comes later fails with its reason.

use super::done::{Done, Lost};
use super::ending::Ending;
use super::pulse::{Process, Stood};
use crate::clock::now;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What each member gave, by rank.
pub type Shared = Arc<Vec<Vec<u8>>>;

/// The place in memory. Ranks of other processes come through [`crate::load::hub`].
#[derive(Debug)]
pub struct Meeting {
    size: u32,
    state: Mutex<State>,
    /// An exchange is complete, or the meeting is broken.
    changed: Condvar,
    /// It is broken, or all ranks have left: those who wait for that are not woken by each exchange.
    over: Condvar,
    /// Ends what the ranks of this process do, where the meeting is in a run.
    ending: OnceLock<Ending>,
}

#[derive(Debug, Default)]
struct State {
    rounds: BTreeMap<u32, Round>,
    broken: Option<String>,
    joined: Vec<bool>,
    /// What each rank that has left did.
    done: Vec<Option<Done>>,
    /// Those whose connection has ended without that.
    gone: Vec<bool>,
    /// Other processes than this one.
    processes: Vec<Process>,
    /// Those that stood still, and do.
    stood: Vec<Stood>,
    /// Nobody of other processes is waited for any more.
    closed: bool,
    record: Option<Vec<u8>>,
}

impl State {
    fn have_left(&self) -> bool {
        self.done.iter().all(Option::is_some)
    }

    fn lost(&self) -> Lost {
        let left = self.done.iter().flatten();
        left.fold(Lost::default(), |all, d| all.and(&d.lost))
    }

    /// A rank of another process is here: it has come, and neither left nor gone away.
    fn is_here(&self, rank: usize) -> bool {
        self.joined[rank] && self.done[rank].is_none() && !self.gone[rank]
    }
}

#[derive(Debug, Default)]
struct Round {
    given: Vec<Option<Vec<u8>>>,
    present: u32,
    turn: u64,
    last: Shared,
}

impl Meeting {
    /// Of so many ranks.
    pub fn new(size: u32) -> Arc<Meeting> {
        Arc::new(Meeting {
            size,
            state: Mutex::new(State {
                joined: vec![false; size as usize],
                done: vec![None; size as usize],
                gone: vec![false; size as usize],
                ..State::default()
            }),
            changed: Condvar::new(),
            over: Condvar::new(),
            ending: OnceLock::new(),
        })
    }

    /// Ranks of the run.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Gives `mine` as `rank` and waits for the other ranks below `members`. Fails with the reason when a rank broke it.
    pub fn exchange(&self, rank: u32, members: u32, mine: Vec<u8>) -> Result<Shared, String> {
        assert!(
            rank < members && members <= self.size,
            "rank {rank} of {members} of {}",
            self.size
        );
        let mut state = self.state.lock();
        if let Some(why) = &state.broken {
            return Err(why.clone());
        }
        let round = state.rounds.entry(members).or_default();
        round.given.resize(members as usize, None);
        let turn = round.turn;
        assert!(
            round.given[rank as usize].replace(mine).is_none(),
            "rank {rank} gave twice"
        );
        round.present += 1;
        if round.present == members {
            let given = round.given.iter_mut().map(|g| g.take().unwrap_or_default());
            round.last = Arc::new(given.collect());
            round.present = 0;
            round.turn += 1;
            self.changed.notify_all();
            return Ok(round.last.clone());
        }
        loop {
            self.changed.wait(&mut state);
            // A round that is complete is everyone's, also when the meeting broke right after it.
            let round = state.rounds.entry(members).or_default();
            if round.turn != turn {
                return Ok(round.last.clone());
            }
            if let Some(why) = &state.broken {
                return Err(why.clone());
            }
        }
    }

    /// Ends the meeting for everyone, and what the ranks of this process do. The first reason stays.
    pub fn break_up(&self, why: &str) {
        {
            let mut state = self.state.lock();
            if state.broken.is_some() {
                return;
            }
            state.broken = Some(why.to_owned());
            self.changed.notify_all();
            self.over.notify_all();
        }
        if let Some(ending) = self.ending.get() {
            ending.broken(why);
        }
    }

    /// Where it breaks, `ending` ends the ranks that work meanwhile.
    pub(super) fn ends(&self, ending: &Ending) {
        let _ = self.ending.set(ending.clone());
    }

    /// Why it was ended, if it was.
    pub fn broken(&self) -> Option<String> {
        self.state.lock().broken.clone()
    }

    /// A rank of another process is here. False when it is none of the run, or was here already.
    pub(crate) fn join(&self, rank: u32) -> bool {
        match self.state.lock().joined.get_mut(rank as usize) {
            Some(joined) if !*joined => {
                *joined = true;
                true
            }
            _ => false,
        }
    }

    /// Ranks of `range` that have not come yet.
    pub(crate) fn missing(&self, range: std::ops::Range<u32>) -> Vec<u32> {
        let state = self.state.lock();
        range.filter(|r| !state.joined[*r as usize]).collect()
    }

    /// A rank leaves, after it did this.
    pub fn leave(&self, rank: u32, done: Done) {
        let mut state = self.state.lock();
        if let Some(of) = state.done.get_mut(rank as usize) {
            *of = Some(done);
        }
        self.over.notify_all();
    }

    /// The connection of a rank has ended, and it has not left.
    pub(crate) fn go_away(&self, rank: u32) {
        self.state.lock().gone[rank as usize] = true;
        self.over.notify_all();
    }

    /// Ranks of other processes among these are here, as far as their connections tell.
    pub(crate) fn are_here(&self, ranks: std::ops::Range<u32>) -> bool {
        let state = self.state.lock();
        ranks.into_iter().any(|r| state.is_here(r as usize))
    }

    /// Waits until no rank of another process is here, or [`Meeting::close`].
    pub(crate) fn wait_for_the_last(&self) {
        let mut state = self.state.lock();
        while !state.closed && (0..state.joined.len()).any(|r| state.is_here(r)) {
            self.over.wait(&mut state);
        }
    }

    /// Processes of this run have ended, or are not waited for any more.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.over.notify_all();
    }

    /// Another process has come.
    pub(crate) fn has(&self, process: &Process) {
        self.state.lock().processes.push(process.clone());
    }

    /// It, or this one, stands still: since this moment, in nanoseconds of the common time.
    pub(crate) fn stands_still(&self, process: &Process, since: Instant, from_ns: i64) {
        self.state.lock().stood.push(Stood {
            process: process.clone(),
            from_ns,
            since,
            until: None,
        });
    }

    /// It does no longer.
    pub(crate) fn goes_on(&self, process: &Process) {
        let mut state = self.state.lock();
        let still = state.stood.iter_mut().filter(|s| s.until.is_none());
        let of = still.filter(|s| s.process == *process);
        of.for_each(|s| s.until = Some(now()));
    }

    /// Processes with ranks that are here, and that stand still.
    pub(crate) fn still(&self) -> Vec<Process> {
        let state = self.state.lock();
        let is_here = |p: &Process| p.ranks.clone().any(|r| state.is_here(r as usize));
        let still = state.stood.iter().filter(|s| s.until.is_none());
        let still = still.map(|s| s.process.clone());
        still.filter(is_here).collect()
    }

    /// Times in which processes stood still.
    pub(crate) fn stood(&self) -> Vec<Stood> {
        self.state.lock().stood.clone()
    }

    /// The process that a rank is in, where it is another one.
    pub(crate) fn process_of(&self, rank: u32) -> Option<Process> {
        let state = self.state.lock();
        let mut processes = state.processes.iter();
        processes.find(|p| p.ranks.contains(&rank)).cloned()
    }

    /// It is broken, or all ranks have left.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.broken.is_some() || state.have_left()
    }

    /// Somebody has ended it, outside of the run.
    pub(crate) fn is_ended_from_outside(&self) -> bool {
        self.ending.get().is_some_and(|e| e.outside().is_some())
    }

    /// Waits until it is broken, and why, or all ranks have left.
    pub(crate) fn over(&self) -> Option<String> {
        let mut state = self.state.lock();
        while state.broken.is_none() && !state.have_left() {
            self.over.wait(&mut state);
        }
        state.broken.clone()
    }

    /// Waits so long at most; whether it is over.
    pub(crate) fn is_over_within(&self, time: Duration) -> bool {
        let until = now() + time;
        let mut state = self.state.lock();
        while state.broken.is_none() && !state.have_left() {
            if self.over.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
        true
    }

    /// Whether a rank has left, and so said what it did.
    pub(crate) fn is_told(&self) -> bool {
        self.state.lock().done.iter().any(Option::is_some)
    }

    /// A rank that has left had done something.
    pub(crate) fn has_worked(&self) -> bool {
        let state = self.state.lock();
        state.done.iter().flatten().any(|d| d.operations > 0)
    }

    /// Ranks that have not left.
    pub(crate) fn not_left(&self) -> Vec<u32> {
        let state = self.state.lock();
        let done = state.done.iter().enumerate();
        done.filter(|(_, d)| d.is_none())
            .map(|(r, _)| r as u32)
            .collect()
    }

    /// What the ranks had done when they left, in a sentence.
    pub(crate) fn told(&self) -> String {
        let state = self.state.lock();
        let left = || state.done.iter().flatten();
        let sum = |of: fn(&Done) -> u64| left().map(of).sum::<u64>();
        let (operations, bytes) = (sum(|d| d.operations), sum(|d| d.bytes));
        let who = match (left().count(), self.size) {
            (_, 1) => "rank 0".to_owned(),
            (all, size) if all == size as usize => format!("ranks 0 to {}", size - 1),
            (some, size) => format!("{some} of {size} ranks"),
        };
        let silent = match left().count() == self.size as usize {
            true => "",
            false => "; the others did not tell",
        };
        let lost = state
            .lost()
            .told()
            .map_or_else(String::new, |l| format!("; {l}"));
        format!(
            "{who} had done {operations} operations with {bytes} bytes by then, in all phases{lost}{silent}"
        )
    }

    /// Operations of ranks that have left, and that failed.
    pub(crate) fn lost(&self) -> Lost {
        self.state.lock().lost()
    }

    /// Keeps the record that rank 0 hands over, for whoever started the run.
    pub fn keep_record(&self, record: Vec<u8>) {
        self.state.lock().record = Some(record);
    }

    /// One is kept that nobody has taken.
    pub(crate) fn has_record(&self) -> bool {
        self.state.lock().record.is_some()
    }

    /// What was kept; taken once.
    pub fn record(&self) -> Option<Vec<u8>> {
        self.state.lock().record.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_what_everyone_gave_many_times() {
        let meeting = Meeting::new(4);
        std::thread::scope(|s| {
            for rank in 0..4_u32 {
                let meeting = &meeting;
                s.spawn(move || {
                    for turn in 0..500_u32 {
                        let mine = (rank * 1000 + turn).to_le_bytes().to_vec();
                        let all = meeting.exchange(rank, 4, mine).expect("nobody breaks it");
                        for (r, bytes) in all.iter().enumerate() {
                            assert_eq!(*bytes, (r as u32 * 1000 + turn).to_le_bytes());
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_part_goes_on_while_the_rest_waits() {
        let meeting = Meeting::new(3);
        std::thread::scope(|s| {
            for rank in 0..3_u32 {
                let meeting = &meeting;
                s.spawn(move || {
                    if rank < 2 {
                        for _ in 0..50 {
                            let all = meeting
                                .exchange(rank, 2, vec![rank as u8])
                                .expect("unbroken");
                            assert_eq!(*all, [vec![0], vec![1]]);
                        }
                    }
                    assert_eq!(
                        meeting.exchange(rank, 3, vec![]).expect("unbroken").len(),
                        3
                    );
                });
            }
        });
    }

    #[test]
    fn what_ranks_did_is_told_with_how_many_told() {
        let meeting = Meeting::new(3);
        let did = |operations, bytes, failed: &str| Done {
            operations,
            bytes,
            lost: Lost {
                count: u64::from(!failed.is_empty()),
                first: failed.to_owned(),
            },
        };
        meeting.leave(0, did(5, 50, ""));
        meeting.leave(2, did(1, 7, ""));
        let some = "2 of 3 ranks had done 6 operations with 57 bytes by then, in all phases; the others did not tell";
        assert_eq!(meeting.told(), some);
        meeting.leave(1, did(10, 0, ""));
        let all = "ranks 0 to 2 had done 16 operations with 57 bytes by then, in all phases";
        assert_eq!(meeting.told(), all);
        meeting.leave(1, did(10, 0, "no room"));
        meeting.leave(2, did(1, 7, "no disk"));
        let failed = format!("{all}; 2 operations failed, the first: no room");
        assert_eq!(meeting.told(), failed);
        assert_eq!(meeting.lost().count, 2);
    }

    #[test]
    fn who_waits_hears_why_it_broke() {
        let meeting = Meeting::new(2);
        std::thread::scope(|s| {
            let waits = s.spawn(|| meeting.exchange(0, 2, vec![]));
            meeting.break_up("rank 1 has no disk");
            meeting.break_up("a later reason");
            assert_eq!(
                waits.join().expect("no panic"),
                Err("rank 1 has no disk".to_owned())
            );
        });
        assert!(meeting.exchange(0, 1, vec![]).is_err());
    }
}
