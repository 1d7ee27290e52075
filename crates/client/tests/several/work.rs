//! A client that changes a tree which others lay out anew, and knows what is its own.

use std::collections::BTreeMap;
use std::time::Duration;

use coral_wire::{Errno, Fid};

use crate::common::{Result, Rng, User};

/// The directory and the name of a path.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// What a path and all above it stand for.
pub async fn way(u: &User, path: &str) -> Vec<Result<Fid>> {
    let ends = path.match_indices('/').map(|(at, _)| at);
    let mut fids = Vec::new();
    for end in ends.chain([path.len()]) {
        fids.push(u.fid(&path[..end]).await);
    }
    fids
}

/// An operation by path, looked up again when what it is about has moved meanwhile. The kernel does that for ESTALE, once.
pub async fn steady<T>(u: &User, path: &str, op: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut stale = 0;
    for _ in 0..100 {
        let at = way(u, path).await;
        match op().await {
            Err(Errno::ESTALE) if stale == 0 => stale += 1,
            Err(Errno::ENOENT) if at != way(u, path).await => {}
            done => return done,
        }
    }
    panic!("{path} is never found as it is");
}

/// A client that works in `t` and its subdirectories under names of its own, and knows what they are.
pub async fn work(
    u: User,
    who: &'static str,
    mut rng: Rng,
    steps: usize,
) -> BTreeMap<String, Vec<u8>> {
    let dirs = ["t", "t/s0", "t/s1"];
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let pick = |rng: &mut Rng| dirs[rng.below(3) as usize];
    for i in 0..steps {
        let dir = pick(&mut rng);
        let path = format!("{dir}/{who}{}", rng.below(6));
        match rng.below(5) {
            0 | 1 => {
                let data = format!("{who} {i}").into_bytes();
                let put = async || u.put(&path, &data).await;
                steady(&u, &path, put).await.unwrap();
                model.insert(path, data);
            }
            2 => {
                let gone = steady(&u, &path, async || u.unlink(&path).await).await;
                let there = model.remove(&path).is_some();
                assert_eq!(
                    gone,
                    if there { Ok(()) } else { Err(Errno::ENOENT) },
                    "{path}"
                );
            }
            3 => {
                let to_dir = pick(&mut rng);
                let to = format!("{to_dir}/{who}{}", rng.below(6));
                let op = async || u.rename(&path, &to, 0).await;
                let both = async || steady(&u, &to, &op).await;
                let done = steady(&u, &path, both).await;
                match model.remove(&path) {
                    Some(data) => {
                        assert_eq!(done, Ok(()), "{path} to {to}");
                        model.insert(to, data);
                    }
                    None => assert_eq!(done, Err(Errno::ENOENT), "{path} to {to}"),
                }
            }
            _ => {
                let got = steady(&u, &path, async || u.get(&path).await).await;
                assert_eq!(got.ok(), model.get(&path).cloned(), "{path}");
            }
        }
        let names = steady(&u, dir, async || u.names(dir).await).await.unwrap();
        let mut own = names.iter().filter(|n| n.starts_with(who));
        let expected = model
            .keys()
            .filter(|p| split(p).0 == dir)
            .map(|p| split(p).1);
        assert!(
            own.by_ref().map(String::as_str).eq(expected),
            "{dir}: {names:?}"
        );
        tokio::time::sleep(Duration::from_micros(rng.below(900))).await;
    }
    model
}
