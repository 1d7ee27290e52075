//! Measures an OST over MemNet on an `OsdFs` against a plain file in the same directory.
//!
//! `cargo run --release -p coral-server --example ost-speed -- DIR [MiB] [RPC KiB]`

#![expect(
    clippy::disallowed_methods,
    reason = "a measuring program at the edge: real time is its purpose"
)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{MemNet, Node, NodeConfig};
use coral_osd::{Label, OsdFs, TargetKind};
use coral_ptlrpc::{Bulk, Import, ImportConfig, Request};
use coral_server::ServerNode;
use coral_server::ost::Ost;
use coral_wire::OstId;
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2, ObdConnectData};
use coral_wire::ost::{NiobufRemote, ObdFlags, ObdIoobj, Obdo, brw, md};
use coral_wire::ptlrpc::{opc, portal};

const MIB: usize = 1 << 20;
type Any = Box<dyn std::error::Error>;

fn main() -> Result<(), Any> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: ost-speed DIR [MiB] [RPC KiB]")?;
    let mib: usize = args.next().map_or(Ok(1024), |a| a.parse())?;
    let rpc: usize = args.next().map_or(Ok(1024), |a| a.parse())? << 10;
    let root = Path::new(&dir).join(format!("ost-speed-{}", std::process::id()));
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = rt.block_on(async { tokio::spawn(run(root.clone(), mib, rpc)).await? });
    let _ = std::fs::remove_dir_all(&root);
    result.map_err(|e| e as Any)
}

async fn node(
    mem: &Arc<MemNet>,
    nid: &str,
) -> Result<Arc<Node>, Box<dyn std::error::Error + Send + Sync>> {
    let nids = vec![nid.parse()?];
    Ok(Node::start(
        NodeConfig {
            nids,
            ..Default::default()
        },
        Some(mem.clone()),
    )
    .await?)
}

async fn run(
    root: std::path::PathBuf,
    mib: usize,
    rpc: usize,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let label = Label {
        kind: TargetKind::Ost,
        fsname: "speed".into(),
        index: 0,
        uuid: "speed".into(),
        mgs_nids: vec![],
    };
    OsdFs::format(&root, &label)?;
    let (osd, _) = OsdFs::open(&root)?;
    let mem = MemNet::new();
    let server_node = node(&mem, "1@lo").await?;
    let server = ServerNode::start(server_node.clone());
    server.add_target(Ost::start(server_node, "speed", 0, Arc::new(osd))?);
    let client = node(&mem, "2@lo").await?;
    let nodes = [server.node().clone(), client.clone()];
    let handovers = || -> u64 { nodes.iter().map(|n| n.handovers().spawned.value()).sum() };
    let f = F::VERSION
        | F::AT
        | F::FULL20
        | F::FID
        | F::BRW_SIZE
        | F::SRVLOCK
        | F::SHORTIO
        | F::BULK_MBITS
        | F::FLAGS2;
    let data = ObdConnectData {
        connect_flags: f,
        connect_flags2: F2::INC_XID | F2::REP_MBITS | F2::CORAL,
        brw_size: 4 << 20,
        ..Default::default()
    };
    let cfg = ImportConfig::ost(
        "speed-OST0000_UUID",
        vec!["1@lo".parse()?],
        "00000000-0000-0000-0000-000000000002",
        data,
    );
    let import = Import::new(client, cfg);
    import.connect().await?;

    let buf = Bytes::from(vec![0x5a; rpc]);
    let total = mib * MIB;
    let rate = |t: Instant| mib as f64 / t.elapsed().as_secs_f64();
    // Rounds before the last touch the memory that the page cache then uses again: on a virtual
    // machine the first touch of a page costs more than the copy.
    for round in 0..3 {
        let plain = root.join("plain");
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&plain)?;
        let t = Instant::now();
        for off in (0..total).step_by(rpc) {
            file.write_all_at(&buf, off as u64)?;
        }
        let plain_write = rate(t);
        file.sync_all()?;
        let t = Instant::now();
        let mut sink = vec![0; rpc];
        for off in (0..total).step_by(rpc) {
            file.read_exact_at(&mut sink, off as u64)?;
        }
        let plain_read = rate(t);
        std::fs::remove_file(&plain)?;

        let oi = OstId::group0(1);
        let (t, before) = (Instant::now(), handovers());
        for off in (0..total).step_by(rpc) {
            write(&import, oi, off as u64, &buf).await?;
        }
        let (write_rate, write_handovers) = (rate(t), handovers() - before);
        let oa = Obdo {
            oi,
            valid: md::FLID | md::FLGROUP,
            ..Default::default()
        };
        import
            .call(
                Request::new(portal::OST_REQUEST, opc::OST_SYNC)
                    .push(&oa)
                    .push_empty(),
            )
            .await?;
        let (t, before) = (Instant::now(), handovers());
        for off in (0..total).step_by(rpc) {
            read(&import, oi, off as u64, rpc).await?;
        }
        let (read_rate, read_handovers) = (rate(t), handovers() - before);
        import
            .call(
                Request::new(portal::OST_IO, opc::OST_DESTROY)
                    .push(&oa)
                    .push_empty(),
            )
            .await?;
        if round == 2 {
            let kib = rpc >> 10;
            println!(
                "write {kib} KiB RPCs {write_rate:8.0} MiB/s, plain file {plain_write:.0}, ratio {:.2}",
                write_rate / plain_write
            );
            let per_rpc = |n: u64| n as f64 / (total / rpc) as f64;
            println!(
                "hand-overs per RPC: write {:.2}, read {:.2}",
                per_rpc(write_handovers),
                per_rpc(read_handovers)
            );
            println!(
                "read  {kib} KiB RPCs {read_rate:8.0} MiB/s, plain file {plain_read:.0}, ratio {:.2}",
                read_rate / plain_read
            );
        }
    }
    const N: u64 = 20_000;
    let t = Instant::now();
    for n in 0..N {
        write(
            &import,
            OstId::group0(9),
            n % 256 * 4096,
            &buf.slice(..4096.min(rpc)),
        )
        .await?;
    }
    println!(
        "write of 4 KiB, short I/O  {:8.1} us",
        t.elapsed().as_secs_f64() * 1e6 / N as f64
    );
    let oa = Obdo {
        flags: ObdFlags::SRVLOCK,
        oi: OstId::group0(9),
        valid: md::FLID | md::FLFLAGS | md::FLGROUP,
        ..Default::default()
    };
    let t = Instant::now();
    for _ in 0..N {
        import
            .call(
                Request::new(portal::OST_REQUEST, opc::OST_GETATTR)
                    .push(&oa)
                    .push_empty(),
            )
            .await?;
    }
    println!(
        "getattr                    {:8.1} us",
        t.elapsed().as_secs_f64() * 1e6 / N as f64
    );
    import.disconnect().await;
    server.stop().await;
    Ok(())
}

