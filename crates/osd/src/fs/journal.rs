//! A look at the journals of the store before it replays them.
//!
//! fjall takes the first record it cannot read for the end of the journal and cuts the rest off.
//! That is right for a batch that was being written when the machine stopped, and wrong for damage,
//! which would silently drop every transaction after it. So we walk the journals first:
//! * A journal that ends before what was synced ([`super::synced`]) is refused. So is one that is
//!   not the newest and not whole.
//! * What is left to judge is the newest journal after the last sync. *Torn*: a batch breaks off and
//!   nothing but zeros follows, or a whole page of it is zeros that never reached the disk. Cut
//!   there. *Changed*: anything else. After power loss that is what was on its way to the disk, and
//!   is cut as well; on a machine that stayed up it is damage, and refused.
//!
//! The format is fjall 3's (`fjall/src/journal/{entry,writer,batch_reader}.rs`), read here and
//! never written; a journal we cannot follow is refused, not repaired.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, SeekFrom};
use xxhash_rust::xxh3::Xxh3;

use super::synced::{JournalLen, Promise};

/// Ends every batch.
const TRAILER: &[u8; 4] = b"FJL\x03";
const PAGE_BYTES: usize = 4096;
/// A journal that is being shortened, before it takes the place of the one that was.
const SHORTER: &str = "shorter.tmp";

/// How a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Every byte belongs to a whole batch.
    Whole,
    /// A batch was not written to its end.
    Torn,
    /// Something was changed.
    Changed,
}

/// What the walk over one journal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    end: End,
    /// Bytes of whole batches.
    pub(super) bytes: u64,
    /// Sequence number of the last whole batch.
    last_seqno: Option<u64>,
}

/// What the journals hold.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Sequence number of the last batch, if there is one.
    pub(super) last_seqno: Option<u64>,
    /// All of them, oldest first, with the bytes of whole batches.
    pub(super) journals: Vec<JournalLen>,
    /// Numbers of the tables that have rows in them.
    pub(super) tables: BTreeSet<u64>,
}

/// Verifies the journals in `dir` against what was promised; cuts what a crash left after that off
/// the newest. The message says what is wrong.
pub(super) fn check(dir: &Path, promise: Option<&Promise>) -> Result<Found, String> {
    let paths = list(dir).map_err(|e| format!("list {}: {e}", dir.display()))?;
    let mut found = Found::default();
    let mut newest = None;
    for (n, (id, path)) in paths.iter().enumerate() {
        let walk = walk_with(&contents(path)?, &mut found.tables);
        if walk.end != End::Whole && n + 1 < paths.len() {
            return Err(changed(path, walk.bytes));
        }
        let promised = promise.map_or(0, |p| p.bytes_of(*id));
        if walk.bytes < promised {
            return Err(format!(
                "journal {} ends at byte {}, but {promised} bytes were safe on disk: transactions are missing",
                path.display(),
                walk.bytes
            ));
        }
        found.last_seqno = walk.last_seqno.or(found.last_seqno);
        found.journals.push(JournalLen {
            id: *id,
            bytes: walk.bytes,
        });
        newest = Some((path, walk));
    }
    if let Some(promise) = promise {
        compare(dir, &found, newest.map(|(_, w)| w.end), promise)?;
    }
    let Some((path, walk)) = newest else {
        return Ok(found);
    };
    let power_lost = promise.is_some_and(|p| !p.is_of_this_boot());
    match walk.end {
        End::Whole => Ok(found),
        End::Changed if !power_lost => Err(changed(path, walk.bytes)),
        End::Torn | End::Changed => {
            let at = walk.bytes;
            match promise {
                Some(_) => {
                    tracing::warn!(journal = %path.display(), at, "dropping what was written after the last sync and not finished")
                }
                None => {
                    tracing::error!(journal = %path.display(), at, "the journal breaks off here, and SYNCED, which tells how far it was on disk, is missing or damaged: what was acknowledged and came behind is lost")
                }
            }
            cut(path, at).map_err(|e| format!("cut {}: {e}", path.display()))?;
            Ok(found)
        }
    }
}

