//! What `lctl get_param` shows of servers and `set_param` changes: parameters of MDTs, nodemaps, how long recovery waits.

use std::time::Duration;

use coral_server::{LuTarget, RecoveryStatus, TargetKind, Windows};

use super::Servers;

/// Parameters of how long a recovery waits.
const SOFT: &str = "recovery_time_soft";
const HARD: &str = "recovery_time_hard";
/// Longest recovery, seconds.
const RECOVERY_SECS_MAX: u32 = 86400;

/// Why a parameter was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// Nodemaps have commands of their own.
    #[error("set it with lctl nodemap_modify, nodemap_activate or nodemap_set_fileset on the MGS")]
    Nodemap,
    /// No target here has that name.
    #[error("no such target")]
    NoSuchTarget,
    /// It can only be read.
    #[error("Permission denied")]
    ReadOnly,
    /// It is a time, and this is none.
    #[error("'{0}' is no time: give 1 to 86400 seconds")]
    NoTime(String),
    /// The MDT does not take the value; why.
    #[error("{0}")]
    Refused(String),
}

impl Servers {
    /// Names and values.
    pub fn params(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.mdts.iter().flat_map(|mdt| mdt.params()).collect();
        all.extend(self.server.nodemap_params());
        all.extend(self.recovery_params());
        all
    }

    /// Sets one of them.
    pub async fn set_param(&self, name: &str, value: &str) -> Result<(), ParamError> {
        if name.starts_with("nodemap.") {
            return Err(ParamError::Nodemap);
        }
        for mdt in &self.mdts {
            if let Some(done) = mdt.set_param(name, value).await {
                return done.map_err(ParamError::Refused);
            }
        }
        self.set_window(name, value)
    }

    /// How long the targets wait for clients after a restart, and whom for.
    fn recovery_params(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for (dir, t) in self.targets().filter_map(|t| Some((params_of(t)?, t))) {
            let w = t.windows();
            out.push((format!("{dir}.recovery_status"), recovery_status(t)));
            out.push((format!("{dir}.{HARD}"), w.hard.as_secs().to_string()));
            out.push((format!("{dir}.{SOFT}"), w.soft.as_secs().to_string()));
        }
        out
    }

    fn set_window(&self, name: &str, value: &str) -> Result<(), ParamError> {
        let (dir, what) = name.rsplit_once('.').unwrap_or(("", name));
        let mut targets = self.targets();
        let target = targets
            .find(|t| params_of(t).as_deref() == Some(dir))
            .ok_or(ParamError::NoSuchTarget)?;
        let w = target.windows();
        match what {
            SOFT => target.set_windows(Windows {
                soft: seconds(value)?,
                ..w
            }),
            HARD => target.set_windows(Windows {
                hard: seconds(value)?,
                ..w
            }),
            _ => return Err(ParamError::ReadOnly),
        }
        Ok(())
    }
}

fn seconds(value: &str) -> Result<Duration, ParamError> {
    let secs = value.trim().parse::<u32>().ok();
    secs.filter(|s| (1..=RECOVERY_SECS_MAX).contains(s))
        .map(|s| Duration::from_secs(s.into()))
        .ok_or_else(|| ParamError::NoTime(value.to_owned()))
}

/// Where the parameters of a target are, as Lustre has them; an MGS has none.
fn params_of(t: &LuTarget) -> Option<String> {
    match t.config().kind {
        TargetKind::Mgs => None,
        TargetKind::Mdt => Some(format!("mdt.{}", t.name())),
        TargetKind::Ost => Some(format!("obdfilter.{}", t.name())),
    }
}

/// As Lustre prints it, as far as it is known, and whom it waits for.
fn recovery_status(t: &LuTarget) -> String {
    let Some(r) = t.recovery_status() else {
        return "status: COMPLETE\n".into();
    };
    let mut text = format!(
        "status: RECOVERING\ntime_remaining: {}\nconnected_clients: {}/{}\n",
        r.left.as_secs(),
        r.clients - missing(&r),
        r.clients
    );
    for w in &r.waited_for {
        let doing = if w.back { "replaying" } else { "not back" };
        text.push_str(&format!("waiting_for: {} {} {doing}\n", w.uuid, w.place()));
    }
    text
}

fn missing(r: &RecoveryStatus) -> usize {
    r.waited_for.iter().filter(|w| !w.back).count()
}
