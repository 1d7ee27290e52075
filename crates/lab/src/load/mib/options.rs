//! mib's options, and the file systems it does not write to unless told.

use crate::load::Failed;

/// Values of the options.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub dir: String,
    pub call_limit: u64,
    pub call_bytes: u64,
    pub time_limit_s: u64,
    /// `-b`: random reads at multiples of this.
    pub random: Option<u64>,
    pub profiles: Option<String>,
    pub environment: bool,
    pub force: bool,
    pub intermediate: bool,
    pub headers: bool,
    pub new: bool,
    pub progress: bool,
    pub remove: bool,
    pub read_only: bool,
    pub write_only: bool,
    pub sign_on: bool,
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dir: String::new(),
            call_limit: 4096,
            call_bytes: 524_288,
            time_limit_s: 60,
            random: None,
            profiles: None,
            environment: false,
            force: false,
            intermediate: false,
            headers: false,
            new: false,
            progress: false,
            remove: false,
            read_only: false,
            write_only: false,
            sign_on: false,
            direct: false,
        }
    }
}

impl Options {
    pub(super) fn set(&mut self, letter: char, value: Option<&str>) -> Result<(), Failed> {
        let text = value.unwrap_or("");
        match letter {
            'b' => {
                self.random = Some(if value.is_some() {
                    size(text, "-b")?
                } else {
                    1
                })
            }
            'E' => self.environment = true,
            'F' => self.force = true,
            'I' => self.intermediate = true,
            'H' => self.headers = true,
            'l' => self.call_limit = count(text, "-l")?,
            'L' => self.time_limit_s = count(text, "-L")?,
            'n' => self.new = true,
            'p' => self.profiles = Some(text.to_owned()),
            'P' => self.progress = true,
            'r' => self.remove = true,
            'R' => self.read_only = true,
            's' => self.call_bytes = size(text, "-s")?,
            'S' => self.sign_on = true,
            't' => text.clone_into(&mut self.dir),
            'W' => self.write_only = true,
            'd' => self.direct = true,
            // -M: without MPI, which is always so here
            _ => {}
        }
        Ok(())
    }

    /// For the record.
    pub(super) fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "testdir": self.dir,
            "call_limit": self.call_limit,
            "call_size": self.call_bytes,
            "time_limit": self.time_limit_s,
            "random_reads": self.random,
            "new": self.new,
            "remove": self.remove,
            "read_only": self.read_only,
            "write_only": self.write_only,
            "directio": self.direct,
        })
    }

    /// What `-E` shows.
    pub(super) fn shown(&self, tasks: u32) -> String {
        let mut lines = vec![
            ("new", self.new.to_string()),
            ("remove", self.remove.to_string()),
            ("testdir", self.dir.clone()),
            ("call_limit", self.call_limit.to_string()),
            ("call_size", self.call_bytes.to_string()),
            ("time_limit", self.time_limit_s.to_string()),
            ("tasks", tasks.to_string()),
            ("write_only", self.write_only.to_string()),
            ("read_only", self.read_only.to_string()),
            (
                "profiles",
                self.profiles.clone().unwrap_or_else(|| "no".to_owned()),
            ),
        ];
        if let Some(granularity) = self.random {
            lines.push(("random_reads", granularity.to_string()));
        }
        lines.push(("show_signon", self.sign_on.to_string()));
        lines.push(("show_headers", self.headers.to_string()));
        lines.push(("show_environment", self.environment.to_string()));
        lines.push(("show_progress", self.progress.to_string()));
        lines.push(("show_intermediate_values", self.intermediate.to_string()));
        lines
            .iter()
            .map(|(k, v)| format!("{k:<24} = {v}\n"))
            .collect()
    }
}

/// A number with k or m.
fn size(text: &str, option: &str) -> Result<u64, Failed> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let shift = match &text[end..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        _ => u32::MAX,
    };
    text[..end]
        .parse::<u64>()
        .ok()
        .filter(|n| *n > 0 && shift != u32::MAX && *n < 1 << 40)
        .map(|n| n << shift)
        .ok_or_else(|| {
            Failed::Refused(format!(
                "{option} takes a number of bytes, with k or m, not '{text}'"
            ))
        })
}

fn count(text: &str, option: &str) -> Result<u64, Failed> {
    text.parse()
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| Failed::Refused(format!("{option} takes a positive number, not '{text}'")))
}

/// Types that mib knows by the number of statfs(2), all but the last refused without `-F`.
#[rustfmt::skip]
const FILE_SYSTEMS: [(&str, i64); 24] = [
    ("EXT2_SUPER_MAGIC", 0xef53), ("TMPFS_MAGIC", 0x0102_1994), ("XFS_SUPER_MAGIC", 0x5846_5342), ("NFS_SUPER_MAGIC", 0x6969),
    ("CIFS_MAGIC_NUMBER", 0xff53_4d42), ("EXT_SUPER_MAGIC", 0x137d), ("EXT2_OLD_SUPER_MAGIC", 0xef51),
    ("REISERFS_SUPER_MAGIC", 0x5265_4973), ("JFS_SUPER_MAGIC", 0x3153_464a), ("JFFS2_SUPER_MAGIC", 0x72b6),
    ("HFS_SUPER_MAGIC", 0x4244), ("HPFS_SUPER_MAGIC", 0xf995_e849), ("HUGETLBFS_MAGIC", 0x9584_58f6),
    ("ISOFS_SUPER_MAGIC", 0x9660), ("MSDOS_SUPER_MAGIC", 0x4d44), ("NTFS_SB_MAGIC", 0x5346_544e), ("PROC_SUPER_MAGIC", 0x9fa0),
    ("ROMFS_MAGIC", 0x7275), ("SMB_SUPER_MAGIC", 0x517b), ("UDF_SUPER_MAGIC", 0x1501_3346), ("UFS_MAGIC", 0x0001_1954),
    ("VXFS_SUPER_MAGIC", 0xa501_fcf5), ("CODA_SUPER_MAGIC", 0x7375_7245), ("S_MAGIC_LUSTRE", 0x0bd0_0bd0),
];

/// What mib says of a file system: that it is tested, or that it is not.
pub(super) fn file_system(kind: i64, force: bool) -> Result<String, String> {
    let kind = kind & 0xffff_ffff;
    match FILE_SYSTEMS.iter().find(|f| f.1 == kind) {
        None => Ok(format!(
            "Testing an unregistered file system with f_type = {kind:#x}"
        )),
        Some((name, _)) if force || *name == "S_MAGIC_LUSTRE" => Ok(format!(
            "Testing a file system of type \"{name}\" (f_type = {kind:#x})"
        )),
        Some((name, _)) => Err(format!(
            "Mib will not write to a file system of type \"{name}\" (f_type = {kind:#x}) unless you use the \"-F\" (--force) option "
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_suffixes_only() {
        assert_eq!(size("16k", "-s").expect("fine"), 16_384);
        assert_eq!(size("2M", "-s").expect("fine"), 2 << 20);
        for bad in ["2g", "k", "", "-1", "0"] {
            assert!(size(bad, "-s").is_err(), "{bad}");
        }
    }

    #[test]
    fn others_than_lustre_are_refused_without_force() {
        assert!(file_system(0xef53, false).is_err());
        assert_eq!(
            file_system(0xef53, true).expect("forced"),
            "Testing a file system of type \"EXT2_SUPER_MAGIC\" (f_type = 0xef53)"
        );
        assert!(file_system(0x0bd0_0bd0, false).is_ok());
        assert!(
            file_system(0x6573_5546, false).is_ok(),
            "FUSE is in no table"
        );
    }
}
