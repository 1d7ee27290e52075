//! Two replies to one request, field by field: every buffer decoded by the table of formats, every field named.

use bytes::Bytes;
use coral_wire::acl::Acl;
use coral_wire::cfg::LustreCfg;
use coral_wire::fld::LuSeqRange;
use coral_wire::formats::{Field, Format};
use coral_wire::layout::{Layout, LmvMd, LmvUserMd};
use coral_wire::ldlm::{LdlmReply, LdlmRequest, OstLvb};
use coral_wire::llog::{LlogLogHdr, LlogdBody, OBD_CFG_REC, parse_chunk};
use coral_wire::mds::{HsmUserState, MdtBody, readpage_entries};
use coral_wire::mgs::{MgsConfigRes, MgsNidtblEntry};
use coral_wire::ost::{NiobufRemote, ObdStatfs, Obdo, md};
use coral_wire::ptlrpc::{Message, PtlrpcBody};
use coral_wire::quota::ObdQuotactl;
use coral_wire::{ObdConnectData, Wire, raw};
use std::collections::BTreeSet;
use std::fmt::Debug;

/// One thing that is not as recorded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Format, buffer and field.
    pub what: String,
    pub theirs: String,
    pub ours: String,
}

/// A value as fields with their paths, made of how it prints.
fn fields_of(value: &dyn Debug) -> Vec<(String, String)> {
    let text = format!("{value:#?}");
    let mut path: Vec<String> = Vec::new();
    let mut out = Vec::new();
    for line in text.lines().map(str::trim) {
        let line = line.strip_suffix(',').unwrap_or(line);
        let (name, rest) = match line.split_once(": ") {
            Some((n, r))
                if n.chars()
                    .all(|c| c.is_alphanumeric() || c == '_' || c == '#') =>
            {
                (n, r)
            }
            _ => ("", line),
        };
        if matches!(line, "}" | "]" | ")" | "},") {
            path.pop();
        } else if rest.ends_with(['{', '[', '(']) {
            path.push(name.trim_start_matches("r#").to_string());
        } else {
            let full: Vec<&str> = path
                .iter()
                .map(String::as_str)
                .chain([name.trim_start_matches("r#")])
                .filter(|p| !p.is_empty())
                .collect();
            out.push((full.join("."), rest.to_string()));
        }
    }
    out
}

