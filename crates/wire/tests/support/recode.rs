//! Decodes every buffer of a message into the crate's type for it and encodes that back.

use super::walk::Asked;
use bytes::Bytes;
use coral_wire::acl::Acl;
use coral_wire::cfg::{CfgMarker, Lcfg, LmvDesc, LovDesc, LustreCfg};
use coral_wire::fld::LuSeqRange;
use coral_wire::formats::Field;
use coral_wire::layout::{Layout, LmvMd, LmvUserMd};
use coral_wire::ldlm::*;
use coral_wire::llog::{LLOG_PAD_MAGIC, LlogLogHdr, LlogdBody, OBD_CFG_REC, parse_chunk};
use coral_wire::mds::*;
use coral_wire::mgs::*;
use coral_wire::ost::*;
use coral_wire::ptlrpc::{Message, PtlrpcBody};
use coral_wire::quota::{ObdQuotactl, QuotaBody};
use coral_wire::srpc::{SRPC_MSG_MAGIC, SrpcMsg};
use coral_wire::{DecodeError, Fid, ObdConnectData, Wire, raw};

/// What became of a buffer.
pub enum Recoded {
    /// The type, and the bytes it encodes to.
    Typed(String, Bytes),
    /// Why it has no type.
    Opaque(&'static str),
    /// It should have one and could not be read.
    Bad(String),
}

impl<T: Into<Bytes>> From<(&str, Result<T, DecodeError>)> for Recoded {
    fn from((ty, r): (&str, Result<T, DecodeError>)) -> Recoded {
        match r {
            Ok(b) => Recoded::Typed(ty.into(), b.into()),
            Err(e) => Recoded::Bad(e.to_string()),
        }
    }
}

/// A fixed structure that must fill the buffer.
fn fixed<T: Wire>(ty: &str, b: &Bytes) -> Recoded {
    Recoded::from((ty, T::decode(b).map(|v| v.to_bytes())))
}

/// An array of a fixed structure that must fill the buffer.
fn array<T: Wire>(ty: &str, b: &Bytes) -> Recoded {
    Recoded::Typed(format!("[{ty}]"), raw::encode_all(&raw::decode_all::<T>(b)))
}

/// Text with its NUL.
fn text(b: &Bytes) -> Recoded {
    match b.split_last() {
        Some((0, t)) if !t.contains(&0) => {
            let mut m = Message::default();
            m.push_str_nul(t);
            Recoded::Typed("text".into(), m.buf(0).clone())
        }
        _ => Recoded::Opaque("text without NUL or with NULs inside"),
    }
}

/// A name as senders put it: NUL terminated, maybe with room behind.
fn padded_text(b: &Bytes) -> Recoded {
    let t = raw::c_str(b);
    if b.len() > t.len() && b[t.len()..].iter().all(|x| *x == 0) {
        let mut v = t.to_vec();
        v.resize(b.len(), 0);
        return Recoded::Typed("text".into(), v.into());
    }
    Recoded::Opaque("text without NUL or with rubbish behind it")
}

/// Several messages one after another, each a sub-message of a batch.
type Part = (String, Recoded, Bytes);

/// Every buffer of a message: (what it is, what became of it, what it was).
pub fn message(
    fields: &[Field],
    m: &Message,
    asked: Option<&Asked>,
    is_request: bool,
) -> Vec<Part> {
    let cx = Cx {
        m,
        fields,
        asked,
        is_request,
    };
    let mut out = Vec::new();
    for (i, b) in m.bufs.iter().enumerate() {
        let Some(f) = fields.get(i) else {
            out.push((
                "buffer behind the format".into(),
                if b.is_empty() {
                    Recoded::Typed("empty".into(), Bytes::new())
                } else {
                    Recoded::Opaque("no name")
                },
                b.clone(),
            ));
            continue;
        };
        let rc = match b {
            b if b.is_empty() && is_request && never_empty(*f) => {
                Recoded::Bad("is empty in a request".into())
            }
            b if b.is_empty() => Recoded::Typed("empty".into(), Bytes::new()),
            b if may_be_spare(*f, b.len()) && b.iter().all(|x| *x == 0) => {
                Recoded::Opaque("spare room, all zeros")
            }
            b => cx.field(*f, i, b),
        };
        out.push((f.name().to_string(), rc, b.clone()));
    }
    out
}

/// Buffers that no request leaves empty: an empty one means the table of formats is wrong.
fn never_empty(f: Field) -> bool {
    use Field::*;
    matches!(
        f,
        PtlrpcBody
            | MdtBody
            | RecReint
            | LdlmIntent
            | OstBody
            | ObdIoobj
            | NiobufRemote
            | LlogdBody
            | Tgtuuid
            | Cluuid
            | Conn
            | ConnectData
            | MgsConfigBody
            | SeqOpc
            | SeqRange
            | FldOpc
            | FldMdfld
            | ObdQuotactl
            | CloseData
            | LayoutIntent
    )
}

/// Buffers that senders reserve and leave zero when there is nothing to say.
fn may_be_spare(f: Field, len: usize) -> bool {
    (f != Field::DlmLvb || len != 56)
        && matches!(
            f,
            Field::MdtMd | Field::DefaultMdtMd | Field::Acl | Field::Eadata | Field::DlmLvb
        )
}

struct Cx<'a> {
    m: &'a Message,
    fields: &'a [Field],
    asked: Option<&'a Asked>,
    is_request: bool,
}

