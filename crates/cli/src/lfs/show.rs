//! Layouts as text, the way `lfs getstripe` writes them (`lustre/utils/liblustreapi.c`, `llapi_layout_*`).

use coral_wire::layout::{
    CompEntry, CompMd, LOV_ALL_STRIPES, LOV_MAGIC_V3, Layout, LovMd, LovOstData, SubLayout, lcme,
    pattern,
};
use std::fmt::Write;

/// Bytes of a stripe where nobody said anything.
const DEFAULT_STRIPE_SIZE: u32 = 4 << 20;

/// How much `getstripe` says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Style {
    /// The usual text.
    Normal,
    /// With magic and identity (`-v`).
    Verbose,
    /// YAML (`-y`).
    Yaml,
}

const COMPONENT_FLAGS: &[(u32, &str)] = &[
    (lcme::INIT, "init"),
    (lcme::STALE, "stale"),
    (lcme::PREF_RD, "prefrd"),
    (lcme::PREF_WR, "prefwr"),
    (lcme::OFFLINE, "offline"),
    (lcme::NOSYNC, "nosync"),
    (lcme::EXTENSION, "extension"),
];

/// Stripes of the last instantiated component, as `lfs getstripe -c` and `lfs find` take it.
pub(crate) fn stripe_count(l: &Layout) -> i64 {
    chosen(l).map_or(0, count_of)
}

fn count_of(md: &LovMd) -> i64 {
    if md.stripe_count == LOV_ALL_STRIPES {
        -1
    } else {
        md.stripe_count as i64
    }
}

/// Stripe size of the same component, bytes.
pub(crate) fn stripe_size(l: &Layout) -> u64 {
    chosen(l).map_or(0, |md| md.stripe_size as u64)
}

/// The OST of the first stripe, -1 when there is none yet.
pub(crate) fn stripe_offset(l: &Layout) -> i64 {
    chosen(l).map_or(-1, first_ost)
}

/// Every OST that holds an object of the file.
pub(crate) fn ost_indices(l: &Layout) -> Vec<u32> {
    let of = |md: &LovMd| {
        md.objects
            .iter()
            .map(|o| o.ost_idx)
            .filter(|i| *i != u32::MAX)
            .collect::<Vec<_>>()
    };
    match l {
        Layout::Plain(md) => of(md),
        Layout::Composite(c) => c
            .entries
            .iter()
            .filter_map(CompEntry::plain)
            .flat_map(of)
            .collect(),
        Layout::Foreign(_) => Vec::new(),
    }
}

fn chosen(l: &Layout) -> Option<&LovMd> {
    match l {
        Layout::Plain(md) => Some(md),
        Layout::Composite(c) => c
            .entries
            .iter()
            .rev()
            .find(|e| e.is_init())
            .or(c.entries.last())?
            .plain(),
        Layout::Foreign(_) => None,
    }
}

fn first_ost(md: &LovMd) -> i64 {
    md.objects
        .first()
        .filter(|o| o.ost_idx != u32::MAX)
        .map_or(-1, |o| o.ost_idx as i64)
}

pub(crate) fn pattern_name(bits: u32) -> String {
    let base = match bits & !(pattern::F_MASK | pattern::OVERSTRIPING) {
        pattern::RAID0 => "raid0",
        pattern::MDT => "mdt",
        pattern::FOREIGN => "foreign",
        _ => return format!("{bits:x}"),
    };
    let mut name = base.to_owned();
    if bits & pattern::OVERSTRIPING != 0 {
        name.push_str(",overstriped");
    }
    if bits & pattern::F_RELEASED != 0 {
        name.push_str(",released");
    }
    name
}

/// A file's layout.
pub(crate) fn file(l: &Layout, style: Style) -> String {
    match l {
        Layout::Plain(md) => plain(md, style),
        Layout::Composite(c) => composite(c, style, false),
        Layout::Foreign(f) => format!(
            "lfm_magic:         0x{:08X}\nlfm_length:          {}\n",
            f.magic,
            f.value.len()
        ),
    }
}

/// A directory's default layout: one line.
pub(crate) fn directory(l: &Layout) -> String {
    match l {
        Layout::Plain(md) => default_line(md, " "),
        Layout::Composite(c) => composite(c, Style::Normal, true),
        Layout::Foreign(_) => file(l, Style::Normal),
    }
}

/// A plain default, also of one component; `gap` between the fields.
fn default_line(md: &LovMd, gap: &str) -> String {
    // as the kernel client's tool, which shows the file system's default for none
    let size = if md.stripe_size == 0 {
        DEFAULT_STRIPE_SIZE
    } else {
        md.stripe_size
    };
    let offset = if md.layout_gen == u16::MAX {
        -1
    } else {
        md.layout_gen as i64
    };
    let mut out = format!(
        "stripe_count:  {}{gap}stripe_size:   {}{gap}pattern:       {}{gap}stripe_offset: {offset}",
        count_of(md),
        size,
        pattern_name(md.pattern)
    );
    if let Some(pool) = md.pool_name().filter(|_| md.magic == LOV_MAGIC_V3) {
        let _ = write!(out, "{gap}pool:          {pool}");
    }
    out + "\n"
}

