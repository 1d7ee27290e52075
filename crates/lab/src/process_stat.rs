//! What the kernel says of a process or of one of its threads in a file `stat` of /proc.

use std::io::{Error, ErrorKind, Result};

/// One that has not ended, or that has and is not forgotten yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// R: it runs or could; S: it waits; D: it does so where no signal ends that; T: a signal has stopped it; t: a debugger has; Z, X: it
    /// has ended.
    pub state: char,
    /// The process that started it, or that has it since.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// When it was started, in ticks since the machine was.
    pub started: u64,
}

impl ProcessStat {
    /// Of a process.
    pub fn of(pid: u32) -> Result<ProcessStat> {
        ProcessStat::read(&format!("/proc/{pid}/stat"))
    }

    /// Of all threads of a process that can be seen. A process whose first thread has ended goes on with the others.
    pub fn of_threads(pid: u32) -> Vec<ProcessStat> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let threads = threads.into_iter().flatten().flatten();
        let of = |e: std::fs::DirEntry| ProcessStat::read(e.path().join("stat").to_str()?).ok();
        threads.filter_map(of).collect()
    }

    fn read(file: &str) -> Result<ProcessStat> {
        let text = std::fs::read_to_string(file)?;
        ProcessStat::parse(&text)
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("'{file}': '{text}'")))
    }

    fn parse(text: &str) -> Option<ProcessStat> {
        // Behind the name, which may have spaces and parentheses.
        let (_, rest) = text.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some(ProcessStat {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            // It is the 22nd of all.
            started: fields.nth(16)?.parse().ok()?,
        })
    }

    /// It has ended, and its parent has not asked how.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// A signal has stopped it. What a debugger holds is not: `strace` holds a process for moments, again and again.
    pub fn is_stopped(&self) -> bool {
        self.state == 'T'
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_fields_after_it() {
        let text = "7 (a) Z 1) S 3 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9 9\n";
        let read = ProcessStat::parse(text).unwrap();
        let told = ProcessStat {
            state: 'S',
            parent: 3,
            group: 5,
            started: 4711,
        };
        assert_eq!(read, told);
        assert!(!read.has_ended() && !read.is_stopped());
        for cut in ["", "7 (a", "7 (a) S 3 5 5 0"] {
            assert_eq!(ProcessStat::parse(cut), None, "{cut}");
        }
    }

    #[test]
    fn this_process_is_seen_with_its_threads() {
        let pid = std::process::id();
        let own = ProcessStat::of(pid).unwrap();
        assert!(!own.has_ended() && own.started > 0 && own.parent > 0);
        let threads = ProcessStat::of_threads(pid);
        assert!(threads.iter().any(|t| t.state == 'R'), "{threads:?}");
        let nobody = ProcessStat::of(u32::MAX).unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::NotFound);
        assert!(ProcessStat::of_threads(u32::MAX).is_empty());
    }
}
