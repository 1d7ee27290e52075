//! One rank of a run: who it is, with whom it meets, and what it works on.

use super::clock::Clock;
use super::done::{Done, Lost};
use super::ending::Ending;
use super::failed::Failed;
use super::hub::Connection;
use super::meet::{Meeting, Shared};
use super::out::Out;
use super::progress::Line;
use super::record::Record;
use super::storage::Storage;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// How a rank reaches the others.
#[derive(Debug)]
pub enum Group {
    /// In this process.
    Here(Arc<Meeting>),
    /// Over TCP.
    There(Connection),
}

/// Where the ranks are, as IOR counts nodes.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Host of each rank.
    pub hosts: Vec<String>,
    /// Different hosts.
    pub count: u32,
    /// Ranks on the host of rank 0.
    pub on_first: u32,
    /// Rank 1 is on the host of rank 0: neighbours share a host.
    pub block_mapped: bool,
}

impl Nodes {
    fn of(hosts: Vec<String>) -> Nodes {
        let mut names: Vec<&String> = hosts.iter().collect();
        names.sort();
        names.dedup();
        let count = names.len() as u32;
        let on_first = hosts.iter().filter(|h| **h == hosts[0]).count() as u32;
        let block_mapped = hosts.get(1).is_none_or(|h| *h == hosts[0]);
        Nodes {
            count,
            on_first,
            block_mapped,
            hosts,
        }
    }
}

/// A rank.
pub struct Rank<'a> {
    /// Its number.
    pub id: u32,
    /// Ranks of the run.
    pub size: u32,
    /// Ranks that work together now: those below this. See [`Rank::among`].
    pub members: u32,
    /// Where they all are.
    pub nodes: Nodes,
    /// The common time.
    pub clock: Clock,
    /// How far each rank's clock may be from the common time, nanoseconds.
    pub uncertainty_ns: Vec<u64>,
    /// What the run prints.
    pub out: Out,
    /// What this rank has done.
    pub line: &'a Line,
    /// What it works on.
    pub storage: Arc<dyn Storage>,
    /// What rank 0 writes down; phases that are over are in it, also when the run fails later.
    pub record: Option<Record>,
    /// What ends the run from outside.
    pub(crate) ending: Ending,
    group: Group,
    lost: RefCell<Lost>,
}

