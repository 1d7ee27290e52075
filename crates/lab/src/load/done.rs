//! What a rank says of itself when it leaves a run.

/// What it did, in all phases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Operations.
    pub operations: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Those that failed.
    pub lost: Lost,
}

/// Operations that failed, and were gone on after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub count: u64,
    /// What was said of the first of the lowest rank.
    pub first: String,
}

impl Done {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [self.operations, self.bytes].map(u64::to_le_bytes).concat();
        bytes.extend(self.lost.to_bytes());
        bytes
    }

    /// From [`Done::to_bytes`]; None of what is shorter.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Done> {
        let (operations, rest) = bytes.split_first_chunk()?;
        let (moved, lost) = rest.split_first_chunk()?;
        Some(Done {
            operations: u64::from_le_bytes(*operations),
            bytes: u64::from_le_bytes(*moved),
            lost: Lost::from_bytes(lost)?,
        })
    }
}

impl Lost {
    /// Adds those of the next rank.
    pub(super) fn and(mut self, next: &Lost) -> Lost {
        self.count += next.count;
        if self.first.is_empty() {
            self.first.clone_from(&next.first);
        }
        self
    }

    /// In a sentence; none failed: nothing.
    pub fn told(&self) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(format!("an operation failed: {}", self.first)),
            n => Some(format!("{n} operations failed, the first: {}", self.first)),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.count.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.first.as_bytes());
        bytes
    }

    /// From [`Lost::to_bytes`]; None of what is shorter.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Lost> {
        let (count, first) = bytes.split_first_chunk()?;
        Some(Lost {
            count: u64::from_le_bytes(*count),
            first: String::from_utf8_lossy(first).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let done = Done {
            operations: 7,
            bytes: 1 << 40,
            lost: Lost {
                count: 2,
                first: "no disk".to_owned(),
            },
        };
        let bytes = done.to_bytes();
        assert_eq!(Done::from_bytes(&bytes), Some(done));
        assert_eq!(Done::from_bytes(&bytes[..23]), None);
    }
}
