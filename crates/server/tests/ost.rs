//! An OST served over MemNet to raw imports: every request on objects, against models.

use std::sync::Arc;
use std::time::Duration;

use coral_buffers::Payload;
use coral_lnet::{MemNet, Node, NodeConfig, Passing};
use coral_node::backend::simulated_label;
use coral_node::{Backend, Servers, ServersConfig, TargetSpec};
use coral_osd::{Fault, ObjectId, Objects, OsdMem, TargetKind};
use coral_ptlrpc::{Bulk, Import, ImportConfig, Reply, Request};
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2, ObdConnectData, release};
use coral_wire::ldlm::{
    LdlmFlags, LdlmIntent, LdlmMode, LdlmReply, LdlmRequest, LdlmType, LockDesc, Policy,
};
use coral_wire::ost::{
    CksumType, NiobufRemote, ObdFlags, ObdIoobj, ObdStatfs, Obdo, OstLvb, brw, md,
};
use coral_wire::ptlrpc::{MSG_RESENT, Message, PtlrpcBody, opc, portal};
use coral_wire::quota::{ObdQuotactl, cmd, dqb};
use coral_wire::{Errno, Fid, OstId, Wire};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const MIB: usize = 1 << 20;
const EOF: u64 = u64::MAX;
const SERVER: &str = "10.0.0.1@tcp";

struct Cluster {
    mem: Arc<MemNet>,
    server: Servers,
    osd: Arc<OsdMem>,
}

async fn node(mem: &Arc<MemNet>, nid: &str, seed: u64) -> Arc<Node> {
    let cfg = NodeConfig::in_memory(nid.parse().unwrap(), seed);
    Node::start(cfg, Some(mem.clone())).await.unwrap()
}

async fn cluster(osd: OsdMem) -> Cluster {
    cluster_at("1@lo", osd).await
}

async fn cluster_at(nid: &str, osd: OsdMem) -> Cluster {
    let mem = MemNet::new();
    let server = serve(node(&mem, nid, 1).await, in_memory(&osd));
    Cluster {
        mem,
        server,
        osd: Arc::new(osd),
    }
}

/// An OST of which no MGS knows.
fn serve(node: Arc<Node>, ost: TargetSpec) -> Servers {
    let mut servers = Servers::new(node, ServersConfig::default());
    servers.add_unregistered(ost).unwrap();
    servers
}

fn in_memory(osd: &OsdMem) -> TargetSpec {
    TargetSpec::memory(simulated_label(TargetKind::Ost, "coral", 0, &[]), osd)
}

/// What a client asks for; without CORAL it is taken for a kernel client.
fn asked(coral: bool) -> ObdConnectData {
    let f = F::VERSION
        | F::AT
        | F::FULL20
        | F::FID
        | F::BRW_SIZE
        | F::CKSUM
        | F::SRVLOCK
        | F::SHORTIO
        | F::GRANT;
    let more = F::BULK_MBITS | F::FLAGS2 | F::LVB_TYPE | F::CANCELSET | F::GRANT_PARAM;
    let two = F2::INC_XID | F2::REP_MBITS | F2::LSEEK;
    ObdConnectData {
        connect_flags: f | more,
        connect_flags2: if coral { two | F2::CORAL } else { two },
        version: release(2, 17, 57, 0),
        brw_size: 4 << 20,
        cksum_types: 7,
        ..Default::default()
    }
}

impl Cluster {
    async fn client(&self, n: u64, coral: bool) -> Client {
        let node = node(&self.mem, &format!("{n}@lo"), n).await;
        let uuid = format!("00000000-0000-0000-0000-{n:012}");
        let cfg = ImportConfig::ost(
            "coral-OST0000_UUID",
            vec!["1@lo".parse().unwrap()],
            &uuid,
            asked(coral),
        );
        let import = Import::new(node, cfg);
        import.connect().await.unwrap();
        Client { import }
    }

    /// The server dies at once and another starts on `osd`, under the same NID.
    async fn restart_on(&mut self, nid: &str, osd: OsdMem) {
        self.server.node().shutdown().await;
        self.server = serve(node(&self.mem, nid, 99).await, in_memory(&osd));
        self.osd = Arc::new(osd);
    }

    /// As [`Cluster::client`] of a server at `10.0.0.1@tcp`, from a NID that is remembered.
    async fn remote_client(&self, n: u64) -> Client {
        self.client_at(&format!("10.0.1.{n}@tcp"), n).await
    }

    /// A client in the server's own process: it dies with it and replays nothing.
    async fn local_client(&self, n: u64) -> Client {
        self.client_at(&format!("{n}@lo"), n).await
    }

    async fn client_at(&self, nid: &str, n: u64) -> Client {
        let node = node(&self.mem, nid, n).await;
        let uuid = format!("00000000-0000-0000-0001-{n:012}");
        let nids = vec![SERVER.parse().unwrap()];
        let cfg = ImportConfig::ost("coral-OST0000_UUID", nids, &uuid, asked(false));
        let import = Import::new(node, cfg);
        import.connect().await.unwrap();
        Client { import }
    }

    async fn stop(self, clients: Vec<Client>) {
        for c in clients {
            c.import.disconnect().await;
        }
        self.server.stop().await;
    }
}

struct Client {
    import: Arc<Import>,
}

fn oi(oid: u64) -> OstId {
    OstId::group0(oid)
}

fn obdo(oid: u64, valid: u64) -> Obdo {
    Obdo {
        oi: oi(oid),
        valid: md::FLID | md::FLGROUP | valid,
        ..Default::default()
    }
}

fn locked(oid: u64, valid: u64) -> Obdo {
    Obdo {
        flags: ObdFlags::SRVLOCK,
        ..obdo(oid, valid | md::FLFLAGS)
    }
}

fn niobufs(ranges: &[(u64, usize)], flags: u32) -> Vec<NiobufRemote> {
    ranges
        .iter()
        .map(|(offset, len)| NiobufRemote {
            offset: *offset,
            len: *len as u32,
            flags,
        })
        .collect()
}

/// Lengths of descriptors as a kernel client fills them: 256 page fragments each.
fn md_lens(ranges: &[(u64, usize)]) -> Vec<u32> {
    let mut lens = vec![0];
    let mut fragments = 0;
    for (off, len) in ranges {
        let mut at = *off;
        while at < off + *len as u64 {
            if fragments == 256 {
                lens.push(0);
                fragments = 0;
            }
            let next = ((at / 4096 + 1) * 4096).min(off + *len as u64);
            *lens.last_mut().unwrap() += (next - at) as u32;
            (at, fragments) = (next, fragments + 1);
        }
    }
    lens
}

