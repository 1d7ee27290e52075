//! Looks at the TCP connections of Coral processes, on a thread beside a step.

use super::runner::AskTcp;
use crate::clock;
use crate::verdict::{Look, Looks};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A watch that goes on until its end.
pub(super) struct TcpWatch {
    stop: Sender<()>,
    looks: Option<JoinHandle<Vec<Look>>>,
}

impl TcpWatch {
    /// The first look is over when this returns.
    pub(super) fn start(ask: AskTcp, places: Vec<PathBuf>, pause: Duration) -> TcpWatch {
        let begun = clock::now();
        let mut looks = Looks::every(pause.as_secs_f64());
        take(&mut looks, begun, &ask, &places);
        let (stop, stopped) = channel();
        let watch = move || {
            loop {
                let pause = Duration::from_secs_f64(looks.pause_s());
                let ended = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
                take(&mut looks, begun, &ask, &places);
                if ended {
                    return looks.all();
                }
            }
        };
        TcpWatch {
            stop,
            looks: clock::spawn("tcp", watch).ok(),
        }
    }

    /// All looks, the last of them now.
    pub(super) fn end(self) -> Vec<Look> {
        let _ = self.stop.send(());
        let looked = self.looks.and_then(|t| t.join().ok());
        looked.unwrap_or_default()
    }
}

/// Where nobody can be asked there is no look.
fn take(looks: &mut Looks, begun: Instant, ask: &AskTcp, places: &[PathBuf]) {
    let asked = clock::now();
    if let Ok(answers) = ask(places) {
        looks.take(asked.duration_since(begun).as_secs_f64(), answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Tcp;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn there_is_a_look_before_and_one_at_the_end() {
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let ask: AskTcp = Arc::new(move |places| {
            assert_eq!(places, [PathBuf::from("/mnt")]);
            let acked_bytes = counted.fetch_add(1, Ordering::Relaxed);
            let tcp = Tcp {
                acked_bytes,
                ..Tcp::default()
            };
            Ok([("/run/p.sock".into(), Some(vec![tcp]))].into())
        });
        let watch = TcpWatch::start(ask, vec!["/mnt".into()], Duration::from_secs(3600));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let looks = watch.end();
        let seen: Vec<u64> = looks.iter().map(|l| l.tcp[0].acked_bytes).collect();
        assert_eq!(seen, [0, 1]);
        assert!(looks[0].at_s <= looks[1].at_s);
        let nobody: AskTcp = Arc::new(|_| Err("nobody is there".to_owned()));
        assert_eq!(TcpWatch::start(nobody, vec![], Duration::ZERO).end(), []);
    }
}
