//! The bytes lie where the layout says: the OSTs' objects are read behind the file system's back. And the names of a directory are
//! there while it moves to another MDT.

mod common;

use common::{Place, coral, in_namespace, lfs, ok, pattern};
use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a file system block may add to the space of one piece of data, bytes.
const ALLOCATION_SLACK: u64 = 64 << 10;

/// A layout as `lfs getstripe -y` prints it.
#[derive(Debug)]
struct Layout {
    stripe_count: u64,
    stripe_size: u64,
    /// OST index, sequence and object id of each stripe, in order.
    objects: Vec<(u32, u64, u64)>,
}

fn layout_of(path: &Path) -> Layout {
    let text = ok(lfs().args(["getstripe", "-y"]).arg(path));
    let values = |key: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter_map(|l| l.trim().trim_start_matches("- ").split_once(':'));
        lines
            .filter(|(k, _)| *k == key)
            .map(|(_, v)| v.trim().to_owned())
            .collect()
    };
    let number = |key: &str| {
        values(key)
            .first()
            .and_then(|v| v.parse().ok())
            .unwrap_or_else(|| panic!("no {key} in\n{text}"))
    };
    let hex = |v: &str| u64::from_str_radix(v.trim_start_matches("0x"), 16).expect("a hex number");
    let fids = values("l_fid").into_iter().map(|fid| {
        let parts: Vec<u64> = fid.split(':').map(hex).collect();
        (parts[0], parts[1])
    });
    let osts = values("l_ost_idx")
        .into_iter()
        .map(|v| v.parse::<u32>().expect("an OST index"));
    // an object of group 0 is shown as lfs shows it, by its IDIF: 0x100000000 + OST index * 0x10000 + bits 32 to 47 of its id
    let own = |ost: u32, (seq, oid): (u64, u64)| match seq >> 32 {
        1 => (ost, 0, (seq & 0xffff) << 32 | oid),
        _ => (ost, seq, oid),
    };
    let objects = osts.zip(fids).map(|(ost, fid)| own(ost, fid)).collect();
    Layout {
        stripe_count: number("lmm_stripe_count"),
        stripe_size: number("lmm_stripe_size"),
        objects,
    }
}

/// The file of an object (`crates/osd/src/fs`): `objects/xx/yy/<seq>-<oid>`.
fn object_path(data: &Path, (ost, seq, oid): (u32, u64, u64)) -> PathBuf {
    let (x, y) = ((oid >> 16) as u8, (oid >> 8) as u8);
    data.join(format!(
        "ost{ost:04x}/objects/{x:02x}/{y:02x}/{seq:x}-{oid:x}"
    ))
}

/// The objects of all OSTs that hold any byte.
fn objects_with_data(data: &Path) -> Vec<PathBuf> {
    let mut todo: Vec<PathBuf> = std::fs::read_dir(data)
        .unwrap()
        .flatten()
        .map(|e| e.path().join("objects"))
        .filter(|p| p.is_dir() && p.to_string_lossy().contains("/ost"))
        .collect();
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            // an object may go meanwhile: precreated ones that nobody wants
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.len() > 0 {
                found.push(entry.path());
            }
        }
    }
    found
}

/// The objects a file must have: cut from its content by RAID0's rule, told here a second time and in another way than in the code.
fn expected_objects(content: &[u8], stripe_count: u64, stripe_size: u64) -> Vec<Vec<u8>> {
    let mut out = vec![Vec::new(); stripe_count as usize];
    for (n, chunk) in content.chunks(stripe_size as usize).enumerate() {
        out[n % stripe_count as usize].extend_from_slice(chunk);
    }
    out
}

/// Pieces of a file, each `(offset, length)` in units that make odd ends and holes of whole stripes.
fn pieces(stripe_count: u64, stripe_size: u64) -> Vec<(u64, u64)> {
    let row = stripe_count * stripe_size;
    vec![
        (0, row + stripe_size / 2 + 1234),
        (3 * row + 17, stripe_size),
        (5 * row - 4321, row / 2 + 4321 + 777),
    ]
}

