//! Fault rules as users write them: `lnetctl fault drop|delay add|del|show|reset` and `lctl net_drop_add`, `net_delay_add`, ...
//! (`lustre/utils/portals.c`, `fault_simul_rule_add`). One grammar, and the same texts.

use super::agent::{Act, Rule};
use super::yaml::{Yaml, map};
use coral_lnet::MsgType;
use lexopt::prelude::*;
use serde_json::Value;

/// What to do with the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Reset,
    Show,
}

/// A request, and how to print its answer.
#[derive(Debug, PartialEq)]
pub(crate) struct FaultCommand {
    pub act: Act,
    delay: bool,
    verb: Verb,
}

fn name(delay: bool) -> &'static str {
    if delay { "delay" } else { "drop" }
}

fn number<T: std::str::FromStr>(text: std::ffi::OsString, what: &str) -> Result<T, String> {
    let text = text.to_string_lossy().into_owned();
    text.parse().map_err(|_| format!("invalid {what}: {text}"))
}

/// A time in seconds; whoever takes the rule knows how long it may be.
fn latency_s(text: std::ffi::OsString) -> Result<f64, String> {
    let s: f64 = number(text, "latency")?;
    match s.is_finite() {
        true => Ok(s),
        false => Err(format!("latency {s} is no time")),
    }
}

/// Reads the options after `add`, `del`, `reset` or `show`.
pub(crate) fn parse(delay: bool, verb: Verb, args: &[String]) -> Result<FaultCommand, String> {
    let act = match verb {
        Verb::Add => Act::FaultAdd(parse_add(delay, args)?),
        Verb::Del => parse_del(delay, args)?,
        Verb::Reset => Act::FaultReset { delay },
        Verb::Show => Act::FaultList { delay },
    };
    Ok(FaultCommand { act, delay, verb })
}

