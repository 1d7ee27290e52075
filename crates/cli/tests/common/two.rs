//! A file system with two mounts: one in the process of `coral up`, one over TCP from another network namespace.

use std::path::PathBuf;
use std::process::{Child, Command};

use super::{Place, Running, coral, ok, until};

/// A network namespace that lives as long as its first process.
pub struct Namespace(Child);

impl Namespace {
    /// Joined to this namespace by a pair of devices: 10.201.0.1 here, 10.201.0.2 there.
    pub fn joined() -> Namespace {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "infinity"])
            .spawn()
            .expect("unshare(1)");
        let ns = Namespace(child);
        let pid = ns.0.id().to_string();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        until("the namespace is there", || {
            std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|l| l != own)
        });
        ok(Command::new("ip").args([
            "link", "add", "coral-a", "type", "veth", "peer", "name", "coral-b", "netns", &pid,
        ]));
        ok(Command::new("ip").args(["addr", "add", "10.201.0.1/24", "dev", "coral-a"]));
        ok(Command::new("ip").args(["link", "set", "coral-a", "up"]));
        ok(ns.inside("ip").args(["link", "set", "lo", "up"]));
        ok(ns
            .inside("ip")
            .args(["addr", "add", "10.201.0.2/24", "dev", "coral-b"]));
        ok(ns.inside("ip").args(["link", "set", "coral-b", "up"]));
        ns
    }

    pub fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new("nsenter");
        c.args(["--net", "-t", &self.0.id().to_string()])
            .arg("--")
            .arg(program);
        c
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
        let ns = Namespace::joined();
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