fn check_one(data: &Path, mnt: &Path, stripe_count: u64, stripe_size: u64) {
    let path = mnt.join(format!("f{stripe_count}-{stripe_size}"));
    ok(lfs()
        .args([
            "setstripe",
            "-c",
            &stripe_count.to_string(),
            "-S",
            &stripe_size.to_string(),
        ])
        .arg(&path));
    let pieces = pieces(stripe_count, stripe_size);
    let size = pieces.iter().map(|(o, l)| o + l).max().unwrap();
    assert!(size % 2 == 1, "an odd size was wanted, not {size}");
    let mut content = vec![0; size as usize];
    let f = OpenOptions::new().write(true).open(&path).unwrap();
    for (n, (offset, len)) in pieces.iter().enumerate() {
        let bytes = pattern(stripe_count * 1000 + stripe_size + n as u64, *len as usize);
        f.write_all_at(&bytes, *offset).unwrap();
        content[*offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
    }
    f.sync_all().unwrap();

    let layout = layout_of(&path);
    assert_eq!(
        (layout.stripe_count, layout.stripe_size),
        (stripe_count, stripe_size)
    );
    assert_eq!(layout.objects.len() as u64, stripe_count);
    let osts: HashMap<u32, ()> = layout.objects.iter().map(|o| (o.0, ())).collect();
    assert_eq!(
        osts.len() as u64,
        stripe_count,
        "two stripes on one OST: {layout:?}"
    );
    let mut allocated = 0;
    for (n, (object, expected)) in layout
        .objects
        .iter()
        .zip(expected_objects(&content, stripe_count, stripe_size))
        .enumerate()
    {
        let place = object_path(data, *object);
        let what = format!(
            "stripe {n} of {} x {stripe_size} in {}",
            stripe_count,
            place.display()
        );
        let mut got = Vec::new();
        File::open(&place)
            .unwrap_or_else(|e| panic!("{what}: {e}"))
            .read_to_end(&mut got)
            .unwrap();
        assert_eq!(got.len(), expected.len(), "{what}: size");
        let differs = got.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{what}: first differing byte");
        allocated += std::fs::metadata(&place).unwrap().blocks() * 512;
    }
    let written: u64 = pieces.iter().map(|(_, l)| l).sum();
    let slack = ALLOCATION_SLACK * stripe_count * pieces.len() as u64;
    assert!(
        allocated <= written + slack,
        "holes take space: {allocated} bytes for {written} written"
    );
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), size);
    assert_eq!(
        meta.blocks() * 512,
        allocated,
        "st_blocks is not the sum of the objects'"
    );
}

/// A change made behind the file system's back is what a new mount reads: the objects are the file, not a copy of it.
fn change_behind_its_back(data: &Path, mnt: &Path) {
    let path = mnt.join("f2-65536");
    let object = layout_of(&path).objects[1];
    let f = OpenOptions::new()
        .write(true)
        .open(object_path(data, object))
        .unwrap();
    f.write_all_at(b"behind its back", 100).unwrap();
}

#[test]
fn bytes_lie_where_the_layout_says() {
    in_namespace("bytes_lie_where_the_layout_says", || {
        let place = Place::new();
        let (data, mnt) = (place.path("data"), place.make("mnt"));
        let running = place.up(&[]);
        let mut objects = 0;
        for stripe_count in [1, 2, 4] {
            for stripe_size in [64 << 10, 1 << 20] {
                check_one(&data, &mnt, stripe_count, stripe_size);
                objects += stripe_count as usize;
                assert_eq!(
                    objects_with_data(&data).len(),
                    objects,
                    "data outside the layouts' objects"
                );
            }
        }
        change_behind_its_back(&data, &mnt);
        running.stop();
        let running = place.up(&[]);
        let mut got = [0; 15];
        File::open(mnt.join("f2-65536"))
            .unwrap()
            .read_exact_at(&mut got, (64 << 10) + 100)
            .unwrap();
        assert_eq!(&got, b"behind its back");
        for entry in std::fs::read_dir(&mnt).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        common::until("the objects of removed files are gone", || {
            objects_with_data(&data).is_empty()
        });
        running.stop();
        ok(common::coral().arg("check").arg(&data));
        println!("{objects} objects read behind the file system's back");
    });
}

