//! Which groups a user is in: what Lustre's MDT asks its identity upcall for (`lustre/mdt/mdt_identity.c`,
//! `lustre/obdclass/upcall_cache.c`, `l_getidentity`). Here the name service of the system is asked.
//!
//! A request carries two supplementary groups at most. Whoever is in more is known to be by this cache, and those of the request
//! count besides (`lustre_in_group_p` in `lustre/obdclass/acl.c`).
//!
//! - An answer is good for `identity_expire` seconds. Requests of one user wait for one question.
//! - A name service may be slow or hang: it is asked on threads of its own, [`LOOKUPS_MAX`] at most, under no lock, and a request
//!   waits no longer than `identity_acquire_expire` seconds. Then it is refused (EACCES), as in Lustre, and further ones of this
//!   user are refused at once for as long again, unless the answer comes after all.
//! - Different from Lustre: a user the name service does not know is not refused. He is in the groups his requests name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;

/// Seconds an answer is good for (`identity_expire`, 1200 in Lustre).
const EXPIRE_S: u64 = 1200;
/// Seconds a request waits for an answer (`identity_acquire_expire`, 30 in Lustre).
const ACQUIRE_EXPIRE_S: u64 = 30;
/// Threads that ask the name service at one time.
const LOOKUPS_MAX: usize = 8;
/// Users asked about at one time, those included that wait for a thread. Beyond that a request is refused.
const PENDING_MAX: usize = 1024;
/// Users remembered. Beyond that all are forgotten that nobody waits for.
const USERS_MAX: usize = 65_536;
/// Groups of one user (`NGROUPS_MAX` of Linux).
const GROUPS_MAX: usize = 65_536;
/// Greatest number of seconds that can be set.
const SECONDS_MAX: u64 = i32::MAX as u64;

/// Who knows users.
pub trait NameService: Send + Sync + 'static {
    /// All groups of a user; `None` when there is no such user.
    fn groups(&self, uid: u32) -> std::io::Result<Option<Vec<u32>>>;

    /// Whether a question may take a while. It is asked on a thread of its own then.
    fn waits(&self) -> bool {
        true
    }
}

/// The name service of the system (`getpwuid`, `getgrouplist`): files, LDAP, whatever `nsswitch.conf` names.
pub struct System;

impl NameService for System {
    fn groups(&self, uid: u32) -> std::io::Result<Option<Vec<u32>>> {
        use nix::unistd::{Uid, User, getgrouplist};
        let Some(user) = User::from_uid(Uid::from_raw(uid))? else {
            return Ok(None);
        };
        let name = std::ffi::CString::new(user.name)?;
        Ok(Some(
            getgrouplist(&name, user.gid)?
                .into_iter()
                .map(|g| g.as_raw())
                .collect(),
        ))
    }
}

/// Nobody says which groups a user is in: the request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoIdentity;

/// What is known of a user: his groups in order, or that he is unknown.
type Groups = Option<Arc<[u32]>>;

enum IdentityEntry {
    Known(Groups, Instant),
    /// Not to be had until then.
    Failed(Instant),
    /// Being asked about. The channel closes with the answer.
    Asked(watch::Receiver<()>),
}

struct IdentityState {
    on: bool,
    expire: Duration,
    acquire_expire: Duration,
    users: BTreeMap<u32, IdentityEntry>,
    pending: usize,
}

/// What to do about a user.
enum Look {
    Done(Result<Groups, NoIdentity>),
    Wait(watch::Receiver<()>, Duration),
    Ask(watch::Sender<()>),
}

impl IdentityState {
    fn look(&mut self, uid: u32, now: Instant) -> Look {
        match self.users.get(&uid) {
            _ if !self.on => Look::Done(Ok(None)),
            Some(IdentityEntry::Known(groups, until)) if now < *until => {
                Look::Done(Ok(groups.clone()))
            }
            Some(IdentityEntry::Failed(until)) if now < *until => Look::Done(Err(NoIdentity)),
            Some(IdentityEntry::Asked(rx)) => Look::Wait(rx.clone(), self.acquire_expire),
            _ if self.pending >= PENDING_MAX => Look::Done(Err(NoIdentity)),
            _ => {
                if self.users.len() >= USERS_MAX {
                    self.users
                        .retain(|_, e| matches!(e, IdentityEntry::Asked(_)));
                }
                let (tx, rx) = watch::channel(());
                self.users.insert(uid, IdentityEntry::Asked(rx));
                self.pending += 1;
                Look::Ask(tx)
            }
        }
    }

