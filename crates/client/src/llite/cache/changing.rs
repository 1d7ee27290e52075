//! Own changes of the entries of one directory, as far as what was read beside them may be older than they are.

use std::collections::VecDeque;

use bytes::Bytes;

/// Names of changes that have ended which a directory remembers: more than change while one lookup of many names is on its way.
const ENDED: usize = 64;

/// Own changes of a directory's entries. A read that began before one of them ended does not tell of the name that it changed; of
/// other names it does.
#[derive(Debug, Default)]
pub(super) struct Changing {
    /// Of each change under way its name; `None`: it may be any.
    under_way: Vec<Option<Bytes>>,
    /// When changes ended, and their names; the last ones.
    ended: VecDeque<(u64, Bytes)>,
    /// The names of changes that ended until then are not known.
    unnamed_to: u64,
}

impl Changing {
    /// Of changes that have ended until now nothing is known.
    pub fn new(now: u64) -> Self {
        Self {
            unnamed_to: now,
            ..Self::default()
        }
    }

    /// A change begins.
    pub fn begin(&mut self, name: Option<Bytes>) {
        self.under_way.push(name);
    }

    /// It ended at `now`.
    pub fn end(&mut self, name: Option<Bytes>, now: u64) {
        if let Some(at) = self.under_way.iter().position(|n| *n == name) {
            self.under_way.swap_remove(at);
        }
        let Some(name) = name else {
            return self.doubt(now);
        };
        if self.ended.len() == ENDED
            && let Some((at, _)) = self.ended.pop_front()
        {
            self.unnamed_to = at;
        }
        self.ended.push_back((now, name));
    }

    /// Until `now` any name may have changed.
    pub fn doubt(&mut self, now: u64) {
        self.ended.clear();
        self.unnamed_to = now;
    }

    /// None is under way.
    pub fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }

    /// What a read that began at `mark` says of `name` may be older than an own change of it.
    pub fn is_touched(&self, name: &[u8], mark: u64) -> bool {
        let mut under_way = self.under_way.iter();
        let mut ended = self.ended.iter().rev().take_while(|(at, _)| *at > mark);
        self.unnamed_to > mark
            || under_way.any(|n| n.as_ref().is_none_or(|n| n == name))
            || ended.any(|(_, n)| n == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> Bytes {
        format!("f{n}").into()
    }

    #[test]
    fn a_change_touches_its_own_name_only() {
        let mut c = Changing::new(5);
        assert!(c.is_touched(b"f1", 4) && !c.is_touched(b"f1", 5));
        c.begin(Some(name(1)));
        assert!(c.is_touched(b"f1", 5) && !c.is_touched(b"f2", 5) && !c.is_quiet());
        c.end(Some(name(1)), 6);
        assert!(c.is_touched(b"f1", 5) && !c.is_touched(b"f2", 5) && c.is_quiet());
        assert!(!c.is_touched(b"f1", 6), "it was asked for afterwards");
        // of two changes of one name one has ended
        c.begin(Some(name(1)));
        c.begin(Some(name(1)));
        c.end(Some(name(1)), 7);
        assert!(c.is_touched(b"f1", 7));
    }

    #[test]
    fn what_changed_no_known_name_touches_all() {
        let mut c = Changing::new(0);
        c.begin(None);
        assert!(c.is_touched(b"f1", 0));
        c.end(None, 1);
        assert!(c.is_touched(b"f1", 0) && !c.is_touched(b"f1", 1));
        c.doubt(2);
        assert!(c.is_touched(b"f1", 1) && !c.is_touched(b"f1", 2));
    }

    #[test]
    fn names_that_are_forgotten_touch_all() {
        let mut c = Changing::new(0);
        for n in 0..=ENDED {
            c.begin(Some(name(n)));
            c.end(Some(name(n)), 1 + n as u64);
        }
        assert!(c.is_touched(b"other", 0) && !c.is_touched(b"other", 1));
        assert!(c.is_touched(&name(1), 1));
    }
}
