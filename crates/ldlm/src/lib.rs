//! LDLM, Lustre's distributed lock manager: plain, extent, inode-bits and flock locks; server and client namespaces.
