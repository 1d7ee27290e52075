//! The main job, shown: a file system of one MDT and four OSTs, mounted, striped, used.

use crate::{setup, step};
use std::path::Path;
use std::process::Command;

pub(crate) fn run() -> Result<(), String> {
    setup::fuse()?;
    let coral = step::build_release()?;
    let (data, mnt) = (step::root().join("data"), step::root().join("mnt"));
    let runs = Command::new(&coral)
        .arg("status")
        .arg(&data)
        .output()
        .is_ok_and(|o| o.status.success());
    if runs {
        // from an earlier demonstration, perhaps with an older binary
        step::run_in(Command::new(&coral).arg("down").arg(&data))?;
    }
    std::fs::create_dir_all(&mnt).map_err(|e| format!("{}: {e}", mnt.display()))?;
    step::run_in(
        Command::new(&coral)
            .arg("up")
            .arg(&data)
            .arg("--mount")
            .arg(&mnt)
            .args(port_flag()),
    )?;
    show(&coral, &mnt)?;
    println!(
        "\nThe file system stays mounted on {}. To stop it: {} down {}",
        mnt.display(),
        coral.display(),
        data.display()
    );
    Ok(())
}

/// Without the right to ports below 1024 the servers listen on 9988.
fn port_flag() -> &'static [&'static str] {
    if std::net::TcpListener::bind(("127.0.0.1", 988)).is_ok() {
        &[]
    } else {
        &["--port", "9988"]
    }
}

fn show(coral: &Path, mnt: &Path) -> Result<(), String> {
    let lfs = coral.with_file_name("lfs");
    let wide = mnt.join("wide");
    let file = wide.join("16MiB");
    let lfs_run =
        |args: &[&str], path: &Path| step::run_in(Command::new(&lfs).args(args).arg(path));
    if !wide.exists() {
        step::run_in(Command::new("mkdir").arg(&wide))?;
        lfs_run(&["setstripe", "-c", "4", "-S", "1M"], &wide)?;
    }
    step::run_in(
        Command::new("dd")
            .args([
                "if=/dev/urandom",
                "bs=1M",
                "count=16",
                "conv=fsync",
                "status=none",
            ])
            .arg(format!("of={}", file.display())),
    )?;
    lfs_run(&["getstripe"], &file)?;
    let copy = mnt.join("crates");
    step::run_in(
        Command::new("cp")
            .arg("-a")
            .arg(step::root().join("crates"))
            .arg(&copy),
    )?;
    step::run_in(
        Command::new("diff")
            .arg("-r")
            .arg(step::root().join("crates"))
            .arg(&copy),
    )?;
    step::run_in(Command::new("rm").arg("-r").arg(&copy))?;
    lfs_run(&["df", "-h"], mnt)?;
    step::run_in(
        Command::new(coral)
            .arg("status")
            .arg(step::root().join("data")),
    )
}