impl Client {
    async fn call(&self, rq: Request) -> Reply {
        tokio::time::timeout(Duration::from_secs(20), self.import.call(rq))
            .await
            .expect("answered")
            .unwrap()
    }

    /// A request of one obdo; the reply's obdo or the error.
    async fn op(&self, portal: u32, opc: u32, oa: &Obdo) -> Result<Obdo, Errno> {
        let reply = self
            .call(Request::new(portal, opc).push(oa).push_empty())
            .await;
        Errno::check(reply.status)?;
        Ok(reply.msg.get(1).unwrap())
    }

    fn brw(&self, opc: u32, oa: &Obdo, ranges: &[(u64, usize)], flags: u32) -> Request {
        let list = niobufs(ranges, flags);
        let mds = md_lens(ranges).len() as u32;
        Request::new(portal::OST_IO, opc)
            .push(oa)
            .push(&ObdIoobj::new(oa.oi, mds, list.len() as u32))
            .push_bytes(coral_wire::raw::encode_all(&list))
            .push_empty()
    }

    async fn write_with(
        &self,
        mut oa: Obdo,
        ranges: &[(u64, usize)],
        data: &[u8],
        flags: u32,
    ) -> Result<Obdo, Errno> {
        let short = oa.flags.contains(ObdFlags::SHORT_IO);
        oa.valid |= md::FLFLAGS;
        let rq = self.brw(opc::OST_WRITE, &oa, ranges, flags);
        let rq = if short {
            rq.push_bytes(data.to_vec())
        } else {
            let mut parts = Vec::new();
            let mut at = 0;
            for len in md_lens(ranges) {
                parts.push(Payload::from(data[at..at + len as usize].to_vec()));
                at += len as usize;
            }
            rq.push_empty().bulk(Bulk::Source {
                portal: portal::OST_BULK,
                data: parts,
            })
        };
        let reply = self.call(rq.replayable()).await;
        Errno::check(reply.status)?;
        assert_eq!(reply.status, 0);
        assert_eq!(
            reply.msg.buf(2)[..],
            vec![0; 4 * ranges.len()],
            "one zero for each range"
        );
        Ok(reply.msg.get(1).unwrap())
    }

    async fn write(&self, oid: u64, off: u64, data: &[u8]) -> Result<Obdo, Errno> {
        self.write_with(obdo(oid, 0), &[(off, data.len())], data, 0)
            .await
    }

    async fn read_with(
        &self,
        mut oa: Obdo,
        ranges: &[(u64, usize)],
        flags: u32,
    ) -> Result<(Vec<u8>, Obdo), Errno> {
        oa.valid |= md::FLFLAGS;
        let short = oa.flags.contains(ObdFlags::SHORT_IO);
        let rq = self.brw(opc::OST_READ, &oa, ranges, flags).push_empty();
        let rq = match short {
            true => rq,
            false => rq.bulk(Bulk::Sink {
                portal: portal::OST_BULK,
                lens: md_lens(ranges),
            }),
        };
        let reply = self.call(rq).await;
        let nob = Errno::check(reply.status)? as usize;
        let data = match short {
            true => reply.msg.buf(2).to_vec(),
            false => reply
                .bulk
                .iter()
                .flatten()
                .flat_map(|b| b.to_vec())
                .collect(),
        };
        assert_eq!(data.len(), nob, "status tells the bytes");
        Ok((data, reply.msg.get(1).unwrap()))
    }

    async fn read(&self, oid: u64, off: u64, len: usize) -> Vec<u8> {
        self.read_with(obdo(oid, 0), &[(off, len)], 0)
            .await
            .unwrap()
            .0
    }

    async fn size(&self, oid: u64) -> u64 {
        self.op(portal::OST_REQUEST, opc::OST_GETATTR, &locked(oid, 0))
            .await
            .unwrap()
            .size
    }

    async fn punch(&self, oid: u64, start: u64, end: u64) -> Result<Obdo, Errno> {
        let oa = Obdo {
            size: start,
            blocks: end,
            ..locked(oid, md::FLSIZE | md::FLBLOCKS)
        };
        self.op(portal::OST_IO, opc::OST_PUNCH, &oa).await
    }