fn plain(md: &LovMd, style: Style) -> String {
    let mut out = String::new();
    if style == Style::Verbose {
        let _ = write!(
            out,
            "lmm_magic:         0x{:08X}\nlmm_seq:           {:#x}\nlmm_object_id:     {:#x}\nlmm_fid:           [{1:#x}:{2:#x}:0x0]\n",
            md.magic, md.oi.seq, md.oi.id
        );
    }
    out += &common(md, "", md.layout_gen as u32);
    if style == Style::Yaml {
        if !md.objects.is_empty() {
            out += "lmm_objects:\n";
            md.objects
                .iter()
                .for_each(|o| out += &yaml_object(o, "      "));
        }
        return out;
    }
    if md.objects.is_empty() {
        return out + "\n";
    }
    out += "\tobdidx\t\t objid\t\t objid\t\t group\n";
    for o in &md.objects {
        let _ = writeln!(
            out,
            "\t{:>6}\t{:>14}\t{:>13}\t{:>14}",
            o.ost_idx,
            o.oi.object_id(),
            hex(o.oi.object_id()),
            hex(o.oi.object_seq())
        );
    }
    out + "\n"
}

/// As C's `%#llx`: no prefix on zero.
fn hex(n: u64) -> String {
    if n == 0 {
        "0".into()
    } else {
        format!("{n:#x}")
    }
}

fn yaml_object(o: &LovOstData, indent: &str) -> String {
    let fid = o.oi.to_fid(o.ost_idx).to_string();
    format!(
        "{indent}- l_ost_idx: {}\n{indent}  l_fid:     {}\n",
        o.ost_idx,
        fid.trim_matches(['[', ']'])
    )
}

/// The lines every plain layout has.
fn common(md: &LovMd, indent: &str, layout_gen: u32) -> String {
    let count = count_of(md);
    let mut out = format!(
        "{indent}lmm_stripe_count:  {count}\n{indent}lmm_stripe_size:   {}\n{indent}lmm_pattern:       {}\n{indent}lmm_layout_gen:    {layout_gen}\n",
        md.stripe_size,
        pattern_name(md.pattern),
    );
    if md.is_dom() {
        let _ = writeln!(out, "{indent}lmm_mdt_index:     {layout_gen}");
    } else {
        let _ = writeln!(out, "{indent}lmm_stripe_offset: {}", first_ost(md));
    }
    if let Some(pool) = md.pool_name().filter(|_| md.magic == LOV_MAGIC_V3) {
        let _ = writeln!(out, "{indent}lmm_pool:          {pool}");
    }
    out
}

/// `default`: of a directory, whose components have no ids yet.
fn composite(c: &CompMd, style: Style, default: bool) -> String {
    let yaml = style == Style::Yaml;
    let head = if yaml { "" } else { "  " };
    let mut out = format!(
        "{head}lcm_layout_gen:    {}\n{head}lcm_mirror_count:  {}\n{head}lcm_entry_count:   {}\n",
        c.layout_gen,
        c.mirror_count + 1,
        c.entries.len()
    );
    if yaml {
        out += "components:\n";
    }
    for entry in &c.entries {
        out += &component(entry, yaml, default);
        if !yaml {
            out.push('\n');
        }
    }
    out
}

fn component(e: &CompEntry, yaml: bool, default: bool) -> String {
    let h = &e.head;
    let (id, flags, start, end) = (h.id, h.flags, h.start, h.end);
    let end = if end == u64::MAX {
        "EOF".to_owned()
    } else {
        end.to_string()
    };
    let (id, mirror) = match default {
        true => ("N/A".to_owned(), "N/A".to_owned()),
        false => (id.to_string(), e.mirror_id().to_string()),
    };
    let mut out = if yaml {
        format!("  - lcme_id:             {id}\n")
    } else {
        format!("    lcme_id:             {id}\n")
    };
    let _ = write!(
        out,
        "    lcme_mirror_id:      {mirror}\n    lcme_flags:          {}\n    lcme_extent.e_start: {start}\n    lcme_extent.e_end:   {end}\n",
        flag_names(flags)
    );
    if yaml {
        out += "    sub_layout:\n";
    }
    match &e.md {
        SubLayout::Foreign(_) => out += "      lmm_pattern:       foreign\n",
        SubLayout::Plain(md) if default => out += &format!("      {}", default_line(md, "       ")),
        SubLayout::Plain(md) => {
            // a component without objects keeps the wanted first OST where the generation is
            out += &common(
                md,
                "      ",
                if e.is_init() { md.layout_gen as u32 } else { 0 },
            );
            if e.is_init() {
                out += &component_objects(md, yaml);
            }
        }
    }
    out
}