/// What lies on a deactivated OST cannot be read, but shows where it lies and can be removed.
#[test]
fn files_on_a_deactivated_ost_have_a_layout_and_can_be_removed() {
    in_namespace(
        "files_on_a_deactivated_ost_have_a_layout_and_can_be_removed",
        || {
            let place = Place::new();
            let running = place.up(&[]);
            let (mnt, data) = (place.path("mnt"), place.path("data"));
            for name in ["a", "b", "c"] {
                ok(lfs()
                    .args([
                        "setstripe",
                        "-c",
                        "1",
                        "-i",
                        if name == "c" { "0" } else { "1" },
                    ])
                    .arg(mnt.join(name)));
                std::fs::write(mnt.join(name), name).unwrap();
            }
            let wide = mnt.join("wide");
            ok(lfs()
                .args(["setstripe", "-c", "2", "-i", "0", "-S", "64K"])
                .arg(&wide));
            std::fs::write(&wide, pattern(1, 200_000)).unwrap();
            let set = |value: &str| {
                ok(coral()
                    .args(["lctl", "--dir"])
                    .arg(&data)
                    .args(["set_param", &format!("osc.coral-OST0001-*.active={value}")]))
            };
            set("0");
            let eio = |e: std::io::Error| e.raw_os_error() == Some(libc::EIO);
            assert!(
                std::fs::metadata(mnt.join("a")).is_err_and(eio)
                    && std::fs::read(mnt.join("a")).is_err_and(eio)
            );
            assert_eq!(layout_of(&mnt.join("a")).objects[0].0, 1);
            assert!(
                std::fs::write(&wide, "").is_err_and(eio)
                    && std::fs::hard_link(&wide, mnt.join("link")).is_err_and(eio)
            );
            assert!(
                std::fs::set_permissions(&wide, PermissionsExt::from_mode(0o600)).is_err_and(eio)
            );
            let listed = ok(lfs().arg("osts").arg(&mnt));
            assert!(listed.contains("0: coral-OST0000_UUID ACTIVE\n1: coral-OST0001_UUID INACTIVE\n2: coral-OST0002_UUID ACTIVE\n"), "{listed}");
            std::fs::remove_file(mnt.join("a")).unwrap();
            ok(Command::new("rm").arg(mnt.join("b")));
            assert_eq!(std::fs::read(mnt.join("c")).unwrap(), b"c");
            set("1");
            let mut left: Vec<_> = std::fs::read_dir(&mnt)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            left.sort();
            assert_eq!(left, ["c", "wide"], "no link");
            assert_eq!(
                std::fs::read(&wide).unwrap(),
                pattern(1, 200_000),
                "nothing was cut"
            );
            assert_ne!(wide.metadata().unwrap().mode() & 0o777, 0o600);
            running.stop();
        },
    );
}

/// A command that cannot do what it is asked says so, and what it says it did is there.
#[test]
fn lfs_does_what_it_says_or_refuses() {
    in_namespace("lfs_does_what_it_says_or_refuses", || {
        let place = Place::new();
        let running = place.up(&[]);
        let mnt = place.path("mnt");
        let refused = |args: &[&str], name: &str, code: i32, why: &str| {
            let out = lfs().args(args).arg(mnt.join(name)).output().unwrap();
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(
                out.status.code() == Some(code) && text.contains(why),
                "{args:?}: {:?}: {text}",
                out.status
            );
            assert!(!mnt.join(name).exists(), "{args:?} left a file");
        };
        refused(
            &["setstripe", "-p", "flash"],
            "f",
            libc::ENOENT,
            "has no pool 'flash'",
        );
        refused(
            &["setstripe", "-i", "9"],
            "f",
            libc::EINVAL,
            "its OSTs are 0, 1, 2, 3",
        );
        refused(
            &["setstripe", "-c", "2", "-o", "0,99"],
            "f",
            libc::EINVAL,
            "no OST 99",
        );
        refused(
            &["setstripe", "-E", "1M", "-E", "-1", "-p", "flash"],
            "f",
            libc::ENOENT,
            "has no pool 'flash'",
        );
        let (dir, shown) = (mnt.join("d"), |args: &[&str], path: &Path| {
            ok(lfs().args(args).arg(path))
        });
        std::fs::create_dir(&dir).unwrap();
        assert!(
            shown(&["getstripe", "-d"], &dir).contains("stripe_count:  1 "),
            "a directory has the file system's default"
        );
        ok(lfs().args(["setstripe", "-c", "3"]).arg(&dir));
        assert!(shown(&["getstripe", "-d"], &dir).contains("stripe_count:  3 "));
        std::fs::write(dir.join("f"), "x").unwrap();
        assert_eq!(shown(&["getstripe", "-m"], &dir.join("f")), "0\n");
        ok(lfs()
            .args(["setdirstripe", "-D", "-c", "1", "-i", "0"])
            .arg(&dir));
        assert_eq!(shown(&["getdirstripe", "-D", "-i"], &dir), "0\n");
        ok(lfs().args(["setdirstripe", "-D", "-d"]).arg(&dir));
        assert_eq!(shown(&["getdirstripe", "-D", "-i"], &dir), "-1\n");
        // where there is one MDT, it is kept for later, and new directories are in one piece
        ok(lfs().args(["setdirstripe", "-D", "-c", "2"]).arg(&dir));
        std::fs::create_dir(dir.join("below")).unwrap();
        assert_eq!(shown(&["getdirstripe", "-c"], &dir.join("below")), "0\n");
        ok(lfs().args(["setdirstripe", "-D", "-d"]).arg(&dir));
        running.stop();
    });
}

