//! Which buffers each request and its reply have, in order (`lustre/ptlrpc/layout.c`).
//!
//! The opcode alone does not decide: an enqueue's intent, a reint's record and a close's bias do too, and a reply
//! has the format of its request. A message may have fewer buffers than its format (older peers) and the last ones empty.

use crate::ldlm::{LdlmFlags, LdlmIntent, LdlmRequest, it};
use crate::mds::{MdtRecReint, RecCreate, RecSetattr, ReintOp, bias};
use crate::ptlrpc::{Message, opc};
use crate::raw::Wire;

/// Lists buffer kinds with Lustre's names (`RMF_*`).
macro_rules! fields {
    ($($v:ident $n:literal),* $(,)?) => {
        /// What a buffer of a message holds (`RMF_*`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Field {
            $(#[doc = concat!("`RMF_", $n, "`")] $v),*
        }

        impl Field {
            /// Lustre's name of it, without `RMF_`.
            pub const fn name(self) -> &'static str {
                match self { $(Field::$v => $n),* }
            }
        }
    };
}

fields! {
    PtlrpcBody "PTLRPC_BODY", SetinfoKey "SETINFO_KEY", SetinfoVal "SETINFO_VAL", MdtBody "MDT_BODY",
    IdxInfo "IDX_INFO", MgsTargetInfo "MGS_TARGET_INFO", MgsTargetNidlist "MGS_TARGET_NIDLIST",
    MgsSendParam "MGS_SEND_PARAM", MgsConfigBody "MGS_CONFIG_BODY", MgsConfigRes "MGS_CONFIG_RES", SeqOpc "SEQ_OPC",
    SeqRange "SEQ_RANGE", FldOpc "FLD_OPC", FldMdfld "FLD_MDFLD", GenericData "GENERIC_DATA",
    ObdQuotactl "OBD_QUOTACTL", ObdQuotaIter "OBD_QUOTA_ITER", QuotaBody "QUOTA_BODY", DlmReq "DLM_REQ",
    LdlmIntent "LDLM_INTENT", DlmRep "DLM_REP", DlmLvb "DLM_LVB", Name "NAME", Capa1 "CAPA1", ObdStatfs "OBD_STATFS",
    MdtMd "MDT_MD", Acl "ACL", Capa2 "CAPA2", FileEncctx "FILE_ENCCTX", Eadata "EADATA", SelinuxPol "SELINUX_POL",
    RecReint "REC_REINT", FileSecctxName "FILE_SECCTX_NAME", FileSecctx "FILE_SECCTX", Symtgt "SYMTGT",
    Logcookies "LOGCOOKIES", MdtEpoch "MDT_EPOCH", CloseData "CLOSE_DATA", Tgtuuid "TGTUUID", Cluuid "CLUUID",
    Conn "CONN", ConnectData "CONNECT_DATA", GetinfoKey "GETINFO_KEY", GetinfoVal "GETINFO_VAL",
    GetinfoVallen "GETINFO_VALLEN", ButHeader "BUT_HEADER", ButBuf "BUT_BUF", ButReply "BUT_REPLY",
    DlmGlDesc "DLM_GL_DESC", LayoutIntent "LAYOUT_INTENT", DefaultMdtMd "DEFAULT_MDT_MD",
    NiobufInline "NIOBUF_INLINE", Eavals "EAVALS", EavalsLens "EAVALS_LENS", U32 "U32",
    MdsHsmCurrentAction "MDS_HSM_CURRENT_ACTION", MdsHsmProgress "MDS_HSM_PROGRESS", MdsHsmArchive "MDS_HSM_ARCHIVE",
    HsmUserState "HSM_USER_STATE", HsmStateSet "HSM_STATE_SET", MdsHsmRequest "MDS_HSM_REQUEST",
    MdsHsmUserItem "MDS_HSM_USER_ITEM", SwapLayouts "SWAP_LAYOUTS", FidArray "FID_ARRAY", Rcs "RCS",
    LlogdBody "LLOGD_BODY", LlogLogHdr "LLOG_LOG_HDR", OstBody "OST_BODY", ObdIoobj "OBD_IOOBJ",
    NiobufRemote "NIOBUF_REMOTE", ShortIo "SHORT_IO", ObdId "OBD_ID", Fid "FID", FiemapKey "FIEMAP_KEY",
    FiemapVal "FIEMAP_VAL", LfsckRequest "LFSCK_REQUEST", LfsckReply "LFSCK_REPLY", OstLadviseHdr "OST_LADVISE_HDR",
    OstLadvise "OST_LADVISE", OutUpdateHeader "OUT_UPDATE_HEADER", OutUpdateBuf "OUT_UPDATE_BUF",
    OutUpdateReply "OUT_UPDATE_REPLY",
}