impl Cx<'_> {
    /// Buffer of this kind in this message.
    fn buf(&self, f: Field) -> Bytes {
        self.fields
            .iter()
            .position(|x| *x == f)
            .map(|i| self.m.buf(i).clone())
            .unwrap_or_default()
    }

    /// Buffer of this kind in the request.
    fn req_buf(&self, f: Field) -> Bytes {
        match self.asked {
            Some(a) => a
                .format
                .request
                .iter()
                .position(|x| *x == f)
                .map(|i| a.request.buf(i).clone())
                .unwrap_or_default(),
            None => self.buf(f),
        }
    }

    fn field(&self, f: Field, _i: usize, b: &Bytes) -> Recoded {
        match f {
            Field::PtlrpcBody => fixed::<PtlrpcBody>("PtlrpcBody", b),
            Field::MdtBody => fixed::<MdtBody>("MdtBody", b),
            Field::DlmReq => self.dlm_req(b),
            Field::DlmRep => self.dlm_rep(b),
            Field::DlmLvb => self.lvb(b),
            Field::LdlmIntent => fixed::<LdlmIntent>("LdlmIntent", b),
            Field::RecReint => match Rec::decode(b) {
                Ok(r) => Recoded::Typed(format!("Rec::{:?}", r.op()), r.to_bytes()),
                Err(e) => Recoded::Bad(e.to_string()),
            },
            Field::MdtMd | Field::DefaultMdtMd => self.md(b),
            Field::Acl => Recoded::from(("Acl", Acl::decode(b).map(|a| a.encode()))),
            Field::Name
            | Field::Symtgt
            | Field::Tgtuuid
            | Field::Cluuid
            | Field::SetinfoKey
            | Field::FileSecctxName => padded_text(b),
            Field::GetinfoKey => getinfo_key(b),
            Field::Conn => fixed::<u64>("handle u64", b),
            Field::ConnectData => fixed::<ObdConnectData>("ObdConnectData", b),
            Field::ObdStatfs => fixed::<ObdStatfs>("ObdStatfs", b),
            Field::MgsTargetInfo => fixed::<MgsTargetInfo>("MgsTargetInfo", b),
            Field::MgsConfigBody => fixed::<MgsConfigBody>("MgsConfigBody", b),
            Field::MgsConfigRes => fixed::<MgsConfigRes>("MgsConfigRes", b),
            Field::LlogdBody => fixed::<LlogdBody>("LlogdBody", b),
            Field::LlogLogHdr => fixed::<LlogLogHdr>("LlogLogHdr", b),
            Field::SeqOpc | Field::FldOpc | Field::U32 | Field::GetinfoVallen => {
                fixed::<u32>("u32", b)
            }
            Field::SeqRange => fixed::<LuSeqRange>("LuSeqRange", b),
            Field::FldMdfld => fixed::<LuSeqRange>("LuSeqRange", b),
            Field::OstBody => fixed::<Obdo>("Obdo", b),
            Field::ObdIoobj => array::<ObdIoobj>("ObdIoobj", b),
            Field::NiobufRemote => array::<NiobufRemote>("NiobufRemote", b),
            Field::ShortIo => Recoded::Opaque("file data inside the message"),
            Field::NiobufInline => niobuf_inline(b),
            Field::Rcs | Field::EavalsLens => array::<u32>("u32", b),
            Field::MdtEpoch => fixed::<MdtIoepoch>("MdtIoepoch", b),
            Field::LayoutIntent => fixed::<LayoutIntent>("LayoutIntent", b),
            Field::CloseData => fixed::<CloseData>("CloseData", b),
            Field::ObdQuotactl => fixed::<ObdQuotactl>("ObdQuotactl", b),
            Field::QuotaBody => fixed::<QuotaBody>("QuotaBody", b),
            Field::Fid => fixed::<Fid>("Fid", b),
            Field::FidArray => array::<Fid>("Fid", b),
            Field::ObdId => fixed::<u64>("u64", b),
            Field::HsmUserState => fixed::<HsmUserState>("HsmUserState", b),
            Field::HsmStateSet => fixed::<HsmStateSet>("HsmStateSet", b),
            Field::SwapLayouts => fixed::<SwapLayouts>("SwapLayouts", b),
            Field::OstLadviseHdr => fixed::<LadviseHdr>("LadviseHdr", b),
            Field::OstLadvise => array::<LuLadvise>("LuLadvise", b),
            Field::FiemapKey => fixed::<FiemapInfoKey>("FiemapInfoKey", b),
            Field::FiemapVal => self.fiemap(b),
            Field::Eadata => self.eadata(b),
            Field::Eavals => Recoded::Opaque("values of extended attributes, unformatted"),
            Field::GetinfoVal => self.getinfo_val(b),
            Field::SetinfoVal => Recoded::Opaque("value of a key"),
            Field::SelinuxPol | Field::FileSecctx | Field::FileEncctx => {
                Recoded::Opaque("security text, opaque to Lustre")
            }
            Field::ButHeader => self.but_header(b),
            Field::ButReply => self.but_reply(b),
            Field::ButBuf => array::<ButUpdateBuffer>("ButUpdateBuffer", b),
            Field::GenericData => Recoded::Opaque("value of a key"),
            Field::Capa1 | Field::Capa2 => {
                Recoded::Bad("capabilities are always empty today".into())
            }
            _ => Recoded::Bad("no codec for a structure of servers or the archive".into()),
        }
    }

    fn dlm_req(&self, b: &Bytes) -> Recoded {
        match LdlmRequest::decode(b) {
            Ok(mut r) => {
                r.desc = policy_both_ways(r.desc);
                Recoded::Typed("LdlmRequest".into(), r.to_bytes())
            }
            Err(e) => Recoded::Bad(e.to_string()),
        }
    }

    fn dlm_rep(&self, b: &Bytes) -> Recoded {
        match LdlmReply::decode(b) {
            Ok(mut r) => {
                r.desc = policy_both_ways(r.desc);
                Recoded::Typed("LdlmReply".into(), r.to_bytes())
            }
            Err(e) => Recoded::Bad(e.to_string()),
        }
    }

    fn lvb(&self, b: &Bytes) -> Recoded {
        match b.len() {
            56 => fixed::<OstLvb>("OstLvb", b),
            n if n < 32 => Recoded::Opaque("lock value block of a server lock"),
            _ => Recoded::from(("Layout (lock value)", Layout::decode(b).map(|l| l.encode()))),
        }
    }

    /// Layout, striped directory or symlink text: the magic tells, except for symlinks.
    fn md(&self, b: &Bytes) -> Recoded {
        let body = MdtBody::decode(&self.buf(Field::MdtBody)).unwrap_or_default();
        if body.valid & md::LINKNAME != 0 {
            return padded_text(b);
        }
        ea(b).unwrap_or(Recoded::Bad(format!(
            "no layout: {}",
            super::stream::hex(&b[..b.len().min(16)])
        )))
    }

    fn eadata(&self, b: &Bytes) -> Recoded {
        if self.fields.contains(&Field::LlogdBody) {
            return llog_chunk(b);
        }
        if let Some(rc) = ea(b) {
            return rc;
        }
        let name = self.req_buf(Field::Name);
        match raw::c_str(&name) {
            b"system.posix_acl_access" | b"system.posix_acl_default" => {
                Recoded::from(("Acl", Acl::decode(b).map(|a| a.encode())))
            }
            _ if self.is_request => Recoded::Opaque("value of an extended attribute"),
            _ if name.is_empty() => names(b),
            _ => Recoded::Opaque("value of an extended attribute"),
        }
    }

    fn fiemap(&self, b: &Bytes) -> Recoded {
        match Fiemap::decode(b) {
            Ok(h) => {
                let mut v = h.to_bytes().to_vec();
                v.extend_from_slice(&raw::encode_all(&raw::decode_all::<FiemapExtent>(&b[32..])));
                Recoded::Typed("Fiemap".into(), v.into())
            }
            Err(e) => Recoded::Bad(e.to_string()),
        }
    }

    fn getinfo_val(&self, b: &Bytes) -> Recoded {
        match raw::c_str(&self.req_buf(Field::GetinfoKey)) {
            b"fid2path" => match GetinfoFid2path::decode(b) {
                Ok(h) => {
                    let mut v = h.to_bytes().to_vec();
                    // what stands behind the path's NUL is whatever the server's buffer held
                    let path = raw::c_str(&b[32..]);
                    v.extend_from_slice(path);
                    v.push(0);
                    v.extend_from_slice(b.get(v.len()..).unwrap_or(&[]));
                    Recoded::Typed("GetinfoFid2path + text".into(), v.into())
                }
                Err(e) => Recoded::Bad(e.to_string()),
            },
            _ => Recoded::Opaque("value of a key"),
        }
    }

    fn but_header(&self, b: &Bytes) -> Recoded {
        let Ok(h) = ButUpdateHeader::decode(b) else {
            return Recoded::Bad("short batch header".into());
        };
        let mut v = h.to_bytes().to_vec();
        if b.len() == v.len() {
            return Recoded::Typed("ButUpdateHeader, sub-requests in bulk".into(), v.into());
        }
        match batch(
            &b.slice(24..),
            &coral_wire::formats::BUT_GETATTR.request,
            None,
        ) {
            Ok(inner) => v.extend_from_slice(&inner),
            Err(e) => return Recoded::Bad(e),
        }
        Recoded::Typed("ButUpdateHeader + sub-requests".into(), v.into())
    }

    fn but_reply(&self, b: &Bytes) -> Recoded {
        match batch(b, &coral_wire::formats::BUT_GETATTR.reply, self.asked) {
            Ok(v) => Recoded::Typed("BatchUpdateHead + sub-replies".into(), v.into()),
            Err(e) => Recoded::Bad(e),
        }
    }
}

