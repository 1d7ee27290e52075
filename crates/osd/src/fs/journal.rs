//! A look at the journals of the store before it replays them.
//!
//! fjall takes the first record it cannot read for the end of the journal and cuts the rest off.
//! That is right for a batch that was being written when the machine stopped, and wrong for a
//! flipped bit in the middle, which would silently drop every transaction after it. So we walk the
//! journals first and tell the two apart:
//! * *torn*: a batch breaks off and nothing but zeros follows, or a whole page of it is zeros that
//!   never reached the disk (power loss). Cut there: it was not acknowledged as synced.
//! * *damaged*: anything else. Refused.
//!
//! The format is fjall 3's (`fjall/src/journal/{entry,writer,batch_reader}.rs`), read here and
//! never written; a journal we cannot follow is refused, not repaired.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use xxhash_rust::xxh3::Xxh3;

/// Ends every batch.
const TRAILER: &[u8; 4] = b"FJL\x03";
const PAGE_BYTES: usize = 4096;

/// What the walk over one journal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// Every byte belongs to a whole batch.
    Whole,
    /// Whole batches up to this offset, then one that was not written to its end.
    Torn(usize),
    /// Whole batches up to this offset, then something that was changed.
    Damaged(usize),
}

/// Verifies the journals in `dir`; cuts a torn end off the last. The message says what is wrong.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    let journals = list(dir).map_err(|e| format!("list {}: {e}", dir.display()))?;
    let Some((last, sealed)) = journals.split_last() else { return Ok(()) };
    for path in sealed {
        match walk(&contents(path)?) {
            Walk::Whole => {}
            Walk::Torn(at) | Walk::Damaged(at) => return Err(damaged(path, at)),
        }
    }
    match walk(&contents(last)?) {
        Walk::Whole => Ok(()),
        Walk::Damaged(at) => Err(damaged(last, at)),
        Walk::Torn(at) => {
            tracing::warn!(journal = %last.display(), at, "dropping a batch that was not finished");
            cut(last, at as u64).map_err(|e| format!("cut {}: {e}", last.display()))
        }
    }
}

fn damaged(path: &Path, at: usize) -> String {
    format!("journal {} was changed after byte {at}", path.display())
}

/// Makes what the journals in `dir` hold survive power loss. Unlike fjall's own way this does not
/// keep commits waiting for the disk: batches were handed to the operating system before.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    // An older journal was synced when fjall began the next.
    match list(dir)?.last() {
        Some(newest) => File::open(newest)?.sync_data(),
        None => Ok(()),
    }
}

/// Journal files, oldest first.
fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !dir.exists() {
        return Ok(found.into_iter().map(|(_, p)| p).collect());
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if let Some(n) = name.strip_suffix(".jnl").and_then(|n| n.parse::<u64>().ok()) {
            found.push((n, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, p)| p).collect())
}

/// The file without the zeros at its end, most of which are a hole.
fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let read = || -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        let mut bytes = Vec::new();
        (&file).take(data_end(&file)?).read_to_end(&mut bytes)?;
        bytes.truncate(bytes.iter().rposition(|b| *b != 0).map_or(0, |n| n + 1));
        Ok(bytes)
    };
    read().map_err(|e| format!("read {}: {e}", path.display()))
}

/// Where the last stored byte range of the file ends; its position is left at the start.
fn data_end(file: &File) -> io::Result<u64> {
    let mut end = 0;
    loop {
        match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Ok(data) => end = rustix::fs::seek(file, SeekFrom::Hole(data))?,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        }
    }
    rustix::fs::seek(file, SeekFrom::Start(0))?;
    Ok(end)
}

fn cut(path: &Path, len: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(len)?;
    file.sync_all()
}

fn walk(bytes: &[u8]) -> Walk {
    let mut at = 0;
    let mut last_seqno = None;
    while at < bytes.len() {
        match batch(&bytes[at..]) {
            Ok((len, seqno)) if last_seqno.is_none_or(|last| seqno > last) => {
                at += len;
                last_seqno = Some(seqno);
            }
            Err(Stop::Short) if !has_trailer(&bytes[at..]) => return Walk::Torn(at),
            _ if has_lost_page(bytes, at) => return Walk::Torn(at),
            _ => return Walk::Damaged(at),
        }
    }
    Walk::Whole
}

/// Why a batch does not read.
enum Stop {
    /// The bytes end within it.
    Short,
    /// It is not what was written.
    Bad,
}

/// Length and sequence number of the batch at the start of `b`.
fn batch(b: &[u8]) -> Result<(usize, u64), Stop> {
    let mut r = Reader { b, at: 0 };
    expect(r.u8()? == 1)?;
    let count = r.u32()?;
    let seqno = r.u64()?;
    let mut sum = Xxh3::new();
    for _ in 0..count {
        let from = r.at;
        match r.u8()? {
            2 => item(&mut r)?,
            4 => {
                r.take(8)?;
            }
            _ => return Err(Stop::Bad),
        }
        sum.update(&b[from..r.at]);
    }
    expect(r.u8()? == 3)?;
    let want = r.u64()?;
    let trailer = r.take(TRAILER.len())?;
    expect(trailer == TRAILER && want == sum.digest())?;
    Ok((r.at, seqno))
}