/// A request and reply format (`RQF_*`).
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// Lustre's name of it, without `RQF_`.
    pub name: &'static str,
    /// Buffers of the request; the body is buffer 0 (but not in sub-requests of a batch).
    pub request: &'static [Field],
    /// Buffers of the reply.
    pub reply: &'static [Field],
}

/// Declares the formats.
macro_rules! formats {
    ($($name:ident [$($rq:ident)*] [$($rp:ident)*])*) => {
        $(
            #[doc = concat!("`RQF_", stringify!($name), "`")]
            pub static $name: Format = {
                use Field::*;
                Format { name: stringify!($name), request: &[$($rq),*], reply: &[$($rp),*] }
            };
        )*
        /// All formats.
        pub static ALL: &[&Format] = &[$(&$name),*];
    };
}

formats! {
    OBD_PING [PtlrpcBody] [PtlrpcBody]
    OBD_SET_INFO [PtlrpcBody SetinfoKey SetinfoVal] [PtlrpcBody]
    MDT_SET_INFO [PtlrpcBody SetinfoKey SetinfoVal MdtBody] [PtlrpcBody]
    OBD_IDX_READ [PtlrpcBody IdxInfo] [PtlrpcBody IdxInfo]
    SEC_CTX [PtlrpcBody] [PtlrpcBody]
    MGS_TARGET_REG [PtlrpcBody MgsTargetInfo] [PtlrpcBody MgsTargetInfo]
    MGS_TARGET_REG_NIDLIST [PtlrpcBody MgsTargetInfo MgsTargetNidlist] [PtlrpcBody MgsTargetInfo]
    MGS_SET_INFO [PtlrpcBody MgsSendParam] [PtlrpcBody MgsSendParam]
    MGS_CONFIG_READ [PtlrpcBody MgsConfigBody] [PtlrpcBody MgsConfigRes]
    SEQ_QUERY [PtlrpcBody SeqOpc SeqRange] [PtlrpcBody SeqRange]
    FLD_QUERY [PtlrpcBody FldOpc FldMdfld] [PtlrpcBody FldMdfld]
    FLD_READ [PtlrpcBody FldMdfld] [PtlrpcBody GenericData]
    MDS_QUOTACTL [PtlrpcBody ObdQuotactl] [PtlrpcBody ObdQuotactl ObdQuotaIter]
    OST_QUOTACTL [PtlrpcBody ObdQuotactl] [PtlrpcBody ObdQuotactl ObdQuotaIter]
    QUOTA_DQACQ [PtlrpcBody QuotaBody] [PtlrpcBody QuotaBody]
    LDLM_INTENT_QUOTA [PtlrpcBody DlmReq LdlmIntent QuotaBody] [PtlrpcBody DlmRep DlmLvb QuotaBody]
    MDS_GET_ROOT [PtlrpcBody MdtBody Name] [PtlrpcBody MdtBody Capa1]
    MDS_STATFS [PtlrpcBody] [PtlrpcBody ObdStatfs]
    MDS_STATFS_NEW [PtlrpcBody MdtBody] [PtlrpcBody ObdStatfs]
    MDS_SYNC [PtlrpcBody MdtBody Capa1] [PtlrpcBody MdtBody]
    MDS_GETATTR [PtlrpcBody MdtBody Capa1] [PtlrpcBody MdtBody MdtMd Acl Capa1 Capa2 FileEncctx]
    MDS_GETXATTR [PtlrpcBody MdtBody Capa1 Name Eadata SelinuxPol] [PtlrpcBody MdtBody Eadata]
    MDS_GETATTR_NAME [PtlrpcBody MdtBody Capa1 Name] [PtlrpcBody MdtBody MdtMd Acl Capa1 Capa2 FileEncctx]
    MDS_REINT [PtlrpcBody RecReint] [PtlrpcBody MdtBody]
    MDS_REINT_CREATE [PtlrpcBody RecReint Capa1 Name] [PtlrpcBody MdtBody Capa1]
    MDS_REINT_CREATE_ACL [PtlrpcBody RecReint Capa1 Name Eadata DlmReq FileSecctxName FileSecctx SelinuxPol FileEncctx] [PtlrpcBody MdtBody Capa1 MdtMd]
    MDS_REINT_CREATE_SLAVE [PtlrpcBody RecReint Capa1 Name Eadata DlmReq] [PtlrpcBody MdtBody Capa1]
    MDS_REINT_CREATE_SYM [PtlrpcBody RecReint Capa1 Name Symtgt DlmReq FileSecctxName FileSecctx SelinuxPol FileEncctx] [PtlrpcBody MdtBody Capa1]
    MDS_REINT_OPEN [PtlrpcBody RecReint Capa1 Capa2 Name Eadata FileSecctxName FileSecctx SelinuxPol FileEncctx] [PtlrpcBody MdtBody MdtMd Acl Capa1 Capa2]
    MDS_REINT_UNLINK [PtlrpcBody RecReint Capa1 Name DlmReq SelinuxPol] [PtlrpcBody MdtBody MdtMd Logcookies Capa1 Capa2]
    MDS_REINT_LINK [PtlrpcBody RecReint Capa1 Capa2 Name DlmReq SelinuxPol] [PtlrpcBody MdtBody]
    MDS_REINT_RENAME [PtlrpcBody RecReint Capa1 Capa2 Name Symtgt DlmReq SelinuxPol] [PtlrpcBody MdtBody MdtMd Logcookies Capa1 Capa2]
    MDS_REINT_MIGRATE [PtlrpcBody RecReint Capa1 Capa2 Name Symtgt DlmReq SelinuxPol MdtEpoch CloseData Eadata] [PtlrpcBody MdtBody MdtMd Logcookies Capa1 Capa2]
    MDS_REINT_SETATTR [PtlrpcBody RecReint Capa1 MdtEpoch Eadata Logcookies DlmReq] [PtlrpcBody MdtBody MdtMd Acl Capa1 Capa2]
    MDS_REINT_SETXATTR [PtlrpcBody RecReint Capa1 Name Eadata DlmReq SelinuxPol] [PtlrpcBody MdtBody]
    MDS_REINT_RESYNC [PtlrpcBody RecReint DlmReq] [PtlrpcBody MdtBody]
    MDS_CONNECT [PtlrpcBody Tgtuuid Cluuid Conn ConnectData SelinuxPol] [PtlrpcBody ConnectData]
    MDS_DISCONNECT [PtlrpcBody] [PtlrpcBody]
    MDS_GET_INFO [PtlrpcBody GetinfoKey GetinfoVal] [PtlrpcBody GetinfoVal]
    MDS_FID2PATH [PtlrpcBody GetinfoKey GetinfoVallen] [PtlrpcBody GetinfoVal]
    MDS_BATCH [PtlrpcBody ButHeader ButBuf] [PtlrpcBody ButReply]
    LDLM_ENQUEUE [PtlrpcBody DlmReq] [PtlrpcBody DlmRep DlmLvb]
    LDLM_ENQUEUE_LVB [PtlrpcBody DlmReq] [PtlrpcBody DlmRep DlmLvb]
    LDLM_CONVERT [PtlrpcBody DlmReq] [PtlrpcBody DlmRep]
    LDLM_CANCEL [PtlrpcBody DlmReq] [PtlrpcBody]
    LDLM_CALLBACK [PtlrpcBody DlmReq] [PtlrpcBody]
    LDLM_CP_CALLBACK [PtlrpcBody DlmReq DlmLvb] [PtlrpcBody]
    LDLM_BL_CALLBACK [PtlrpcBody DlmReq] [PtlrpcBody]
    LDLM_GL_CALLBACK [PtlrpcBody DlmReq] [PtlrpcBody DlmLvb]
    LDLM_GL_CALLBACK_DESC [PtlrpcBody DlmReq DlmGlDesc] [PtlrpcBody DlmLvb]
    LDLM_INTENT_BASIC [PtlrpcBody DlmReq LdlmIntent] [PtlrpcBody DlmRep DlmLvb]
    LDLM_INTENT [PtlrpcBody DlmReq LdlmIntent RecReint] [PtlrpcBody DlmRep MdtBody MdtMd Acl]
    LDLM_INTENT_LAYOUT [PtlrpcBody DlmReq LdlmIntent LayoutIntent Eadata] [PtlrpcBody DlmRep DlmLvb]
    LDLM_INTENT_GETATTR [PtlrpcBody DlmReq LdlmIntent MdtBody Capa1 Name FileSecctxName] [PtlrpcBody DlmRep MdtBody MdtMd Acl Capa1 FileSecctx DefaultMdtMd FileEncctx]
    LDLM_INTENT_OPEN [PtlrpcBody DlmReq LdlmIntent RecReint Capa1 Capa2 Name Eadata FileSecctxName FileSecctx SelinuxPol FileEncctx] [PtlrpcBody DlmRep MdtBody MdtMd Acl Capa1 Capa2 NiobufInline FileSecctx FileEncctx DefaultMdtMd]
    LDLM_INTENT_CREATE [PtlrpcBody DlmReq LdlmIntent RecReint Capa1 Name Eadata FileSecctxName FileSecctx SelinuxPol FileEncctx] [PtlrpcBody DlmRep MdtBody MdtMd Acl Capa1 FileSecctx DefaultMdtMd FileEncctx]
    LDLM_INTENT_GETXATTR [PtlrpcBody DlmReq LdlmIntent MdtBody Capa1 SelinuxPol] [PtlrpcBody DlmRep MdtBody MdtMd Acl Eadata Eavals EavalsLens]
    MDS_CLOSE [PtlrpcBody MdtEpoch RecReint Capa1] [PtlrpcBody MdtBody MdtMd Logcookies Capa1 Capa2]
    MDS_CLOSE_INTENT [PtlrpcBody MdtEpoch RecReint Capa1 CloseData U32] [PtlrpcBody MdtBody MdtMd Logcookies Capa1 Capa2]
    MDS_READPAGE [PtlrpcBody MdtBody Capa1] [PtlrpcBody MdtBody]
    MDS_HSM_ACTION [PtlrpcBody MdtBody Capa1] [PtlrpcBody MdtBody MdsHsmCurrentAction]
    MDS_HSM_PROGRESS [PtlrpcBody MdtBody MdsHsmProgress] [PtlrpcBody]
    MDS_HSM_CT_REGISTER [PtlrpcBody MdtBody MdsHsmArchive] [PtlrpcBody]
    MDS_HSM_CT_UNREGISTER [PtlrpcBody MdtBody] [PtlrpcBody]
    MDS_HSM_STATE_GET [PtlrpcBody MdtBody Capa1] [PtlrpcBody MdtBody HsmUserState]
    MDS_HSM_STATE_SET [PtlrpcBody MdtBody Capa1 HsmStateSet] [PtlrpcBody]
    MDS_HSM_REQUEST [PtlrpcBody MdtBody MdsHsmRequest MdsHsmUserItem GenericData] [PtlrpcBody]
    MDS_HSM_DATA_VERSION [PtlrpcBody MdtBody] [PtlrpcBody]
    MDS_SWAP_LAYOUTS [PtlrpcBody MdtBody SwapLayouts Capa1 Capa2 DlmReq] [PtlrpcBody]
    MDS_RMFID [PtlrpcBody MdtBody FidArray Capa1 Capa2] [PtlrpcBody MdtBody FidArray Rcs]
    LLOG_ORIGIN_HANDLE_CREATE [PtlrpcBody LlogdBody Name MdtBody] [PtlrpcBody LlogdBody]
    LLOG_ORIGIN_HANDLE_NEXT_BLOCK [PtlrpcBody LlogdBody] [PtlrpcBody LlogdBody Eadata]
    LLOG_ORIGIN_HANDLE_PREV_BLOCK [PtlrpcBody LlogdBody] [PtlrpcBody LlogdBody Eadata]
    LLOG_ORIGIN_HANDLE_READ_HEADER [PtlrpcBody LlogdBody] [PtlrpcBody LlogLogHdr]
    CONNECT [PtlrpcBody Tgtuuid Cluuid Conn ConnectData SelinuxPol] [PtlrpcBody ConnectData]
    OST_CONNECT [PtlrpcBody Tgtuuid Cluuid Conn ConnectData SelinuxPol] [PtlrpcBody ConnectData]
    OST_DISCONNECT [PtlrpcBody] [PtlrpcBody]
    OST_GETATTR [PtlrpcBody OstBody Capa1] [PtlrpcBody OstBody]
    OST_SETATTR [PtlrpcBody OstBody Capa1] [PtlrpcBody OstBody]
    OST_CREATE [PtlrpcBody OstBody] [PtlrpcBody OstBody]
    OST_PUNCH [PtlrpcBody OstBody Capa1] [PtlrpcBody OstBody]
    OST_FALLOCATE [PtlrpcBody OstBody Capa1] [PtlrpcBody OstBody]
    OST_SEEK [PtlrpcBody OstBody] [PtlrpcBody OstBody]
    OST_SYNC [PtlrpcBody OstBody Capa1] [PtlrpcBody OstBody]
    OST_DESTROY [PtlrpcBody OstBody DlmReq Capa1] [PtlrpcBody OstBody]
    OST_BRW_READ [PtlrpcBody OstBody ObdIoobj NiobufRemote Capa1 ShortIo] [PtlrpcBody OstBody ShortIo]
    OST_BRW_WRITE [PtlrpcBody OstBody ObdIoobj NiobufRemote Capa1 ShortIo] [PtlrpcBody OstBody Rcs]
    OST_STATFS [PtlrpcBody] [PtlrpcBody ObdStatfs]
    OST_SET_GRANT_INFO [PtlrpcBody SetinfoKey OstBody] [PtlrpcBody OstBody]
    OST_GET_INFO [PtlrpcBody GetinfoKey] [PtlrpcBody GenericData]
    OST_GET_INFO_LAST_ID [PtlrpcBody GetinfoKey] [PtlrpcBody ObdId]
    OST_GET_INFO_LAST_FID [PtlrpcBody GetinfoKey Fid] [PtlrpcBody Fid]
    OST_SET_INFO_LAST_FID [PtlrpcBody SetinfoKey SetinfoVal] [PtlrpcBody]
    OST_GET_INFO_FIEMAP [PtlrpcBody FiemapKey FiemapVal] [PtlrpcBody FiemapVal]
    LFSCK_NOTIFY [PtlrpcBody LfsckRequest] [PtlrpcBody]
    LFSCK_QUERY [PtlrpcBody LfsckRequest] [PtlrpcBody LfsckReply]
    OST_LADVISE [PtlrpcBody OstBody OstLadviseHdr OstLadvise] [PtlrpcBody OstBody]
    BUT_GETATTR [DlmReq LdlmIntent MdtBody Capa1 Name FileSecctxName] [DlmRep MdtBody MdtMd Acl Capa1 FileSecctx DefaultMdtMd FileEncctx]
    OUT_UPDATE [PtlrpcBody OutUpdateHeader OutUpdateBuf] [PtlrpcBody OutUpdateReply]
}

