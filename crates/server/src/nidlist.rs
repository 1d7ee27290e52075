//! Lists of NIDs as Lustre writes them (`libcfs/libcfs/nidstrings.c`, `lnet/lnet/nidstrings.c`): `10.0.0.[2-9]@tcp 10.1.*.*@tcp1`,
//! `*@tcp`, `0@lo`, `10.0.0.0/24@tcp`. They say who is excepted from root squash, and which nodes a nodemap is for.
//!
//! Left out: steps (`[2-9/2]`), ranges of network numbers, IPv6.

use std::fmt;

use coral_wire::nid::Nid;

/// Most patterns in one list.
const PATTERNS_MAX: usize = 1024;

/// Text that is no list of NIDs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' names no NIDs: expected such as 10.0.0.[2-9]@tcp, 10.1.*.*@tcp1, 10.0.0.0/24@tcp, *@tcp or 0@lo"
)]
pub struct NidListError(String);

/// Some of the addresses of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    net: u32,
    parts: Parts,
}

/// Which addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parts {
    /// From the one to the other, both included.
    Between(u32, u32),
    /// Each byte of the address, the highest first, lies in one of its ranges.
    Bytes([Vec<(u8, u8)>; 4]),
}

/// A list of NIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NidList(Vec<Pattern>);

impl NidList {
    /// Reads patterns between spaces or commas.
    pub fn parse(text: &str) -> Result<NidList, NidListError> {
        let words = split(text);
        if words.is_empty() || words.len() > PATTERNS_MAX {
            return Err(NidListError(text.into()));
        }
        words
            .into_iter()
            .map(|w| Pattern::parse(w).ok_or_else(|| NidListError(w.into())))
            .collect::<Result<_, _>>()
            .map(NidList)
    }

    /// Whether `nid` is one of them.
    pub fn has(&self, nid: Nid) -> bool {
        self.0.iter().any(|p| p.has(nid))
    }

    /// Whether it names nobody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest and the highest NID, when all between are in the list too and it is of one pattern
    /// (`cfs_nidrange_find_min_max`).
    pub fn bounds(&self) -> Option<(Nid, Nid)> {
        let [p] = &self.0[..] else { return None };
        let (low, high) = p.bounds()?;
        Some((Nid::new(p.net, low), Nid::new(p.net, high)))
    }
}

impl fmt::Display for NidList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.0.iter().map(|p| p.text.as_str()).collect();
        f.write_str(&texts.join(" "))
    }
}

/// Words between spaces and commas; a comma in brackets belongs to its word.
fn split(text: &str) -> Vec<&str> {
    let mut deep = 0usize;
    let between = |c: char| {
        match c {
            '[' => deep += 1,
            ']' => deep = deep.saturating_sub(1),
            _ => {}
        }
        c.is_whitespace() || (c == ',' && deep == 0)
    };
    text.split(between).filter(|w| !w.is_empty()).collect()
}

impl Pattern {
    fn parse(word: &str) -> Option<Pattern> {
        let (addr, net_name) = word.split_once('@')?;
        let on = |a: &str| format!("{a}@{net_name}").parse::<Nid>().ok();
        // the network's own name decides whether its addresses are written as four bytes or as one number
        let dotted = on("0.0.0.0");
        let net = dotted.or_else(|| on("0"))?.net();
        let parts = match dotted {
            Some(_) => dotted_parts(addr, on)?,
            None => number_parts(addr)?,
        };
        Some(Pattern {
            text: word.into(),
            net,
            parts,
        })
    }

    fn has(&self, nid: Nid) -> bool {
        nid.net() == self.net
            && match &self.parts {
                Parts::Between(low, high) => (*low..=*high).contains(&nid.addr()),
                Parts::Bytes(bytes) => {
                    let addr = nid.addr().to_be_bytes();
                    bytes.iter().zip(addr).all(|(ranges, b)| {
                        ranges.iter().any(|(low, high)| (*low..=*high).contains(&b))
                    })
                }
            }
    }

    /// The ends, when nothing between them is missing: behind the first byte that may vary every byte may be anything.
    fn bounds(&self) -> Option<(u32, u32)> {
        let bytes = match &self.parts {
            Parts::Between(low, high) => return Some((*low, *high)),
            Parts::Bytes(bytes) => bytes,
        };
        let (mut low, mut high, mut varies) = ([0; 4], [0; 4], false);
        for (i, ranges) in bytes.iter().enumerate() {
            let [(l, h)] = ranges[..] else { return None };
            if varies && (l, h) != (0, u8::MAX) {
                return None;
            }
            varies |= l != h;
            (low[i], high[i]) = (l, h);
        }
        Some((u32::from_be_bytes(low), u32::from_be_bytes(high)))
    }
}

