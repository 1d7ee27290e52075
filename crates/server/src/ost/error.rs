//! Why a request to an OST failed.

use coral_osd::OsdError;
use coral_wire::Errno;

/// Why a request to an OST failed. It is logged once, where it is answered, if it is this server's fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OstError {
    /// The client's doing, or the state of the object: goes to the client as it is.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// The storage says so: it has failed, is full, or does not do such a thing.
    #[error("storage: {0}")]
    Osd(#[from] OsdError),
}

impl OstError {
    /// What the client is told.
    pub fn errno(&self) -> Errno {
        match self {
            OstError::Errno(errno) => *errno,
            OstError::Osd(e) => e.into(),
        }
    }

    /// It is this server's fault, and worth a line in its log. A full disk is told by the target's state.
    pub fn is_ours(&self) -> bool {
        match self {
            OstError::Errno(_) => false,
            OstError::Osd(e) => !matches!(
                e,
                OsdError::NoSpace
                    | OsdError::TooLarge(_)
                    | OsdError::Invalid(_)
                    | OsdError::NotSupported(_)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_fault_it_is() {
        assert!(!OstError::from(Errno::EIO).is_ours());
        assert!(!OstError::from(OsdError::NoSpace).is_ours());
        assert_eq!(OstError::from(OsdError::NoSpace).errno(), Errno::ENOSPC);
        let failed = OstError::from(OsdError::Injected);
        assert!(failed.is_ours());
        assert_eq!(failed.errno(), Errno::EIO);
    }
}