/// The format of a request, found from its opcode and what it holds. `None` for an unknown opcode.
pub fn of_request(opcode: u32, m: &Message) -> Option<&'static Format> {
    Some(match opcode {
        opc::OBD_PING => &OBD_PING,
        opc::OBD_IDX_READ => &OBD_IDX_READ,
        opc::SEC_CTX_INIT | opc::SEC_CTX_INIT_CONT | opc::SEC_CTX_FINI => &SEC_CTX,
        opc::SEQ_QUERY => &SEQ_QUERY,
        opc::FLD_QUERY => &FLD_QUERY,
        opc::FLD_READ => &FLD_READ,
        opc::OUT_UPDATE => &OUT_UPDATE,
        opc::QUOTA_DQACQ | opc::QUOTA_DQREL => &QUOTA_DQACQ,
        opc::LFSCK_NOTIFY => &LFSCK_NOTIFY,
        opc::LFSCK_QUERY => &LFSCK_QUERY,
        1..=32 => of_ost(opcode, m)?,
        33..=99 => of_mds(opcode, m)?,
        101..=107 => of_ldlm(opcode, m)?,
        250..=256 => of_mgs(opcode, m)?,
        501..=509 => of_llog(opcode)?,
        _ => return None,
    })
}

fn of_ost(opcode: u32, m: &Message) -> Option<&'static Format> {
    Some(match opcode {
        opc::OST_CONNECT => &OST_CONNECT,
        opc::OST_DISCONNECT => &OST_DISCONNECT,
        opc::OST_GETATTR => &OST_GETATTR,
        opc::OST_SETATTR => &OST_SETATTR,
        opc::OST_CREATE => &OST_CREATE,
        opc::OST_PUNCH => &OST_PUNCH,
        opc::OST_FALLOCATE => &OST_FALLOCATE,
        opc::OST_SEEK => &OST_SEEK,
        opc::OST_SYNC => &OST_SYNC,
        opc::OST_DESTROY => &OST_DESTROY,
        opc::OST_READ => &OST_BRW_READ,
        opc::OST_WRITE => &OST_BRW_WRITE,
        opc::OST_STATFS => &OST_STATFS,
        opc::OST_QUOTACTL => &OST_QUOTACTL,
        opc::OST_LADVISE => &OST_LADVISE,
        opc::OST_SET_INFO => match m.str(1) {
            b"grant_shrink" => &OST_SET_GRANT_INFO,
            b"last_fid" => &OST_SET_INFO_LAST_FID,
            _ => &OBD_SET_INFO,
        },
        opc::OST_GET_INFO => match m.str(1) {
            b"last_id" => &OST_GET_INFO_LAST_ID,
            b"last_fid" => &OST_GET_INFO_LAST_FID,
            k if k.starts_with(b"fiemap") => &OST_GET_INFO_FIEMAP,
            _ => &OST_GET_INFO,
        },
        _ => return None,
    })
}

