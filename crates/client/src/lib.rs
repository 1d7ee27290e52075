//! The Lustre client as a library: MGC, MDC, OSC, LMV, LOV and llite.