fn request(op: u32, oi: OstId, off: u64, len: usize, oa: Obdo) -> Request {
    let n = NiobufRemote {
        offset: off,
        len: len as u32,
        flags: brw::SRVLOCK,
    };
    let oa = Obdo {
        oi,
        valid: oa.valid | md::FLID | md::FLGROUP | md::FLFLAGS,
        ..oa
    };
    Request::new(portal::OST_IO, op)
        .push(&oa)
        .push(&ObdIoobj::new(oi, len.div_ceil(MIB) as u32, 1))
        .push(&n)
        .push_empty()
}

async fn write(
    import: &Arc<Import>,
    oi: OstId,
    off: u64,
    data: &Bytes,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let t = coral_wire::coral::pack_time(1_700_000_000, off as u32);
    let mut oa = Obdo {
        mtime: t,
        ctime: t,
        uid: 1,
        gid: 1,
        ..Default::default()
    };
    oa.valid = md::FLMTIME | md::FLCTIME | md::FLUID | md::FLGID;
    let rq = if data.len() <= 16 << 10 {
        oa.flags = ObdFlags::SHORT_IO;
        request(opc::OST_WRITE, oi, off, data.len(), oa).push_bytes(data.clone())
    } else {
        let parts = (0..data.len())
            .step_by(MIB)
            .map(|at| Payload::from(data.slice(at..data.len().min(at + MIB))))
            .collect();
        let rq = request(opc::OST_WRITE, oi, off, data.len(), oa).push_empty();
        rq.bulk(Bulk::Source {
            portal: portal::OST_BULK,
            data: parts,
        })
    };
    let reply = import.call(rq.replayable()).await?;
    if reply.status != 0 {
        Err(format!("write: {}", reply.status).into())
    } else {
        Ok(())
    }
}

async fn read(
    import: &Arc<Import>,
    oi: OstId,
    off: u64,
    len: usize,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let lens = (0..len)
        .step_by(MIB)
        .map(|at| MIB.min(len - at) as u32)
        .collect();
    let rq = request(opc::OST_READ, oi, off, len, Obdo::default()).push_empty();
    let reply = import
        .call(rq.bulk(Bulk::Sink {
            portal: portal::OST_BULK,
            lens,
        }))
        .await?;
    if reply.status as usize != len {
        Err(format!("read: {}", reply.status).into())
    } else {
        Ok(())
    }
}
