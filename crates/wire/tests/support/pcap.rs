//! A small reader of pcap files and reassembly of their TCP streams: Ethernet, IPv4, no fragments.

use std::collections::BTreeMap;

/// One direction of one TCP connection.
pub struct Half {
    /// Sender (address, port).
    pub from: (u32, u16),
    /// Receiver.
    pub to: (u32, u16),
    /// Whether the capture has its first byte.
    pub from_start: bool,
    /// Contiguous runs of bytes, in order; more than one when the capture has gaps.
    pub runs: Vec<Vec<u8>>,
    /// Offsets in the first run at which segments began: where to look for a message when the start is missing.
    pub segment_starts: Vec<usize>,
    /// Per run: where each segment ended in it, and when it was captured, microseconds since 1970.
    pub arrivals: Vec<Vec<(usize, u64)>>,
}

impl Half {
    /// When the byte before `end` of a run had been captured with all before it, microseconds since 1970.
    pub fn complete_at(&self, run: usize, end: usize) -> u64 {
        let segments = self.arrivals.get(run).map_or(&[][..], Vec::as_slice);
        let needed = segments.partition_point(|(e, _)| *e < end) + 1;
        segments
            .iter()
            .take(needed)
            .map(|(_, at)| *at)
            .max()
            .unwrap_or(0)
    }
}

/// Sender and receiver of a direction, and what was collected of it.
type Found = ((u32, u16), (u32, u16), Flow);

struct Flow {
    isn: Option<u32>,
    /// By offset in the stream: when it was captured, and its bytes.
    segments: BTreeMap<u64, (u64, Vec<u8>)>,
    base: Option<u32>,
}

const SYN: u8 = 2;

fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn be32(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// All halves in a capture. A port pair used again (a new SYN) starts a new half.
pub fn halves(file: &[u8]) -> Vec<Half> {
    assert_eq!(
        &file[..4],
        &0xa1b2_c3d4u32.to_le_bytes(),
        "little endian pcap with microseconds"
    );
    assert_eq!(file[20], 1, "Ethernet");
    let mut flows: Vec<Found> = Vec::new();
    let mut at = 24;
    while at + 16 <= file.len() {
        let len = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        let word =
            |o: usize| u32::from_le_bytes(file[at + o..at + o + 4].try_into().unwrap()) as u64;
        let time_us = word(0) * 1_000_000 + word(4);
        let frame = &file[at + 16..(at + 16 + len).min(file.len())];
        at += 16 + len;
        let _ = take_frame(frame, time_us, &mut flows);
    }
    flows
        .into_iter()
        .filter_map(|(from, to, f)| join(from, to, f))
        .collect()
}

fn take_frame(frame: &[u8], time_us: u64, flows: &mut Vec<Found>) -> Option<()> {
    if be16(frame, 12)? != 0x0800 || frame.get(23)? != &6 {
        return None;
    }
    let ip = &frame[14..];
    let ihl = (ip[0] & 15) as usize * 4;
    let total = be16(ip, 2)? as usize;
    // a total of 0 is a segmentation-offload frame beyond 64 KiB
    let ip = if total == 0 { ip } else { ip.get(..total)? };
    let tcp = ip.get(ihl..)?;
    let from = (be32(ip, 12)?, be16(tcp, 0)?);
    let to = (be32(ip, 16)?, be16(tcp, 2)?);
    let seq = be32(tcp, 4)?;
    let flags = *tcp.get(13)?;
    let data = tcp.get((tcp[12] >> 4) as usize * 4..)?;
    let fresh = flags & SYN != 0;
    let known = flows
        .iter()
        .rposition(|f| f.0 == from && f.1 == to && !(fresh && f.2.isn != Some(seq)));
    let i = known.unwrap_or_else(|| {
        flows.push((
            from,
            to,
            Flow {
                isn: None,
                segments: BTreeMap::new(),
                base: None,
            },
        ));
        flows.len() - 1
    });
    let flow = &mut flows[i].2;
    if fresh {
        flow.isn = Some(seq);
        flow.base = Some(seq.wrapping_add(1));
    }
    if data.is_empty() {
        return Some(());
    }
    let base = *flow.base.get_or_insert(seq);
    let rel = seq.wrapping_sub(base);
    // what lies before the first byte is a keepalive or a retransmission from before the capture
    if rel < 0x8000_0000 {
        let slot = flow.segments.entry(rel as u64).or_default();
        if slot.1.len() < data.len() {
            *slot = (time_us, data.to_vec());
        }
    }
    Some(())
}

fn join(from: (u32, u16), to: (u32, u16), flow: Flow) -> Option<Half> {
    let mut half = Half {
        from,
        to,
        from_start: flow.isn.is_some(),
        runs: Vec::new(),
        segment_starts: Vec::new(),
        arrivals: Vec::new(),
    };
    let mut end = None;
    for (rel, (at, data)) in flow.segments {
        match end {
            Some(e) if rel <= e => {
                let skip = (e - rel) as usize;
                if skip < data.len() {
                    if half.runs.len() == 1 {
                        half.segment_starts.push(half.runs[0].len());
                    }
                    let run = half.runs.last_mut()?;
                    run.extend_from_slice(&data[skip..]);
                    half.arrivals.last_mut()?.push((run.len(), at));
                    end = Some(rel + data.len() as u64);
                }
            }
            _ => {
                if half.runs.is_empty() {
                    half.from_start &= rel == 0;
                    half.segment_starts.push(0);
                }
                end = Some(rel + data.len() as u64);
                half.arrivals.push(vec![(data.len(), at)]);
                half.runs.push(data);
            }
        }
    }
    (!half.runs.is_empty()).then_some(half)
}