/// What a program did with names in a directory while a directory above moved, and what went wrong.
fn used_while_moved(dir: &Path, files: u32, ended: &AtomicBool) -> (u32, Vec<String>) {
    let (mut done, mut wrong) = (0, Vec::new());
    let (new, renamed) = (dir.join("new"), dir.join("renamed"));
    while !ended.load(Ordering::Relaxed) {
        let one = dir.join(format!("f{}", done % files));
        let names = || match std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>() {
            Ok(all) if all.len() < files as usize => {
                let few = format!("{} names of {files}", all.len());
                Err(std::io::Error::other(few))
            }
            // it was open when it moved
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => Ok(()),
            read => read.map(drop),
        };
        let tagged = || rustix::fs::setxattr(dir, "user.a", b"1", rustix::fs::XattrFlags::empty());
        let of_owner = || std::fs::set_permissions(dir, Permissions::from_mode(0o755));
        let uses: [(&str, &dyn Fn() -> std::io::Result<()>); 10] = [
            ("stat", &|| std::fs::metadata(&one).map(drop)),
            ("read", &|| std::fs::read(&one).map(drop)),
            ("create", &|| std::fs::write(&new, "new")),
            ("rename", &|| std::fs::rename(&new, &renamed)),
            ("unlink", &|| std::fs::remove_file(&renamed)),
            ("list", &names),
            ("chmod", &of_owner),
            ("setxattr", &|| Ok(tagged()?)),
            ("listxattr", &|| {
                Ok(rustix::fs::listxattr(dir, &mut [0; 1024]).map(drop)?)
            }),
            ("removexattr", &|| {
                Ok(rustix::fs::removexattr(dir, "user.a")?)
            }),
        ];
        for (what, one) in uses {
            wrong.extend(one().err().map(|e| format!("{what}: {e}")));
        }
        done += 1;
    }
    (done, wrong)
}

/// A directory that moves to another MDT gets another FID there, and its path is there all the time.
#[test]
fn paths_are_there_while_directories_of_them_move() {
    in_namespace("paths_are_there_while_directories_of_them_move", || {
        let place = Place::new();
        let running = place.up(&["--mdts", "2"]);
        let (top, files) = (place.path("mnt").join("top"), 40);
        let dir = top.join("dir");
        std::fs::create_dir_all(&dir).unwrap();
        (0..files).for_each(|n| std::fs::write(dir.join(format!("f{n}")), "text").unwrap());
        let ended = AtomicBool::new(false);
        let (done, wrong) = std::thread::scope(|scope| {
            let using = scope.spawn(|| used_while_moved(&dir, files, &ended));
            for to in ["1", "0"].repeat(6) {
                ok(lfs().args(["migrate", "-m", to]).arg(&top));
            }
            ended.store(true, Ordering::Relaxed);
            using.join().unwrap()
        });
        assert!(done > 0);
        assert_eq!(wrong, Vec::<String>::new(), "of {done} times");
        running.stop();
    });
}