    fn answered(&mut self, uid: u32, answer: std::io::Result<Option<Vec<u32>>>, now: Instant) {
        self.pending -= 1;
        let entry = match answer {
            Ok(groups) => {
                let sorted = groups.map(|mut g| {
                    g.truncate(GROUPS_MAX);
                    g.sort_unstable();
                    g.dedup();
                    g.into()
                });
                IdentityEntry::Known(sorted, now + self.expire)
            }
            Err(error) => {
                tracing::warn!(uid, %error, "the name service does not say which groups a user is in; his requests are refused for now");
                IdentityEntry::Failed(now + self.acquire_expire)
            }
        };
        self.users.insert(uid, entry);
    }
}

/// The groups of users, as far as known.
pub struct Identities {
    names: Option<Arc<dyn NameService>>,
    state: Mutex<IdentityState>,
    lookups: Arc<Semaphore>,
}

impl Identities {
    /// With a name service to ask; without one it is switched off.
    pub fn new(names: Option<Arc<dyn NameService>>) -> Arc<Identities> {
        let state = IdentityState {
            on: names.is_some(),
            expire: Duration::from_secs(EXPIRE_S),
            acquire_expire: Duration::from_secs(ACQUIRE_EXPIRE_S),
            users: BTreeMap::new(),
            pending: 0,
        };
        Arc::new(Identities {
            names,
            state: Mutex::new(state),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
        })
    }

    /// The groups of `uid`; `None` when nobody is asked, or the user is unknown.
    pub async fn groups(self: &Arc<Self>, uid: u32) -> Result<Groups, NoIdentity> {
        loop {
            let look = self.state.lock().look(uid, Instant::now());
            match look {
                Look::Done(known) => return known,
                Look::Ask(tx) => self.ask(uid, tx),
                Look::Wait(mut rx, limit) => {
                    if tokio::time::timeout(limit, rx.changed()).await.is_err() {
                        return self.gave_up(uid, rx);
                    }
                }
            }
        }
    }

