//! Network namespaces joined to the test's own by pairs of devices; the kernel forwards nothing between them. Needs root.

use super::{Running, coral, ok, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A network namespace that lives as long as its first process.
pub struct Namespace(Child);

impl Namespace {
    /// Joined to this one by a pair of devices: 10.NET.0.1 here, `hosts` of 10.NET.0.0/24 there.
    pub fn joined(net: u8, hosts: &[u8]) -> Namespace {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare(1)");
        let ns = Namespace(child);
        let pid = ns.0.id().to_string();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        until("the namespace is there", || {
            std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|l| l != own)
        });
        let (here, there) = (format!("c{net}a"), format!("c{net}b"));
        ok(Command::new("ip").args([
            "link", "add", &here, "type", "veth", "peer", "name", &there, "netns", &pid,
        ]));
        ok(Command::new("ip").args(["addr", "add", &format!("10.{net}.0.1/24"), "dev", &here]));
        ok(Command::new("ip").args(["link", "set", &here, "up"]));
        ok(ns.inside("ip").args(["link", "set", "lo", "up"]));
        for host in hosts {
            ok(ns.inside("ip").args([
                "addr",
                "add",
                &format!("10.{net}.0.{host}/24"),
                "dev",
                &there,
            ]));
        }
        ok(ns.inside("ip").args(["link", "set", &there, "up"]));
        ns
    }

    pub fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new("nsenter");
        c.args(["--net", "-t", &self.0.id().to_string()])
            .arg("--")
            .arg(program);
        c
    }

    pub fn coral(&self, args: &[&str], dir: &Path, mounts: &[&Path]) -> Running {
        Running::start_as(self.inside(coral().get_program()), args, dir, mounts)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