fn of_mds(opcode: u32, m: &Message) -> Option<&'static Format> {
    Some(match opcode {
        opc::MDS_CONNECT => &MDS_CONNECT,
        opc::MDS_DISCONNECT => &MDS_DISCONNECT,
        opc::MDS_GETATTR => &MDS_GETATTR,
        opc::MDS_GETATTR_NAME => &MDS_GETATTR_NAME,
        opc::MDS_GETXATTR => &MDS_GETXATTR,
        opc::MDS_GET_ROOT => &MDS_GET_ROOT,
        opc::MDS_STATFS if m.len() > 1 => &MDS_STATFS_NEW,
        opc::MDS_STATFS => &MDS_STATFS,
        opc::MDS_SYNC => &MDS_SYNC,
        opc::MDS_QUOTACTL => &MDS_QUOTACTL,
        opc::MDS_READPAGE => &MDS_READPAGE,
        opc::MDS_SET_INFO if m.len() > 3 => &MDT_SET_INFO,
        opc::MDS_SET_INFO => &OBD_SET_INFO,
        opc::MDS_GET_INFO if m.str(1) == b"fid2path" => &MDS_FID2PATH,
        opc::MDS_GET_INFO => &MDS_GET_INFO,
        opc::MDS_CLOSE => {
            let b = m.get::<RecSetattr>(2).map_or(0, |r| r.bias);
            if b & bias::CLOSE_INTENT != 0 {
                &MDS_CLOSE_INTENT
            } else {
                &MDS_CLOSE
            }
        }
        opc::MDS_REINT => of_reint(&m.get::<MdtRecReint>(1).ok()?, m)?,
        opc::MDS_HSM_STATE_GET => &MDS_HSM_STATE_GET,
        opc::MDS_HSM_STATE_SET => &MDS_HSM_STATE_SET,
        opc::MDS_HSM_ACTION => &MDS_HSM_ACTION,
        opc::MDS_HSM_PROGRESS => &MDS_HSM_PROGRESS,
        opc::MDS_HSM_REQUEST => &MDS_HSM_REQUEST,
        opc::MDS_HSM_CT_REGISTER => &MDS_HSM_CT_REGISTER,
        opc::MDS_HSM_CT_UNREGISTER => &MDS_HSM_CT_UNREGISTER,
        opc::MDS_HSM_DATA_VERSION => &MDS_HSM_DATA_VERSION,
        opc::MDS_SWAP_LAYOUTS => &MDS_SWAP_LAYOUTS,
        opc::MDS_RMFID => &MDS_RMFID,
        opc::MDS_BATCH => &MDS_BATCH,
        _ => return None,
    })
}

