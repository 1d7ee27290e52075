//! PTLRPC: requests, bulk, imports with recovery on the client side, services on the server side.