/// Whether the journals reach as far as promised.
fn compare(
    dir: &Path,
    found: &Found,
    newest: Option<End>,
    promise: &Promise,
) -> Result<(), String> {
    let newest_id = found.journals.last().map(|j| j.id);
    let promised_id = promise.journals.last().map(|j| j.id);
    if newest_id < promised_id {
        let id = promised_id.unwrap_or(0);
        return Err(format!(
            "journal {} is missing",
            dir.join(format!("{id}.jnl")).display()
        ));
    }
    if promise.seqno == 0 || found.last_seqno.is_some_and(|last| last >= promise.seqno) {
        return Ok(());
    }
    // Older journals go once the tables have all that is in them, and the newest may have nothing yet.
    let may_be_empty = newest_id > promised_id || !promise.newest_began;
    if found.last_seqno.is_none() && newest == Some(End::Whole) && may_be_empty {
        return Ok(());
    }
    let last = found.last_seqno.map_or_else(
        || "before the first batch".to_owned(),
        |n| format!("with batch {n}"),
    );
    let path = dir.join(format!("{}.jnl", newest_id.unwrap_or(0)));
    let at = found.journals.last().map_or(0, |j| j.bytes);
    Err(format!(
        "journal {} ends {last} at byte {at}, but batch {} was safe on disk: transactions are missing",
        path.display(),
        promise.seqno
    ))
}

fn changed(path: &Path, at: u64) -> String {
    format!("journal {} was changed after byte {at}", path.display())
}

/// Makes what the journals in `dir` hold survive power loss. Unlike fjall's own way this does not
/// keep commits waiting for the disk: batches were handed to the operating system before.
///
/// `before` is what the last call returned: the journals, all but the newest with their final length,
/// the newest with a lower bound of it. The second result is whether there is a batch in the newest.
pub(super) fn sync(dir: &Path, before: &[JournalLen]) -> io::Result<(Vec<JournalLen>, bool)> {
    let paths = list(dir)?;
    let Some(((newest_id, newest), older)) = paths.split_last() else {
        return Ok((Vec::new(), false));
    };
    let (grows, is_final) = before
        .split_last()
        .map_or((None, &[][..]), |(last, rest)| (Some(last), rest));
    let mut journals = Vec::with_capacity(paths.len());
    for (id, path) in older {
        // Synced when fjall began the next, and not changed since. It may be removed meanwhile.
        let bytes = match is_final.iter().find(|j| j.id == *id) {
            Some(known) => known.bytes,
            None => match data_len(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            },
        };
        journals.push(JournalLen { id: *id, bytes });
    }
    let file = File::open(newest)?;
    file.sync_data()?;
    let mut first = [0];
    let began = file.read_at(&mut first, 0)? == 1 && first != [0];
    let bytes = grows.filter(|j| j.id == *newest_id).map_or(0, |j| j.bytes);
    journals.push(JournalLen {
        id: *newest_id,
        bytes,
    });
    Ok((journals, began))
}