fn of_reint(rec: &MdtRecReint, m: &Message) -> Option<&'static Format> {
    const S_IFMT: u32 = 0o170000;
    const S_IFLNK: u32 = 0o120000;
    Some(match rec.opcode {
        ReintOp::SETATTR => &MDS_REINT_SETATTR,
        ReintOp::CREATE => {
            let mode = m.get::<RecCreate>(1).map_or(0, |r| r.mode);
            if mode & S_IFMT == S_IFLNK {
                &MDS_REINT_CREATE_SYM
            } else {
                &MDS_REINT_CREATE_ACL
            }
        }
        ReintOp::LINK => &MDS_REINT_LINK,
        ReintOp::UNLINK | ReintOp::RMENTRY => &MDS_REINT_UNLINK,
        ReintOp::RENAME => &MDS_REINT_RENAME,
        ReintOp::OPEN => &MDS_REINT_OPEN,
        ReintOp::SETXATTR => &MDS_REINT_SETXATTR,
        ReintOp::MIGRATE => &MDS_REINT_MIGRATE,
        ReintOp::RESYNC => &MDS_REINT_RESYNC,
        _ => return None,
    })
}

fn of_ldlm(opcode: u32, m: &Message) -> Option<&'static Format> {
    Some(match opcode {
        opc::LDLM_ENQUEUE => of_enqueue(m),
        opc::LDLM_CONVERT => &LDLM_CONVERT,
        opc::LDLM_CANCEL => &LDLM_CANCEL,
        opc::LDLM_BL_CALLBACK => &LDLM_BL_CALLBACK,
        opc::LDLM_CP_CALLBACK => &LDLM_CP_CALLBACK,
        opc::LDLM_GL_CALLBACK if m.len() > 2 => &LDLM_GL_CALLBACK_DESC,
        opc::LDLM_GL_CALLBACK => &LDLM_GL_CALLBACK,
        opc::LDLM_SET_INFO => &OBD_SET_INFO,
        _ => return None,
    })
}

