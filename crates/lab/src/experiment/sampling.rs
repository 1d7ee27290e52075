//! What is sampled beside the commands of a step: this machine, the processes of the rig and of the commands, and other hosts.

use super::process::Role;
use super::step::Runner;
use crate::collect::{Node, Processes, Sampler, Samples, of_machine};
use crate::verdict::{Host, Used};

impl Runner<'_> {
    /// Starts sampling; without a sampler the step has no series, which its record shows.
    pub(super) fn sampler(&self, roles: &[Role], pids: &[u32], raw: &str) -> Option<Sampler> {
        let mut processes: Vec<(String, u32)> = roles
            .iter()
            .map(|r| r.name.clone())
            .zip(pids.iter().copied())
            .collect();
        let mut sources = of_machine();
        if let Some(rig) = &self.rig {
            processes.extend(rig.processes());
            for (name, dir) in rig.servers().iter().cloned().chain(rig.clients()) {
                let ask = self.settings.ask.clone();
                sources.push(Box::new(Node::new(&name, Box::new(move || ask(&dir)))));
            }
        }
        for host in &self.plan.spec.hosts {
            let errors = self.run.path().join(raw);
            let errors = errors.join(format!("agent-{}.err", host.name));
            match host.agent(&self.settings.coral, &errors, &self.gone) {
                Ok(agent) => sources.push(Box::new(agent)),
                Err(e) => {
                    let _ = (self.gone).set(format!("the host {} went away: {e}", host.name));
                }
            }
        }
        sources.push(Box::new(Processes::new(processes)));
        let ends = || self.ends().is_some();
        Sampler::start(sources, self.plan.spec.run.sample, &ends).ok()
    }
}

/// This machine in the means of a step; where not all commands ended together, of the time in which it was seen who used it.
pub(super) fn host_of(samples: &Samples, used: Used, is_common: bool) -> Host {
    let mean = |name: &str| {
        let series = samples.series.get(name);
        series.and_then(|s| s.mean()).unwrap_or(0.0)
    };
    let busy = match is_common {
        true => used.ours + used.others,
        false => mean("host/cpu_busy"),
    };
    used.here(busy, mean("host/swap_in"))
}
