//! Lustre's wire formats: LNet, PTLRPC, LDLM, MDS, OST, MGS, llog and layout attributes. No I/O, no state, no policy.
