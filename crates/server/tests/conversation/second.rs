//! The other client of `contend.talk`, which the recording does not hear: it was mounted on the servers' own machine.
//!
//! What it did is known by what it caused: callbacks at the recorded client and what that client found afterwards. In the
//! words of a shell: `cat d/a; md5sum f; chmod 600 d/a; echo b >> d/a; touch d/b`, then, after the recorded client had
//! appended, `cat d/a; mv d/b d/c; rm d/a`, and a write to the second object of `f`. Each step is made when the first
//! callback that it caused is due. The lock it still holds for writing when it is called back costs it a write first.

use super::conversation::Event;
use super::rig::SERVER;
use super::values::Values;
use coral_lnet::{Node, PortalHandler, PutEvent};
use coral_ptlrpc::{Import, ImportConfig, Request};
use coral_wire::connect::{ConnectFlags as F, ObdConnectData, release};
use coral_wire::ldlm::{
    LdlmFlags, LdlmMode, LdlmReply, LdlmRequest, LdlmType, LockDesc, OstLvb, Policy,
};
use coral_wire::mds::{RecCreate, RecRename, RecSetattr, RecUnlink, ReintOp, attr};
use coral_wire::ost::{NiobufRemote, ObdFlags, ObdIoobj, Obdo, md};
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc, portal};
use coral_wire::{Fid, OstId, Wire};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

const UUID: &str = "7d1f8a52-0f0e-4c61-9d57-1a2b3c4d5e6f";
/// Objects, as the recording names them: of `d/a` and the two of `f`.
const OBJECT_A: [u64; 2] = [0x2_c000_0400, 2];
const OBJECTS_F: [[u64; 2]; 2] = [[0x2_8000_0401, 6], [0x2_c000_0401, 5]];
const DIR_D: Fid = Fid {
    seq: 0x2_4000_0402,
    oid: 7,
    ver: 0,
};
const FILE_A: Fid = Fid {
    seq: 0x2_4000_0402,
    oid: 8,
    ver: 0,
};
const FILE_B: Fid = Fid {
    seq: 0x2_4000_0403,
    oid: 1,
    ver: 0,
};
/// The request by which the recorded client made `d/a`.
const OPEN_A: u64 = 0x6_b00d_bd70_d580;
/// When it appended to `d/a`, and when it wrote to `f`.
const TIME: i64 = 1_795_218_614;
const TIME_F: i64 = TIME + 1;

/// What it does.
#[derive(Clone, Copy)]
enum Step {
    /// Asks for the size.
    Glimpse([u64; 2]),
    Read([u64; 2]),
    Chmod,
    /// Two bytes behind the first two.
    Append,
    CreateB,
    RenameB,
    UnlinkA,
    /// Over bytes that are there.
    Overwrite,
}

/// Match bits of the recorded callbacks, and what caused them.
const SCRIPT: [(u64, &[Step]); 12] = [
    (0x6_b00d_bc91_ba80, &[Step::Glimpse(OBJECT_A)]),
    (0x6_b00d_bc91_bb80, &[Step::Read(OBJECT_A)]),
    (0x6_b00d_bc91_c080, &[Step::Glimpse(OBJECTS_F[0])]),
    (0x6_b00d_bc91_c100, &[Step::Glimpse(OBJECTS_F[1])]),
    (0x6_b00d_bc91_c200, &[Step::Read(OBJECTS_F[0])]),
    (0x6_b00d_bc91_c480, &[Step::Read(OBJECTS_F[1])]),
    (0x6_b00d_bc91_ce00, &[Step::Chmod]),
    (0x6_b00d_bc91_d500, &[Step::Append, Step::CreateB]),
    (0x6_b00d_bc91_e200, &[Step::Glimpse(OBJECT_A)]),
    (0x6_b00d_bc91_e300, &[Step::Read(OBJECT_A)]),
    (0x6_b00d_bc91_e880, &[Step::RenameB]),
    (0x6_b00d_bc91_ea00, &[Step::UnlinkA]),
];
/// The same, of the write to `f`.
const LAST: u64 = 0x6_b00d_bc91_ec80;

