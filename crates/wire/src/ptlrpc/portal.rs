//! LNet portals of PTLRPC services (`lustre/include/lustre_net.h`).

/// Lists the portals with their names.
macro_rules! portals {
    ($($(#[$m:meta])* $name:ident = $n:literal),* $(,)?) => {
        $($(#[$m])* pub const $name: u32 = $n;)*
        /// The portal's name, if it is a known one.
        pub fn name(portal: u32) -> Option<&'static str> {
            match portal { $($n => Some(stringify!($name)),)* _ => None }
        }
    };
}

portals! {
    /// LNet's own: ping, discovery, push.
    LNET_RESERVED = 0,
    /// Unused today.
    CONNMGR_REQUEST = 1,
    /// Unused today.
    CONNMGR_REPLY = 2,
    /// Replies of OSTs.
    OSC_REPLY = 4,
    /// OST read, write, punch, fallocate, ladvise, destroy.
    OST_IO = 6,
    /// OST create and statfs.
    OST_CREATE = 7,
    /// Bulk data of OSTs.
    OST_BULK = 8,
    /// Replies of MDTs, FLD and SEQ.
    MDC_REPLY = 10,
    /// MDS default.
    MDS_REQUEST = 12,
    /// Rename and data-on-MDT I/O.
    MDS_IO = 13,
    /// Bulk data of MDTs.
    MDS_BULK = 14,
    /// Server to client lock callbacks.
    LDLM_CB_REQUEST = 15,
    /// Their replies.
    LDLM_CB_REPLY = 16,
    /// Lock cancel and convert.
    LDLM_CANCEL_REQUEST = 17,
    /// Their replies.
    LDLM_CANCEL_REPLY = 18,
    /// Close, readpage, getxattr, getattr by FID.
    MDS_READPAGE = 23,
    /// Batched requests and updates between servers.
    OUT = 24,
    /// Replies of the MGS.
    MGC_REPLY = 25,
    /// MGS requests.
    MGS_REQUEST = 26,
    /// Unused today.
    MGS_REPLY = 27,
    /// OST default.
    OST_REQUEST = 28,
    /// FLD queries.
    FLD_REQUEST = 29,
    /// Sequences for clients.
    SEQ_METADATA = 30,
    /// Sequences for OSTs.
    SEQ_DATA = 31,
    /// Super-sequences for servers.
    SEQ_CONTROLLER = 32,
    /// Bulk data of the MGS.
    MGS_BULK = 33,
    /// LNet selftest requests.
    SRPC_REQUEST = 50,
    /// LNet selftest framework requests.
    SRPC_FRAMEWORK_REQUEST = 51,
    /// LNet selftest bulk data and replies.
    SRPC_RDMA = 52,
}

/// The portal on which the reply to a request on `request` is awaited.
pub fn reply_of(request: u32) -> Option<u32> {
    Some(match request {
        // of an MDT's services, updates and batches alone are answered where an OST's are (`mds_start_ptlrpc_service`)
        OST_IO | OST_CREATE | OST_REQUEST | SEQ_DATA | OUT => OSC_REPLY,
        MDS_REQUEST | MDS_IO | MDS_READPAGE | FLD_REQUEST | SEQ_METADATA | SEQ_CONTROLLER => {
            MDC_REPLY
        }
        LDLM_CB_REQUEST => LDLM_CB_REPLY,
        LDLM_CANCEL_REQUEST => LDLM_CANCEL_REPLY,
        MGS_REQUEST => MGC_REPLY,
        _ => return None,
    })
}