impl<'a> Rank<'a> {
    /// Joins the others: returns when all are there.
    #[expect(clippy::too_many_arguments, reason = "a rank is made in one place")]
    pub(crate) fn join(
        id: u32,
        size: u32,
        group: Group,
        clock: Clock,
        host: &str,
        out: Out,
        line: &'a Line,
        storage: Arc<dyn Storage>,
    ) -> Result<Rank<'a>, Failed> {
        let mut rank = Rank {
            id,
            size,
            members: size,
            nodes: Nodes::default(),
            clock,
            uncertainty_ns: Vec::new(),
            out,
            line,
            storage,
            record: None,
            ending: Ending::default(),
            group,
            lost: RefCell::default(),
        };
        let hosts = rank.share(host.as_bytes().to_vec())?;
        let hosts = hosts
            .iter()
            .map(|h| String::from_utf8_lossy(h).into_owned());
        rank.nodes = Nodes::of(hosts.collect());
        rank.uncertainty_ns = rank.all(clock.uncertainty_ns())?;
        Ok(rank)
    }

    /// Ranks that work now on the host of this one, with it.
    pub(crate) fn here(&self) -> u64 {
        let working = self.nodes.hosts.iter().take(self.members as usize);
        let own = &self.nodes.hosts[self.id as usize];
        working.filter(|h| *h == own).count() as u64
    }

    /// An operation failed, and the original goes on after a warning; not where the run is ended.
    pub fn lose(&self, what: &str) -> Result<(), Failed> {
        self.goes_on()?;
        let mut lost = self.lost.borrow_mut();
        if lost.count == 0 {
            what.trim().clone_into(&mut lost.first);
        }
        lost.count += 1;
        Ok(())
    }

    /// Fails once the run is ended.
    fn goes_on(&self) -> Result<(), Failed> {
        match self.ending.why() {
            None => Ok(()),
            Some(why) => Err(Failed::Apart(why.to_owned())),
        }
    }

    /// Does nothing for so long; fails as soon as the run is ended.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), Failed> {
        self.ending.wait(time);
        self.goes_on()
    }

    /// Those of all ranks.
    pub fn all_lost(&mut self) -> Result<Lost, Failed> {
        let own = self.lost.borrow().to_bytes();
        let all = self.share(own)?;
        let each = all.iter().filter_map(|of_rank| Lost::from_bytes(of_rank));
        Ok(each.fold(Lost::default(), |all, of_rank| all.and(&of_rank)))
    }

    /// It is rank 0, which prints.
    pub fn is_first(&self) -> bool {
        self.id == 0
    }

    /// From now on the ranks below `members` work together. True for those; the others wait for them at
    /// [`Rank::together`].
    pub fn among(&mut self, members: u32) -> bool {
        self.members = members.clamp(1, self.size);
        self.id < self.members
    }

    /// All ranks of the run work together again; waits for them.
    pub fn together(&mut self) -> Result<(), Failed> {
        self.members = self.size;
        self.barrier()
    }

    /// Waits for the others.
    pub fn barrier(&mut self) -> Result<(), Failed> {
        self.share(Vec::new()).map(drop)
    }

    /// Gives some bytes and gets everyone's, by rank.
    pub fn share(&mut self, mine: Vec<u8>) -> Result<Shared, Failed> {
        match &mut self.group {
            Group::Here(meeting) => meeting.exchange(self.id, self.members, mine),
            Group::There(connection) => connection.exchange(self.members, &mine),
        }
        .map_err(Failed::Apart)
    }

    /// Gives a number and gets everyone's, by rank.
    pub fn all<T: Number>(&mut self, mine: T) -> Result<Vec<T>, Failed> {
        let all = self.share(mine.to_bytes().to_vec())?;
        Ok(all.iter().map(|b| T::from_bytes(b)).collect())
    }

    /// Gives several numbers and gets everyone's: by rank, each with as many as that rank gave.
    pub fn all_of<T: Number>(&mut self, mine: &[T]) -> Result<Vec<Vec<T>>, Failed> {
        let bytes = mine.iter().flat_map(|n| n.to_bytes()).collect();
        let all = self.share(bytes)?;
        let numbers = |b: &Vec<u8>| {
            b.as_chunks::<8>()
                .0
                .iter()
                .map(|n| T::from_bytes(n))
                .collect()
        };
        Ok(all.iter().map(numbers).collect())
    }

    /// What rank 0 gives.
    pub fn from_first<T: Number>(&mut self, mine: T) -> Result<T, Failed> {
        Ok(self.all(mine)?[0])
    }

    /// Sum over the ranks.
    pub fn sum(&mut self, mine: u64) -> Result<u64, Failed> {
        Ok(self.all(mine)?.iter().sum())
    }

    /// Ends the run for everyone.
    pub(crate) fn break_up(&mut self, why: &str) {
        match &mut self.group {
            Group::Here(meeting) => meeting.break_up(why),
            Group::There(connection) => connection.break_up(why),
        }
    }

    /// Leaves the run in order, and says what it has done; rank 0 hands the record over.
    pub(crate) fn leave(&mut self, record: Option<&[u8]>) {
        let (operations, bytes) = self.line.read();
        let done = Done {
            operations,
            bytes,
            lost: self.lost.take(),
        };
        match &mut self.group {
            Group::Here(meeting) => {
                record
                    .into_iter()
                    .for_each(|r| meeting.keep_record(r.to_vec()));
                meeting.leave(self.id, done);
            }
            Group::There(connection) => {
                record.into_iter().for_each(|r| connection.keep_record(r));
                connection.leave(&done);
            }
        }
    }
}

/// A number that ranks give each other.
pub trait Number: Copy {
    /// Eight bytes.
    fn to_bytes(self) -> [u8; 8];
    /// From eight bytes; others are zero.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn to_bytes(self) -> [u8; 8] {
                self.to_le_bytes()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes.try_into().unwrap_or_default())
            }
        }
    )*};
}
number!(u64, i64, f64);
