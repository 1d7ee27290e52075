//! How the originals write numbers, sizes and times.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Local time, as in "Fri Nov 20 23:25:51 2026".
pub fn ctime(unix_s: u64) -> String {
    // C pads the day with a blank
    local(unix_s, "%a %b %e %H:%M:%S %Y")
}

/// Local time, as in "11/20/2026 23:25:55".
pub fn date_time(unix_s: u64) -> String {
    local(unix_s, "%m/%d/%Y %H:%M:%S")
}

fn local(unix_s: u64, format: &str) -> String {
    Timestamp::from_second(unix_s as i64)
        .map(|t| t.to_zoned(TimeZone::system()).strftime(format).to_string())
        .unwrap_or_default()
}

/// A size as IOR shows it: whole MiB, GiB and TiB as integers, others with two digits, below 1 MiB in bytes.
pub fn human(bytes: i64) -> String {
    let units = [(1_i64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];
    for (unit, name) in units {
        if bytes >= unit {
            return match bytes % unit {
                0 => format!("{} {name}", bytes / unit),
                _ => format!("{:.2} {name}", bytes as f64 / unit as f64),
            };
        }
    }
    if bytes >= 0 {
        format!("{bytes} bytes")
    } else {
        "-".to_owned()
    }
}

/// Numbers of ranks in their order, as in "0 to 3, 7".
pub fn ranks(all: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for r in all {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *r => *last = *r,
            _ => runs.push((*r, *r)),
        }
    }
    let text = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// A cell of IOR's table: ten wide, to the left, with the digits that its size leaves.
pub fn cell(number: f64, after: &str) -> String {
    if number < 0.0 {
        return format!("   -      {after}");
    }
    let digits = match number {
        n if n < 1.0 => 6,
        n if n < 3600.0 => 2,
        _ => 0,
    };
    format!("{number:<10.digits$}{after}")
}

/// `%.{digits}e` of C: an exponent has a sign and two digits at least.
pub fn c_exponent(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        return c_special(number);
    }
    let text = format!("{number:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{size:0>2}")
}

/// `%.{digits}f` of C, also for what is no number.
pub fn c_fixed(number: f64, digits: usize) -> String {
    if number.is_finite() {
        format!("{number:.digits$}")
    } else {
        c_special(number)
    }
}

fn c_special(number: f64) -> String {
    let name = if number.is_nan() { "nan" } else { "inf" };
    let sign = if number.is_sign_negative() { "-" } else { "" };
    format!("{sign}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_in_runs() {
        assert_eq!(ranks(&[0, 1, 2, 5, 8, 9]), "0 to 2, 5, 8, 9");
        assert_eq!(ranks(&[]), "");
    }

    #[test]
    fn sizes_cells_and_exponents_are_those_of_the_originals() {
        assert_eq!(human(65536), "65536 bytes");
        assert_eq!(human(1 << 20), "1 MiB");
        assert_eq!(human(3 << 29), "1.50 GiB");
        assert_eq!(human(2 << 40), "2 TiB");
        assert_eq!(human(-1), "-");
        assert_eq!(cell(153.864, " "), "153.86     ");
        assert_eq!(cell(0.000374, "  "), "0.000374    ");
        assert_eq!(cell(10683.4, " "), "10683      ");
        assert_eq!(cell(-1.0, " "), "   -       ");
        assert_eq!(c_exponent(17404.112119, 10), "1.7404112119e+04");
        assert_eq!(c_exponent(0.0229830741, 10), "2.2983074100e-02");
        assert_eq!(c_exponent(0.0, 3), "0.000e+00");
        assert_eq!(c_exponent(1e123, 1), "1.0e+123");
        assert_eq!(c_fixed(f64::INFINITY, 4), "inf");
        assert_eq!(c_exponent(f64::NAN, 4), "nan");
    }

    #[test]
    fn times_have_the_shape_of_ctime() {
        // any zone: the shape is the same, 24 characters with a blank-padded day
        let text = ctime(1_700_000_000);
        assert_eq!(text.len(), 24, "{text}");
        assert_eq!(ctime(1_704_240_000).as_bytes()[8], b' ', "a day below 10");
        assert_eq!(date_time(1_700_000_000).len(), 19);
    }
}
