//! Several glimpses in one request to a Coral OST.

use bytes::Bytes;

use crate::ldlm::LdlmRequest;
use crate::raw::DecodeError;

/// Most glimpses in one request.
pub const GLIMPSES_MAX: usize = 64;
/// An `ldlm_request` with its two handles, bytes.
const REQUEST_BYTES: usize = 104;

/// The requests behind the first.
pub fn encode(further: &[LdlmRequest]) -> Bytes {
    let all = further.iter().map(LdlmRequest::to_bytes);
    all.collect::<Vec<_>>().concat().into()
}

/// The same, read. No buffer, or an empty one: there is one glimpse only.
pub fn decode(buf: &[u8]) -> Result<Vec<LdlmRequest>, DecodeError> {
    let count = buf.len() / REQUEST_BYTES;
    if !buf.len().is_multiple_of(REQUEST_BYTES) || count >= GLIMPSES_MAX {
        return Err(DecodeError::Length {
            what: "glimpses",
            field: "requests",
            got: buf.len() as u64,
        });
    }
    buf.chunks_exact(REQUEST_BYTES)
        .map(LdlmRequest::decode)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ldlm::{LdlmFlags, LdlmMode, LdlmType, LockDesc, Policy, ResId};

    #[test]
    fn requests_are_read_as_they_were_written() {
        let of = |n: u64| {
            let whole = Policy::extent(0, u64::MAX);
            let desc = LockDesc::new(ResId([n, 0, 0, 0]), LdlmType::EXTENT, LdlmMode::PR, &whole);
            LdlmRequest::enqueue(LdlmFlags::HAS_INTENT, desc, n)
        };
        let all: Vec<LdlmRequest> = (1..GLIMPSES_MAX as u64).map(of).collect();
        let bytes = encode(&all);
        assert_eq!(decode(&bytes).unwrap(), all);
        assert_eq!(decode(&[]).unwrap(), []);
        assert!(decode(&bytes[1..]).is_err());
        assert!(decode(&[&bytes[..], &bytes[..REQUEST_BYTES]].concat()).is_err());
    }
}