fn item(r: &mut Reader<'_>) -> Result<(), Stop> {
    let (value_type, compression) = (r.u8()?, r.u8()?);
    expect(matches!(value_type, 0 | 1 | 2 | 4) && compression <= 1)?;
    r.take(8)?;
    let key_len = r.u16()? as usize;
    let _value_len = r.u32()?;
    let stored_len = r.u32()? as usize;
    r.take(key_len)?;
    r.take(stored_len)?;
    Ok(())
}

fn expect(ok: bool) -> Result<(), Stop> {
    if ok { Ok(()) } else { Err(Stop::Bad) }
}

struct Reader<'a> {
    b: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(n).ok_or(Stop::Short)?;
        let s = self.b.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(s)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        self.take(N)?.try_into().map_err(|_| Stop::Short)
    }

    fn u8(&mut self) -> Result<u8, Stop> {
        Ok(self.array::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, Stop> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, Stop> {
        self.array().map(u64::from_le_bytes)
    }
}

/// True when a batch was written to its end somewhere in `b`.
fn has_trailer(b: &[u8]) -> bool {
    b.windows(TRAILER.len()).any(|w| w == TRAILER)
}

/// True when a whole page at or after the batch that begins at `at` holds zeros only.
fn has_lost_page(bytes: &[u8], at: usize) -> bool {
    let pages = bytes.chunks(PAGE_BYTES).skip(at.div_ceil(PAGE_BYTES));
    pages.filter(|p| p.len() == PAGE_BYTES).any(|p| p.iter().all(|b| *b == 0))
        // The page the batch begins in, lost after another part of it was written before.
        || bytes[at..].iter().take(PAGE_BYTES - at % PAGE_BYTES).all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push_batch(out: &mut Vec<u8>, seqno: u64, values: &[&[u8]]) {
        out.push(1);
        out.extend((values.len() as u32).to_le_bytes());
        out.extend(seqno.to_le_bytes());
        let from = out.len();
        for v in values {
            out.extend([2, 0, 0]);
            out.extend(7u64.to_le_bytes());
            out.extend(3u16.to_le_bytes());
            out.extend((v.len() as u32).to_le_bytes());
            out.extend((v.len() as u32).to_le_bytes());
            out.extend(b"key");
            out.extend(*v);
        }
        let mut sum = Xxh3::new();
        sum.update(&out[from..]);
        out.push(3);
        out.extend(sum.digest().to_le_bytes());
        out.extend(TRAILER);
    }

    fn journal() -> (Vec<u8>, usize) {
        let mut j = Vec::new();
        for seqno in 1..20 {
            push_batch(&mut j, seqno, &[&[seqno as u8; 300], b"x"]);
        }
        let last = j.len();
        push_batch(&mut j, 20, &[&[20; 300], b"x"]);
        (j, last)
    }

    #[test]
    fn a_whole_journal_is_whole() {
        assert_eq!(walk(&journal().0), Walk::Whole);
        assert_eq!(walk(&[]), Walk::Whole);
    }

    #[test]
    fn a_cut_anywhere_in_the_last_batch_is_torn_there() {
        let (j, last) = journal();
        for len in last + 1..j.len() {
            assert_eq!(walk(&j[..len]), Walk::Torn(last), "{len}");
        }
    }

    #[test]
    fn a_flipped_bit_is_damage_or_changes_nothing() {
        let (j, _) = journal();
        let batch_len = j.len() / 20;
        for at in 0..j.len() {
            let mut bad = j.clone();
            bad[at] ^= 1 << (at % 8);
            let begin = at / batch_len * batch_len;
            match walk(&bad) {
                Walk::Damaged(found) => assert!(found == begin || found == begin + batch_len),
                // The length of the value before compression is used by nobody here; a sequence
                // number may move between its neighbours.
                Walk::Whole => assert!(at % batch_len < 13, "byte {at} unnoticed"),
                // The very last trailer: nothing tells that it was whole once.
                Walk::Torn(found) => panic!("byte {at} taken for a torn end at {found}"),
            }
        }
    }

    #[test]
    fn a_page_that_never_reached_the_disk_ends_the_journal() {
        let mut j = journal().0;
        while j.len() < 6 * PAGE_BYTES {
            let seqno = 100 + j.len() as u64;
            push_batch(&mut j, seqno, &[&[9; 1000]]);
        }
        j[2 * PAGE_BYTES..3 * PAGE_BYTES].fill(0);
        let Walk::Torn(at) = walk(&j) else { panic!("{:?}", walk(&j)) };
        assert!(at <= 2 * PAGE_BYTES && at + 2000 > 2 * PAGE_BYTES);
        assert_eq!(walk(&j[..at]), Walk::Whole);
    }
}