    /// Asks the name service. When this returns the answer is there, or somebody is about to bring it.
    #[expect(
        clippy::disallowed_methods,
        reason = "a question to the name service may never end"
    )]
    fn ask(self: &Arc<Self>, uid: u32, tx: watch::Sender<()>) {
        let Some(names) = self.names.clone().filter(|n| n.waits()) else {
            let answer = self.names.as_ref().map_or(Ok(None), |n| n.groups(uid));
            return self.state.lock().answered(uid, answer, Instant::now());
        };
        let me = self.clone();
        tokio::spawn(async move {
            let Ok(permit) = me.lookups.clone().acquire_owned().await else {
                return;
            };
            let (said, heard) = oneshot::channel();
            // not one of the runtime's threads: a question that never ends must not keep the program from ending
            let thread = std::thread::Builder::new()
                .name("identity".into())
                .spawn(move || {
                    let _permit = permit;
                    let _ = said.send(names.groups(uid));
                });
            let answer = match thread {
                Ok(_) => heard.await.unwrap_or_else(|_| {
                    Err(std::io::Error::other(
                        "the question ended without an answer",
                    ))
                }),
                Err(e) => Err(e),
            };
            me.state.lock().answered(uid, answer, Instant::now());
            drop(tx);
        });
    }

    /// The answer did not come in time.
    fn gave_up(&self, uid: u32, waited: watch::Receiver<()>) -> Result<Groups, NoIdentity> {
        let mut s = self.state.lock();
        if let Some(IdentityEntry::Asked(rx)) = s.users.get(&uid)
            && rx.same_channel(&waited)
        {
            tracing::warn!(
                uid,
                "the name service does not answer; requests of this user are refused (mdt.*.identity_upcall=NONE asks nobody)"
            );
            let until = Instant::now() + s.acquire_expire;
            s.users.insert(uid, IdentityEntry::Failed(until));
        }
        match s.users.get(&uid) {
            Some(IdentityEntry::Known(groups, _)) => Ok(groups.clone()),
            _ => Err(NoIdentity),
        }
    }

    /// Forgets a user, or all of them.
    pub fn flush(&self, uid: Option<u32>) {
        let mut s = self.state.lock();
        s.users.retain(|u, e| {
            matches!(e, IdentityEntry::Asked(_)) || uid.is_some_and(|uid| uid != *u)
        });
    }

    /// The parameters `mdt.*.identity_*` with their values.
    pub fn params(&self) -> Vec<(&'static str, String)> {
        let s = self.state.lock();
        vec![
            (
                "identity_acquire_expire",
                s.acquire_expire.as_secs().to_string(),
            ),
            ("identity_expire", s.expire.as_secs().to_string()),
            ("identity_flush", String::new()),
            ("identity_info", s.info(Instant::now())),
            (
                "identity_upcall",
                if s.on { "NSS" } else { "NONE" }.to_owned(),
            ),
        ]
    }

    /// Sets one of them. `None`: there is no such parameter.
    pub fn set_param(&self, name: &str, value: &str) -> Option<Result<(), String>> {
        let seconds = || {
            value
                .parse::<u64>()
                .ok()
                .filter(|n| *n <= SECONDS_MAX)
                .map(Duration::from_secs)
        };
        let no_time = || format!("'{value}' is no time: give seconds, 0 to {SECONDS_MAX}");
        Some(match name {
            "identity_expire" => seconds()
                .map(|t| self.state.lock().expire = t)
                .ok_or_else(no_time),
            "identity_acquire_expire" => seconds()
                .map(|t| self.state.lock().acquire_expire = t)
                .ok_or_else(no_time),
            "identity_flush" => match value.parse::<i64>() {
                Ok(n) if n <= u32::MAX.into() => {
                    self.flush(u32::try_from(n).ok());
                    Ok(())
                }
                _ => Err(format!("'{value}' is no user: give a uid, or -1 for all")),
            },
            "identity_upcall" => self.switch(value),
            "identity_info" => Err("it can only be read".into()),
            _ => return None,
        })
    }

    fn switch(&self, value: &str) -> Result<(), String> {
        let on = match value {
            "NONE" => false,
            "NSS" if self.names.is_some() => true,
            "NSS" => return Err("there is no name service to ask".into()),
            _ => {
                return Err(format!(
                    "'{value}' is no upcall: give NSS (the name service of the system) or NONE"
                ));
            }
        };
        self.state.lock().on = on;
        self.flush(None);
        Ok(())
    }
}

