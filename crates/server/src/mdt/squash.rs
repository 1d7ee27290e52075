//! Root squash (`mdt_root_squash` in `lustre/mdt/mdt_lib.c`): the superuser of a client is somebody else here, unless his node is
//! excepted.

use coral_wire::nid::Nid;

use super::cred::Ucred;
use crate::nidlist::NidList;

/// Longest list of excepted NIDs, in bytes (`lprocfs_wr_nosquash_nids`).
const LIST_MAX_BYTES: usize = 4096;

/// Whom the superuser becomes, and where not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootSquash {
    /// uid and gid; uid 0 switches it off.
    to: (u32, u32),
    except: NidList,
}

impl RootSquash {
    /// `cred` as it counts for a request from `nid`.
    pub fn apply(&self, cred: Ucred, nid: Nid) -> Ucred {
        if cred.uid != 0 || self.to.0 == 0 || self.except.has(nid) {
            return cred;
        }
        Ucred {
            umask: cred.umask,
            ..Ucred::new(self.to.0, self.to.1, &[], 0)
        }
    }

    /// Whether the superuser of that node is one here.
    pub fn is_excepted(&self, nid: Nid) -> bool {
        self.to.0 == 0 || self.except.has(nid)
    }

    /// `mdt.*.nosquash_nids` and `mdt.*.root_squash`.
    pub fn params(&self) -> Vec<(&'static str, String)> {
        let except = if self.except.is_empty() {
            "NONE".into()
        } else {
            self.except.to_string()
        };
        vec![
            ("nosquash_nids", except),
            ("root_squash", format!("{}:{}", self.to.0, self.to.1)),
        ]
    }

    /// Sets one of them. `None`: there is no such parameter.
    pub fn set_param(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        Some(match name {
            "root_squash" => match value.split_once(':').map(|(u, g)| (number(u), number(g))) {
                Some((Some(uid), Some(gid))) => {
                    self.to = (uid, gid);
                    Ok(())
                }
                _ => Err(format!(
                    "'{value}' is not of the form UID:GID; 0:0 switches root squash off"
                )),
            },
            "nosquash_nids" => match value {
                "NONE" | "clear" | "" => {
                    self.except = NidList::default();
                    Ok(())
                }
                _ if value.len() > LIST_MAX_BYTES => {
                    Err(format!("the list is longer than {LIST_MAX_BYTES} bytes"))
                }
                _ => NidList::parse(value)
                    .map(|l| self.except = l)
                    .map_err(|e| e.to_string()),
            },
            _ => return None,
        })
    }
}

/// A decimal number, or a hexadecimal one behind `0x`.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_superuser_from_elsewhere_is_squashed() {
        let mut s = RootSquash::default();
        let nid = |t: &str| t.parse::<Nid>().unwrap();
        assert_eq!(s.apply(Ucred::root(), nid("1@lo")), Ucred::root(), "off");
        assert_eq!(s.set_param("root_squash", "500:501"), Some(Ok(())));
        assert_eq!(
            s.set_param("nosquash_nids", "10.0.0.[2-3]@tcp"),
            Some(Ok(()))
        );
        assert_eq!(
            s.params(),
            [
                ("nosquash_nids", "10.0.0.[2-3]@tcp".into()),
                ("root_squash", "500:501".into())
            ]
        );
        assert_eq!(
            s.apply(Ucred::root(), nid("10.0.0.4@tcp")),
            Ucred::new(500, 501, &[], 0)
        );
        assert_eq!(s.apply(Ucred::root(), nid("10.0.0.3@tcp")), Ucred::root());
        let user = Ucred::new(7, 8, &[9], 0);
        assert_eq!(s.apply(user.clone(), nid("10.0.0.4@tcp")), user);
        for (name, bad) in [
            ("root_squash", "5"),
            ("root_squash", "a:b"),
            ("root_squash", "1:-1"),
            ("nosquash_nids", "nonsense"),
        ] {
            assert!(s.set_param(name, bad).unwrap().is_err(), "{name}={bad}");
        }
        assert_eq!(s.set_param("nosquash_nids", "clear"), Some(Ok(())));
        assert_eq!(s.params()[0].1, "NONE");
    }
}