/// A lock it holds or waits for.
#[derive(Clone)]
struct Held {
    import: Arc<Import>,
    object: Option<OstId>,
    /// What is to be written before it is given back, and where.
    dirty: Option<(u64, &'static [u8])>,
    lvb: OstLvb,
}

/// Its callbacks: everything is given back at once.
#[derive(Default)]
struct Locks {
    held: Mutex<HashMap<u64, Held>>,
}

impl Locks {
    /// Writes what is to be written and cancels.
    async fn give_back(self: Arc<Self>, cookie: u64, handle: u64) {
        let Some(held) = self.held.lock().remove(&cookie) else {
            return;
        };
        if let (Some((offset, data)), Some(oi)) = (held.dirty, held.object) {
            let valid = md::FLID | md::FLGROUP | md::FLMTIME | md::FLCTIME | md::FLFLAGS;
            let oa = Obdo {
                oi,
                valid,
                mtime: held.lvb.mtime,
                ctime: held.lvb.ctime,
                flags: ObdFlags::SHORT_IO,
                ..Obdo::default()
            };
            let range = NiobufRemote {
                offset,
                len: data.len() as u32,
                flags: 0,
            };
            let rq = Request::new(portal::OST_IO, opc::OST_WRITE)
                .push(&oa)
                .push(&ObdIoobj::new(oi, 1, 1))
                .push(&range)
                .push_empty();
            let reply = held
                .import
                .call(rq.push_bytes(data))
                .await
                .expect("the other client's write is answered");
            assert_eq!(reply.status, 0, "the other client's write");
        }
        let rq = Request::new(portal::LDLM_CANCEL_REQUEST, opc::LDLM_CANCEL)
            .push_bytes(LdlmRequest::cancel(&[handle]).to_bytes());
        let _ = held.import.call(rq).await;
    }
}

struct Portal(Arc<Locks>);

impl PortalHandler for Portal {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let Ok(m) = Message::decode(ev.data.copy_to_bytes()) else {
            return;
        };
        let (Ok(body), Ok(r)) = (m.body(), LdlmRequest::decode(m.buf(1))) else {
            return;
        };
        let mut reply = Message::new(&PtlrpcBody::reply(&body, 0));
        if body.opc == opc::LDLM_GL_CALLBACK {
            reply.push(
                &self
                    .0
                    .held
                    .lock()
                    .get(&r.handle(0))
                    .map(|h| h.lvb)
                    .unwrap_or_default(),
            );
        }
        let (node, locks) = (node.clone(), self.0.clone());
        tokio::spawn(async move {
            let _ = node
                .put(
                    ev.from,
                    portal::LDLM_CB_REPLY,
                    ev.mbits,
                    0,
                    reply.encode().into(),
                    false,
                )
                .await;
            if body.opc == opc::LDLM_BL_CALLBACK || r.flags.contains(LdlmFlags::AST_SENT) {
                locks.give_back(r.handle(0), r.handle(1)).await;
            }
        });
    }
}

pub struct Second {
    mdt: Arc<Import>,
    osts: Vec<Arc<Import>>,
    locks: Arc<Locks>,
    cookie: u64,
}

impl Second {
    /// Mounts on the servers' node.
    pub async fn connect(node: &Arc<Node>) -> Second {
        let locks = Arc::new(Locks::default());
        node.serve_portal(portal::LDLM_CB_REQUEST, Arc::new(Portal(locks.clone())));
        let flags = F::VERSION.0
            | F::AT.0
            | F::FULL20.0
            | F::FID.0
            | F::BRW_SIZE.0
            | F::SHORTIO.0
            | F::LVB_TYPE.0
            | F::CANCELSET.0
            | F::IBITS.0
            | F::ATTRFID.0;
        let data = ObdConnectData {
            connect_flags: F(flags),
            version: release(2, 17, 57, 0),
            brw_size: 1 << 20,
            ibits_known: 0x7f,
            ..ObdConnectData::default()
        };
        let nids = vec![SERVER.parse().expect("a NID")];
        let mdt = Import::new(
            node.clone(),
            ImportConfig::mdt("lfs-MDT0001_UUID", nids.clone(), UUID, data),
        );
        mdt.connect().await.expect("the other client connects");
        let mut osts = Vec::new();
        for i in 0..2 {
            let ost = Import::new(
                node.clone(),
                ImportConfig::ost(&format!("lfs-OST{i:04x}_UUID"), nids.clone(), UUID, data),
            );
            ost.connect().await.expect("the other client connects");
            osts.push(ost);
        }
        Second {
            mdt,
            osts,
            locks,
            cookie: 0x5ec0_0000_0000_0000,
        }
    }

    /// Does what caused the recorded callback with these match bits, if it was not the recorded client itself.
    pub fn provoke(&mut self, bits: u64, values: &Values, events: &[Event]) {
        let steps: &[Step] = if bits == LAST {
            &[Step::Overwrite]
        } else {
            SCRIPT
                .iter()
                .find(|(b, _)| *b == bits)
                .map_or(&[], |(_, s)| *s)
        };
        for s in steps {
            match *s {
                Step::Glimpse(object) => self.enqueue(
                    object,
                    values,
                    LdlmMode::PR,
                    LdlmFlags::HAS_INTENT,
                    None,
                    OstLvb::default(),
                ),
                Step::Read(object) => self.enqueue(
                    object,
                    values,
                    LdlmMode::PR,
                    LdlmFlags(0),
                    None,
                    OstLvb::default(),
                ),
                Step::Append => self.write(OBJECT_A, values, (2, b"b\n"), (4, 8, TIME)),
                Step::Overwrite => self.write(
                    OBJECTS_F[1],
                    values,
                    (0, &[0x5a; 4096]),
                    (2 << 20, 4096, TIME_F),
                ),
                Step::Chmod => self.chmod(),
                Step::CreateB => self.create_b(values, events),
                Step::RenameB => self.rename_b(),
                Step::UnlinkA => self.unlink_a(),
            }
        }
    }

