//! Which ranks this process is, read from the environment.

use super::own::Own;
use crate::load::Failed;
use std::collections::BTreeMap;

/// Set for processes that we start: "first:count:size".
pub(super) const RANKS: &str = "CORAL_LAB_RANKS";
/// Where they meet; with it a foreign launcher's ranks can be told where: an address, or a directory that all hosts see.
pub(super) const MEET: &str = "CORAL_LAB_MEET";
/// The name that the host goes by.
pub(super) const HOST: &str = "CORAL_LAB_HOST";
/// The directory that the ranks of a host work in: that of the command.
pub(super) const DIR: &str = "CORAL_LAB_DIR";
/// Where the record goes that no option asks for: an experiment of the laboratory sets it.
pub(crate) const RECORD: &str = "CORAL_LAB_RECORD";
/// Names a run under a foreign launcher that gives it no id.
const JOB: &str = "CORAL_LAB_JOB";

/// The environment of a run.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// That of this process.
    pub fn of_process() -> Environment {
        Environment(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    /// With one more variable.
    pub fn with(mut self, name: &str, value: &str) -> Environment {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// This process's part of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It starts the run.
    Alone,
    /// One of ours started it.
    Launched(Launched),
    /// A foreign launcher started it.
    Foreign(Foreign),
}

/// Ranks `first..first + count` of a run that one of ours started. The token comes on standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) size: u32,
    pub(super) address: String,
    pub(super) host: Option<String>,
    /// Where they work; elsewhere it is where they were started.
    pub(super) dir: Option<String>,
}

impl Launched {
    /// Goes where the ranks work: paths of the command line are meant from there.
    pub(super) fn enter(&self) -> Result<(), String> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let host = self.host.as_deref().unwrap_or("this host");
        std::env::set_current_dir(dir).map_err(|why| {
            format!(
                "{host}: the directory of the command, '{dir}', cannot be worked in there: {why}"
            )
        })
    }
}

/// One rank of a run that a foreign launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Tells this run from others.
    pub(super) job: String,
    /// Where the ranks meet, if that was said.
    pub(super) meet: Option<String>,
}

/// Launchers by the variables they set: rank, size, and those that tell one job from another.
///
/// Slurm sets a rank in a batch script as well, where no step was started: only the size of a step counts.
const LAUNCHERS: [(&str, &str, &[&str]); 4] = [
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    ),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", &["PMI_ID"]),
    (
        "PMI_RANK",
        "PMI_SIZE",
        &["PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"],
    ),
    (
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    ),
];

impl Place {
    pub(super) fn of(env: &Environment, own: &Own) -> Result<Place, Failed> {
        if let Some(ranks) = env.var(RANKS) {
            return launched(env, ranks);
        }
        for (rank, size, ids) in LAUNCHERS {
            let (Some(rank_text), Some(size_text)) = (env.var(rank), env.var(size)) else {
                continue;
            };
            let (Ok(rank_no), Ok(size_no)) = (rank_text.parse(), size_text.parse()) else {
                return Err(Failed::Refused(format!(
                    "the launcher set {rank}={rank_text} and {size}={size_text}, which are no numbers"
                )));
            };
            return foreign(env, own, rank_no, size_no, ids);
        }
        Ok(Place::Alone)
    }

    /// The first rank of this process, where it knows already.
    pub(super) fn first(&self) -> Option<u32> {
        match self {
            Place::Alone => Some(0),
            Place::Launched(p) => Some(p.first),
            Place::Foreign(p) => Some(p.rank),
        }
    }
}

fn launched(env: &Environment, ranks: &str) -> Result<Place, Failed> {
    let numbers: Vec<u32> = ranks.split(':').filter_map(|n| n.parse().ok()).collect();
    match (&numbers[..], env.var(MEET)) {
        (&[first, count, size], Some(address))
            if count > 0 && first.checked_add(count).is_some_and(|end| end <= size) =>
        {
            Ok(Place::Launched(Launched {
                first,
                count,
                size,
                address: address.to_owned(),
                host: env.var(HOST).map(str::to_owned),
                dir: env.var(DIR).map(str::to_owned),
            }))
        }
        _ => Err(Failed::Refused(format!(
            "{RANKS}={ranks} or {MEET} is not what Coral sets"
        ))),
    }
}

fn foreign(
    env: &Environment,
    own: &Own,
    rank: u32,
    size: u32,
    ids: &[&str],
) -> Result<Place, Failed> {
    if rank >= size || size > super::own::MAX_RANKS {
        return Err(Failed::Refused(format!(
            "the launcher says rank {rank} of {size}"
        )));
    }
    if size == 1 {
        return Ok(Place::Alone);
    }
    if own.np.is_some() || !own.hosts.is_empty() {
        return Err(Failed::Refused(
            "the ranks are started by a launcher: --np and --hosts are for runs without one".into(),
        ));
    }
    let named: Vec<&str> = ids.iter().filter_map(|id| env.var(id)).collect();
    let job = match env.var(JOB) {
        Some(job) => job.to_owned(),
        None if !named.is_empty() => named.join("."),
        // The ranks of a host have the launcher's agent as their parent.
        None => format!("parent-{}", std::os::unix::process::parent_id()),
    };
    let meet = env.var(MEET).map(str::to_owned);
    Ok(Place::Foreign(Foreign {
        rank,
        size,
        job: job.replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
        meet,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> Environment {
        vars.iter()
            .fold(Environment::default(), |e, (k, v)| e.with(k, v))
    }

    fn place(vars: &[(&str, &str)]) -> Result<Place, Failed> {
        Place::of(&env(vars), &Own::default())
    }

    #[test]
    fn a_launcher_is_known_by_what_it_sets() {
        for vars in [
            [("PMI_RANK", "2"), ("PMI_SIZE", "4")],
            [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")],
            [("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "4")],
        ] {
            match place(&vars).expect("fine") {
                Place::Foreign(p) => assert_eq!((p.rank, p.size), (2, 4)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(place(&[]).expect("fine"), Place::Alone);
        assert_eq!(
            place(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]).expect("fine"),
            Place::Alone
        );
        // in a batch script: a rank, and no step
        let batch = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_ID", "1"),
        ];
        assert_eq!(place(&batch).expect("fine"), Place::Alone);
    }

    #[test]
    fn ranks_of_a_host_work_in_the_directory_of_the_command() {
        let of_host = |dir: &str| {
            let vars = [(RANKS, "0:1:4"), (MEET, "h:1"), (HOST, "anna"), (DIR, dir)];
            match place(&vars).expect("fine") {
                Place::Launched(p) => p,
                other => panic!("{other:?}"),
            }
        };
        let none = of_host("/nonesuch/it's")
            .enter()
            .expect_err("it is not there");
        assert!(
            none.starts_with("anna: the directory of the command, '/nonesuch/it's', cannot "),
            "{none}"
        );
        let here = std::env::current_dir().expect("somewhere");
        assert_eq!(of_host(&here.to_string_lossy()).enter(), Ok(()));
    }

    #[test]
    fn nonsense_of_a_launcher_is_refused() {
        assert!(place(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).is_err());
        assert!(place(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")]).is_err());
        assert!(place(&[(RANKS, "0:0:4"), (MEET, "h:1")]).is_err());
        assert!(place(&[(RANKS, "3:2:4"), (MEET, "h:1")]).is_err());
        assert!(place(&[(RANKS, "0:1:4")]).is_err());
        let own = Own {
            np: Some(2),
            ..Own::default()
        };
        assert!(Place::of(&env(&[("PMI_RANK", "1"), ("PMI_SIZE", "4")]), &own).is_err());
    }
}