/// Asks the disk for what is in the newest journal in `dir` so far.
pub(super) fn write_out(dir: &Path) -> io::Result<()> {
    let Some((_, newest)) = list(dir)?.pop() else {
        return Ok(());
    };
    match File::open(newest) {
        Ok(file) => file.sync_data(),
        // it was removed meanwhile: what was in it is in the tables
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Length of the newest journal in `dir`, which nobody writes any more.
pub(super) fn newest_len(dir: &Path) -> io::Result<Option<JournalLen>> {
    let Some((id, path)) = list(dir)?.pop() else {
        return Ok(None);
    };
    Ok(Some(JournalLen {
        id,
        bytes: data_len(&path)?,
    }))
}

/// Cuts everything before the last batch off the journal in `dir`, which nobody writes: the tables have what was in these batches.
/// False: it was left as it is, because it does not end with a whole batch, or because it is not the only one. An older one may
/// be replayed once more, which is right only together with what came after it.
pub(super) fn keep_last_batch(dir: &Path) -> Result<bool, String> {
    let found = list(dir).map_err(|e| format!("list {}: {e}", dir.display()))?;
    let [(_, path)] = &found[..] else {
        return Ok(false);
    };
    let bytes = contents(path)?;
    let (mut at, mut last) = (0, 0);
    while at < bytes.len() {
        let Ok((len, _)) = batch(&bytes[at..], &mut BTreeSet::new()) else {
            return Ok(false);
        };
        last = at;
        at += len;
    }
    if last == 0 {
        return Ok(false);
    }
    let shorter = dir.join(SHORTER);
    let write = || {
        let mut file = File::create(&shorter)?;
        file.write_all(&bytes[last..])?;
        file.sync_all()?;
        std::fs::rename(&shorter, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&shorter);
        format!("shorten {}: {e}", path.display())
    })?;
    Ok(true)
}

/// Gives the next `bytes` of the newest journal in `dir` their blocks, so that they can be written and synced on a full disk.
pub(super) fn reserve(dir: &Path, bytes: u64) -> io::Result<()> {
    let Some((_, path)) = list(dir)?.pop() else {
        return Ok(());
    };
    let file = OpenOptions::new().write(true).open(&path)?;
    let from = data_len(&path)?;
    Ok(rustix::fs::fallocate(
        &file,
        FallocateFlags::KEEP_SIZE,
        from,
        bytes,
    )?)
}

/// Journal files with their numbers, oldest first.
fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    if !dir.exists() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if let Some(n) = name
            .strip_suffix(".jnl")
            .and_then(|n| n.parse::<u64>().ok())
        {
            found.push((n, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The file without the zeros at its end, most of which are a hole.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?
            .take(data_len(path)?)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|e| format!("read {}: {e}", path.display()))
}

/// Length of the file without the zeros at its end. A batch ends with another byte.
fn data_len(path: &Path) -> io::Result<u64> {
    const STEP: u64 = 64 << 10;
    let file = File::open(path)?;
    let mut end = stored_end(&file)?;
    let mut buf = vec![0; STEP as usize];
    while end > 0 {
        let start = (end - 1) / STEP * STEP;
        let part = &mut buf[..(end - start) as usize];
        file.read_exact_at(part, start)?;
        if let Some(n) = part.iter().rposition(|b| *b != 0) {
            return Ok(start + n as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Where the last stored range of the file ends.
fn stored_end(file: &File) -> io::Result<u64> {
    let mut end = 0;
    loop {
        match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Ok(data) => end = rustix::fs::seek(file, SeekFrom::Hole(data))?,
            Err(rustix::io::Errno::NXIO) => return Ok(end),
            Err(e) => return Err(e.into()),
        }
    }
}

fn cut(path: &Path, len: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(len)?;
    file.sync_all()
}

/// Cuts the batches numbered `first` and more, and what is no batch, off the journals in `dir`.
pub(super) fn cut_from(dir: &Path, first: u64) -> io::Result<()> {
    // A journal may have been ended after its last batch broke off.
    for (_, path) in list(dir)? {
        let bytes = contents(&path).map_err(io::Error::other)?;
        let mut at = 0;
        let mut keeps = true;
        while at < bytes.len() && keeps {
            match batch(&bytes[at..], &mut BTreeSet::new()) {
                Ok((len, seqno)) if seqno < first => at += len,
                _ => keeps = false,
            }
        }
        if !keeps {
            cut(&path, at as u64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
fn walk(bytes: &[u8]) -> Walk {
    walk_with(bytes, &mut BTreeSet::new())
}

/// Walks a journal; `tables` gets the numbers of those in it.
pub(super) fn walk_with(bytes: &[u8], tables: &mut BTreeSet<u64>) -> Walk {
    let mut at = 0;
    let mut last_seqno = None;
    let mut end = End::Whole;
    while at < bytes.len() {
        match batch(&bytes[at..], tables) {
            Ok((len, seqno)) if last_seqno.is_none_or(|last| seqno > last) => {
                at += len;
                last_seqno = Some(seqno);
                continue;
            }
            Err(Stop::Short) if !has_trailer(&bytes[at..]) => end = End::Torn,
            _ if has_lost_page(bytes, at) => end = End::Torn,
            _ => end = End::Changed,
        }
        break;
    }
    Walk {
        end,
        bytes: at as u64,
        last_seqno,
    }
}

/// Why a batch does not read.
enum Stop {
    /// The bytes end within it.
    Short,
    /// It is not what was written.
    Bad,
}

/// Length and sequence number of the batch at the start of `b`.
fn batch(b: &[u8], tables: &mut BTreeSet<u64>) -> Result<(usize, u64), Stop> {
    let mut r = Reader { b, at: 0 };
    expect(r.u8()? == 1)?;
    let count = r.u32()?;
    let seqno = r.u64()?;
    let mut sum = Xxh3::new();
    let mut found = BTreeSet::new();
    for _ in 0..count {
        let from = r.at;
        found.insert(match r.u8()? {
            2 => item(&mut r)?,
            4 => r.u64()?,
            _ => return Err(Stop::Bad),
        });
        sum.update(&b[from..r.at]);
    }
    expect(r.u8()? == 3)?;
    let want = r.u64()?;
    let trailer = r.take(TRAILER.len())?;
    expect(trailer == TRAILER && want == sum.digest())?;
    tables.append(&mut found);
    Ok((r.at, seqno))
}

/// The number of its table.
fn item(r: &mut Reader<'_>) -> Result<u64, Stop> {
    let (value_type, compression) = (r.u8()?, r.u8()?);
    expect(matches!(value_type, 0 | 1 | 2 | 4) && compression <= 1)?;
    let table = r.u64()?;
    let key_len = r.u16()? as usize;
    let _value_len = r.u32()?;
    let stored_len = r.u32()? as usize;
    r.take(key_len)?;
    r.take(stored_len)?;
    Ok(table)
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
        let j = journal().0;
        assert_eq!(
            walk(&j),
            Walk {
                end: End::Whole,
                bytes: j.len() as u64,
                last_seqno: Some(20)
            }
        );
        assert_eq!(
            walk(&[]),
            Walk {
                end: End::Whole,
                bytes: 0,
                last_seqno: None
            }
        );
    }

    #[test]
    fn a_cut_anywhere_in_the_last_batch_is_torn_there() {
        let (j, last) = journal();
        for len in last + 1..j.len() {
            let torn = Walk {
                end: End::Torn,
                bytes: last as u64,
                last_seqno: Some(19),
            };
            assert_eq!(walk(&j[..len]), torn, "{len}");
        }
    }

    #[test]
    fn what_was_not_acknowledged_is_cut_off() {
        let (j, last) = journal();
        let dir = Dir::with(&[(3, b"older"), (4, &j)]);
        let path = dir.0.path().join("4.jnl");
        cut_from(dir.0.path(), 21).unwrap();
        assert_eq!(
            data_len(&path).unwrap(),
            j.len() as u64,
            "all were acknowledged"
        );
        cut_from(dir.0.path(), 20).unwrap();
        assert_eq!(data_len(&path).unwrap(), last as u64);
        dir.put(4, &j[..last + 50]);
        cut_from(dir.0.path(), 20).unwrap();
        assert_eq!(
            (
                data_len(&path).unwrap(),
                walk(&contents(&path).unwrap()).end
            ),
            (last as u64, End::Whole)
        );
        cut_from(dir.0.path(), 1).unwrap();
        assert_eq!(data_len(&path).unwrap(), 0);
    }

    #[test]
    fn the_last_batch_is_kept_and_nothing_of_a_journal_that_breaks_off_is_cut() {
        let (j, last) = journal();
        let dir = Dir::with(&[(3, &j[..last]), (4, &j)]);
        let kept = || contents(&dir.0.path().join("4.jnl")).unwrap();
        let synced = promise(20, true, &[(4, 0)]);
        assert_eq!(keep_last_batch(dir.0.path()), Ok(false), "not the only one");
        assert_eq!(kept(), j);
        std::fs::remove_file(dir.0.path().join("3.jnl")).unwrap();
        assert_eq!(dir.check(&synced).unwrap().last_seqno, Some(20));
        assert_eq!(keep_last_batch(dir.0.path()), Ok(true));
        assert_eq!(dir.check(&synced).unwrap().last_seqno, Some(20));
        assert_eq!(kept(), j[last..]);
        assert_eq!(walk(&kept()).last_seqno, Some(20));
        assert_eq!(keep_last_batch(dir.0.path()), Ok(false), "one batch");
        dir.put(4, &j[..last + 50]);
        assert_eq!(keep_last_batch(dir.0.path()), Ok(false));
        assert_eq!(kept(), j[..last + 50]);
        std::fs::remove_file(dir.0.path().join("4.jnl")).unwrap();
        assert_eq!(keep_last_batch(dir.0.path()), Ok(false), "none");
    }

    #[test]
    fn the_tables_of_a_journal_are_found() {
        let mut found = BTreeSet::new();
        walk_with(&journal().0, &mut found);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_flipped_bit_is_damage_or_changes_nothing() {
        let (j, _) = journal();
        let batch_len = j.len() / 20;
        for at in 0..j.len() {
            let mut bad = j.clone();
            bad[at] ^= 1 << (at % 8);
            let begin = at / batch_len * batch_len;
            let found = walk(&bad);
            let to = found.bytes as usize;
            match found.end {
                End::Changed => assert!(to == begin || to == begin + batch_len),
                // A sequence number may move between its neighbours.
                End::Whole => assert!(at % batch_len < 13, "byte {at} unnoticed"),
                End::Torn => panic!("byte {at} taken for a torn end at {to}"),
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
        let found = walk(&j);
        let at = found.bytes as usize;
        assert_eq!(found.end, End::Torn);
        assert!(at <= 2 * PAGE_BYTES && at + 2000 > 2 * PAGE_BYTES);
        assert_eq!(walk(&j[..at]).end, End::Whole);
    }

    /// Journals in a directory, and what `check` says of them.
    struct Dir(tempfile::TempDir);

    impl Dir {
        fn with(journals: &[(u64, &[u8])]) -> Dir {
            let dir = Dir(tempfile::tempdir().unwrap());
            for (id, bytes) in journals {
                dir.put(*id, bytes);
            }
            dir
        }

        fn put(&self, id: u64, bytes: &[u8]) {
            let file = File::create(self.0.path().join(format!("{id}.jnl"))).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            file.set_len(1 << 20).unwrap();
        }

        fn check(&self, promise: &Promise) -> Result<Found, String> {
            check(self.0.path(), Some(promise))
        }
    }

    fn promise(seqno: u64, newest_began: bool, journals: &[(u64, u64)]) -> Promise {
        let journals = journals
            .iter()
            .map(|(id, bytes)| JournalLen {
                id: *id,
                bytes: *bytes,
            })
            .collect();
        Promise {
            seqno,
            newest_began,
            journals,
            ..Default::default()
        }
    }

    #[test]
    fn a_journal_that_ends_before_what_was_synced_is_refused() {
        let (j, last) = journal();
        let synced = promise(20, true, &[(0, 0)]);
        assert_eq!(
            Dir::with(&[(0, &j)]).check(&synced).unwrap().last_seqno,
            Some(20)
        );
        for len in [0, 1, last / 2, last, last + 1, j.len() - 1] {
            let e = Dir::with(&[(0, &j[..len])]).check(&synced).unwrap_err();
            assert!(
                e.contains("0.jnl") && e.contains("transactions are missing"),
                "{len}: {e}"
            );
        }
        // What comes after the sync may be torn, or after power loss (another boot) anything.
        let earlier = promise(10, true, &[(0, last as u64 / 3)]);
        let dir = Dir::with(&[(0, &j[..last + 1])]);
        assert_eq!(dir.check(&earlier).unwrap().last_seqno, Some(19));
        assert_eq!(
            data_len(&dir.0.path().join("0.jnl")).unwrap(),
            last as u64,
            "cut"
        );
        let mut bad = j.clone();
        bad[last - 100] ^= 1;
        assert_eq!(
            Dir::with(&[(0, &bad)])
                .check(&Promise {
                    boot: 1,
                    ..earlier.clone()
                })
                .unwrap()
                .last_seqno,
            Some(18)
        );
        let here = Promise {
            boot: super::super::note::boot_tag(),
            ..earlier
        };
        let e = Dir::with(&[(0, &bad)]).check(&here).unwrap_err();
        assert!(e.contains("was changed after byte"), "{e}");
    }

    #[test]
    fn older_journals_must_have_their_length_and_the_newest_may_be_empty() {
        let (j, last) = journal();
        let synced = promise(20, false, &[(4, j.len() as u64), (5, 0)]);
        let ok = |dir: Dir| dir.check(&synced).map(|f| f.last_seqno);
        assert_eq!(ok(Dir::with(&[(4, &j), (5, &[])])), Ok(Some(20)));
        assert_eq!(
            ok(Dir::with(&[(5, &[])])),
            Ok(None),
            "the older one was not needed any more"
        );
        assert_eq!(ok(Dir::with(&[(6, &[])])), Ok(None));
        assert!(
            ok(Dir::with(&[(4, &j[..last]), (5, &[])])).is_err(),
            "cut between two batches"
        );
        assert!(ok(Dir::with(&[(4, &[]), (5, &[])])).is_err());
        assert!(
            ok(Dir::with(&[(4, &j)]))
                .unwrap_err()
                .contains("5.jnl is missing")
        );
        assert!(ok(Dir::with(&[])).is_err());
        let began = promise(20, true, &[(5, 0)]);
        assert!(Dir::with(&[(5, &[])]).check(&began).is_err());
        assert!(Dir::with(&[(6, &[])]).check(&began).is_ok());
    }

    #[test]
    fn a_sync_tells_the_length_of_what_is_final() {
        let (j, last) = journal();
        let dir = Dir::with(&[(3, &j[..last])]);
        let lens = |known: &[JournalLen]| {
            let (journals, began) = sync(dir.0.path(), known).unwrap();
            (
                journals.iter().map(|j| (j.id, j.bytes)).collect::<Vec<_>>(),
                began,
            )
        };
        let first = [JournalLen { id: 3, bytes: 10 }];
        assert_eq!(lens(&first), (vec![(3, 10)], true));
        dir.put(3, &j);
        dir.put(4, &[]);
        assert_eq!(lens(&first), (vec![(3, j.len() as u64), (4, 0)], false));
        assert_eq!(
            newest_len(dir.0.path()).unwrap(),
            Some(JournalLen { id: 4, bytes: 0 })
        );
        std::fs::remove_file(dir.0.path().join("3.jnl")).unwrap();
        dir.put(4, &j[..last]);
        assert_eq!(lens(&first), (vec![(4, 0)], true));
        assert_eq!(
            newest_len(dir.0.path()).unwrap(),
            Some(JournalLen {
                id: 4,
                bytes: last as u64
            })
        );
    }
}