fn component_objects(md: &LovMd, yaml: bool) -> String {
    if md.objects.is_empty() {
        return String::new();
    }
    let mut out = String::from("      lmm_objects:\n");
    for (i, o) in md.objects.iter().enumerate() {
        if yaml {
            out += &yaml_object(o, "      ");
        } else {
            let _ = writeln!(
                out,
                "      - {i:>3}: {{ l_ost_idx: {:>3}, l_fid: {} }}",
                o.ost_idx,
                o.oi.to_fid(o.ost_idx)
            );
        }
    }
    out
}

fn flag_names(flags: u32) -> String {
    let names: Vec<&str> = COMPONENT_FLAGS
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, n)| *n)
        .collect();
    if names.is_empty() {
        "0".into()
    } else {
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::LOV_OFFSET_DEFAULT;
    use coral_wire::{Fid, OstId};

    fn object(idx: u32, id: u64, seq: u64) -> LovOstData {
        LovOstData {
            oi: OstId::from_fid(Fid::new(seq, id as u32)),
            ost_gen: 0,
            ost_idx: idx,
        }
    }

    /// What a real Lustre printed (golden/client-commands.txt, `lfs getstripe -v d/f`, `-y`, `d`).
    #[test]
    fn plain_layouts_print_as_lustre_prints_them() {
        let mut md = LovMd::new(
            1 << 20,
            vec![object(1, 2, 0x2c0000401), object(0, 2, 0x280000401)],
        );
        md.oi = OstId {
            id: 3,
            seq: 0x200000402,
        };
        let golden = "lmm_magic:         0x0BD10BD0\nlmm_seq:           0x200000402\nlmm_object_id:     0x3\nlmm_fid:           [0x200000402:0x3:0x0]\n\
lmm_stripe_count:  2\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\nlmm_layout_gen:    0\nlmm_stripe_offset: 1\n\
\tobdidx\t\t objid\t\t objid\t\t group\n\t     1\t             2\t          0x2\t   0x2c0000401\n\t     0\t             2\t          0x2\t   0x280000401\n\n";
        assert_eq!(file(&Layout::Plain(md.clone()), Style::Verbose), golden);
        let golden = "lmm_stripe_count:  2\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\nlmm_layout_gen:    0\nlmm_stripe_offset: 1\nlmm_objects:\n\
      - l_ost_idx: 1\n        l_fid:     0x2c0000401:0x2:0x0\n      - l_ost_idx: 0\n        l_fid:     0x280000401:0x2:0x0\n";
        assert_eq!(
            file(&Layout::Plain(md), Style::Yaml),
            golden.replace("\n- l", "\n      - l")
        );
        let comp = CompEntry::new(
            0,
            0,
            0,
            1 << 20,
            LovMd::request(0, 1, LOV_OFFSET_DEFAULT, None),
        );
        let text = directory(&Layout::Composite(CompMd::new(0, 0, 0, vec![comp])));
        assert!(
            text.contains("    lcme_id:             N/A\n    lcme_mirror_id:      N/A\n"),
            "{text}"
        );
        assert!(text.ends_with("      stripe_count:  1       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1\n\n"), "{text}");
        let default = Layout::Plain(LovMd::request(1 << 20, 2, LOV_OFFSET_DEFAULT, None));
        assert_eq!(
            directory(&default),
            "stripe_count:  2 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"
        );
    }

    /// The same for `lfs getstripe d/pfl`.
    #[test]
    fn composite_layouts_print_as_lustre_prints_them() {
        let mut first = LovMd::new(1 << 20, vec![object(1, 3, 0x2c0000401)]);
        first.layout_gen = 0;
        let second = LovMd::request(4 << 20, 2, LOV_OFFSET_DEFAULT, None);
        let third = LovMd::request(4 << 20, LOV_ALL_STRIPES, LOV_OFFSET_DEFAULT, None);
        let entries = vec![
            CompEntry::new(1, lcme::INIT, 0, 1 << 20, first),
            CompEntry::new(2, 0, 1 << 20, 1 << 30, second),
            CompEntry::new(3, 0, 1 << 30, u64::MAX, third),
        ];
        let text = file(
            &Layout::Composite(CompMd::new(3, 0, 0, entries)),
            Style::Normal,
        );
        let golden = "  lcm_layout_gen:    3
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 1
      lmm_objects:
      -   0: { l_ost_idx:   1, l_fid: [0x2c0000401:0x3:0x0] }

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   1073741824
      lmm_stripe_count:  2
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

    lcme_id:             3
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 1073741824
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  -1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

";
        assert_eq!(text, golden);
    }
}
