//! Ways to targets that are slower than others, of each client by itself.

use std::collections::BTreeMap;

use super::clients::View;
use super::facts::{Facts, Path};
use super::rules::{
    Cause, CauseKind, MORE_LEAST_S, RTT_NEAR_S, SHARE_LEAST, TIMES_PEERS, mean_bytes, ms, peers,
};

/// A way that is slow as its client sees it.
struct SlowWay {
    /// Share of all operations' time.
    share: f64,
    figure: String,
    /// The client, where it is not all.
    from: Option<String>,
}

fn slow_way(v: &View, p: &Path) -> Option<SlowWay> {
    let share = v.on_way(p) + v.queued_for(p, p.way_s() * p.rpcs as f64);
    // What carries as many bytes: others are through before the data are. Of a way that nobody knows nothing is compared.
    let alike = |o: &Path| o.rtt_s.is_finite() && mean_bytes(o) >= mean_bytes(p) / TIMES_PEERS;
    let others = v.paths.iter().filter(|o| o.target != p.target);
    let there = |o: &Path| v.unqueued(o);
    let nearest = others.min_by(|a, b| there(a).total_cmp(&there(b)));
    let more_least = match nearest.is_some_and(alike) {
        true => MORE_LEAST_S,
        false => RTT_NEAR_S,
    };
    let (nearest, own_way) = (nearest.map_or(f64::INFINITY, there), there(p));
    let known = nearest.is_finite() && own_way.is_finite();
    let far = known && own_way > TIMES_PEERS * nearest && own_way - nearest > more_least;
    let (way, peers) = (p.way_s(), peers(v.paths, p, alike, Path::way_s));
    let is_slow = |m: f64| way > TIMES_PEERS * m && way - m > MORE_LEAST_S;
    let slow = own_way.is_finite() && peers.is_some_and(is_slow);
    (far || slow).then(|| SlowWay {
        share,
        figure: format!(
            "{} on the way an RPC, {} at least there and back; {}",
            ms(way),
            ms(own_way),
            match (far, peers) {
                (false, Some(m)) => format!("its peers {}", ms(m)),
                _ => format!("the nearest server {}", ms(nearest)),
            }
        ),
        from: v.who(),
    })
}

/// Targets to which the way is slow from all clients that use it, or from some.
pub(super) fn slow_links(f: &Facts) -> Vec<Cause> {
    let views = f.views();
    let mut all: BTreeMap<&str, Vec<SlowWay>> = BTreeMap::new();
    for v in &views {
        for p in v.paths {
            all.entry(&p.target).or_default().extend(slow_way(v, p));
        }
    }
    let cause = |(target, ways): (&str, Vec<SlowWay>)| {
        let share = ways.iter().map(|w| w.share).sum::<f64>();
        let users = views.iter().flat_map(|v| v.paths);
        let users = users.filter(|p| p.target == target && p.rpcs > 0).count();
        let worst = (ways.iter()).max_by(|a, b| a.share.total_cmp(&b.share))?;
        (share >= SHARE_LEAST).then(|| Cause {
            kind: CauseKind::SlowLink,
            subject: target.to_owned(),
            fid: None,
            share,
            figure: match &worst.from {
                Some(from) if ways.len() < users => format!("{}; from {from}", worst.figure),
                _ => worst.figure.clone(),
            },
            ceiling: None,
            change: format!("measure the way to {target} alone with `lst`"),
        })
    };
    all.into_iter().filter_map(cause).collect()
}