fn of_enqueue(m: &Message) -> &'static Format {
    let has_intent =
        LdlmRequest::decode(m.buf(1)).is_ok_and(|r| r.flags.contains(LdlmFlags::HAS_INTENT));
    let Some(it) = m.get::<LdlmIntent>(2).ok().filter(|_| has_intent) else {
        return &LDLM_ENQUEUE_LVB;
    };
    of_intent(it.opc)
}

/// The format of an enqueue with this intent.
pub fn of_intent(intent: u64) -> &'static Format {
    let has = |bits| intent & bits != 0;
    if has(it::OPEN) {
        &LDLM_INTENT_OPEN
    } else if has(it::CREAT) {
        &LDLM_INTENT_CREATE
    } else if has(it::GETATTR | it::LOOKUP) {
        &LDLM_INTENT_GETATTR
    } else if has(it::GETXATTR) {
        &LDLM_INTENT_GETXATTR
    } else if has(it::LAYOUT) {
        &LDLM_INTENT_LAYOUT
    } else if has(it::QUOTA_DQACQ | it::QUOTA_CONN) {
        &LDLM_INTENT_QUOTA
    } else {
        &LDLM_INTENT_BASIC
    }
}

fn of_mgs(opcode: u32, m: &Message) -> Option<&'static Format> {
    Some(match opcode {
        opc::MGS_CONNECT => &CONNECT,
        opc::MGS_DISCONNECT => &OBD_PING,
        opc::MGS_TARGET_REG if m.len() > 2 => &MGS_TARGET_REG_NIDLIST,
        opc::MGS_TARGET_REG => &MGS_TARGET_REG,
        opc::MGS_SET_INFO => &MGS_SET_INFO,
        opc::MGS_CONFIG_READ => &MGS_CONFIG_READ,
        _ => return None,
    })
}

fn of_llog(opcode: u32) -> Option<&'static Format> {
    Some(match opcode {
        opc::LLOG_ORIGIN_HANDLE_CREATE => &LLOG_ORIGIN_HANDLE_CREATE,
        opc::LLOG_ORIGIN_HANDLE_NEXT_BLOCK => &LLOG_ORIGIN_HANDLE_NEXT_BLOCK,
        opc::LLOG_ORIGIN_HANDLE_READ_HEADER => &LLOG_ORIGIN_HANDLE_READ_HEADER,
        opc::LLOG_ORIGIN_HANDLE_PREV_BLOCK => &LLOG_ORIGIN_HANDLE_PREV_BLOCK,
        _ => return None,
    })
}

/// What an intent request's record buffer is for, or a reint's: its type name, for reports.
pub fn record_name(rec: &[u8]) -> Option<&'static str> {
    MdtRecReint::decode(rec).ok()?.opcode.name()
}
