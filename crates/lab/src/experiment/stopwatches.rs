//! What the Coral processes of a step tell of it, and the verdict.

use super::rig::Rig;
use super::step::Runner;
use crate::clock;
use crate::verdict::{Host, Look, NOT_CORAL, STOPWATCHES, Seen};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// When the commands of a step ran.
pub(super) struct Time {
    /// They began.
    pub(super) released: Instant,
    /// Some ended before others: what the processes told then, so many seconds after the beginning, and when the first ended.
    pub(super) together: Option<(Result<Seen, String>, f64, f64)>,
}

impl Runner<'_> {
    /// What limited the commands that have just ended, in the time in which all of them ran; None: no Coral processes are known here.
    /// All records go into the run, for `coral explain`: those of the last step stay. Of commands that mounted file systems through
    /// the library and wrote down what their stopwatches saw, these count, and the mounts do not. What was before the commands, such as
    /// the mounting, is left out.
    pub(super) fn verdict(
        &self,
        (host, tcp): (Host, Vec<Look>),
        time: Time,
        raw: &str,
    ) -> Option<String> {
        let own = taken_stopwatches(&self.run.path().join(raw));
        let mut places = match own.is_empty() {
            true => self.clients(),
            false => vec![],
        };
        places.extend(self.servers());
        if places.is_empty() && own.is_empty() {
            return None;
        }
        let since_s = |at: Instant| clock::now().duration_since(at).as_secs_f64();
        let is_common = time.together.is_some();
        let seen = match time.together {
            Some((seen, at_s, first_s)) if own.is_empty() => {
                seen.map(|seen| seen.within(at_s, at_s - first_s, is_common))
            }
            together => (self.settings.trace)(&places).and_then(|mut seen| {
                for answer in &own {
                    seen.take(answer)?;
                }
                let from_s = since_s(time.released);
                let first_s = together.map_or(from_s, |(.., first_s)| first_s);
                Ok(seen.within(from_s, from_s - first_s, is_common))
            }),
        };
        let seen = seen.and_then(|mut seen| {
            seen.hosts.push(host);
            seen.tcp = tcp;
            let kept = self.run.write(STOPWATCHES, &seen);
            kept.map(|()| seen).map_err(|e| e.to_string())
        });
        Some(match seen {
            Ok(seen) => seen.judged().to_string(),
            Err(why) if why == NOT_CORAL => format!("{why}\n"),
            Err(why) => format!("verdict: unknown: {why}\n"),
        })
    }

    /// What all processes tell that are known here.
    pub(super) fn told(&self) -> Result<Seen, String> {
        match self.places() {
            none if none.is_empty() => Err("no Coral process is known here".to_owned()),
            places => (self.settings.trace)(&places),
        }
    }

    /// Where the processes of all mounts can be asked.
    fn clients(&self) -> Vec<PathBuf> {
        match &self.rig {
            Some(r) => r.clients().into_iter().map(|(_, dir)| dir).collect(),
            None => self.settings.mounts.values().flatten().cloned().collect(),
        }
    }

    /// Where the servers and the router of the rig can be asked.
    fn servers(&self) -> Vec<PathBuf> {
        let of = |rig: &Rig| rig.servers().iter().map(|(_, dir)| dir.clone()).collect();
        self.rig.as_ref().map(of).unwrap_or_default()
    }

    /// Where all Coral processes that are known here can be asked.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let mut places = self.clients();
        places.extend(self.servers());
        places
    }
}

/// What commands wrote down of their stopwatches, in files `stopwatches-*.json` of a step, which are large and go with it.
fn taken_stopwatches(dir: &Path) -> Vec<serde_json::Value> {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_one = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("stopwatches-") && name.ends_with(".json")
    };
    let mut files: Vec<PathBuf> = files.map(|e| e.path()).filter(is_one).collect();
    files.sort();
    let take = |p: &PathBuf| {
        let text = std::fs::read(p).ok()?;
        let _ = std::fs::remove_file(p);
        serde_json::from_slice(&text).ok()
    };
    files.iter().filter_map(take).collect()
}
