//! MDS_BATCH request by request: each sub-request is answered as the same intent alone, and what makes no sense is refused.

mod mdt_rig;

use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::{LockRef, PendingLock};
use coral_ptlrpc::{Bulk, Reply, Request};
use coral_wire::connect::ConnectFlags2;
use coral_wire::ldlm::{
    ELDLM_LOCK_ABORTED, Ibits, LdlmFlags, LdlmIntent, LdlmMode, LdlmReply, LdlmType, Policy, it,
};
use coral_wire::mds::batch::{self, BATCH_MAX, BUT_GETATTR};
use coral_wire::mds::{BUT_REPLY_MAGIC, MdtBody, attr as sa, disp, md};
use coral_wire::{Errno, Fid, Message, opc, portal};
use mdt_rig::{Client, Rig};
use rand::{Rng, SeedableRng};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Room for any reply.
const ROOM: u32 = 500_000;

/// An answer: its status, what the intent said, the attributes, and the lock.
struct Told {
    status: i32,
    rep: LdlmReply,
    body: MdtBody,
    lock: Option<LockRef>,
}

/// A getattr intent for `name` in `dir`, as user `uid`.
fn sub(c: &Client, dir: Fid, name: &str, uid: u32) -> (PendingLock, Message) {
    let p = c.ns.prepare(
        dir.res_id(),
        LdlmType::IBITS,
        LdlmMode::CR,
        Policy::ibits(Ibits::UPDATE),
        LdlmFlags::HAS_INTENT,
    );
    let body = MdtBody {
        fid1: dir,
        valid: md::FLGETATTR | md::FLEASIZE | md::FLACL,
        fsuid: uid,
        fsgid: uid,
        capability: if uid == 0 { u32::MAX } else { 0 },
        suppgid: u32::MAX,
        ..MdtBody::default()
    };
    let mut m = Message::default();
    m.opc = BUT_GETATTR;
    m.push_bytes(p.request().to_bytes())
        .push(&LdlmIntent { opc: it::GETATTR })
        .push(&body)
        .push_empty()
        .push_str_nul(name.as_bytes())
        .push_empty();
    (p, m)
}

fn request((header, buffers, lists): (Bytes, Bytes, Vec<Bytes>)) -> Request {
    let rq = Request::new(portal::OUT, opc::MDS_BATCH)
        .push_bytes(header)
        .push_bytes(buffers);
    match lists.is_empty() {
        true => rq,
        false => rq.bulk(Bulk::Source {
            portal: portal::MDS_BULK,
            data: vec![lists.into_iter().collect()],
        }),
    }
}

fn answers(r: &Reply) -> Vec<Message> {
    batch::decode_list(BUT_REPLY_MAGIC, r.msg.buf(1), BATCH_MAX).expect("answers")
}

async fn send(c: &Client, subs: Vec<(PendingLock, Message)>, room: u32) -> (i32, Vec<Told>) {
    let (pending, messages): (Vec<_>, Vec<_>) = subs.into_iter().unzip();
    let rq = request(batch::encode_request(&messages, room));
    let r = c.import.call(rq).await.expect("a reply");
    let told = answers(&r).into_iter().zip(pending).map(|(m, p)| {
        let rep: LdlmReply = m.get(0).expect("a DLM_REP");
        let status = m.opc as i32;
        Told {
            status,
            rep,
            body: m.get(1).unwrap_or_default(),
            lock: c.ns.finish(p, &rep, status),
        }
    });
    (r.status, told.collect())
}