    fn write(
        &mut self,
        object: [u64; 2],
        values: &Values,
        data: (u64, &'static [u8]),
        (size, blocks, time): (u64, u64, i64),
    ) {
        let lvb = OstLvb {
            size,
            blocks,
            mtime: time,
            atime: time - 1,
            ctime: time,
            ..OstLvb::default()
        };
        self.enqueue(object, values, LdlmMode::PW, LdlmFlags(0), Some(data), lvb);
    }

    fn enqueue(
        &mut self,
        object: [u64; 2],
        values: &Values,
        mode: LdlmMode,
        flags: LdlmFlags,
        dirty: Option<(u64, &'static [u8])>,
        lvb: OstLvb,
    ) {
        let [id, seq] = values.object(object);
        let oi = OstId { id, seq };
        let ost = self.osts[values
            .home(object)
            .expect("the recorded client has the layout") as usize]
            .clone();
        self.cookie += 1;
        let (cookie, locks) = (self.cookie, self.locks.clone());
        locks.held.lock().insert(
            cookie,
            Held {
                import: ost.clone(),
                object: Some(oi),
                dirty,
                lvb,
            },
        );
        let desc = LockDesc::new(
            oi.res_id(),
            LdlmType::EXTENT,
            mode,
            &Policy::extent(0, u64::MAX),
        );
        let rq = Request::new(portal::OST_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(LdlmRequest::enqueue(flags, desc, cookie).to_bytes());
        tokio::spawn(async move {
            let reply = ost
                .call(rq)
                .await
                .expect("the other client's enqueue is answered");
            assert!(
                reply.status >= 0,
                "the other client's enqueue: {}",
                reply.status
            );
            if reply.msg.get::<LdlmReply>(1).is_ok_and(|r| r.handle == 0) {
                locks.held.lock().remove(&cookie);
            }
        });
    }

    /// Sends a change to the MDT.
    fn change(&self, rq: Request) {
        let mdt = self.mdt.clone();
        tokio::spawn(async move {
            let reply = mdt
                .call(rq)
                .await
                .expect("the other client's change is answered");
            assert!(
                reply.status >= 0,
                "the other client's change: {}",
                reply.status
            );
        });
    }

    fn reint(&self, rec: impl Wire, names: &[&[u8]]) {
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_REINT)
            .push(&rec)
            .push_empty();
        let rq = if names.len() > 1 || names.is_empty() {
            rq.push_empty()
        } else {
            rq
        };
        self.change(
            names
                .iter()
                .fold(rq, |rq, n| rq.push_str_nul(n))
                .push_empty(),
        );
    }

    fn chmod(&self) {
        let valid = attr::MODE | attr::CTIME;
        self.reint(
            RecSetattr {
                opcode: ReintOp::SETATTR,
                cap: u32::MAX,
                suppgid: u32::MAX,
                fid: FILE_A,
                valid,
                mode: 0o100600,
                ctime: TIME,
                ..RecSetattr::default()
            },
            &[],
        );
    }

    fn rename_b(&self) {
        let rec = RecRename {
            opcode: ReintOp::RENAME,
            cap: u32::MAX,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: DIR_D,
            fid2: DIR_D,
            time: TIME,
            ..RecRename::default()
        };
        self.reint(rec, &[b"b", b"c"]);
    }

    fn unlink_a(&self) {
        let rec = RecUnlink {
            opcode: ReintOp::UNLINK,
            cap: u32::MAX,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: DIR_D,
            fid2: FILE_A,
            time: TIME,
            ..RecUnlink::default()
        };
        self.reint(rec, &[b"a"]);
    }

    /// Makes `d/b` as the recorded client made `d/a`.
    fn create_b(&mut self, values: &Values, events: &[Event]) {
        let event = events
            .iter()
            .find(|e| e.bits == OPEN_A)
            .expect("the recorded open");
        let m = values.translate_message(&Message::decode(event.bytes.clone()).expect("a request"));
        self.cookie += 1;
        let asked = LdlmRequest::decode(m.buf(1)).expect("a lock request");
        let lock = LdlmRequest::enqueue(asked.flags, asked.desc, self.cookie);
        let rec = RecCreate {
            fid2: FILE_B,
            ..m.get(3).expect("a record")
        };
        self.locks.held.lock().insert(
            self.cookie,
            Held {
                import: self.mdt.clone(),
                object: None,
                dirty: None,
                lvb: OstLvb::default(),
            },
        );
        let rq = Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(lock.to_bytes())
            .push_bytes(m.buf(2).clone())
            .push(&rec);
        let rq = rq.push_empty().push_empty().push_str_nul(b"b");
        self.change(
            m.bufs[7..]
                .iter()
                .fold(rq, |rq, b| rq.push_bytes(b.clone())),
        );
    }
}
