//! What may be in a file after power loss, unit by unit.

use std::os::unix::fs::FileExt;
use std::path::Path;

/// One file's content: units of `unit` bytes, each written whole with a pattern made of file, unit and version.
#[derive(Clone, Debug)]
pub struct File {
    pub key: u64,
    pub ino: u64,
    pub unit: usize,
    /// By unit, the versions it may have, the last being its newest; 0: zeros.
    pub units: Vec<Vec<u32>>,
    /// The units it may be long, the last being the newest.
    pub lens: Vec<usize>,
    /// The values its attribute may have; 0: none.
    pub xattrs: Vec<u32>,
    /// An error was told about it: nothing is known.
    pub told: bool,
}

/// Bytes of version `version` of a unit.
pub fn bytes(key: u64, unit: usize, version: u32, len: usize) -> Vec<u8> {
    if version == 0 {
        return vec![0; len];
    }
    let mut x = (key << 40 | (unit as u64) << 20 | u64::from(version))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        | 1;
    x ^= x >> 29;
    let word = x
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .to_le_bytes()
        .map(|b| b | 1);
    word.iter().copied().cycle().take(len).collect()
}

/// Largest key and version that [`whose`] tries.
const TRIED: u64 = 3000;

/// Which file's unit and version 8 bytes in a place `at` of a unit are, where that can be found.
fn whose(part: &[u8], at: usize) -> String {
    let Some(found) = part.get(..8).filter(|f| f.iter().all(|b| *b != 0)) else {
        return String::new();
    };
    for key in 0..TRIED {
        // a version is drawn soon after its file's key, from the same counter
        for version in key..(key + 400).min(TRIED) {
            for unit in 0..40 {
                let b = bytes(key, unit, version as u32, 8);
                if (0..8).all(|i| b[(at + i) % 8] == found[i]) {
                    return format!("; they are version {version} of unit {unit} of file {key}");
                }
            }
        }
    }
    "; whose they are is not known".to_owned()
}

impl File {
    pub fn new(key: u64, ino: u64, unit: usize) -> File {
        File {
            key,
            ino,
            unit,
            units: Vec::new(),
            lens: vec![0],
            xattrs: vec![0],
            told: false,
        }
    }

    pub fn len(&self) -> usize {
        *self.lens.last().expect("never empty")
    }

    /// Unit `u` is about to be given `version`.
    pub fn put(&mut self, u: usize, version: u32) {
        if self.units.len() <= u {
            self.units.resize(u + 1, vec![0]);
        }
        self.units[u].push(version);
        if u >= self.len() && version != 0 {
            self.lens.push(u + 1);
        }
    }

    /// The file is about to be `len` units long.
    pub fn resize(&mut self, len: usize) {
        for u in len..self.units.len() {
            self.units[u].push(0);
        }
        self.lens.push(len);
    }

    /// All of it is safe.
    pub fn synced(&mut self) {
        let units = 0..self.units.len();
        units.for_each(|u| self.unit_synced(u));
        self.lens = vec![self.len()];
        self.xattrs = vec![*self.xattrs.last().expect("never empty")];
    }

    /// One unit is safe, and the size with it.
    pub fn unit_synced(&mut self, u: usize) {
        if let Some(v) = self.units.get_mut(u) {
            v.drain(..v.len() - 1);
        }
    }

    /// Whether exactly one content is possible.
    pub fn is_certain(&self) -> bool {
        self.lens.len() == 1 && self.xattrs.len() == 1 && self.units.iter().all(|v| v.len() == 1)
    }

    /// Compares; what is wrong. `only_newest`: nothing but the last content will do.
    pub fn verify(&self, path: &Path, only_newest: bool) -> Result<(), String> {
        if self.told {
            return Ok(());
        }
        let bad = |why: String| {
            format!(
                "{} (file {} inode {:#x}): {why}",
                path.display(),
                self.key,
                self.ino
            )
        };
        let f = std::fs::File::open(path).map_err(|e| bad(format!("open: {e}")))?;
        let size = f.metadata().map_err(|e| bad(e.to_string()))?.len() as usize;
        let newest = &self.lens[self.lens.len() - 1..];
        let lens = if only_newest { newest } else { &self.lens[..] };
        let (least, most) = (
            lens.iter().min().expect("one") * self.unit,
            lens.iter().max().expect("one") * self.unit,
        );
        if size < least || size > most {
            return Err(bad(format!("{size} bytes, not {least} to {most}")));
        }
        let mut got = vec![0; size];
        f.read_exact_at(&mut got, 0)
            .map_err(|e| bad(format!("read: {e}")))?;
        for (u, part) in got.chunks(self.unit).enumerate() {
            let none = vec![0];
            let all = self.units.get(u).unwrap_or(&none);
            let versions = if only_newest {
                &all[all.len() - 1..]
            } else {
                &all[..]
            };
            let may: Vec<Vec<u8>> = versions
                .iter()
                .map(|v| bytes(self.key, u, *v, part.len()))
                .collect();
            if may.iter().any(|m| m == part) {
                continue;
            }
            if let Some(at) = (0..part.len()).find(|i| !may.iter().any(|m| m[*i] == part[*i])) {
                let zeros = part[at..].iter().take_while(|b| **b == 0).count();
                return Err(bad(format!(
                    "byte {} of {size}, in unit {u} of {} bytes, is of none of versions {versions:?}; {zeros} zeros from there{}",
                    u * self.unit + at,
                    self.unit,
                    whose(&part[at..], at)
                )));
            }
        }
        self.verify_xattr(path, only_newest).map_err(bad)
    }

    fn verify_xattr(&self, path: &Path, only_newest: bool) -> Result<(), String> {
        let mut b = [0; 8];
        let got = match rustix::fs::getxattr(path, "user.v", &mut b) {
            Ok(n) => String::from_utf8_lossy(&b[..n])
                .parse()
                .map_err(|_| "user.v is no number".to_owned())?,
            Err(rustix::io::Errno::NODATA) => 0,
            Err(e) => return Err(format!("user.v: {e}")),
        };
        let may = if only_newest {
            &self.xattrs[self.xattrs.len() - 1..]
        } else {
            &self.xattrs[..]
        };
        if may.contains(&got) {
            Ok(())
        } else {
            Err(format!("user.v is {got}, not one of {may:?}"))
        }
    }
}
