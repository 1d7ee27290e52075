//! Texts that a user, a configuration log or a peer gives: NIDs, FIDs, networks, routes, lists and ranges of NIDs.

use arbitrary::{Result, Unstructured};
use coral_lnet::faults::NidMatch;
use coral_lnet::{Accept, Nid, parse_net, parse_routes};
use coral_server::nidlist::NidList;
use coral_server::nodemap::idmap;
use coral_wire::Fid;

use crate::mutate;

const SAMPLES: &[&str] = &[
    "10.0.0.1@tcp",
    "192.168.255.255@tcp65535",
    "0@lo",
    "[0x200000401:0x1:0x0]",
    "tcp1 10.0.0.[1-4]@tcp; tcp2 1 10.0.1.9@tcp:1",
    "o2ib0",
    "*@tcp",
    "10.0.0.[1-20/3]@tcp,10.[1,3].0.*@tcp1",
    "100:0",
    "1000-2000:500-1500",
    "secure",
];

/// What parses prints as what parses to the same.
pub(crate) fn all(u: &mut Unstructured<'_>) -> Result<()> {
    let sample = *u.choose(SAMPLES)?;
    let text = mutate(u, sample.as_bytes())?;
    let text = String::from_utf8_lossy(&text);
    if let Ok(nid) = text.parse::<Nid>() {
        assert_eq!(nid.to_string().parse(), Ok(nid), "{text:?}");
    }
    if let Ok(fid) = text.parse::<Fid>() {
        assert_eq!(fid.to_string().parse().ok(), Some(fid), "{text:?}");
    }
    if let Ok(routes) = parse_routes(&text) {
        assert!(routes.len() <= 1 << 20);
    }
    let _ = (
        parse_net(&text),
        NidList::parse(&text),
        idmap::parse(&text),
        text.parse::<NidMatch>().is_ok(),
        text.parse::<Accept>().is_ok(),
    );
    Ok(())
}