fn parse_add(delay: bool, args: &[String]) -> Result<Rule, String> {
    if args.is_empty() {
        return Err("Failed, please provide source, destination and rate of rule".into());
    }
    let text = |e: lexopt::Error| e.to_string();
    let mut p = lexopt::Parser::from_args(args);
    let mut rule = Rule {
        delay,
        ..Rule::default()
    };
    let (mut src, mut dst, mut random) = (None, None, false);
    while let Some(arg) = p.next().map_err(text)? {
        match arg {
            Short('s') | Long("source") => {
                src = Some(p.value().map_err(text)?.to_string_lossy().into_owned())
            }
            Short('d') | Long("dest") => {
                dst = Some(p.value().map_err(text)?.to_string_lossy().into_owned())
            }
            Short('o') | Long("local_nid") => {
                rule.local = Some(p.value().map_err(text)?.to_string_lossy().into_owned())
            }
            Short('r') | Long("rate") => {
                rule.rate = number(p.value().map_err(text)?, "rate").map_err(|e| {
                    format!(
                        "{e}; one in so many messages: give a whole number, 1 to {}",
                        u32::MAX
                    )
                })?;
                if rule.rate == 0 {
                    return Err("invalid rate: 0; one in so many messages: give 1 or more".into());
                }
            }
            Short('i') | Long("interval") => {
                rule.interval_s = number(p.value().map_err(text)?, "interval")?;
                if !(rule.interval_s > 0.0 && rule.interval_s <= f64::from(u32::MAX)) {
                    return Err(format!(
                        "invalid interval: {}; give seconds, more than 0 and at most {}",
                        rule.interval_s,
                        u32::MAX
                    ));
                }
            }
            Short('l') | Long("latency") if delay => {
                rule.latency_s = latency_s(p.value().map_err(text)?)?;
            }
            Short('n') | Long("random") if !delay => random = true,
            Short('x') | Long("drop_all") if !delay => rule.all = true,
            Short('e') | Long("health_error") if !delay => rule
                .health
                .push(p.value().map_err(text)?.to_string_lossy().to_lowercase()),
            Short('p') | Long("portal") => {
                let portal: u32 = number(p.value().map_err(text)?, "portal")?;
                if portal >= 64 {
                    return Err(format!("invalid portal: {portal}"));
                }
                rule.portals |= 1 << portal;
            }
            Short('m') | Long("message") => {
                let kind = p.value().map_err(text)?.to_string_lossy().to_lowercase();
                rule.kinds |=
                    kind_bit(&kind).ok_or_else(|| format!("unknown message type {kind}"))?;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    let timed = rule.interval_s != 0.0;
    if !rule.all && (rule.rate != 0) == timed {
        return Err(format!(
            "please provide either {} rate or interval but not both at the same time.",
            name(delay)
        ));
    }
    if random && !timed {
        return Err("please provide an interval to randomize".into());
    }
    let whole =
        (1.0..=f64::from(u32::MAX)).contains(&rule.interval_s) && rule.interval_s.fract() == 0.0;
    if random && !whole {
        return Err(format!(
            "invalid interval: {}; with -n give a whole number, 1 to {}: each message draws a number below it, and the upper half loses",
            rule.interval_s,
            u32::MAX
        ));
    }
    rule.random = random;
    if delay && rule.latency_s == 0.0 {
        return Err("latency cannot be zero".into());
    }
    match (src, dst) {
        (Some(s), Some(d)) => Ok(Rule {
            src: s,
            dst: d,
            ..rule
        }),
        _ => Err(format!(
            "Please provide both source and destination of {} rule",
            name(delay)
        )),
    }
}

fn kind_bit(kind: &str) -> Option<u8> {
    let known = [
        ("put", MsgType::Put),
        ("ack", MsgType::Ack),
        ("get", MsgType::Get),
        ("reply", MsgType::Reply),
    ];
    known.iter().find(|(n, _)| *n == kind).map(|(_, k)| k.bit())
}

fn parse_del(delay: bool, args: &[String]) -> Result<Act, String> {
    let text = |e: lexopt::Error| e.to_string();
    let mut p = lexopt::Parser::from_args(args);
    let (mut src, mut dst, mut all) = (None, None, false);
    while let Some(arg) = p.next().map_err(text)? {
        match arg {
            Short('s') | Long("source") => {
                src = Some(p.value().map_err(text)?.to_string_lossy().into_owned())
            }
            Short('d') | Long("dest") => {
                dst = Some(p.value().map_err(text)?.to_string_lossy().into_owned())
            }
            Short('a') | Long("all") => all = true,
            other => return Err(other.unexpected().to_string()),
        }
    }
    match (all, &src, &dst) {
        (false, Some(_), Some(_)) | (true, None, None) => Ok(Act::FaultDel { delay, src, dst }),
        (false, ..) => Err("Failed, please provide source and destination of rule".into()),
        (true, ..) => Err("'-s' or '-d' cannot be combined with '-a'".into()),
    }
}

impl FaultCommand {
    /// What `lctl` prints for the answer.
    pub(crate) fn text(&self, answer: &Value) -> String {
        let name = name(self.delay);
        let s = |k: &str| answer[k].as_str().unwrap_or("?").to_owned();
        match (&self.act, self.verb) {
            (Act::FaultAdd(rule), _) => format!(
                "Added {name} rule {}->{} (1/{})\n",
                s("src"),
                s("dst"),
                if rule.all { 1 } else { rule.rate }
            ),
            (_, Verb::Del) => format!("Removed {} {name} rules\n", answer["removed"]),
            (_, Verb::Show) => {
                let rules = answer["rules"].as_array().map_or(&[][..], Vec::as_slice);
                let mut out = format!("LNet {name} rules:\n");
                rules
                    .iter()
                    .for_each(|r| out.push_str(&rule_line(r, self.delay)));
                out + &format!("found total {}\n", rules.len())
            }
            _ => String::new(),
        }
    }

    /// What `lnetctl fault ... show` prints: the rules as YAML; else as `lctl`.
    pub(crate) fn yaml(&self, answer: &Value) -> Option<Yaml> {
        if self.verb != Verb::Show {
            return None;
        }
        let n = |v: &Value| Yaml::Text(v.as_str().map_or_else(|| v.to_string(), str::to_owned));
        let one = |r: &Value| {
            let mask = |k: &str| Yaml::Text(format!("{:#x}", r[k].as_u64().unwrap_or(0)));
            let attrs = if self.delay {
                map([
                    ("la_rate", n(&r["rate"])),
                    ("la_interval", n(&whole(&r["interval"]))),
                    ("la_latency", n(&whole(&r["latency"]))),
                ])
            } else {
                map([
                    ("da_rate", n(&r["rate"])),
                    ("da_interval", n(&whole(&r["interval"]))),
                ])
            };
            let done = if self.delay {
                "ls_delayed"
            } else {
                "ds_dropped"
            };
            let stats = map([
                ("fs_count", n(&r["matched"])),
                ("fs_put", n(&r["put"])),
                ("fs_ack", n(&r["ack"])),
                ("fs_get", n(&r["get"])),
                ("fs_reply", n(&r["reply"])),
                (done, n(&r["struck"])),
            ]);
            map([
                ("fa_src", n(&r["src"])),
                ("fa_dst", n(&r["dst"])),
                ("fa_ptl_mask", mask("portals")),
                ("fa_msg_mask", mask("kinds")),
                ("fa_attr", attrs),
                ("fa_stats", stats),
            ])
        };
        let rules: Vec<Yaml> = answer["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .map(one)
            .collect();
        (!rules.is_empty()).then(|| {
            map([(
                "fault",
                Yaml::List(vec![map([(name(self.delay), Yaml::List(rules))])]),
            )])
        })
    }
}

/// Whole seconds without a decimal point.
fn whole(v: &Value) -> Value {
    match v.as_f64() {
        Some(f) if f.fract() == 0.0 => Value::from(f as u64),
        _ => v.clone(),
    }
}

fn rule_line(r: &Value, delay: bool) -> String {
    let s = |k: &str| r[k].as_str().unwrap_or("?");
    let latency = if delay {
        format!(", latency {}", whole(&r["latency"]))
    } else {
        String::new()
    };
    format!(
        "{}->{} (1/{} | {}{latency}) ptl {:#x}, msg {:x}, {}/{}, PUT {}, ACK {}, GET {}, REP {}\n",
        s("src"),
        s("dst"),
        r["rate"],
        whole(&r["interval"]),
        r["portals"].as_u64().unwrap_or(0),
        r["kinds"].as_u64().unwrap_or(0),
        r["struck"],
        r["matched"],
        r["put"],
        r["ack"],
        r["get"],
        r["reply"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn refused(delay: bool, line: &str) -> String {
        parse(delay, Verb::Add, &args(line)).unwrap_err()
    }

    #[test]
    fn the_kernel_tools_grammar_and_errors() {
        let c = parse(
            false,
            Verb::Add,
            &args("-s 10.0.0.1@tcp -d *@tcp1 -r 100 -m PUT --message=GET -p 4 -p 0x6"),
        )
        .unwrap_err();
        assert_eq!(c, "invalid portal: 0x6");
        let c = parse(
            false,
            Verb::Add,
            &args("-s 10.0.0.1@tcp -d *@tcp1 -r 100 -m PUT --message=GET -p 4 -p 6"),
        )
        .unwrap();
        let want = Rule {
            src: "10.0.0.1@tcp".into(),
            dst: "*@tcp1".into(),
            rate: 100,
            kinds: 6,
            portals: 0x50,
            ..Rule::default()
        };
        assert_eq!(c.act, Act::FaultAdd(want));
        assert_eq!(
            c.text(&json!({"src": "10.0.0.1@tcp", "dst": "255.255.255.255@tcp1"})),
            "Added drop rule 10.0.0.1@tcp->255.255.255.255@tcp1 (1/100)\n"
        );
        assert_eq!(
            refused(false, ""),
            "Failed, please provide source, destination and rate of rule"
        );
        assert_eq!(
            refused(false, "-s * -d *"),
            "please provide either drop rate or interval but not both at the same time."
        );
        assert_eq!(
            refused(true, "-s * -d * -r 1 -i 2 -l 1"),
            "please provide either delay rate or interval but not both at the same time."
        );
        assert_eq!(refused(true, "-s * -d * -r 1"), "latency cannot be zero");
        for no_time in ["nan", "inf", "1e400"] {
            let said = refused(true, &format!("-s * -d * -r 1 -l {no_time}"));
            assert!(said.ends_with(" is no time"), "{said}");
        }
        assert_eq!(
            refused(false, "-s * -d * -r 0"),
            "invalid rate: 0; one in so many messages: give 1 or more"
        );
        for bad in ["0", "-1", "NaN", "inf", "4294967296"] {
            let why = refused(false, &format!("-s * -d * -i={bad}"));
            assert!(
                why.starts_with("invalid interval: ")
                    && why.ends_with("; give seconds, more than 0 and at most 4294967295"),
                "{why}"
            );
        }
        for bad in ["1.5", "-3", "x", "4294967296"] {
            let why = refused(false, &format!("-s * -d * -r={bad}"));
            assert_eq!(
                why,
                format!(
                    "invalid rate: {bad}; one in so many messages: give a whole number, 1 to 4294967295"
                )
            );
        }
        for bad in ["0.5", "2.5"] {
            let why = refused(false, &format!("-s * -d * -n -i {bad}"));
            assert!(
                why.starts_with(&format!(
                    "invalid interval: {bad}; with -n give a whole number, 1 to 4294967295"
                )),
                "{why}"
            );
        }
        assert_eq!(
            refused(false, "-s * -d * -r 2 -n"),
            "please provide an interval to randomize"
        );
        let c = parse(false, Verb::Add, &args("-s * -d * -i 4 -n")).unwrap();
        assert!(matches!(c.act, Act::FaultAdd(r) if r.random && r.interval_s == 4.0));
        assert_eq!(
            refused(false, "-r 1 -s *"),
            "Please provide both source and destination of drop rule"
        );
        assert_eq!(
            refused(false, "-r 1 -s * -d * -m NAK"),
            "unknown message type nak"
        );
        assert_eq!(refused(false, "-r 1 -s * -d * -p 64"), "invalid portal: 64");
        assert!(
            parse(false, Verb::Del, &args("-a -s *"))
                .unwrap_err()
                .contains("cannot be combined")
        );
        assert!(
            parse(false, Verb::Del, &args(""))
                .unwrap_err()
                .contains("source and destination")
        );
    }

    #[test]
    fn rules_are_listed_as_lctl_does() {
        let c = parse(true, Verb::Show, &[]).unwrap();
        let rule = json!({"src": "10.0.0.1@tcp", "dst": "<?>", "rate": 10, "interval": 0.0, "latency": 2.0, "portals": 0, "kinds": 15,
            "struck": 3, "matched": 31, "put": 2, "ack": 1, "get": 0, "reply": 0});
        let line = "10.0.0.1@tcp-><?> (1/10 | 0, latency 2) ptl 0x0, msg f, 3/31, PUT 2, ACK 1, GET 0, REP 0\n";
        assert_eq!(
            c.text(&json!({"rules": [rule]})),
            format!("LNet delay rules:\n{line}found total 1\n")
        );
    }
}
