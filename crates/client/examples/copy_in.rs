//! Copies a file of this machine into a file system that is mounted nowhere, and shows the directory it is in.
//!
//! `cargo run --example copy_in -- 10.0.0.1@tcp:/coral LOCAL-FILE PATH`

use std::io::{Error, Read};

use coral_client::blocking::FileSystem;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, local, path] = &args[..] else {
        return Err(Error::other("usage: copy_in NID:/fsname LOCAL-FILE PATH").into());
    };
    let mut from = std::fs::File::open(local)?;
    let fs = FileSystem::mount(source)?;
    let to = fs.create(path)?;
    let (mut buf, mut at) = (vec![0; 4 << 20], 0);
    loop {
        let n = from.read(&mut buf)?;
        if n == 0 {
            break;
        }
        at += to.write_at(&buf[..n], at)? as u64;
    }
    to.sync()?;
    to.close()?;
    for entry in fs.read_dir(path.rsplit_once('/').map_or("", |(dir, _)| dir))? {
        println!("{}", String::from_utf8_lossy(&entry.name));
    }
    fs.unmount();
    Ok(())
}
