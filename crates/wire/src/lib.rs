//! Lustre's wire formats: LNet, PTLRPC, LDLM, MDS, OST, MGS, llog and layout attributes. No I/O, no state, no policy.
//!
//! Names are Lustre's in CamelCase, field names without Lustre's prefix (`mbo_fid1` is `fid1`). Offsets and sizes are
//! asserted at compile time. Decoding copies small structures and slices buffers; it never panics and never allocates
//! more than a small multiple of what it is given. Swapped (big endian) peers are not spoken to.

#[cfg(not(target_endian = "little"))]
compile_error!("Coral writes its structures as they lie in memory: little endian hosts only");

pub mod acl;
pub mod cfg;
pub mod connect;
pub mod coral;
pub mod errno;
pub mod fid;
pub mod fld;
pub mod formats;
pub mod layout;
pub mod ldlm;
pub mod llog;
pub mod lnet;
pub mod mds;
pub mod mgs;
pub mod nid;
pub mod ost;
pub mod ptlrpc;
pub mod quota;
pub mod raw;
pub mod srpc;

pub use connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
pub use errno::Errno;
pub use fid::{Fid, OstId};
pub use nid::{Nid, ProcessId};
pub use ptlrpc::{Message, PtlrpcBody, opc, portal};
pub use raw::{DecodeError, Wire};