#[tokio::test]
async fn each_is_answered_as_alone_and_one_that_fails_does_not_touch_the_others() -> TestResult {
    let rig = Rig::new(1).await;
    let u = rig.client("1@lo").await;
    let (open, closed) = (
        u.mkdir(Fid::ROOT, b"open").await?,
        u.mkdir(Fid::ROOT, b"closed").await?,
    );
    u.setattr(closed, |r| (r.valid, r.mode) = (sa::MODE, 0o700))
        .await?;
    for i in 0..40 {
        u.mknod(open, format!("f{i}").as_bytes(), 0o100644).await?;
        u.mknod(closed, format!("f{i}").as_bytes(), 0o100644)
            .await?;
    }
    for (n, private) in [(2, ConnectFlags2::CORAL.0), (3, 0)] {
        let c = rig.client_as(&format!("{n}@lo"), private).await;
        // few within the request, many in bulk
        for many in [1, 40] {
            let mut subs = vec![];
            for i in 0..many {
                let name = format!("f{i}");
                subs.push(sub(&c, open, &name, 1000));
                subs.push(sub(&c, open, "none", 0));
                subs.push(sub(&c, closed, &name, 1000));
                subs.push(sub(&c, closed, &name, 0));
                let (p, mut unknown) = sub(&c, open, &name, 0);
                unknown.opc = 77;
                subs.push((p, unknown));
            }
            let (status, told) = send(&c, subs, ROOM).await;
            assert_eq!((status, told.len()), (0, 5 * many));
            let or_lustres = |e: Errno| match private {
                0 => e.status(),
                _ => ELDLM_LOCK_ABORTED,
            };
            for five in told.chunks(5) {
                for (i, dir) in [(0, open), (3, closed)] {
                    let t = &five[i];
                    assert_eq!(t.status, 0);
                    let lock = t.lock.as_ref().expect("a lock");
                    assert_eq!(lock.res(), t.body.fid1.res_id());
                    let name = five.as_ptr() as usize - told.as_ptr() as usize;
                    let name = format!("f{}", name / size_of_val(five));
                    let alone = c.lookup(dir, name.as_bytes()).await?;
                    assert_eq!(t.body.fid1, alone.body.fid1);
                    assert_eq!(
                        (t.body.mode, t.body.valid),
                        (alone.body.mode, alone.body.valid)
                    );
                    assert_eq!(t.rep.policy_res1, alone.disp);
                }
                assert_eq!(five[1].status, or_lustres(Errno::ENOENT));
                assert_ne!(five[1].rep.policy_res1 & disp::LOOKUP_NEG, 0);
                assert_eq!(five[2].status, or_lustres(Errno::EACCES));
                assert_eq!(five[2].rep.policy_res2 as i32, Errno::EACCES.status());
                assert_eq!(five[4].status, Errno::EOPNOTSUPP.status());
                assert!([1, 2, 4].iter().all(|i| five[*i].lock.is_none()));
            }
        }
    }
    rig.stop().await;
    Ok(())
}