/// Key of MDS_GET_INFO: text padded to 8, and for fid2path the request behind it with the root's FID.
fn getinfo_key(b: &Bytes) -> Recoded {
    let key = raw::c_str(b);
    let at = (key.len() + 1).next_multiple_of(8);
    if key != b"fid2path" || b.len() != at + 48 {
        return padded_text(b);
    }
    let (Ok(g), Ok(root)) = (
        GetinfoFid2path::decode(&b[at..]),
        Fid::decode(&b[at + 32..]),
    ) else {
        return Recoded::Bad("short fid2path".into());
    };
    let mut v = key.to_vec();
    v.resize(at, 0);
    v.extend_from_slice(&g.to_bytes());
    v.extend_from_slice(&root.to_bytes());
    Recoded::Typed("text + GetinfoFid2path + Fid".into(), v.into())
}

/// Data that came with an open: where it belongs, and itself.
fn niobuf_inline(b: &Bytes) -> Recoded {
    match NiobufRemote::decode(b) {
        Ok(n) => {
            let mut v = n.to_bytes().to_vec();
            v.extend_from_slice(&b[v.len()..]);
            Recoded::Typed("NiobufRemote + file data".into(), v.into())
        }
        Err(e) => Recoded::Bad(e.to_string()),
    }
}

