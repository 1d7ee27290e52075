//! Programs that put load on mounts while a test looks at them.

use super::in_network_namespace;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Programs that go on until this is dropped.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    #[expect(clippy::disallowed_methods, reason = "programs that use a mount")]
    pub fn start(programs: usize, once: impl Fn(usize, u64) + Send + Sync + 'static) -> Load {
        let (stop, once) = (Arc::new(AtomicBool::new(false)), Arc::new(once));
        let threads = (0..programs).map(|p| {
            let (stop, once) = (stop.clone(), once.clone());
            std::thread::spawn(move || {
                (0..)
                    .take_while(|_| !stop.load(Ordering::Relaxed))
                    .for_each(|round| once(p, round));
            })
        });
        let threads = threads.collect();
        Load { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}

/// Writes of 64 KiB into a file of each program, each on disk before the next.
pub fn writers(programs: usize, dirs: Vec<PathBuf>) -> Load {
    Load::start(programs, move |p, round| {
        let file = dirs[p % dirs.len()].join(format!("w{p}"));
        let file = std::fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(file)
            .expect("opened");
        file.write_all_at(&[7; 65_536], round % 64 * 65_536)
            .expect("written");
        file.sync_all().expect("synced");
    })
}

/// One after the other: a verdict is about the whole machine.
pub fn alone(name: &str, body: impl FnOnce()) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    in_network_namespace(name, body);
}

/// A program that ends with the test.
pub struct Burner(Child);

impl Burner {
    pub fn start(command: &mut Command) -> Burner {
        Burner(
            command
                .spawn()
                .unwrap_or_else(|e| panic!("{command:?}: {e}")),
        )
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
