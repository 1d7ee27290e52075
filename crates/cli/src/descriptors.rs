//! How many files and sockets a process may open.

use std::io;

/// Lets this process open as many files and sockets as its hard limit allows: a server of many clients has three sockets for
/// each. Gives how many that is; the limit stays as it is when that fails.
pub(crate) fn raise_limit() -> io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?;
    Ok(maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_descriptors_becomes_the_hard_one() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let old = getrlimit(Resource::Nofile);
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(900),
                ..old
            },
        )
        .unwrap();
        let now = raise_limit().unwrap();
        assert_eq!(Some(now), getrlimit(Resource::Nofile).current);
        assert_eq!(getrlimit(Resource::Nofile).current, old.maximum);
    }
}