/// Bulk of a batch request.
pub fn batch_bulk(b: &Bytes) -> Recoded {
    // buffers of a page each (`but_update_buffer`), each with a head of its own
    let mut v = Vec::new();
    for at in (0..b.len()).step_by(4096) {
        match batch(
            &b.slice(at..b.len().min(at + 4096)),
            &coral_wire::formats::BUT_GETATTR.request,
            None,
        ) {
            Ok(part) => v.extend_from_slice(&part),
            Err(e) => return Recoded::Bad(e),
        }
    }
    Recoded::Typed("BatchUpdateHead + sub-requests".into(), v.into())
}

/// The sub-messages of a batch, recoded field by field.
fn batch(b: &Bytes, fields: &&'static [Field], asked: Option<&Asked>) -> Result<Vec<u8>, String> {
    let head = BatchUpdateHead::decode(b).map_err(|e| e.to_string())?;
    let mut v = head.to_bytes().to_vec();
    let mut rest = b.slice(8..);
    // the head of a reply counts successes only: the messages end where no magic stands
    while rest.get(8..12) == Some(&coral_wire::ptlrpc::LUSTRE_MSG_MAGIC_V2.to_le_bytes()[..]) {
        // a sub-message ends where its own lengths say
        let m = Message::decode(rest.clone()).map_err(|e| e.to_string())?;
        let len = m.encoded_len().min(rest.len());
        let m = Message::decode(rest.slice(..len)).map_err(|e| e.to_string())?;
        let mut again = m.clone();
        for (i, (what, rc, was)) in message(fields, &m, asked, asked.is_none())
            .into_iter()
            .enumerate()
        {
            match rc {
                Recoded::Typed(_, is) if is == was => again.bufs[i] = is,
                Recoded::Typed(..) => {
                    return Err(format!("sub-message: {what} does not encode back"));
                }
                Recoded::Opaque(_) => {}
                Recoded::Bad(e) => return Err(format!("sub-message: {what}: {e}")),
            }
        }
        v.extend_from_slice(&again.encode());
        rest = rest.slice(len..);
    }
    if !rest.iter().all(|x| *x == 0) {
        return Err(format!("{} bytes behind the sub-messages", rest.len()));
    }
    v.resize(b.len(), 0);
    Ok(v)
}

