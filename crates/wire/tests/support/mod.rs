//! What the golden tests share: reading captures, splitting streams, recoding every buffer, the vector container.
#![allow(dead_code, missing_docs)]

pub mod conversation;
pub mod extract;
pub mod pcap;
pub mod recode;
pub mod stream;
pub mod vectors;
pub mod walk;

use coral_wire::formats;
use coral_wire::lnet::PingInfo;
use coral_wire::ptlrpc::Message;
use std::path::PathBuf;
use vectors::{Kind, Vector};
use walk::Asked;

/// Where the captures are: `CORAL_CAPTURES`, else `shared/captures` beside the repository or a directory above it.
pub fn captures() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("CORAL_CAPTURES") {
        return Some(dir.into());
    }
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .skip(1)
        .take(6)
        .map(|d| d.join("shared/captures"))
        .find(|d| d.is_dir())
}

/// The pcap files there, in name order.
pub fn capture_files() -> Vec<PathBuf> {
    let Some(dir) = captures() else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .map(|d| {
            d.flatten()
                .map(|e| e.path())
                .filter(|p| p.extension().is_some_and(|e| e == "pcap"))
                .collect()
        })
        .unwrap_or_default();
    files.sort();
    files
}

/// Decodes `raw` as what `v` is, every buffer of it; whatever comes out.
pub fn survive(v: &Vector, raw: bytes::Bytes) {
    match v.kind {
        Kind::Message => {
            let Ok(m) = Message::decode(raw) else { return };
            let _ = m.body();
            let asked = v.request.clone().map(|r| {
                let request = Message::decode(r).expect("request");
                Asked {
                    format: formats::of_request(v.opcode, &request).expect("format"),
                    opcode: v.opcode,
                    request,
                }
            });
            let format = asked
                .as_ref()
                .map(|a| a.format.reply)
                .or(formats::of_request(v.opcode, &m).map(|f| f.request));
            if let Some(fields) = format {
                let _ = recode::message(fields, &m, asked.as_ref(), asked.is_none());
            }
        }
        Kind::Bulk => {
            let _ = (
                recode::dir_pages(&raw),
                recode::batch_bulk(&raw),
                recode::nid_table(&raw),
            );
        }
        Kind::Ping => {
            let _ = PingInfo::decode(&raw);
        }
        Kind::Srpc => {
            let _ = recode::srpc(&raw);
        }
    }
}