/// Flags one by one: sets that print with names, and numbers that are sets.
fn flag_by_flag(fields: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (name, value) in fields {
        let field = name.rsplit('.').next().unwrap_or("");
        let set = matches!(field, "valid" | "policy_res1")
            || field.ends_with("flags")
            || field.ends_with("flags2");
        if !set {
            out.push((name, value));
            continue;
        }
        for part in value.split(" | ").filter(|f| !f.is_empty()) {
            let number = part.strip_prefix("0x").map_or_else(
                || part.parse().ok(),
                |hex| u64::from_str_radix(hex, 16).ok(),
            );
            let one = |flag: String| (format!("{name}.{flag}"), "set".to_string());
            match number {
                Some(n) => out.extend(
                    (0..64)
                        .filter(|b| n >> b & 1 != 0)
                        .map(|b| one(format!("{:#x}", 1u64 << b))),
                ),
                None => out.push(one(part.to_string())),
            }
        }
    }
    out
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn opaque(b: &[u8]) -> Vec<(String, String)> {
    vec![("bytes".into(), hex(b))]
}

fn one<T: Wire + Debug>(b: &Bytes) -> Vec<(String, String)> {
    T::decode(b).map_or_else(|_| opaque(b), |v| fields_of(&v))
}

fn many<T: Wire + Debug>(b: &Bytes) -> Vec<(String, String)> {
    fields_of(&raw::decode_all::<T>(b))
}

/// A layout, a striped directory or text: the magic tells, except for a link's text.
fn ea(b: &Bytes, body: Option<MdtBody>) -> Vec<(String, String)> {
    if body.is_some_and(|b| b.valid & md::LINKNAME != 0) {
        return vec![(
            "text".into(),
            String::from_utf8_lossy(raw::c_str(b)).into_owned(),
        )];
    }
    match u32::decode(b).unwrap_or(0) {
        0x0CD2_0CD0 => LmvMd::decode(b).map_or_else(|_| opaque(b), |l| fields_of(&l)),
        0x0CD3_0CD0 | 0x0CD4_0CD0 => {
            LmvUserMd::decode(b).map_or_else(|_| opaque(b), |l| fields_of(&l))
        }
        _ => layout(b),
    }
}

fn layout(b: &Bytes) -> Vec<(String, String)> {
    match Layout::decode(b) {
        Ok(Layout::Plain(l)) => fields_of(&l),
        Ok(Layout::Composite(c)) => {
            let mut out = fields_of(&(c.magic, c.layout_gen, c.flags, c.mirror_count, c.ec_count));
            out.iter_mut()
                .zip(["magic", "layout_gen", "flags", "mirror_count", "ec_count"])
                .for_each(|(f, name)| f.0 = name.into());
            out.extend(fields_of(&c.entries));
            out
        }
        Ok(Layout::Foreign(f)) => fields_of(&f),
        Err(_) => opaque(b),
    }
}

/// Records of a log: what each says, as a set of lines.
fn log(b: &Bytes) -> Option<Vec<(String, String)>> {
    let mut out = Vec::new();
    for r in parse_chunk(b)
        .ok()?
        .into_iter()
        .filter(|r| r.r#type == OBD_CFG_REC)
    {
        let c = LustreCfg::decode(&r.payload).ok()?;
        if c.as_marker().is_none() {
            let args: Vec<String> = c.bufs.iter().map(|b| printable(b)).collect();
            out.push((
                format!("record {:?} {} {}", c.command, c.nid, args.join(" ")),
                "there".into(),
            ));
        }
    }
    Some(out)
}

fn printable(b: &[u8]) -> String {
    let t = raw::c_str(b);
    if t.iter().all(|c| c.is_ascii_graphic()) {
        String::from_utf8_lossy(t).into_owned()
    } else {
        format!("<{} bytes>", b.len())
    }
}

/// The fields of a buffer.
fn decoded(field: Field, b: &Bytes, body: Option<MdtBody>) -> Vec<(String, String)> {
    match field {
        Field::MdtBody => one::<MdtBody>(b),
        Field::DlmReq => LdlmRequest::decode(b).map_or_else(|_| opaque(b), |r| fields_of(&r)),
        Field::DlmRep => one::<LdlmReply>(b),
        Field::DlmLvb if b.len() == 56 => one::<OstLvb>(b),
        Field::DlmLvb => layout(b),
        Field::MdtMd | Field::DefaultMdtMd => ea(b, body),
        Field::Acl => Acl::decode(b).map_or_else(|_| opaque(b), |a| fields_of(&a)),
        Field::ConnectData => one::<ObdConnectData>(b),
        Field::ObdStatfs => one::<ObdStatfs>(b),
        Field::MgsConfigRes => one::<MgsConfigRes>(b),
        Field::LlogdBody => one::<LlogdBody>(b),
        Field::LlogLogHdr => one::<LlogLogHdr>(b)
            .into_iter()
            .filter(|(n, _)| !n.starts_with("bitmap"))
            .collect(),
        Field::SeqRange | Field::FldMdfld => one::<LuSeqRange>(b),
        Field::OstBody => one::<Obdo>(b),
        Field::ObdQuotactl => one::<ObdQuotactl>(b),
        Field::HsmUserState => one::<HsmUserState>(b),
        Field::NiobufInline => one::<NiobufRemote>(b),
        Field::GetinfoVal if b.len() > 32 => vec![
            ("head".into(), hex(&b[..32])),
            ("path".into(), printable(&b[32..])),
        ],
        Field::Rcs | Field::EavalsLens => many::<u32>(b),
        Field::Eadata => log(b)
            .filter(|l| !l.is_empty())
            .unwrap_or_else(|| opaque(b)),
        _ => opaque(b),
    }
}

/// What of the body is compared; the handle is mapped, of transnos only whether there is one.
fn of_body(b: &PtlrpcBody) -> Vec<(String, String)> {
    let b = PtlrpcBody {
        transno: (b.transno != 0) as u64,
        last_committed: 0,
        ..*b
    };
    fields_of(&b)
}

/// Compares `ours` with what was recorded, already in our values.
pub fn replies(
    format: &Format,
    theirs: &Message,
    ours: &Message,
    compared: &mut usize,
) -> Vec<Difference> {
    messages(format.name, format.reply, theirs, ours, compared)
}

/// The same of requests: lock callbacks.
pub fn requests(
    format: &Format,
    theirs: &Message,
    ours: &Message,
    compared: &mut usize,
) -> Vec<Difference> {
    messages(format.name, format.request, theirs, ours, compared)
}

fn messages(
    name: &str,
    fields: &[Field],
    theirs: &Message,
    ours: &Message,
    compared: &mut usize,
) -> Vec<Difference> {
    let mut out = Vec::new();
    let (Ok(t), Ok(o)) = (theirs.body(), ours.body()) else {
        return vec![Difference {
            what: format!("{name} no body"),
            theirs: String::new(),
            ours: String::new(),
        }];
    };
    let (ft, fo) = (failed(fields, theirs), failed(fields, ours));
    if ft != fo {
        // a refusal and an answer have nothing else to compare
        let what = format!("{name} status {ft} is {fo}");
        return vec![Difference {
            what,
            theirs: t.status.to_string(),
            ours: o.status.to_string(),
        }];
    }
    pairs(
        &format!("{name} PTLRPC_BODY"),
        of_body(&t),
        of_body(&o),
        &mut out,
        compared,
    );
    let head = |m: &Message| {
        vec![
            ("flags".to_string(), format!("{:#x}", m.flags)),
            ("secflvr".to_string(), m.secflvr.to_string()),
        ]
    };
    pairs(
        &format!("{name} lustre_msg"),
        head(theirs),
        head(ours),
        &mut out,
        compared,
    );
    let body_at = fields.iter().position(|f| *f == Field::MdtBody);
    let body = |m: &Message| body_at.and_then(|i| m.get::<MdtBody>(i).ok());
    for i in 1..theirs.bufs.len().max(ours.bufs.len()) {
        let Some(field) = fields.get(i) else { continue };
        let (bt, bo) = (theirs.buf(i), ours.buf(i));
        let what = format!("{name} {}", field.name());
        let blank = |b: &Bytes| b.iter().all(|x| *x == 0);
        match (blank(bt), blank(bo)) {
            (true, true) => {}
            (false, true) => out.push(Difference {
                what: format!("{what} missing"),
                theirs: show(decoded(*field, bt, body(theirs))),
                ours: String::new(),
            }),
            (true, false) => out.push(Difference {
                what: format!("{what} extra"),
                theirs: String::new(),
                ours: show(decoded(*field, bo, body(ours))),
            }),
            (false, false) => pairs(
                &what,
                decoded(*field, bt, body(theirs)),
                decoded(*field, bo, body(ours)),
                &mut out,
                compared,
            ),
        }
    }
    out
}

/// The error a reply tells, negative: of the request, or of its intent; else 0.
pub fn failure(format: &Format, reply: &Message) -> i64 {
    failed(format.reply, reply)
}

fn failed(fields: &[Field], reply: &Message) -> i64 {
    let intent = fields
        .iter()
        .position(|f| *f == Field::DlmRep)
        .and_then(|i| reply.get::<LdlmReply>(i).ok())
        .map_or(0, |r| r.policy_res2 as i64);
    reply
        .body()
        .map_or(0, |b| i64::from(b.status))
        .min(intent)
        .min(0)
}

fn show(fields: Vec<(String, String)>) -> String {
    fields
        .into_iter()
        .map(|(n, v)| format!("{n}={v}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Fields one by one; those with the same path in their order.
fn pairs(
    what: &str,
    theirs: Vec<(String, String)>,
    ours: Vec<(String, String)>,
    out: &mut Vec<Difference>,
    compared: &mut usize,
) {
    let (theirs, ours) = (flag_by_flag(theirs), flag_by_flag(ours));
    let names: BTreeSet<&String> = theirs.iter().chain(&ours).map(|(n, _)| n).collect();
    *compared += names.len();
    for n in names {
        let of = |list: &[(String, String)]| {
            list.iter()
                .filter(|(m, _)| m == n)
                .map(|(_, v)| v.clone())
                .collect::<Vec<_>>()
                .join(",")
        };
        let (t, o) = (of(&theirs), of(&ours));
        if t != o {
            out.push(Difference {
                what: format!("{what}.{n}"),
                theirs: t,
                ours: o,
            });
        }
    }
}

/// Entries of directory pages: names, FIDs and types; in which order is the servers' business.
pub fn directories(theirs: &Bytes, ours: &Bytes, compared: &mut usize) -> Vec<Difference> {
    let list = |b: &Bytes| -> Vec<(String, String)> {
        let Ok((entries, _)) = readpage_entries(b) else {
            return opaque(b);
        };
        entries
            .iter()
            .map(|e| {
                (
                    printable(&e.name),
                    format!("{} attrs {:#x} type {:#o}", e.fid, e.attrs, e.mode_type),
                )
            })
            .collect()
    };
    let mut out = Vec::new();
    pairs(
        "MDS_READPAGE entry",
        list(theirs),
        list(ours),
        &mut out,
        compared,
    );
    out
}

/// Entries of the table of NIDs.
pub fn nid_tables(theirs: &Bytes, ours: &Bytes, compared: &mut usize) -> Vec<Difference> {
    let list = |b: &Bytes| -> Vec<(String, String)> {
        let (mut rest, mut out) = (b.clone(), Vec::new());
        while rest.len() >= 24 && rest[16..20] != [0; 4] {
            let Ok((e, r)) = MgsNidtblEntry::decode(&rest) else {
                break;
            };
            out.extend(fields_of(&e));
            rest = r;
        }
        out
    };
    let mut out = Vec::new();
    pairs(
        "MGS_CONFIG_READ table",
        list(theirs),
        list(ours),
        &mut out,
        compared,
    );
    out
}