/// The policy through its typed form.
fn policy_both_ways(mut d: LockDesc) -> LockDesc {
    // a convert leaves the type out and means inode bits
    d.policy_data = if d.ty().0 == 0 {
        d.ibits().to_wire()
    } else {
        d.policy().to_wire()
    };
    d
}

/// A layout or striped directory by magic.
fn ea(b: &Bytes) -> Option<Recoded> {
    let magic = u32::decode(b).ok()?;
    Some(match magic {
        0x0BD1_0BD0 | 0x0BD3_0BD0 | 0x0BD5_0BD0 => {
            Recoded::from(("Layout::Plain", Layout::decode(b).map(|l| l.encode())))
        }
        0x0BD6_0BD0 | 0x0BD8_0BD0 => {
            Recoded::from(("Layout::Composite", Layout::decode(b).map(|l| l.encode())))
        }
        0x0BD7_0BD0 => Recoded::from(("Layout::Foreign", Layout::decode(b).map(|l| l.encode()))),
        0x0CD2_0CD0 => Recoded::from(("LmvMd", LmvMd::decode(b).map(|l| l.encode()))),
        0x0CD3_0CD0 | 0x0CD4_0CD0 => {
            Recoded::from(("LmvUserMd", LmvUserMd::decode(b).map(|l| l.encode())))
        }
        _ => return None,
    })
}

