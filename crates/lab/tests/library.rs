//! The generators through Coral's client library, on a cluster in memory: no mount, no kernel between.

mod common;

use coral_client::{Cred, blocking};
use coral_lab::load::out::Out;
use coral_lab::load::storage::Library;
use coral_lab::load::{Run, run};

#[test]
fn all_four_run_without_a_mount() {
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let cluster = rt
        .block_on(
            coral_node::Cluster::builder()
                .osts(2)
                .stripes(2, 65536)
                .start(),
        )
        .expect("a cluster");
    let node = rt.block_on(cluster.remote_node()).expect("a node");
    let fs = blocking::FileSystem::mount_on(node, cluster.mount_options())
        .expect("mounted")
        .as_user(Cred::root());
    fs.mkdir("/lab", 0o755).expect("made");
    for line in [
        "ior -N 3 -F -b 256k -t 32k -w -W -r -R -C -e -o /lab/own",
        "ior -N 3 -b 256k -t 32k -s 2 -w -r -R -G 5 -z --random-offset-seed 2 -o /lab/shared",
        "mdtest --np 3 -n 12 -b 2 -z 1 -u -N 1 -w 100 -e 100 -X -d /lab/md",
        "mdtest --np 2 -n 5 -F -k -d /lab/md",
        "mdsrate --np 4 --mknod --setxattr --nfiles 10 --ndirs 2 --dirfmt /lab/rate/d%d",
        "mdsrate --np 4 --unlink --nfiles 10 --ndirs 2 --dirfmt /lab/rate/d%d",
        "mib --np 2 -t /lab -s 64k -l 8 -n -r",
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (out, printed) = Out::memory();
        let mut start = Run::new(words[0], &words[1..], out);
        start.library = Some(Library::of(fs.clone()));
        let ended = run(start).unwrap_or_else(|e| panic!("{line}: {e}\n{}", printed.text()));
        assert_eq!(ended.code, 0, "{line}\n{}", printed.text());
        let record = ended.record.expect("a record");
        assert_eq!(record["interface"], "CORAL", "{line}");
        assert_eq!(record["complete"], true, "{line}");
        if words[0] == "ior" {
            assert!(printed.text().contains("api                 : CORAL"));
        }
    }
    let none = Run {
        library: Some(Library::of(fs.clone())),
        ..Run::new("mib", &["-t", "/none", "-l", "1"], Out::silent())
    };
    let said = run(none).expect_err("refused").to_string();
    assert!(
        said.starts_with("Could not statfs /none: ") && said.contains("make it, or give another"),
        "{said}"
    );
    // Its stopwatches have no room.
    let words = "-N 2 -F -w -o /lab/own --coral-fs 127.0.0.1@tcp:/fs --coral-stopwatches /dev/full";
    let dir = common::place();
    let json = dir.path().join("r.json").to_string_lossy().into_owned();
    let words = words.split(' ').chain(["--coral-json", &json]);
    let mut start = Run::new("ior", &words.collect::<Vec<_>>(), Out::silent());
    start.library = Some(Library::of(fs.clone()));
    let full = "/dev/full: No space left on device (os error 28)";
    let said = run(start).expect_err("it has failed").to_string();
    let why = common::why_incomplete(&dir);
    assert_eq!(said, why);
    assert!(
        why.starts_with(&format!("{full}; ranks 0 to 1 had done ")),
        "{why}"
    );
    let left: Vec<_> = fs
        .read_dir("/lab")
        .expect("listed")
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    fs.unmount();
    rt.block_on(cluster.stop());
}
