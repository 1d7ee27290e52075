//! A file system with two mounts: one in the process of `coral up`, one over TCP from another network namespace.

use std::path::PathBuf;

use super::net::Namespace;
use super::{Place, Running, coral, ok};

/// The file system with both mounts.
pub struct Two {
    client: Running,
    server: Running,
    _ns: Namespace,
    pub mounts: [PathBuf; 2],
    pub place: Place,
}

impl Two {
    pub fn start() -> Two {
        let place = Place::new();
        let ns = Namespace::joined(201, &[2]);
        let server = place.up(&[
            "--nid",
            "10.201.0.1@tcp",
            "--stripe-count",
            "3",
            "--stripe-size",
            "64K",
        ]);
        let (here, there, port) = (place.make("mnt"), place.make("far"), place.port.to_string());
        let args = [
            "mount",
            "10.201.0.1@tcp:/coral",
            &there.to_string_lossy(),
            "--port",
            &port,
        ];
        let client = Running::start_as(
            ns.inside(coral().get_program()),
            &args,
            &place.path("far-client"),
            &[&there],
        );
        Two {
            client,
            server,
            _ns: ns,
            mounts: [here, there],
            place,
        }
    }

    pub fn stop(self) {
        self.client.stop();
        self.server.stop();
        ok(coral().arg("check").arg(self.place.path("data")));
    }
}
