//! The requests that read logs (`lustre/ptlrpc/llog_server.c`): open by name, header, block.

use coral_wire::Errno;
use coral_wire::fid::{OstId, seq};
use coral_wire::llog::{Llog, LlogLogid, LlogdBody};
use coral_wire::ptlrpc::{Message, opc};

use super::registry::Registry;
use super::reply_message;

/// Log ids: number of the file system + 1, in the sequence of named logs. They mean nothing beyond one start of the MGS:
/// clients open logs by name each time.
fn logid(number: usize) -> LlogLogid {
    LlogLogid {
        oi: OstId {
            id: number as u64 + 1,
            seq: seq::LLOG_NAME,
        },
        ogen: 0,
    }
}

fn log_of<'a>(r: &'a Registry, id: &LlogLogid) -> Result<&'a Llog, Errno> {
    let oi = id.oi;
    let number = oi
        .id
        .checked_sub(1)
        .filter(|_| oi.seq == seq::LLOG_NAME)
        .ok_or(Errno::ENOENT)?;
    r.client_log_by_number(number as usize).ok_or(Errno::ENOENT)
}

/// Answers one of the llog opcodes.
pub fn answer(r: &Registry, opcode: u32, rq: &Message) -> Result<Message, Errno> {
    let body: LlogdBody = rq.get(1).map_err(|_| Errno::EPROTO)?;
    match opcode {
        opc::LLOG_ORIGIN_HANDLE_CREATE => open(r, &body, rq),
        opc::LLOG_ORIGIN_HANDLE_READ_HEADER => header(r, &body),
        _ => block(r, &body),
    }
}

fn open(r: &Registry, body: &LlogdBody, rq: &Message) -> Result<Message, Errno> {
    let name = std::str::from_utf8(rq.str(2)).map_err(|_| Errno::EINVAL)?;
    let number = match name.strip_suffix("-client").and_then(|fs| r.client_log(fs)) {
        Some((number, _)) => number,
        None if name.is_empty() => (body.logid.oi.id as usize)
            .checked_sub(1)
            .ok_or(Errno::ENOENT)?,
        None => return Err(Errno::ENOENT),
    };
    r.client_log_by_number(number).ok_or(Errno::ENOENT)?;
    let mut m = reply_message();
    m.push(&LlogdBody {
        logid: logid(number),
        ..Default::default()
    });
    Ok(m)
}

fn header(r: &Registry, body: &LlogdBody) -> Result<Message, Errno> {
    let log = log_of(r, &body.logid)?;
    let mut m = reply_message();
    m.push(log.header());
    Ok(m)
}

/// The chunk with the record asked for; behind the last record -EBADR, which tells a client that the log ends.
fn block(r: &Registry, body: &LlogdBody) -> Result<Message, Errno> {
    let log = log_of(r, &body.logid)?;
    let (chunk, end) = log.chunk_of(body.index).ok_or(Errno::EBADR)?;
    let last = coral_wire::llog::parse_chunk(&chunk)
        .ok()
        .and_then(|c| c.last().map(|l| l.index))
        .ok_or(Errno::EIO)?;
    let mut m = reply_message();
    m.push(&LlogdBody {
        saved_index: last,
        cur_offset: end,
        ..*body
    });
    m.push_bytes(chunk);
    Ok(m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::cfg::{ConfigLogReader, Lcfg};
    use coral_wire::llog::LlogLogHdr;
    use coral_wire::mgs::{MgsTargetInfo, ldd};
    use coral_wire::raw::c_array;
    use coral_wire::{PtlrpcBody, Wire};

    fn registry(osts: u32) -> Registry {
        let mut r = Registry::default();
        for i in 0..osts {
            let mut info = MgsTargetInfo {
                flags: ldd::SV_TYPE_OST,
                stripe_index: i,
                nid_count: 1,
                ..Default::default()
            };
            info.fsname = c_array(b"coral");
            info.nids[0] = "10.0.0.1@tcp".parse().unwrap();
            r.register(&info, &[], "", 5).unwrap();
        }
        r
    }

    fn ask(r: &Registry, op: u32, body: &LlogdBody, name: &str) -> Result<Message, Errno> {
        let mut rq = Message::new(&PtlrpcBody::request(op));
        rq.push(body);
        if !name.is_empty() {
            rq.push_str_nul(name.as_bytes());
        }
        answer(r, op, &rq)
    }

    /// Reads a log as the kernel's MGC does.
    #[test]
    fn read_it_as_a_client_does() {
        let r = registry(120);
        let at: LlogdBody = ask(
            &r,
            opc::LLOG_ORIGIN_HANDLE_CREATE,
            &LlogdBody::default(),
            "coral-client",
        )
        .unwrap()
        .get(1)
        .unwrap();
        let head: LlogLogHdr = ask(&r, opc::LLOG_ORIGIN_HANDLE_READ_HEADER, &at, "")
            .unwrap()
            .get(1)
            .unwrap();
        let mut reader = ConfigLogReader::new();
        let mut at = LlogdBody {
            cur_offset: 8192,
            len: 8192,
            ..at
        };
        let mut added = 0;
        loop {
            at.index = reader.next_index();
            let m = match ask(&r, opc::LLOG_ORIGIN_HANDLE_NEXT_BLOCK, &at, "") {
                Err(Errno::EBADR) => break,
                m => m.unwrap(),
            };
            at = m.get(1).unwrap();
            assert_eq!(m.buf(2).len(), 8192);
            let recs = reader.feed(m.buf(2), |i| head.is_live(i)).unwrap();
            added += recs
                .iter()
                .filter(|r| r.cfg.command == Lcfg::LOV_ADD_OBD)
                .count();
        }
        assert_eq!((added, reader.next_index()), (120, head.tail.index + 1));
    }

    #[test]
    fn absent_logs_and_nonsense() {
        let r = registry(1);
        for name in ["coral-sptlrpc", "params", "other-client", "coral", "\u{1}"] {
            let e = ask(
                &r,
                opc::LLOG_ORIGIN_HANDLE_CREATE,
                &LlogdBody::default(),
                name,
            )
            .unwrap_err();
            assert_eq!(e, Errno::ENOENT, "{name}");
        }
        for oi in [
            OstId { id: 0, seq: 10 },
            OstId { id: 9, seq: 10 },
            OstId { id: 1, seq: 1 },
            OstId {
                id: u64::MAX,
                seq: 10,
            },
        ] {
            let body = LlogdBody {
                logid: LlogLogid { oi, ogen: 0 },
                ..Default::default()
            };
            for op in [
                opc::LLOG_ORIGIN_HANDLE_READ_HEADER,
                opc::LLOG_ORIGIN_HANDLE_NEXT_BLOCK,
            ] {
                assert_eq!(ask(&r, op, &body, "").unwrap_err(), Errno::ENOENT);
            }
        }
        let empty = Message::new(&PtlrpcBody::request(501));
        assert_eq!(answer(&r, 501, &empty).unwrap_err(), Errno::EPROTO);
        assert!(LlogdBody::decode(&[]).is_err());
    }
}
