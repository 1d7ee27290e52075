//! Slots reused by index, and cookies that name a slot.
//!
//! A cookie is `base ^ (generation << 24 | index)`: found without hashing, never the same twice in the life of a slab,
//! and with a random base worthless to another one, such as that of the next start.

/// Bits of a cookie that index the slot.
const INDEX_BITS: u32 = 24;
/// Most entries: 16 Mi.
pub const MAX_ENTRIES: usize = 1 << INDEX_BITS;

/// Entries by index and by cookie.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    base: u64,
    generation: u64,
    slots: Vec<Option<(u64, T)>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new(base: u64) -> Slab<T> {
        Slab {
            base,
            generation: 0,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores an entry made from its cookie; its index. `None` when full.
    pub fn insert_with(&mut self, make: impl FnOnce(u64) -> T) -> Option<u32> {
        let idx = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < MAX_ENTRIES => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        self.generation += 1;
        let mut cookie = self.base ^ (self.generation << INDEX_BITS | idx as u64);
        if cookie == 0 {
            // 0 means "no lock" on the wire.
            self.generation += 1;
            cookie = self.base ^ (self.generation << INDEX_BITS | idx as u64);
        }
        self.slots[idx as usize] = Some((cookie, make(cookie)));
        Some(idx)
    }

    /// Takes an entry out; panics when there is none.
    pub fn remove(&mut self, idx: u32) -> T {
        let (_, t) = self.slots[idx as usize].take().expect("slot is in use");
        self.free.push(idx);
        t
    }

    pub fn find(&self, cookie: u64) -> Option<u32> {
        let idx = ((cookie ^ self.base) & (MAX_ENTRIES as u64 - 1)) as u32;
        match self.slots.get(idx as usize) {
            Some(Some((c, _))) if *c == cookie => Some(idx),
            _ => None,
        }
    }

    pub fn at(&self, idx: u32) -> &T {
        &self.slots[idx as usize].as_ref().expect("slot is in use").1
    }

    pub fn at_mut(&mut self, idx: u32) -> &mut T {
        &mut self.slots[idx as usize].as_mut().expect("slot is in use").1
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|(_, t)| t)
    }

    pub fn indexes(&self) -> impl Iterator<Item = u32> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.is_some())
            .map(|(i, _)| i as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_cookie() {
        let mut s = Slab::new(0xdead_beef_0bad_cafe);
        let a = s.insert_with(|c| c).unwrap();
        let ca = *s.at(a);
        assert_eq!(
            (s.find(ca), s.find(ca ^ 1), s.find(0)),
            (Some(a), None, None)
        );
        s.remove(a);
        let b = s.insert_with(|c| c).unwrap();
        assert_eq!(a, b);
        assert!(s.find(ca).is_none() && s.find(*s.at(b)) == Some(b));
        assert_eq!(s.len(), 1);
    }

    #[test]
    fn no_cookie_is_zero() {
        let mut s = Slab::new(1 << INDEX_BITS);
        let a = s.insert_with(|c| c).unwrap();
        assert_ne!(*s.at(a), 0);
    }
}
