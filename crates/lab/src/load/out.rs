//! What a run prints.

use parking_lot::Mutex;
use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stream that several ranks print to, whole texts at a time.
#[derive(Clone)]
pub struct Out {
    sink: Arc<Mutex<Box<dyn Write + Send>>>,
    failed: Arc<AtomicBool>,
}

impl Out {
    /// To standard output.
    pub fn stdout() -> Out {
        Out::to(Box::new(std::io::stdout()))
    }

    /// To any stream.
    pub fn to(sink: Box<dyn Write + Send>) -> Out {
        Out {
            sink: Arc::new(Mutex::new(sink)),
            failed: Arc::default(),
        }
    }

    /// Into memory, for programs that read what was printed.
    pub fn memory() -> (Out, Printed) {
        let printed = Printed::default();
        (Out::to(Box::new(printed.clone())), printed)
    }

    /// To nowhere.
    pub fn silent() -> Out {
        Out::to(Box::new(std::io::sink()))
    }

    /// Prints `text` as it is, at once.
    pub fn print(&self, text: impl Display) {
        let mut sink = self.sink.lock();
        if write!(sink, "{text}").and_then(|()| sink.flush()).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Prints `text` and ends the line.
    pub fn line(&self, text: impl Display) {
        self.print(format_args!("{text}\n"));
    }

    /// Something that was printed was lost.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Out").finish_non_exhaustive()
    }
}

/// What was printed into memory.
#[derive(Clone, Default, Debug)]
pub struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    /// All of it so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
