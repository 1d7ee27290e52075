//! What lock namespaces count. Lustre's words are those of `ldlm.namespaces.*` (`lustre/ldlm/ldlm_resource.c`) and of
//! `ldlm.services.*.stats`.

use coral_metrics::{Counter, Desc, Histogram, Probe};

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[ClientLockStats::TABLE, ServerLockStats::TABLE];

coral_metrics::group! {
    /// What the locks that a client holds from one target have seen.
    pub struct ClientLockStats {
        /// Locks granted (`lock_count`).
        pub locks: Probe = "coral_ldlm_client_locks", Locks, Stable;
        /// Of them those nobody uses (`lock_unused_count`).
        pub unused: Probe = "coral_ldlm_client_locks_unused", Locks, Stable;
        /// Uses of a lock that was held already: no request was sent.
        pub matched: Counter = "coral_ldlm_client_matched_total", Locks, Stable;
        /// Time from asking for a lock to its grant, waits included; locks of intents come with their requests and are not in it.
        pub enqueue: Histogram = "coral_ldlm_client_enqueue_seconds", Seconds, Stable;
        /// Of those, waits for others to give locks back: from the reply to the grant.
        pub wait: Histogram = "coral_ldlm_client_wait_seconds", Seconds, Stable;
        /// Blocking callbacks of the server.
        pub blocking: Counter = "coral_ldlm_client_bl_callbacks_total", Requests, Stable;
        /// Completion callbacks of the server.
        pub completion: Counter = "coral_ldlm_client_cp_callbacks_total", Requests, Stable;
        /// Glimpse callbacks of the server.
        pub glimpse: Counter = "coral_ldlm_client_gl_callbacks_total", Requests, Stable;
        /// Locks given back with LDLM_CANCEL.
        pub cancelled: Counter = "coral_ldlm_client_cancelled_total", Locks, Stable;
    }
}

coral_metrics::group! {
    /// What the lock namespace of a target has seen.
    pub struct ServerLockStats {
        /// Locks there are, those that wait included (`lock_count`).
        pub locks: Probe = "coral_ldlm_server_locks", Locks, Stable;
        /// Objects with locks (`resource_count`).
        pub resources: Probe = "coral_ldlm_server_resources", Locks, Stable;
        /// Locks that clients asked for and the target took for its own operations.
        pub enqueues: Counter = "coral_ldlm_server_enqueues_total", Locks, Stable;
        /// Locks asked for by clients that could not be granted at once.
        pub queued: Counter = "coral_ldlm_server_queued_total", Locks, Stable;
        /// Waits of the target's own operations for locks; those that got one at once are not in it.
        pub wait: Histogram = "coral_ldlm_server_wait_seconds", Seconds, Stable;
        /// Time in which clients answered blocking callbacks; the lock comes back later.
        pub blocking: Histogram = "coral_ldlm_server_bl_ast_seconds", Seconds, Stable;
        /// Time in which clients answered completion callbacks.
        pub completion: Histogram = "coral_ldlm_server_cp_ast_seconds", Seconds, Stable;
        /// Time in which clients answered glimpse callbacks.
        pub glimpse: Histogram = "coral_ldlm_server_gl_ast_seconds", Seconds, Stable;
        /// Locks cancelled by clients.
        pub cancelled: Counter = "coral_ldlm_server_cancelled_total", Locks, Stable;
        /// Clients evicted because they did not answer a callback or give a lock back in time.
        pub evictions: Counter = "coral_ldlm_server_evictions_total", Clients, Stable;
    }
}
