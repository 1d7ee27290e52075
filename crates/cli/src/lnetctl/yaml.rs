//! YAML as lnetctl prints it. It prints in two ways: what comes from the kernel's netlink interface goes through libyaml (list
//! items begin in their parent's column and are as deep as the indent), what it makes itself is indented by four.

/// A tree to print.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Yaml {
    /// A scalar.
    Text(String),
    /// Keys in order.
    Map(Vec<(String, Yaml)>),
    /// A list.
    List(Vec<Yaml>),
}

/// How deep, and where list items begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// libyaml's with this indent.
    Netlink(usize),
    /// Indent of four; list items too.
    Own,
}

impl From<&str> for Yaml {
    fn from(s: &str) -> Yaml {
        Yaml::Text(s.to_owned())
    }
}

impl From<String> for Yaml {
    fn from(s: String) -> Yaml {
        Yaml::Text(s)
    }
}

impl From<u64> for Yaml {
    fn from(n: u64) -> Yaml {
        Yaml::Text(n.to_string())
    }
}

impl From<i64> for Yaml {
    fn from(n: i64) -> Yaml {
        Yaml::Text(n.to_string())
    }
}

/// A map from pairs.
pub(crate) fn map<const N: usize>(pairs: [(&str, Yaml); N]) -> Yaml {
    Yaml::Map(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

impl Yaml {
    /// Adds a key; no-op on what is no map.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Yaml>) -> Yaml {
        if let Yaml::Map(m) = &mut self {
            m.push((key.to_owned(), value.into()));
        }
        self
    }

    /// The text, ending in a newline.
    pub(crate) fn print(&self, style: Style) -> String {
        let mut out = String::new();
        self.emit(&mut out, 0, style);
        out
    }

    fn emit(&self, out: &mut String, col: usize, style: Style) {
        match self {
            Yaml::Text(t) => {
                out.push_str(t);
                out.push('\n');
            }
            Yaml::Map(m) => {
                for (i, (k, v)) in m.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&" ".repeat(col));
                    }
                    out.push_str(k);
                    out.push(':');
                    v.emit_value(out, col, style);
                }
            }
            Yaml::List(l) => {
                for (i, v) in l.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&" ".repeat(col));
                    }
                    let depth = match style {
                        Style::Netlink(n) => n,
                        Style::Own => 2,
                    };
                    out.push('-');
                    out.push_str(&" ".repeat(depth - 1));
                    v.emit(out, col + depth, style);
                }
            }
        }
    }

    /// What follows a key at column `col`.
    fn emit_value(&self, out: &mut String, col: usize, style: Style) {
        let inner = match (self, style) {
            (Yaml::Text(_), _) => {
                out.push(' ');
                return self.emit(out, col, style);
            }
            (Yaml::List(_), Style::Netlink(_)) => col,
            (Yaml::Map(_), Style::Netlink(n)) => col + n,
            (_, Style::Own) => col + 4,
        };
        out.push('\n');
        let empty = matches!(self, Yaml::Map(m) if m.is_empty())
            || matches!(self, Yaml::List(l) if l.is_empty());
        if !empty {
            out.push_str(&" ".repeat(inner));
            self.emit(out, inner, style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_kernel_tool_indents() {
        let peer = map([(
            "peer",
            Yaml::List(vec![map([
                ("primary nid", "10.77.0.2@tcp".into()),
                (
                    "peer ni",
                    Yaml::List(vec![map([
                        ("nid", "10.77.0.2@tcp".into()),
                        ("statistics", map([("send_count", 4u64.into())])),
                    ])]),
                ),
            ])]),
        )]);
        let text = "peer:\n-     primary nid: 10.77.0.2@tcp\n      peer ni:\n      -     nid: 10.77.0.2@tcp\n            statistics:\n                  send_count: 4\n";
        assert_eq!(peer.print(Style::Netlink(6)), text);
        let routing = map([(
            "routing",
            Yaml::List(vec![
                map([("cpt[0]", map([("tiny", map([("npages", 0u64.into())]))]))]),
                map([("enable", 1u64.into())]),
            ]),
        )]);
        assert_eq!(
            routing.print(Style::Own),
            "routing:\n    - cpt[0]:\n          tiny:\n              npages: 0\n    - enable: 1\n"
        );
    }
}
