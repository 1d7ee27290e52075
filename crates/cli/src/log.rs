//! The log, which goes on when it cannot be written.
//!
//! On a full disk a line is lost, and the next one that finds room says how many were. tracing's own way would be to tell of the
//! failure on standard error, which is the same full file: that panics, in the middle of whatever wrote the line.

use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::Arc;

/// Where lines go.
pub(crate) struct Log<W> {
    to: Mutex<(W, u64)>,
}

impl<W: Write> Log<W> {
    pub(crate) fn new(to: W) -> Self {
        Log {
            to: Mutex::new((to, 0)),
        }
    }

    fn line(&self, line: &[u8]) {
        let (to, lost) = &mut *self.to.lock();
        if *lost > 0 {
            let told = writeln!(
                to,
                "{lost} lines are missing here: the log could not be written"
            );
            *lost = if told.is_ok() { 0 } else { *lost };
        }
        if to.write_all(line).is_err() {
            *lost += 1;
        }
    }
}

/// One line of it.
pub(crate) struct Line<W>(pub(crate) Arc<Log<W>>);

impl<W: Write> Write for Line<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.line(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails while it is full.
    struct Paper(Vec<u8>, bool);

    impl Write for Paper {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            if self.1 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            self.0.write(buf)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_found_no_room_are_counted() {
        let log = Arc::new(Log::new(Paper(Vec::new(), false)));
        let say = |text: &str| Line(log.clone()).write_all(text.as_bytes()).unwrap();
        say("one\n");
        log.to.lock().0.1 = true;
        say("two\n");
        say("three\n");
        log.to.lock().0.1 = false;
        say("four\n");
        say("five\n");
        let text = String::from_utf8(log.to.lock().0.0.clone()).unwrap();
        assert_eq!(
            text,
            "one\n2 lines are missing here: the log could not be written\nfour\nfive\n"
        );
    }
}