fn dotted_parts(addr: &str, on: impl Fn(&str) -> Option<Nid>) -> Option<Parts> {
    if addr == "*" {
        return Some(Parts::Between(0, u32::MAX));
    }
    if let Some((base, bits)) = addr.split_once('/') {
        let bits = bits.parse::<u32>().ok().filter(|b| (1..=32).contains(b))?;
        let mask = u32::MAX << (32 - bits);
        let base = on(base)?.addr() & mask;
        return Some(Parts::Between(base, base | !mask));
    }
    let words: Vec<&str> = addr.split('.').collect();
    let [a, b, c, d] = words[..] else { return None };
    Some(Parts::Bytes([
        byte_ranges(a)?,
        byte_ranges(b)?,
        byte_ranges(c)?,
        byte_ranges(d)?,
    ]))
}

fn byte_ranges(word: &str) -> Option<Vec<(u8, u8)>> {
    if word == "*" {
        return Some(vec![(0, u8::MAX)]);
    }
    let inner = match word.strip_prefix('[') {
        Some(w) => w.strip_suffix(']')?,
        None if word.contains(['-', ',']) => return None,
        None => word,
    };
    inner
        .split(',')
        .map(|w| {
            range_of(w).and_then(|(l, h)| Some((u8::try_from(l).ok()?, u8::try_from(h).ok()?)))
        })
        .collect()
}

fn number_parts(addr: &str) -> Option<Parts> {
    if addr == "*" {
        return Some(Parts::Between(0, u32::MAX));
    }
    let inner = addr
        .strip_prefix('[')
        .map_or(Some(addr), |w| w.strip_suffix(']'))?;
    range_of(inner).map(|(low, high)| Parts::Between(low, high))
}

/// `7` or `7-9`.
fn range_of(word: &str) -> Option<(u32, u32)> {
    let (low, high) = word.split_once('-').unwrap_or((word, word));
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    #[test]
    fn members_of_a_list() {
        let list =
            NidList::parse("10.0.0.[2-4,9]@tcp, 10.1.*.7@tcp1 0@lo 192.168.0.0/30@tcp").unwrap();
        for yes in [
            "10.0.0.2@tcp",
            "10.0.0.4@tcp",
            "10.0.0.9@tcp",
            "10.1.200.7@tcp1",
            "0@lo",
            "192.168.0.3@tcp",
        ] {
            assert!(list.has(nid(yes)), "{yes}");
        }
        for no in [
            "10.0.0.5@tcp",
            "10.0.0.2@tcp1",
            "10.1.200.8@tcp1",
            "1@lo",
            "192.168.0.4@tcp",
        ] {
            assert!(!list.has(nid(no)), "{no}");
        }
        assert!(NidList::parse("*@lo").unwrap().has(nid("1@lo")));
        assert_eq!(
            list.to_string(),
            "10.0.0.[2-4,9]@tcp 10.1.*.7@tcp1 0@lo 192.168.0.0/30@tcp"
        );
        for bad in [
            "",
            "10.0.0@tcp",
            "10.0.0.[4-2]@tcp",
            "10.0.0.300@tcp",
            "10.0.0.1@nonet",
            "x",
            "10.0.0.0/33@tcp",
            "10.0.0.1-3@tcp",
        ] {
            assert!(NidList::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bounds_are_of_what_is_whole() {
        let bounds = |text: &str| NidList::parse(text).unwrap().bounds();
        assert_eq!(
            bounds("10.0.0.[2-4]@tcp"),
            Some((nid("10.0.0.2@tcp"), nid("10.0.0.4@tcp")))
        );
        assert_eq!(
            bounds("10.[1-2].*.*@tcp"),
            Some((nid("10.1.0.0@tcp"), nid("10.2.255.255@tcp")))
        );
        assert_eq!(
            bounds("*@tcp2"),
            Some((nid("0.0.0.0@tcp2"), nid("255.255.255.255@tcp2")))
        );
        for gaps in [
            "10.[1-2].3.4@tcp",
            "10.0.0.[1,3]@tcp",
            "10.0.0.1@tcp 10.0.0.2@tcp",
        ] {
            assert_eq!(bounds(gaps), None, "{gaps}");
        }
    }
}
