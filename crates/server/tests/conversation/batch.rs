//! Batches: each sub-request and its answer looks like the same intent alone, with a body in front.

use coral_wire::formats::{Format, LDLM_INTENT_GETATTR};
use coral_wire::ldlm::LdlmRequest;
use coral_wire::mds::batch::{BATCH_MAX, BatchBody, decode_header, decode_list};
use coral_wire::mds::{BUT_REPLY_MAGIC, BUT_REQUEST_MAGIC};
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc};

/// What a sub-request and its answer are compared as.
pub static FORMAT: &Format = &LDLM_INTENT_GETATTR;

/// The sub-requests are in bulk, of which the recordings have only what servers send.
pub fn in_bulk(m: &Message) -> bool {
    matches!(
        decode_header(m.buf(1), m.buf(2)),
        Ok((_, BatchBody::Bulk(_)))
    )
}

/// The client's own handles of the locks that a batch asks for.
pub fn cookies(opcode: u32, m: &Message) -> Vec<u64> {
    let Some(Ok((_, BatchBody::Inline(list)))) =
        (opcode == opc::MDS_BATCH).then(|| decode_header(m.buf(1), m.buf(2)))
    else {
        return vec![];
    };
    let subs = decode_list(BUT_REQUEST_MAGIC, &list, BATCH_MAX).expect("sub-requests");
    subs.iter()
        .map(|m| LdlmRequest::decode(m.buf(0)).map_or(0, |r| r.handle(0)))
        .collect()
}

/// The answers of a batch.
pub fn answers(m: &Message) -> Vec<Message> {
    let list = decode_list(BUT_REPLY_MAGIC, m.buf(1), BATCH_MAX).unwrap_or_default();
    let with_body = |m: Message| {
        let mut whole = Message::default();
        whole.push(&PtlrpcBody {
            status: m.opc as i32,
            ..PtlrpcBody::default()
        });
        whole.bufs.extend(m.bufs);
        whole
    };
    list.into_iter().map(with_body).collect()
}