/// A list of names, each with its NUL.
fn names(b: &Bytes) -> Recoded {
    match b.last() {
        Some(0) => {
            let v: Vec<u8> = b[..b.len() - 1]
                .split(|x| *x == 0)
                .flat_map(|n| n.iter().copied().chain([0]))
                .collect();
            Recoded::Typed("names".into(), v.into())
        }
        _ => Recoded::Opaque("text without NUL"),
    }
}

/// A block of a log: every record, every configuration record in it.
fn llog_chunk(b: &Bytes) -> Recoded {
    let recs = match parse_chunk(b) {
        Ok(r) => r,
        Err(e) => return Recoded::Bad(e.to_string()),
    };
    let mut v = Vec::new();
    for mut r in recs {
        if r.r#type == OBD_CFG_REC {
            match LustreCfg::decode(&r.payload) {
                Ok(c) => r.payload = recode_cfg(c).encode(),
                Err(e) => return Recoded::Bad(e.to_string()),
            }
        } else if r.r#type != LLOG_PAD_MAGIC {
            return Recoded::Opaque("log that is not a configuration");
        }
        v.extend_from_slice(&r.encode());
    }
    v.resize(b.len(), 0);
    Recoded::Typed("LlogRec + LustreCfg".into(), v.into())
}

/// What stands in the buffers of a configuration record, through its types.
fn recode_cfg(mut c: LustreCfg) -> LustreCfg {
    if let Some(m) = c.as_marker() {
        c.bufs[1] = <CfgMarker as Wire>::to_bytes(&m);
    } else if c.command == Lcfg::SETUP && c.bufs.get(1).is_some_and(|b| b.len() == 88) {
        let b = &c.bufs[1];
        c.bufs[1] = match LovDesc::decode(b) {
            Ok(d) if d.active_tgt_count == coral_wire::cfg::LOV_DESC_MAGIC => d.to_bytes(),
            _ => LmvDesc::decode(b).map(|d| d.to_bytes()).unwrap_or_default(),
        };
    }
    c
}

/// Bulk of MDS_READPAGE.
pub fn dir_pages(b: &Bytes) -> Recoded {
    let mut v = Vec::new();
    for at in (0..b.len()).step_by(LU_PAGE_SIZE) {
        match parse_page(&b.slice(at..(at + LU_PAGE_SIZE).min(b.len()))) {
            Ok(p) => v.extend_from_slice(&p.encode()),
            Err(e) => return Recoded::Bad(e.to_string()),
        }
    }
    Recoded::Typed("directory pages".into(), v.into())
}

/// Bulk of MGS_CONFIG_READ for the nid table.
pub fn nid_table(b: &Bytes) -> Recoded {
    let mut v = Vec::new();
    let mut rest = b.clone();
    while rest.len() >= 24 && u32::decode(&rest[16..]).is_ok_and(|n| n != 0) {
        match MgsNidtblEntry::decode(&rest) {
            Ok((e, r)) => {
                v.extend_from_slice(&e.to_bytes());
                rest = r;
            }
            Err(e) => return Recoded::Bad(e.to_string()),
        }
    }
    if !rest.iter().all(|x| *x == 0) {
        return Recoded::Opaque("nid table with rubbish behind it");
    }
    v.resize(b.len(), 0);
    Recoded::Typed("[MgsNidtblEntry]".into(), v.into())
}

/// Whether a payload is a selftest message and not its bulk.
pub fn is_srpc(b: &Bytes) -> bool {
    u32::decode(b).is_ok_and(|m| m == SRPC_MSG_MAGIC) && b.len() < 1024
}

pub fn srpc(b: &Bytes) -> Recoded {
    Recoded::from(("SrpcMsg", SrpcMsg::decode(b).map(|m| m.encode())))
}

pub fn srpc_kind(b: &Bytes) -> String {
    SrpcMsg::decode(b)
        .ok()
        .and_then(|m| m.head.r#type.name())
        .unwrap_or("unreadable")
        .to_string()
}