    async fn seek(&self, oid: u64, off: u64, whence: u32) -> Result<i64, Errno> {
        let oa = Obdo {
            size: off,
            mode: whence,
            ..locked(oid, 0)
        };
        Ok(self.op(portal::OST_REQUEST, opc::OST_SEEK, &oa).await?.size as i64)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_reads_and_writes_agree_with_a_byte_vector() {
    let seed = 7;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    let mut model: Vec<u8> = Vec::new();
    for step in 0..300 {
        // Up to five ranges, ascending, some touching.
        let mut ranges = Vec::new();
        let mut at = rng.random_range(0..3 * MIB as u64);
        for _ in 0..rng.random_range(1..6) {
            let len = match rng.random_range(0..3) {
                0 => rng.random_range(1..100),
                1 => rng.random_range(1..20_000),
                _ => rng.random_range(1..MIB / 2),
            };
            ranges.push((at, len));
            at += len as u64
                + if rng.random_bool(0.5) {
                    0
                } else {
                    rng.random_range(1..50_000)
                };
        }
        let total: usize = ranges.iter().map(|r| r.1).sum();
        let srvlock = if rng.random_bool(0.5) {
            brw::SRVLOCK
        } else {
            0
        };
        let mut oa = obdo(1, 0);
        if total <= 16 << 10 && rng.random_bool(0.7) {
            oa.flags = ObdFlags::SHORT_IO;
        }
        let what = format!("seed {seed} step {step}: {ranges:?} {:?}", oa.flags);
        if rng.random_bool(0.5) {
            let data: Vec<u8> = (0..total).map(|_| rng.random()).collect();
            let out = c
                .write_with(oa, &ranges, &data, srvlock)
                .await
                .expect(&what);
            let mut from = 0;
            for (off, len) in &ranges {
                let end = *off as usize + len;
                if model.len() < end {
                    model.resize(end, 0);
                }
                model[*off as usize..end].copy_from_slice(&data[from..from + len]);
                from += len;
            }
            assert_eq!(out.size, model.len() as u64, "{what}");
        } else {
            let (got, _) = c.read_with(oa, &ranges, srvlock).await.expect(&what);
            let mut want = Vec::new();
            for (off, len) in &ranges {
                let end = (*off as usize + len).min(model.len());
                let start = (*off as usize).min(end);
                want.extend_from_slice(&model[start..end]);
                if end - start < *len {
                    break; // a short read ends the data
                }
            }
            assert!(
                got == want,
                "{what}: {} bytes, {} expected",
                got.len(),
                want.len()
            );
        }
    }
    assert_eq!(c.size(1).await, model.len() as u64);
    assert!(c.read(1, 0, 4 * MIB).await == model[..model.len().min(4 * MIB)]);
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coral_client_cuts_at_1_mib_wherever_it_begins() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, true).await;
    let data: Vec<u8> = (0..2 * MIB + 77).map(|i| (i * 7) as u8).collect();
    let off = 1000;
    let oa = obdo(3, 0);
    let parts = data
        .chunks(MIB)
        .map(|p| Payload::from(p.to_vec()))
        .collect();
    let rq = c
        .brw(opc::OST_WRITE, &oa, &[(off, data.len())], brw::SRVLOCK)
        .push_empty();
    let reply = c
        .call(rq.bulk(Bulk::Source {
            portal: portal::OST_BULK,
            data: parts,
        }))
        .await;
    assert_eq!(reply.status, 0);
    let rq = c
        .brw(opc::OST_READ, &oa, &[(off, 3 * MIB)], brw::SRVLOCK)
        .push_empty();
    let reply = c
        .call(rq.bulk(Bulk::Sink {
            portal: portal::OST_BULK,
            lens: vec![MIB as u32; 3],
        }))
        .await;
    assert_eq!(reply.status as usize, data.len());
    let got: Vec<u8> = reply
        .bulk
        .iter()
        .flatten()
        .flat_map(|b| b.to_vec())
        .collect();
    assert!(got == data);

    // Times carry nanoseconds both ways.
    let t = coral_wire::coral::pack_time(1_700_000_000, 123_456_789);
    let oa = Obdo {
        mtime: t,
        ctime: t + 1,
        ..obdo(3, md::FLMTIME | md::FLCTIME)
    };
    c.op(portal::OST_REQUEST, opc::OST_SETATTR, &oa)
        .await
        .unwrap();
    let got = c
        .op(portal::OST_REQUEST, opc::OST_GETATTR, &locked(3, 0))
        .await
        .unwrap();
    assert_eq!((got.mtime, got.ctime), (t, t + 1));
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_look_like_a_real_servers() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    let granted = c.import.granted();
    assert_eq!(
        (granted.brw_size, granted.grant, granted.grant_tax_kb),
        (4 << 20, 8_437_760, 24)
    );

    // Requests and valid bits as in session.pcap.
    let sum = CksumType::Crc32c.compute([&b"hello\n"[..]]);
    let mut oa = Obdo {
        nlink: sum,
        uid: 10,
        gid: 20,
        mtime: 500,
        ctime: 501,
        blocks: 28672,
        ..obdo(9, 0)
    };
    oa.valid = 0x0180_0000_0b18_4f2d;
    oa.flags = ObdFlags::from_bits_retain(0x0040_6000) & !ObdFlags::from_bits_retain(0x2000);
    oa.grant = 8_409_088;
    oa.mode = 259_096_576;
    oa.set_parent(Fid::new(0x2_0000_0401, 5), 1);
    let wrote = c.write_with(oa, &[(0, 6)], b"hello\n", 0).await.unwrap();
    assert_eq!(wrote.valid, 0x0180_0000_6b58_4fb9, "{:#x}", wrote.valid);
    assert_eq!((wrote.mode, wrote.size, wrote.nlink), (0o100_666, 6, sum));
    assert!(
        wrote.grant > 0 && wrote.grant <= 8_437_760,
        "{}",
        wrote.grant
    );

    let oa = Obdo {
        flags: CksumType::Crc32c.flags() | ObdFlags::SHORT_IO,
        ..obdo(9, md::FLCKSUM | md::FLGRANT)
    };
    let (data, read) = c.read_with(oa, &[(0, 4096)], 0).await.unwrap();
    assert_eq!(data, b"hello\n");
    assert_eq!((read.valid, read.grant), (0x0810_0800, 0));
    assert_eq!(read.nlink, sum);

    let attr = c
        .op(portal::OST_REQUEST, opc::OST_GETATTR, &locked(9, 0))
        .await
        .unwrap();
    assert_eq!(attr.valid, 0x0110_0000_0100_0fbf, "{:#x}", attr.valid);
    assert_eq!((attr.size, attr.mtime, attr.ctime), (6, 500, 501));
    assert_eq!((attr.uid, attr.gid, attr.mode), (10, 20, 0o100_666));
    let stored = cl.osd.attr(ObjectId { seq: 0, oid: 9 }).unwrap().unwrap();
    assert_eq!(stored.parent, (0x2_0000_0401, 5, 1));

    let oa = Obdo {
        mtime: 1,
        atime: 2,
        ctime: 3,
        ..obdo(9, md::FLMTIME | md::FLATIME | md::FLCTIME)
    };
    let set = c
        .op(portal::OST_REQUEST, opc::OST_SETATTR, &oa)
        .await
        .unwrap();
    assert_eq!(set.valid, 0x0100_0000_0100_07bf);
    assert_eq!((set.mtime, set.atime, set.ctime), (1, 2, 3));

    let sync = Obdo {
        blocks: EOF,
        ..obdo(9, md::FLSIZE | md::FLBLOCKS)
    };
    let synced = c
        .op(portal::OST_REQUEST, opc::OST_SYNC, &sync)
        .await
        .unwrap();
    assert_eq!((synced.valid, synced.size), (0x0100_01bf, 6));
    assert_eq!(
        &cl.osd
            .power_loss()
            .read(ObjectId { seq: 0, oid: 9 }, 0, 9)
            .wait()
            .unwrap()[..],
        b"hello\n"
    );

    let cut = c.punch(9, 2, EOF).await.unwrap();
    assert_eq!((cut.valid, cut.blocks), (0x21, 8));
    assert_eq!(c.read(9, 0, 100).await, b"he");

    let reply = c
        .call(Request::new(portal::OST_CREATE, opc::OST_STATFS))
        .await;
    let s: ObdStatfs = reply.msg.get(1).unwrap();
    assert_eq!(
        (reply.status, s.bsize, s.blocks),
        (0, 4096, (16 << 30) / 4096)
    );
    assert!(
        s.granted > 0 && s.bavail == s.bfree,
        "promised, and not used: {} {} {}",
        s.granted,
        s.bavail,
        s.bfree
    );
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_object_is_empty_until_something_is_stored() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    assert_eq!(c.read(5, 0, 100).await, b"");
    assert_eq!(c.size(5).await, 0);
    assert_eq!(c.seek(5, 0, 3).await.unwrap(), -6);
    let destroy = obdo(5, 0);
    c.op(portal::OST_IO, opc::OST_DESTROY, &destroy)
        .await
        .unwrap();
    let sync = obdo(5, 0);
    c.op(portal::OST_REQUEST, opc::OST_SYNC, &sync)
        .await
        .unwrap();
    assert_eq!(cl.osd.attr(ObjectId { seq: 0, oid: 5 }).unwrap(), None);
    c.punch(5, 1000, EOF).await.unwrap();
    assert_eq!(c.size(5).await, 1000);
    assert_eq!(c.read(5, 990, 100).await, vec![0; 10]);
    c.op(portal::OST_IO, opc::OST_DESTROY, &destroy)
        .await
        .unwrap();
    assert_eq!(c.size(5).await, 0);

    // Several at once.
    for oid in 10..14 {
        c.write(oid, 0, b"x").await.unwrap();
    }
    let several = Obdo {
        misc: 3,
        ..obdo(10, md::FLOBJCOUNT)
    };
    c.op(portal::OST_IO, opc::OST_DESTROY, &several)
        .await
        .unwrap();
    let left: Vec<_> = cl.osd.objects().iter().map(|(id, _)| id.oid).collect();
    assert_eq!(left, [13]);
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_seek_and_fallocate() {
    const KEEP: u32 = 1;
    const PUNCH: u32 = 2;
    const ZERO: u32 = 16;
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    c.write(1, 1 << 20, &[9; 8192]).await.unwrap();
    assert_eq!(c.seek(1, 0, 3).await.unwrap(), 1 << 20);
    assert_eq!(c.seek(1, 0, 4).await.unwrap(), 0);
    assert_eq!(c.seek(1, (1 << 20) + 1, 4).await.unwrap(), (1 << 20) + 8192);
    assert_eq!(c.seek(1, (1 << 20) + 8192, 3).await.unwrap(), -6);
    assert_eq!(c.seek(1, 0, 7).await, Err(Errno::EPROTO));

    let falloc = async |mode: u32, start: u64, end: u64| {
        let oa = Obdo {
            size: start,
            blocks: end,
            nlink: mode,
            ..locked(1, md::FLSIZE | md::FLBLOCKS)
        };
        c.op(portal::OST_IO, opc::OST_FALLOCATE, &oa).await
    };
    let out = falloc(0, 0, 4096).await.unwrap();
    assert_eq!((out.size, out.blocks), ((1 << 20) + 8192, 24));
    assert_eq!(c.seek(1, 0, 3).await.unwrap(), 0);
    let out = falloc(KEEP, 2 << 20, (2 << 20) + 4096).await.unwrap();
    assert_eq!((out.size, out.blocks), ((1 << 20) + 8192, 32));
    let out = falloc(0, 2 << 20, (2 << 20) + 4096).await.unwrap();
    assert_eq!(out.size, (2 << 20) + 4096);
    falloc(PUNCH | KEEP, (1 << 20) + 10, (1 << 20) + 20)
        .await
        .unwrap();
    let mut want = vec![9; 30];
    want[10..20].fill(0);
    assert_eq!(c.read(1, 1 << 20, 30).await, want);
    falloc(ZERO | KEEP, 1 << 20, (1 << 20) + 15).await.unwrap();
    want[..15].fill(0);
    assert_eq!(c.read(1, 1 << 20, 30).await, want);
    assert_eq!(falloc(8, 0, 4096).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(falloc(0, 5, 5).await, Err(Errno::EINVAL));

    // A punch with an end makes a hole and keeps the size.
    c.punch(1, 1 << 20, (1 << 20) + 8192).await.unwrap();
    assert_eq!(c.seek(1, 4096, 3).await.unwrap(), 2 << 20);
    assert_eq!(c.size(1).await, (2 << 20) + 4096);
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_the_writers_error_and_nobody_elses() {
    let cl = cluster(OsdMem::with_capacity(4 << 20)).await;
    let c = cl.client(2, false).await;
    let data = vec![1; MIB];
    for n in 0..3 {
        c.write(1, n * MIB as u64, &data).await.unwrap();
    }
    let grant = c.import.granted().grant as u64;
    assert!(
        grant <= 1 << 19,
        "no more than a share of the disk is promised: {grant}"
    );
    let mut wrote = 3;
    let full = loop {
        match c.write(1, wrote * MIB as u64, &data).await {
            Ok(_) => wrote += 1,
            Err(e) => break e,
        }
        assert!(wrote < 5, "never full");
    };
    assert_eq!(full, Errno::ENOSPC);
    assert_eq!(c.size(1).await, wrote * MIB as u64);
    assert!(c.read(1, 0, 3 * MIB).await.iter().all(|b| *b == 1));
    c.write(1, MIB as u64, &[2; 100])
        .await
        .expect("overwriting needs no space");
    c.op(portal::OST_IO, opc::OST_DESTROY, &obdo(1, 0))
        .await
        .unwrap();
    c.write(2, 0, &data).await.unwrap();
    cl.stop(vec![c]).await;
}

/// Where free space lags, room is found by waiting for the disk, which the storage itself never does on the server's threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_finds_no_room_finds_it_once_the_disk_has_settled() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, true).await;
    cl.osd.inject(Fault::Lags(4));
    c.write(1, 0, b"stored").await.unwrap();
    cl.osd.inject(Fault::Lags(4));
    let set = Obdo {
        mtime: 7,
        ..locked(1, md::FLMTIME)
    };
    c.op(portal::OST_REQUEST, opc::OST_SETATTR, &set)
        .await
        .unwrap();
    assert_eq!(c.read(1, 0, 100).await, b"stored");
    cl.osd.inject(Fault::Lags(5));
    assert_eq!(c.write(1, 0, b"refuse").await, Err(Errno::ENOSPC));
    cl.osd.inject(Fault::None);
    assert_eq!(c.read(1, 0, 100).await, b"stored");
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_changed_on_the_way_are_not_stored() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    c.write(1, 0, b"good").await.unwrap();
    for kind in [CksumType::Crc32, CksumType::Adler, CksumType::Crc32c] {
        let sum = kind.compute([&b"evil"[..]]);
        let oa = Obdo {
            nlink: sum ^ 1,
            flags: kind.flags(),
            grant: 1 << 20,
            ..obdo(1, md::FLCKSUM | md::FLGRANT)
        };
        let out = c.write_with(oa, &[(0, 4)], b"evil", 0).await.unwrap();
        assert_eq!(
            (out.grant, out.valid & md::FLGRANT),
            (0, 0),
            "nothing is given"
        );
        assert_eq!(out.nlink, sum, "our own sum tells the client to send again");
        assert_eq!(c.read(1, 0, 10).await, b"good");
        let oa = Obdo {
            nlink: sum,
            flags: kind.flags(),
            ..obdo(2, md::FLCKSUM)
        };
        assert_eq!(
            c.write_with(oa, &[(0, 4)], b"evil", 0).await.unwrap().nlink,
            sum
        );
        assert_eq!(c.read(2, 0, 10).await, b"evil");
    }
    let t10 = Obdo {
        flags: ObdFlags::from_bits_retain(0x5000),
        ..obdo(1, md::FLCKSUM)
    };
    assert_eq!(
        c.write_with(t10, &[(0, 4)], b"evil", 0).await,
        Err(Errno::EPROTO)
    );
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_are_refused_and_the_target_lives() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    let zero = Obdo {
        valid: md::FLID,
        ..Default::default()
    };
    for (p, o) in [
        (portal::OST_REQUEST, opc::OST_GETATTR),
        (portal::OST_REQUEST, opc::OST_SETATTR),
        (portal::OST_IO, opc::OST_PUNCH),
        (portal::OST_IO, opc::OST_FALLOCATE),
        (portal::OST_REQUEST, opc::OST_SEEK),
        (portal::OST_IO, opc::OST_DESTROY),
        (portal::OST_IO, opc::OST_READ),
        (portal::OST_IO, opc::OST_WRITE),
    ] {
        assert_eq!(c.op(p, o, &zero).await, Err(Errno::EPROTO), "{o}");
        assert_eq!(
            c.call(Request::new(p, o)).await.status,
            Errno::EPROTO.status(),
            "{o}"
        );
    }
    let size = Obdo {
        size: 0,
        ..obdo(1, md::FLSIZE)
    };
    assert_eq!(
        c.op(portal::OST_REQUEST, opc::OST_SETATTR, &size).await,
        Err(Errno::EPERM)
    );
    let far = c.punch(1, EOF - 1, EOF).await;
    assert_eq!(far, Err(Errno::EFBIG));
    let quota = c
        .call(Request::new(portal::OST_REQUEST, opc::OST_QUOTACTL).push_empty())
        .await;
    assert_eq!(quota.status, Errno::EPROTO.status());
    let info = c
        .call(Request::new(portal::OST_REQUEST, opc::OST_GET_INFO).push_str_nul(b"fiemap"))
        .await;
    assert_eq!(info.status, Errno::EOPNOTSUPP.status());
    assert_eq!(c.write(1, 0, b"alive").await.unwrap().size, 5);
    cl.stop(vec![c]).await;
}

/// An MDT asks so at its start, lest it gives an id again.
#[tokio::test]
async fn the_last_object_of_each_mdt_is_told() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, true).await;
    let last = async |first: u64| {
        let rq = Request::new(portal::OST_REQUEST, opc::OST_GET_INFO)
            .push_str_nul(b"last_fid")
            .push(&oi(first).to_fid(0));
        let reply = c.call(rq).await;
        assert_eq!(reply.status, 0);
        OstId::from_fid(reply.msg.get::<Fid>(1).unwrap()).object_id()
    };
    let of_mdt1 = 1 << 40 | 1;
    assert_eq!((last(1).await, last(of_mdt1).await), (0, 1 << 40));
    for id in [3, 9000, of_mdt1 + 7, 2 << 40] {
        c.write(id, 0, b"x").await.unwrap();
    }
    assert_eq!((last(1).await, last(of_mdt1).await), (9000, of_mdt1 + 7));
    assert_eq!(last(9000).await, 9000);
    assert_eq!(last(9001).await, 9000, "none from there on");
    assert_eq!(last(2 << 40 | 1).await, 2 << 40, "none of its own");
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_locks_keep_the_writes_of_two_clients_whole() {
    const LEN: usize = 300_000;
    let cl = cluster(OsdMem::new()).await;
    let a = Arc::new(cl.client(2, false).await);
    let b = Arc::new(cl.client(3, false).await);
    a.write(1, 0, &vec![0; LEN]).await.unwrap();
    let writer = |c: Arc<Client>, value: u8| {
        tokio::spawn(async move {
            for n in 0..40u8 {
                let data = vec![value + n; LEN];
                c.write_with(obdo(1, 0), &[(0, LEN)], &data, brw::SRVLOCK)
                    .await
                    .unwrap();
            }
        })
    };
    let reader = |c: Arc<Client>| {
        tokio::spawn(async move {
            for _ in 0..40 {
                let (data, _) = c
                    .read_with(obdo(1, 0), &[(0, LEN)], brw::SRVLOCK)
                    .await
                    .unwrap();
                assert_eq!(data.len(), LEN);
                assert!(data.iter().all(|x| *x == data[0]), "two writes mixed");
            }
        })
    };
    for task in [
        writer(a.clone(), 1),
        writer(b.clone(), 100),
        reader(a.clone()),
        reader(b.clone()),
    ] {
        task.await.unwrap();
    }
    let (a, b) = (Arc::into_inner(a).unwrap(), Arc::into_inner(b).unwrap());
    cl.stop(vec![a, b]).await;
}

/// Changes wait for a lock; their client is evicted meanwhile.
#[tokio::test(start_paused = true)]
async fn an_evicted_client_changes_nothing_more() {
    let cl = cluster(OsdMem::new()).await;
    let (a, b) = (Arc::new(cl.client(2, true).await), cl.client(3, true).await);
    a.write(1, 0, b"before").await.unwrap();
    let target = cl.server.targets().next().unwrap().clone();
    let ldlm = target.ldlm();
    let (ty, all) = (LdlmType::EXTENT, Policy::extent(0, EOF));
    let held = ldlm.lock_local(oi(1).res_id(), ty, LdlmMode::PW, all, None);
    let held = held.await;
    let punch = Obdo {
        size: 0,
        blocks: EOF,
        ..locked(1, md::FLSIZE | md::FLBLOCKS)
    };
    // what they are answered does not matter: their client is told that it was evicted
    let (writer, puncher) = (a.clone(), a.clone());
    let write = async move {
        let at = [(0, 5)];
        let _ = writer
            .write_with(obdo(1, 0), &at, b"after", brw::SRVLOCK)
            .await;
    };
    let punch = async move {
        let _ = puncher
            .op(portal::OST_REQUEST, opc::OST_PUNCH, &punch)
            .await;
    };
    let setter = a.clone();
    let times = Obdo {
        mtime: 7,
        ..locked(1, md::FLMTIME)
    };
    let set = async move {
        let _ = setter
            .op(portal::OST_REQUEST, opc::OST_SETATTR, &times)
            .await;
    };
    let id = ObjectId { seq: 0, oid: 1 };
    let was = cl.osd.attr(id).unwrap();
    let changes = [tokio::spawn(write), tokio::spawn(punch), tokio::spawn(set)];
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(changes.iter().all(|c| !c.is_finished()), "they wait");
    let exports = target.exports();
    let evicted = exports.iter().find(|e| e.uuid.ends_with("0002")).unwrap();
    target.evict(evicted.cookie, "a test");
    drop(held);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(b.read(1, 0, 100).await, b"before");
    assert_eq!(cl.osd.attr(id).unwrap(), was);
    changes.iter().for_each(|c| c.abort());
    cl.stop(vec![b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_glimpse_tells_size_and_times() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    let oa = Obdo {
        mtime: 77,
        ctime: 78,
        ..obdo(6, md::FLMTIME | md::FLCTIME)
    };
    c.write_with(oa, &[(0, 5000)], &[3; 5000], 0).await.unwrap();
    let policy = Policy::extent(0, EOF);
    let desc = LockDesc::new(oi(6).res_id(), LdlmType::EXTENT, LdlmMode::PR, &policy);
    let flags = LdlmFlags::HAS_INTENT;
    let rq = Request::new(portal::OST_REQUEST, opc::LDLM_ENQUEUE)
        .push_bytes(LdlmRequest::enqueue(flags, desc, 0x1234).to_bytes())
        .push(&LdlmIntent { opc: 0 });
    let reply = c.call(rq).await;
    assert!(reply.status == 0 || reply.status == 301, "{}", reply.status);
    let _: LdlmReply = reply.msg.get(1).unwrap();
    let lvb: OstLvb = reply.msg.get(2).unwrap();
    assert_eq!(reply.msg.buf(2).len(), 56);
    assert_eq!(
        (lvb.size, lvb.mtime, lvb.ctime, lvb.blocks),
        (5000, 77, 78, 16)
    );
    cl.stop(vec![c]).await;
}

/// A read that comes short says where the object ends, unless a client may have written behind it and not told yet. A client of Lustre
/// is told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_read_tells_the_end_unless_somebody_writes_behind_it() {
    let cl = cluster(OsdMem::new()).await;
    let (a, stock) = (cl.client(2, true).await, cl.client(3, false).await);
    a.write_with(obdo(1, 0), &[(0, 5000)], &[3; 5000], 0)
        .await
        .unwrap();
    let told = async |c: &Client, at, len| {
        let read = c.read_with(obdo(1, 0), &[(at, len)], 0).await;
        let oa = read.unwrap().1;
        (oa.valid & md::FLSIZE != 0).then_some(oa.size)
    };
    assert_eq!(told(&a, 0, 5000).await, None, "nothing is missing");
    for (at, len) in [(0, 8000), (4999, 100), (5000, 100), (1 << 20, 100)] {
        assert_eq!(told(&a, at, len).await, Some(5000));
        assert_eq!(told(&stock, at, len).await, None);
    }
    let policy = Policy::extent(1 << 20, EOF);
    let desc = LockDesc::new(oi(1).res_id(), LdlmType::EXTENT, LdlmMode::PW, &policy);
    let asked = LdlmRequest::enqueue(LdlmFlags::empty(), desc, 0x1234).to_bytes();
    let rq = Request::new(portal::OST_REQUEST, opc::LDLM_ENQUEUE).push_bytes(asked);
    let b = cl.client(4, true).await;
    assert_eq!(b.call(rq).await.status, 0);
    assert_eq!(told(&a, 0, 8000).await, None, "B writes behind it");
    b.import.disconnect().await;
    assert_eq!(told(&a, 0, 8000).await, Some(5000));
    cl.stop(vec![a, stock]).await;
}

/// Clients with locks beside each other write out in any order. A time that was set does not stick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_times_of_an_object_are_those_of_its_newest_write() {
    let cl = cluster(OsdMem::new()).await;
    let (a, b) = (cl.client(2, true).await, cl.client(3, true).await);
    let time = |secs| coral_wire::coral::pack_time(secs, 5);
    let at = |secs| Obdo {
        mtime: time(secs),
        ctime: time(secs),
        ..obdo(1, md::FLMTIME | md::FLCTIME)
    };
    let times = async || {
        let of = locked(1, 0);
        let asked = a.op(portal::OST_REQUEST, opc::OST_GETATTR, &of);
        let got = asked.await.unwrap();
        (got.mtime, got.ctime)
    };
    b.write_with(at(2000), &[(8192, 4)], b"late", 0)
        .await
        .unwrap();
    a.write_with(at(1000), &[(0, 5)], b"early", 0)
        .await
        .unwrap();
    assert_eq!(times().await, (time(2000), time(2000)));
    for set in [at(9000), at(500)] {
        a.op(portal::OST_REQUEST, opc::OST_SETATTR, &set)
            .await
            .unwrap();
        assert_eq!(times().await, (set.mtime, set.ctime));
        b.write_with(at(3000), &[(8192, 4)], b"then", 0)
            .await
            .unwrap();
        assert_eq!(times().await, (time(3000), time(3000)));
    }
    cl.stop(vec![a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_come_back_when_a_client_leaves() {
    let cl = cluster(OsdMem::new()).await;
    let c = cl.client(2, false).await;
    let other = cl.client(3, false).await;
    let promised = async || {
        let reply = other
            .call(Request::new(portal::OST_CREATE, opc::OST_STATFS))
            .await;
        reply.msg.get::<ObdStatfs>(1).unwrap().granted
    };
    let initial = 8_437_760 / 4096;
    assert_eq!(
        promised().await as u64,
        2 * initial,
        "booked when it was told, to each"
    );
    let oa = Obdo {
        grant: 8_437_760,
        mode: 64 << 20,
        ..obdo(1, md::FLGRANT)
    };
    let out = c
        .write_with(oa, &[(0, 4096)], &[1; 4096], brw::FROM_GRANT)
        .await
        .unwrap();
    assert!(out.grant > 0);
    let held = (8_437_760 - 4096 + out.grant) / 4096;
    let promised = async || promised().await as u64 - initial;
    assert_eq!(promised().await, held);
    let shrink = Obdo {
        grant: 1 << 20,
        flags: ObdFlags::SHRINK_GRANT,
        ..obdo(1, md::FLGRANT | md::FLFLAGS)
    };
    let rq = Request::new(portal::OST_REQUEST, opc::OST_SET_INFO)
        .push_str_nul(b"grant_shrink")
        .push(&shrink);
    assert_eq!(c.call(rq).await.status, 0);
    assert_eq!(promised().await, held - 256);
    c.import.disconnect().await;
    assert_eq!(promised().await, 0);
    cl.stop(vec![other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_objects_on_disk_are_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let label = simulated_label(TargetKind::Ost, "coral", 0, &[]);
    coral_osd::OsdFs::format(dir.path(), &label).unwrap();
    let osd = Arc::new(coral_osd::OsdFs::open(dir.path()).unwrap().0);
    let mem = MemNet::new();
    let given = TargetSpec::new(Backend::Given {
        label,
        fresh: None,
        tables: osd.clone(),
        objects: osd.clone(),
    });
    let server = serve(node(&mem, "1@lo", 1).await, given);
    let cl = Cluster {
        mem,
        server,
        osd: Arc::new(OsdMem::new()),
    };
    let c = cl.client(2, false).await;
    let data: Vec<u8> = (0..3 * MIB + 123).map(|i| (i / 777) as u8).collect();
    c.write(1, 4096, &data).await.unwrap();
    osd.sync_all().wait().unwrap();
    // What lies on disk alone comes from another thread; the answer is the same.
    let drop_cache = std::process::Command::new("dd")
        .arg(format!(
            "if={}",
            dir.path().join("objects/00/00/0-1").display()
        ))
        .args(["iflag=nocache", "count=0"])
        .output()
        .unwrap();
    assert!(drop_cache.status.success(), "{drop_cache:?}");
    assert!(c.read(1, 4096, 4 * MIB).await == data);
    let (spread, _) = c
        .read_with(obdo(1, 0), &[(5000, 10), (2 * MIB as u64, 5000)], 0)
        .await
        .unwrap();
    assert!(spread[..10] == data[904..914] && spread[10..] == data[2 * MIB - 4096..][..5000]);
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_power_loss_clients_bring_their_writes_again() {
    let mut cl = cluster_at(SERVER, OsdMem::new()).await;
    let c = cl.remote_client(2).await;
    c.write(1, 0, b"synced").await.unwrap();
    // The whole target: with it the record of this client.
    c.op(portal::OST_REQUEST, opc::OST_SYNC, &Obdo::default())
        .await
        .unwrap();
    let mut after = None;
    for n in 0..20u64 {
        c.write(1, n * 1000, &[n as u8 + 1; 1500]).await.unwrap();
        if n == 10 {
            after = Some(cl.osd.power_loss());
        }
    }
    // The device as it was in the middle: what came later is surely lost, or all of it.
    let lost = after.unwrap();
    assert!(
        lost.read(ObjectId { seq: 0, oid: 1 }, 0, 1 << 20)
            .wait()
            .unwrap()
            .len()
            < 20_000
    );
    cl.restart_on(SERVER, lost).await;
    let mut want = vec![0; 20_500];
    for n in 0..20 {
        want[n * 1000..n * 1000 + 1500].fill(n as u8 + 1);
    }
    assert!(c.read(1, 0, 1 << 20).await == want);
    cl.stop(vec![c]).await;
}

/// A connect makes the new client safe, and says nothing of data that are not on disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connects_commits_no_data_of_others() {
    let mut cl = cluster_at(SERVER, OsdMem::new()).await;
    let c = cl.remote_client(2).await;
    c.op(portal::OST_REQUEST, opc::OST_SYNC, &Obdo::default())
        .await
        .unwrap();
    c.write(1, 0, b"mine").await.unwrap();
    let other = cl.remote_client(3).await;
    assert!(c.import.ping().await);
    assert_eq!(
        c.import.replayable(),
        1,
        "it is told that its write is committed"
    );
    let lost = cl.osd.power_loss();
    cl.restart_on(SERVER, lost).await;
    assert!(other.import.ping().await || other.import.connect().await.is_ok());
    assert_eq!(c.read(1, 0, 100).await, b"mine");
    cl.stop(vec![c, other]).await;
}

/// A sync of one object commits what several clients did to it: nobody writes his older bytes over those that were synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_power_loss_no_older_write_is_replayed_over_what_was_synced() {
    let mut cl = cluster_at(SERVER, OsdMem::new()).await;
    let c = cl.remote_client(2).await;
    c.op(portal::OST_REQUEST, opc::OST_SYNC, &Obdo::default())
        .await
        .unwrap();
    let local = cl.local_client(7).await;
    c.write(1, 0, b"older").await.unwrap();
    local.write(1, 0, b"newer").await.unwrap();
    c.write(2, 0, b"mine").await.unwrap();
    local
        .op(
            portal::OST_REQUEST,
            opc::OST_SYNC,
            &obdo(1, md::FLSIZE | md::FLBLOCKS),
        )
        .await
        .unwrap();
    c.write(2, 4, b"!").await.unwrap();
    c.op(
        portal::OST_REQUEST,
        opc::OST_SYNC,
        &obdo(2, md::FLSIZE | md::FLBLOCKS),
    )
    .await
    .unwrap();
    let lost = cl.osd.power_loss();
    cl.restart_on(SERVER, lost).await;
    assert_eq!(c.read(1, 0, 100).await, b"newer");
    assert_eq!(c.read(2, 0, 100).await, b"mine!");
    cl.stop(vec![c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_no_older_write_is_replayed_over_a_newer_one() {
    let mut cl = cluster_at(SERVER, OsdMem::new()).await;
    let c = cl.remote_client(2).await;
    let local = cl.local_client(7).await;
    c.write(1, 0, b"older").await.unwrap();
    local.write(1, 0, b"newer").await.unwrap();
    let osd = (*cl.osd).clone();
    cl.restart_on(SERVER, osd).await;
    assert_eq!(c.read(1, 0, 100).await, b"newer");
    // Numbers go on from where they were.
    c.write(1, 5, b"!").await.unwrap();
    assert_eq!(c.read(1, 0, 100).await, b"newer!");
    cl.stop(vec![c]).await;
}

impl Client {
    async fn quotactl(&self, cmd: u32, kind: u32, id: u32) -> Result<ObdQuotactl, Errno> {
        let ask = ObdQuotactl {
            cmd,
            r#type: kind,
            id,
            ..Default::default()
        };
        let reply = self
            .call(Request::new(portal::OST_REQUEST, opc::OST_QUOTACTL).push(&ask))
            .await;
        Errno::check(reply.status)?;
        Ok(reply.msg.get(1).unwrap())
    }

    /// Bytes and objects that users 1 and 2, group 1 and projects 1 and 2 have.
    async fn used(&self) -> [(u64, u64); 5] {
        let mut used = [(0, 0); 5];
        for (i, (kind, id)) in [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2)]
            .into_iter()
            .enumerate()
        {
            let q = self.quotactl(cmd::GETOQUOTA, kind, id).await.unwrap();
            assert_eq!(
                q.dqblk.valid,
                dqb::SPACE | dqb::INODES | dqb::BLIMITS | dqb::ILIMITS
            );
            used[i] = (q.dqblk.curspace, q.dqblk.curinodes);
        }
        used
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_is_counted_by_owner() {
    let mut cl = cluster_at(SERVER, OsdMem::new()).await;
    let c = cl.remote_client(2).await;
    let owned = |oid, uid| Obdo {
        uid,
        gid: 1,
        projid: uid,
        ..obdo(oid, md::FLUID | md::FLGID | md::FLPROJID)
    };
    let data = vec![7; 100_000];
    for (oid, uid) in [(1, 1), (2, 1), (3, 2)] {
        c.write_with(owned(oid, uid), &[(0, data.len())], &data, 0)
            .await
            .unwrap();
    }
    let one = cl
        .osd
        .attr(ObjectId { seq: 0, oid: 1 })
        .unwrap()
        .unwrap()
        .blocks
        * 512;
    assert!(one >= 100_000, "the device counts blocks");
    assert_eq!(
        c.used().await,
        [(2 * one, 2), (one, 1), (3 * one, 3), (2 * one, 2), (one, 1)]
    );
    // a later writer is not the owner
    c.write_with(owned(3, 1), &[(0, 10)], &data[..10], 0)
        .await
        .unwrap();
    // the MDT says whose it is
    c.op(portal::OST_REQUEST, opc::OST_SETATTR, &owned(1, 2))
        .await
        .unwrap();
    assert_eq!(
        c.used().await,
        [(one, 1), (2 * one, 2), (3 * one, 3), (one, 1), (2 * one, 2)]
    );
    cl.server.targets().next().unwrap().sync().await.unwrap();
    c.punch(3, 0, EOF).await.unwrap();
    c.op(portal::OST_IO, opc::OST_DESTROY, &obdo(2, 0))
        .await
        .unwrap();
    let want = [(0, 0), (one, 2), (one, 2), (0, 0), (one, 2)];
    assert_eq!(c.used().await, want);
    cl.server.targets().next().unwrap().sync().await.unwrap();
    assert_eq!(c.used().await, want, "measured again after the sync");
    let osd = cl.osd.power_loss();
    cl.restart_on(SERVER, osd).await;
    assert_eq!(
        c.used().await,
        want,
        "counted again after the loss of power"
    );

    assert_eq!(
        c.quotactl(cmd::GETOQUOTA, 3, 1).await,
        Err(Errno::EOPNOTSUPP)
    );
    for master in [cmd::GETQUOTA, cmd::GETINFO, cmd::GETDEFAULT, 0x80_0102]
        .into_iter()
        .chain(cmd::SET)
    {
        assert_eq!(
            c.quotactl(master, 0, 1).await,
            Err(Errno::EOPNOTSUPP),
            "{master:#x}"
        );
    }
    cl.stop(vec![c]).await;
}

/// What the disk below cannot hold is refused by the request, not found missing later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_larger_than_the_disk_holds_is_refused() {
    const MOST: u64 = 1 << 30;
    let osd = OsdMem::new();
    osd.set_max_bytes(MOST);
    let cl = cluster(osd).await;
    let c = cl.client(2, false).await;
    c.write(1, MOST - 4, b"last").await.unwrap();
    assert_eq!(c.write(1, MOST, b"x").await, Err(Errno::EFBIG));
    assert_eq!(c.write(1, MOST - 3, b"last").await, Err(Errno::EFBIG));
    assert_eq!(c.punch(1, MOST + 1, EOF).await, Err(Errno::EFBIG));
    assert_eq!(c.size(1).await, MOST);
    c.punch(1, 10, EOF).await.unwrap();
    c.punch(1, MOST, EOF).await.unwrap();
    assert_eq!(c.size(1).await, MOST);
    cl.stop(vec![c]).await;
}

/// What one client was promised another does not get: not by writes without a promise, not by writes that are said to be sent
/// again, and not by such that take the same grant again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promised_space_is_there_for_who_was_promised_it() {
    for flag in [0, MSG_RESENT] {
        for (valid, used, niobuf) in [
            (0, 0, 0),
            (0, 0, brw::FROM_GRANT),
            (md::FLGRANT, 0, brw::FROM_GRANT),
            (md::FLGRANT, 1, brw::FROM_GRANT),
        ] {
            promised_space_is_there(
                flag,
                Obdo {
                    data_version: used,
                    ..obdo(1, valid)
                },
                niobuf,
            )
            .await;
        }
        // one that gives all of it back, and takes of it
        let shrinks = Obdo {
            grant: u64::MAX,
            mode: u32::MAX,
            flags: ObdFlags::SHRINK_GRANT,
            ..obdo(1, md::FLGRANT | md::FLFLAGS)
        };
        promised_space_is_there(flag, shrinks, brw::FROM_GRANT).await;
    }
}

async fn promised_space_is_there(flag: u32, oa: Obdo, niobuf: u32) {
    const STEP: u64 = 64 << 10;
    let cl = cluster(OsdMem::with_capacity(16 << 20)).await;
    let left = || coral_osd::Room::left(&*cl.osd).unwrap();
    let a = cl.client(2, true).await;
    let promised = (16 << 20) - left();
    assert!(promised > 0, "granted at connect");
    let b = cl.client(3, false).await;
    let says = move |p: Passing| {
        let whole = p.payload.clone().copy_to_bytes();
        let Some(mut m) = Message::decode(whole)
            .ok()
            .filter(|_| p.portal == Some(portal::OST_IO))
        else {
            return vec![p];
        };
        let mut body: PtlrpcBody = m.get(0).unwrap();
        body.flags |= flag;
        m.bufs[0] = body.to_bytes();
        vec![Passing {
            payload: m.encode().into(),
            ..p
        }]
    };
    cl.mem.tamper("3@lo".parse().unwrap(), Arc::new(says));
    // b fills all but that, and is refused the rest
    let mut at = 0;
    let refused = loop {
        match b
            .write_with(oa, &[(at, STEP as usize)], &vec![1; STEP as usize], niobuf)
            .await
        {
            Ok(_) => at += STEP,
            Err(e) => break e,
        }
    };
    let how = format!(
        "{refused} after {at} bytes, flags {flag:#x} and {niobuf:#x}, {:#x}",
        oa.valid
    );
    assert!(left() < STEP, "{how}");
    assert!(
        cl.osd.space().unwrap().blocks_avail * 4096 >= promised,
        "what was promised is there: {how}"
    );
    cl.stop(vec![a, b]).await;
}
