//! How fixed structures are declared, and the copy in and out of bytes.
//!
//! Every fixed structure of the protocol is `#[repr(C)]`, little endian, without implicit padding; its
//! size and the offset of each field are asserted at compile time against what Lustre's own wire check
//! asserts (`lustre/ptlrpc/wiretest.c`). Decoding copies the structure out of the buffer, so alignment
//! of the buffer never matters.

use bytes::Bytes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Why bytes could not be read as what they should be. Caused by a peer or a damaged file, never by us.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the structure has.
    #[error("{what}: {have} bytes where {need} are needed")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// A magic number that is none of the known ones.
    #[error("{what}: unknown magic {got:#x}")]
    Magic {
        /// The structure.
        what: &'static str,
        /// The number found.
        got: u64,
    },
    /// A count, length or offset that contradicts the buffer it stands in.
    #[error("{what}: {field} {got} does not fit")]
    Length {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        got: u64,
    },
    /// A value that the protocol does not know.
    #[error("{what}: unknown {field} {got:#x}")]
    Value {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        got: u64,
    },
}

/// A fixed structure: any bytes of its size are a value, and its bytes are its encoding.
pub trait Wire: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Copies the structure out of the head of `buf`; what follows is ignored.
    fn decode(buf: &[u8]) -> Result<Self, DecodeError> {
        Self::read_from_prefix(buf)
            .map(|(v, _)| v)
            .map_err(|_| DecodeError::Short {
                what: short_name(core::any::type_name::<Self>()),
                need: size_of::<Self>(),
                have: buf.len(),
            })
    }

    /// The encoding as an owned buffer.
    fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy> Wire for T {}

fn short_name(full: &'static str) -> &'static str {
    full.rsplit("::").next().unwrap_or(full)
}

/// Copies every whole `T` out of `buf`; a rest smaller than one `T` is left.
pub fn decode_all<T: Wire>(buf: &[u8]) -> Vec<T> {
    buf.chunks_exact(size_of::<T>().max(1))
        .filter_map(|c| T::decode(c).ok())
        .collect()
}

/// The encoding of several structures one after another.
pub fn encode_all<T: Wire>(items: &[T]) -> Bytes {
    let mut out = Vec::with_capacity(size_of_val(items));
    for i in items {
        out.extend_from_slice(i.as_bytes());
    }
    out.into()
}

/// The bytes of a fixed character array up to its first NUL.
pub fn c_str(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    &field[..end]
}

/// A fixed character array holding `text`, NUL filled; longer text is cut so that one NUL remains.
pub fn c_array<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let n = text.len().min(N.saturating_sub(1));
    out[..n].copy_from_slice(&text[..n]);
    out
}

/// Declares a fixed structure: `pub struct Name : SIZE { OFFSET field: Type, .. }`, every offset and the size asserted.
macro_rules! wire_struct {
    ($(#[$m:meta])* pub struct $name:ident : $size:literal { $( $(#[$fm:meta])* $off:literal $f:ident : $t:ty ),* $(,)? }) => {
        $crate::raw::wire_struct!(@ [repr(C)] $(#[$m])* $name $size { $( $(#[$fm])* $off $f : $t, )* });
    };
    ($(#[$m:meta])* pub packed struct $name:ident : $size:literal { $( $(#[$fm:meta])* $off:literal $f:ident : $t:ty ),* $(,)? }) => {
        $crate::raw::wire_struct!(@ [repr(C, packed(4))] $(#[$m])* $name $size { $( $(#[$fm])* $off $f : $t, )* });
    };
    (@ [$($repr:tt)*] $(#[$m:meta])* $name:ident $size:literal { $( $(#[$fm:meta])* $off:literal $f:ident : $t:ty, )* }) => {
        $(#[$m])*
        #[$($repr)*]
        #[derive(Clone, Copy, Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        pub struct $name {
            $( $(#[$fm])* #[doc = concat!("(byte ", stringify!($off), ")")] pub $f: $t, )*
        }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(core::mem::offset_of!($name, $f) == $off); )*
        };
        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
pub(crate) use wire_struct;

/// Declares an integer of the protocol with named values; unknown values are kept.
macro_rules! wire_enum {
    ($(#[$m:meta])* pub struct $name:ident($int:ty) { $( $(#[$vm:meta])* $v:ident = $n:expr ),* $(,)? }) => {
        $(#[$m])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        pub struct $name(pub $int);
        impl $name {
            $( $(#[$vm])* #[doc = concat!("(", stringify!($n), ")")] pub const $v: $name = $name($n); )*
            /// The name, if the value is a known one.
            pub fn name(self) -> Option<&'static str> {
                match self { $( $name::$v => Some(stringify!($v)), )* _ => None }
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(n) => f.write_str(n),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
    };
}
pub(crate) use wire_enum;

/// Declares a set of bits of the protocol; unknown bits are kept.
macro_rules! wire_flags {
    ($(#[$m:meta])* pub struct $name:ident($int:ty) { $( $(#[$($vm:tt)*])* $v:ident = $n:expr ),* $(,)? }) => {
        $(#[$m])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        pub struct $name(pub $int);
        bitflags::bitflags! {
            impl $name: $int {
                $( $(#[$($vm)*])* #[doc = concat!("(", stringify!($n), ")")] const $v = $n; )*
                /// Bits without a name are kept as they are.
                const _ = !0;
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                bitflags::parser::to_writer(self, f)
            }
        }
    };
}
pub(crate) use wire_flags;