/// What does not fit into the room for the reply is not answered, and its lock not given.
#[tokio::test(start_paused = true)]
async fn a_reply_ends_where_its_room_does() -> TestResult {
    let rig = Rig::new(1).await;
    let u = rig.client("10.0.0.8@tcp").await;
    let mut fids = vec![];
    for i in 0..8 {
        fids.push(
            u.mknod(Fid::ROOT, format!("f{i}").as_bytes(), 0o100644)
                .await?,
        );
    }
    let c = rig.client("10.0.0.9@tcp").await;
    for room in [0, 7, 8, 500, 1500, 3000] {
        let subs = (0..8)
            .map(|i| sub(&c, Fid::ROOT, &format!("f{i}"), 0))
            .collect();
        let (status, told) = send(&c, subs, room).await;
        assert_eq!(status, Errno::EOVERFLOW.status(), "{room}");
        assert!(told.len() < 8 && told.len() * 800 > room as usize / 2 || room < 1000);
        assert!(told.iter().all(|t| t.lock.is_some()));
        drop(told);
        let begun = tokio::time::Instant::now();
        for i in 0..8 {
            let f = u.lookup(Fid::ROOT, format!("f{i}").as_bytes()).await?;
            u.setattr(f.body.fid1, |r| (r.valid, r.mode) = (sa::MODE, 0o600))
                .await?;
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{room}");
    }
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn counts_and_lengths_that_do_not_fit_are_refused() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("10.0.0.9@tcp").await;
    c.mknod(Fid::ROOT, b"f", 0o100644).await?;
    let refused = async |rq: Request| {
        let r = c.import.call(rq).await.expect("a reply");
        assert_eq!(r.status, Errno::EPROTO.status());
    };
    let (_pending, messages): (Vec<_>, Vec<_>) =
        (0..40).map(|_| sub(&c, Fid::ROOT, "f", 0)).unzip();
    let few = batch::encode_request(&messages[..3], ROOM);
    let many = batch::encode_request(&messages, ROOM);
    assert!(few.2.is_empty() && many.2.len() > 1);
    let word = |b: &Bytes, at: usize, to: u32| {
        let mut b = b.to_vec();
        b[at..at + 4].copy_from_slice(&to.to_le_bytes());
        Bytes::from(b)
    };
    // magic, count, length, number of sub-requests; then magic and count of the list, buffers and a length of the first message
    for (at, to) in [
        (0, 7),
        (4, 0),
        (4, 2),
        (4, u32::MAX),
        (8, u32::MAX),
        (8, few.0.len() as u32),
        (8, 40),
        (8, 0),
        (16, 0),
        (16, 2),
        (16, u32::MAX),
        (24, 7),
        (28, 4),
        (28, 0xffff),
        (32, 0),
        (32, u32::MAX),
        (40, 7),
        (64, u32::MAX),
        (64, 8),
        (68, 0),
        (72, 100),
    ] {
        refused(request((word(&few.0, at, to), few.1.clone(), vec![]))).await;
    }
    for (at, to) in [(0, 0), (0, 16), (0, u32::MAX), (8, 4), (8, 1 << 20)] {
        let rq = request((many.0.clone(), word(&many.1, at, to), many.2.clone()));
        let r = tokio::time::timeout(Duration::from_secs(600), c.import.call(rq.no_resend())).await;
        assert!(!matches!(r, Ok(Ok(r)) if r.status == 0), "{at} {to}");
    }
    let bulk = |at: usize, to: u32| {
        let mut lists = many.2.clone();
        lists[1] = word(&lists[1], at, to);
        request((many.0.clone(), many.1.clone(), lists))
    };
    for (at, to) in [(0, 7), (4, 0xffff), (8, 0), (16, 7), (40, u32::MAX)] {
        refused(bulk(at, to)).await;
    }
    assert!(c.lookup(Fid::ROOT, b"f").await?.lock.is_some());
    rig.stop().await;
    Ok(())
}

/// Right batches with bits flipped, and random bytes: each is answered, and the MDT goes on.
#[tokio::test]
async fn nonsense_is_answered_and_survived() -> TestResult {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(9);
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"d").await?;
    for i in 0..30 {
        c.mknod(dir, format!("f{i}").as_bytes(), 0o100644).await?;
    }
    for round in 0..3000 {
        let n = [1, 3, 8, 30][rng.random_range(0..4)];
        let subs: Vec<_> = (0..n).map(|i| sub(&c, dir, &format!("f{i}"), 0)).collect();
        let messages: Vec<_> = subs.iter().map(|s| s.1.clone()).collect();
        let (header, buffers, lists) = batch::encode_request(&messages, ROOM);
        let mut flip = |b: Bytes, most: usize| {
            let mut b = b.to_vec();
            for _ in 0..rng.random_range(0..=most) {
                if !b.is_empty() {
                    let at = rng.random_range(0..b.len());
                    b[at] ^= 1 << rng.random_range(0..8);
                }
            }
            Bytes::from(b)
        };
        let lists = lists.into_iter().map(|l| flip(l, 1)).collect();
        // a size of other than what is there would wait for bulk that does not come
        let rq = request((flip(header, 3), buffers, lists));
        let answer = tokio::time::timeout(Duration::from_secs(20), c.import.call(rq.no_resend()));
        assert!(answer.await.is_ok(), "round {round}");
    }
    assert_ne!(c.lookup(dir, b"f1").await?.disp & disp::LOOKUP_POS, 0);
    rig.stop().await;
    Ok(())
}