impl IdentityState {
    /// Who is known, a line each.
    fn info(&self, now: Instant) -> String {
        let mut out = String::new();
        for (uid, e) in &self.users {
            let what = match e {
                IdentityEntry::Known(Some(groups), until) if now < *until => {
                    let list: Vec<String> = groups.iter().map(u32::to_string).collect();
                    format!(
                        "groups: [ {} ], expires_s: {}",
                        list.join(", "),
                        (*until - now).as_secs()
                    )
                }
                IdentityEntry::Known(None, until) if now < *until => {
                    format!("unknown, expires_s: {}", (*until - now).as_secs())
                }
                IdentityEntry::Failed(until) if now < *until => {
                    format!("no answer, expires_s: {}", (*until - now).as_secs())
                }
                IdentityEntry::Asked(_) => "asked".into(),
                _ => "expired".into(),
            };
            out += &format!("- {{ uid: {uid}, {what} }}\n");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Users 1 to 9, each in groups of ten times his number; 7 has no answer but an error.
    #[derive(Default)]
    struct Book(AtomicUsize);

    impl NameService for Book {
        fn groups(&self, uid: u32) -> std::io::Result<Option<Vec<u32>>> {
            self.0.fetch_add(1, Relaxed);
            match uid {
                7 => Err(std::io::Error::other("down")),
                1..=9 => Ok(Some(vec![uid * 10 + 1, uid * 10, uid * 10])),
                _ => Ok(None),
            }
        }
        fn waits(&self) -> bool {
            false
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_and_expire() {
        let book = Arc::new(Book::default());
        let ids = Identities::new(Some(book.clone()));
        let groups = async |uid| ids.groups(uid).await.map(|g| g.map(|g| g.to_vec()));
        assert_eq!(groups(2).await, Ok(Some(vec![20, 21])));
        assert_eq!(groups(2).await, Ok(Some(vec![20, 21])));
        assert_eq!((groups(50).await, groups(50).await), (Ok(None), Ok(None)));
        assert_eq!(
            (groups(7).await, groups(7).await),
            (Err(NoIdentity), Err(NoIdentity))
        );
        assert_eq!(book.0.load(Relaxed), 3, "each was asked once");
        tokio::time::advance(Duration::from_secs(ACQUIRE_EXPIRE_S)).await;
        let _ = (groups(7).await, groups(2).await);
        assert_eq!(
            book.0.load(Relaxed),
            4,
            "no answer is asked for again sooner"
        );
        tokio::time::advance(Duration::from_secs(EXPIRE_S)).await;
        let _ = groups(2).await;
        assert_eq!(book.0.load(Relaxed), 5);
        assert_eq!(ids.set_param("identity_flush", "2"), Some(Ok(())));
        let _ = groups(2).await;
        assert_eq!(book.0.load(Relaxed), 6);
        assert_eq!(ids.set_param("identity_upcall", "NONE"), Some(Ok(())));
        assert_eq!((groups(2).await, book.0.load(Relaxed)), (Ok(None), 6));
        assert_eq!(ids.set_param("identity_upcall", "NSS"), Some(Ok(())));
        assert_eq!(groups(3).await, Ok(Some(vec![30, 31])));
        let info = ids
            .params()
            .into_iter()
            .find(|(n, _)| *n == "identity_info")
            .unwrap()
            .1;
        assert_eq!(info, "- { uid: 3, groups: [ 30, 31 ], expires_s: 1200 }\n");
        for (name, bad) in [
            ("identity_expire", "-1"),
            ("identity_upcall", "/bin/sh"),
            ("identity_flush", "x"),
            ("identity_info", "1"),
        ] {
            assert!(ids.set_param(name, bad).unwrap().is_err(), "{name}={bad}");
        }
        assert!(ids.set_param("identity_int_expire", "1").is_none());
    }

    /// Answers when it is let.
    struct Slow(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

    impl NameService for Slow {
        fn groups(&self, uid: u32) -> std::io::Result<Option<Vec<u32>>> {
            let _ = self.0.lock().unwrap().recv();
            Ok(Some(vec![uid]))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_service_that_hangs_holds_nobody_up_for_long() {
        let (let_go, gate) = std::sync::mpsc::channel();
        let ids = Identities::new(Some(Arc::new(Slow(std::sync::Mutex::new(gate)))));
        // the paused clock moves on because nothing else is to be done: the limit is what ends the wait
        let (a, b) = tokio::join!(ids.groups(4), ids.groups(4));
        assert_eq!((a, b), (Err(NoIdentity), Err(NoIdentity)));
        let before = Instant::now();
        assert_eq!(ids.groups(4).await, Err(NoIdentity));
        assert_eq!(Instant::now(), before, "known to be out of reach");
        // and more users than there are threads
        let users = (100..100 + 2 * PENDING_MAX as u32).map(|uid| ids.groups(uid));
        assert!(
            futures_util::future::join_all(users)
                .await
                .iter()
                .all(|a| *a == Err(NoIdentity))
        );
        assert!(ids.state.lock().pending <= PENDING_MAX);
        drop(let_go); // every question is answered now
        while ids.state.lock().pending > 0 {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
        assert_eq!(
            ids.groups(4).await.unwrap().as_deref(),
            Some(&[4][..]),
            "the late answer counts"
        );
    }
}
