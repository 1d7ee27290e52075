//! `lctl nodemap_*`, root squash and the name service on running servers: what the commands print, what they refuse, and what clients
//! of the same and of another process see.

mod common;

use common::{Place, Running, coral, in_namespace, ok, until};
use std::path::Path;
use std::process::Output;

fn lctl(dir: &Path, line: &str) -> Output {
    let mut c = coral();
    c.arg("lctl")
        .args(["--dir".as_ref(), dir.as_os_str()])
        .args(line.split(' '));
    c.output().expect("lctl")
}

/// What it prints; it must succeed.
fn done(dir: &Path, line: &str) -> String {
    let out = lctl(dir, line);
    assert!(
        out.status.success(),
        "lctl {line}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).expect("text")
}

/// The complaint of a command that must fail.
fn refused(dir: &Path, line: &str) -> String {
    let out = lctl(dir, line);
    assert!(
        !out.status.success(),
        "lctl {line}: {}",
        String::from_utf8_lossy(&out.stdout)
    );
    String::from_utf8(out.stderr).expect("text")
}

#[test]
fn the_commands_say_what_lustres_say() {
    {
        let place = Place::new();
        let (data, port) = (place.path("data"), place.port.to_string());
        let up = || {
            Running::start(
                &[
                    "up",
                    &data.to_string_lossy(),
                    "--osts",
                    "1",
                    "--port",
                    &port,
                ],
                &data,
                &[],
            )
        };
        let d = data.as_path();
        let running = up();
        let (add, no_such) = (done(d, "nodemap_add far"), refused(d, "nodemap_del other"));
        assert_eq!(
            (add.as_str(), no_such.as_str()),
            (
                "",
                "error: nodemap 'other' does not exist\nnodemap_del: Invalid argument\n"
            )
        );
        assert_eq!(
            refused(d, "nodemap_add --name far"),
            "error: nodemap 'far' already exists\nnodemap_add: Invalid argument\n"
        );
        done(d, "nodemap add_range --name far --range 127.0.0.[2-3]@tcp");
        assert_eq!(
            refused(d, "nodemap_add_range --name far --range 127.0.0.3@tcp"),
            "nodemap_add_range: File exists\n"
        );
        done(
            d,
            "nodemap_add_idmap --name far --idtype uid --idmap 500-501:1500",
        );
        done(d, "nodemap_modify --name far --property squash_uid=99");
        let zero = "error: nodemap_modify: cannot modify nodemap 'far' to param 'squash_uid': value '0': Invalid argument\n";
        assert_eq!(
            refused(
                d,
                "nodemap_modify --name far --property squash_uid --value 0"
            ),
            zero
        );
        assert!(
            refused(d, "nodemap_modify --name far --property rbac --value all")
                .contains("Operation not supported")
        );
        assert!(
            refused(d, "nodemap_add_idmap --name far --idtype what --idmap 1:2")
                .contains("must be one of uid, gid, projid")
        );
        assert_eq!(done(d, "nodemap_test_nid 127.0.0.2@tcp"), "far\n");
        assert_eq!(done(d, "nodemap_test_nid 127.0.0.4@tcp"), "default\n");
        assert_eq!(
            done(
                d,
                "nodemap_test_id --nid 127.0.0.2@tcp --idtype uid --id 500"
            ),
            "500\n",
            "not active"
        );
        done(d, "nodemap_activate 1");
        assert_eq!(
            done(
                d,
                "nodemap_test_id --nid 127.0.0.2@tcp --idtype uid --id 500"
            ),
            "1500\n"
        );
        assert_eq!(
            done(d, "nodemap_test_id --nid 127.0.0.2@tcp --idtype uid --id 9"),
            "99\n"
        );
        assert_eq!(
            done(d, "get_param nodemap.far.ranges"),
            "nodemap.far.ranges=\n[\n { id: 1, start_nid: 127.0.0.2@tcp, end_nid: 127.0.0.3@tcp }\n]\n"
        );
        assert_eq!(
            done(d, "nodemap_info --name far --property trusted_nodemap"),
            "nodemap.far.trusted_nodemap=0\n"
        );
        let list = done(d, "nodemap_info --list");
        assert!(list.starts_with("Global nodemap state:\n\tactive\n\nDefined nodemaps:\n\tdefault\n\tfar\n\nAvailable nodemap parameters:\n\tadmin_nodemap        root is"), "{list}");
        assert!(
            done(d, "nodemap_info")
                .starts_with("nodemap.active=1\nnodemap.default.admin_nodemap=0\n")
        );

        // kept over a restart
        running.stop();
        let running = up();
        assert_eq!(
            done(
                d,
                "nodemap_test_id --nid 127.0.0.2@tcp --idtype uid --id 501"
            ),
            "1501\n"
        );
        done(
            d,
            "nodemap_del_idmap --name far --idtype uid --idmap 500-501:1500",
        );
        assert_eq!(done(d, "get_param -n nodemap.far.idmap"), "[]\n");

        assert_eq!(
            done(d, "set_param mdt.*.root_squash=500:501"),
            "mdt.coral-MDT0000.root_squash=500:501\n"
        );
        assert_eq!(done(d, "get_param -n mdt.*.root_squash"), "500:501\n");
        assert!(refused(d, "set_param mdt.*.root_squash=500").contains("UID:GID"));
        assert_eq!(done(d, "get_param -n mdt.*.identity_upcall"), "NSS\n");
        assert_eq!(done(d, "set_param -n mdt.*.identity_expire=60"), "");
        running.stop();
    }
}

#[test]
fn servers_of_another_process_hear_of_nodemaps() {
    in_namespace("servers_of_another_process_hear_of_nodemaps", || {
        let place = Place::new();
        let (m, s, o, mnt) = (
            place.path("mgs"),
            place.path("mdt"),
            place.path("ost"),
            place.make("mnt"),
        );
        ok(coral().args(["format", "--mgs"]).arg(&m));
        ok(coral()
            .args([
                "format",
                "--mdt",
                "0",
                "--fsname",
                "a",
                "--mgsnode",
                "127.0.0.1@tcp",
            ])
            .arg(&s));
        ok(coral()
            .args([
                "format",
                "--ost",
                "0",
                "--fsname",
                "a",
                "--mgsnode",
                "127.0.0.1@tcp",
            ])
            .arg(&o));
        let port = place.port.to_string();
        let serve = |dir: &Path, nid: &str| {
            Running::start(
                &[
                    "serve",
                    &dir.to_string_lossy(),
                    "--nid",
                    nid,
                    "--port",
                    &port,
                ],
                dir,
                &[],
            )
        };
        let mgs = serve(&m, "127.0.0.1@tcp");
        done(&m, "nodemap_add far");
        done(&m, "nodemap_add_range --name far --range 127.0.0.9@tcp");
        let (mdt, ost) = (serve(&s, "127.0.0.2@tcp"), serve(&o, "127.0.0.3@tcp"));
        let mount = Running::start(
            &[
                "mount",
                "127.0.0.1@tcp:/a",
                &mnt.to_string_lossy(),
                "--nid",
                "127.0.0.9@tcp",
                "--port",
                &port,
            ],
            &place.path("mount"),
            &[&mnt],
        );
        std::fs::create_dir(mnt.join("before")).expect("root is root");
        assert_eq!(
            done(&s, "nodemap_test_nid 127.0.0.9@tcp"),
            "far\n",
            "known from its start on"
        );
        assert!(refused(&s, "nodemap_activate 1").contains("the MGS does not run in this process"));
        done(&m, "nodemap_activate 1");
        for d in [&s, &o] {
            until("the nodemaps are active there", || {
                done(d, "get_param -n nodemap.active") == "1\n"
            });
        }
        let denied =
            std::fs::create_dir(mnt.join("after")).expect_err("root of the node is nobody here");
        assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
        for d in [&s, &o] {
            assert!(done(d, "get_param -n nodemap.far.exports").contains("nid: 127.0.0.9@tcp"));
        }
        done(&m, "nodemap_modify --name far --property admin --value 1");
        until("root is root again", || {
            std::fs::create_dir(mnt.join("after")).is_ok()
        });
        // the MGS goes and comes back: what was known counts on, and changes arrive again
        mgs.stop();
        let mgs = serve(&m, "127.0.0.1@tcp");
        done(
            &m,
            "nodemap_modify --name far --property squash_uid --value 77",
        );
        until("the change arrives", || {
            done(&s, "get_param -n nodemap.far.squash_uid") == "77\n"
        });
        mount.stop();
        for server in [ost, mdt, mgs] {
            server.stop();
        }
    });
}
