//! Sizes: `"512MiB"`, `"2g"`, or a number of bytes.

use std::fmt;

use serde::{Serialize, Serializer};

use super::section::Parsed;
use super::source::Raw;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// The units, largest first. `MB` and the like are not accepted: they are ambiguous between powers of ten and of two.
const UNITS: [(&str, &str, u64); 4] =
    [("TiB", "t", 1 << 40), ("GiB", "g", 1 << 30), ("MiB", "m", 1 << 20), ("KiB", "k", 1 << 10)];

impl Size {
    pub const fn from_bytes(bytes: u64) -> Self {
        Size(bytes)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// Parses a size of at least `least`.
pub(super) fn at_least(least: Size) -> impl Fn(&Raw) -> Parsed<Size> {
    move |raw| match parse(raw) {
        None => Err(raw.refuse(r#"a size such as "512MiB" or "2g""#)),
        Some(size) if size < least => Err(raw.refuse(format_args!("a size of at least \"{least}\""))),
        Some(size) => Ok(size),
    }
}

fn parse(raw: &Raw) -> Option<Size> {
    if let Some(bytes) = raw.integer() {
        return u64::try_from(bytes).ok().map(Size);
    }
    let text = raw.text()?.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().ok()?;
    let unit = unit.trim_start();
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        _ => {
            let named = |(long, short, _): &&(&str, &str, u64)| {
                unit.eq_ignore_ascii_case(long) || unit.eq_ignore_ascii_case(short)
            };
            UNITS.iter().find(named)?.2
        }
    };
    // Engines and TOML use signed integers.
    let fits = |bytes: &u64| i64::try_from(*bytes).is_ok();
    number.checked_mul(factor).filter(fits).map(Size)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, _, factor): &&(&str, &str, u64)| self.0 != 0 && self.0.is_multiple_of(*factor);
        match UNITS.iter().find(exact) {
            Some((unit, _, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Option<u64> {
        parse(&Raw::String(text.into())).map(Size::bytes)
    }

    #[test]
    fn units_are_powers_of_two_in_any_case() {
        assert_eq!(text("512MiB"), Some(512 << 20));
        assert_eq!(text("512mib"), Some(512 << 20));
        assert_eq!(text("2g"), Some(2 << 30));
        assert_eq!(text("2 G"), Some(2 << 30));
        assert_eq!(text("4k"), Some(4096));
        assert_eq!(text("1TiB"), Some(1 << 40));
        assert_eq!(text("42"), Some(42));
        assert_eq!(text("42b"), Some(42));
        assert_eq!(parse(&Raw::Integer(42)), Some(Size(42)));
    }

    #[test]
    fn invalid_and_ambiguous_sizes_are_refused() {
        for wrong in
            ["", "lots", "MiB", "-1", "1.5g", "5MB", "5 MiB MiB", "٣g", "0x10", "9999999t", "99999999999999999999"]
        {
            assert_eq!(text(wrong), None, "{wrong:?}");
        }
        assert_eq!(parse(&Raw::Integer(-1)), None);
        assert_eq!(parse(&Raw::Float(1.0)), None);
    }

    #[test]
    fn a_refusal_has_an_example() {
        let memory = at_least(Size::from_bytes(6 << 20));
        assert_eq!(
            memory(&Raw::String("lots".into())).expect_err("no size").0,
            r#"expected a size such as "512MiB" or "2g", got "lots""#
        );
        assert_eq!(
            memory(&Raw::String("5m".into())).expect_err("too small").0,
            r#"expected a size of at least "6MiB", got "5m""#
        );
    }

    proptest! {
        #[test]
        fn a_displayed_size_reads_back(bytes in 0..=i64::MAX as u64, shift in 0u32..50) {
            let size = Size::from_bytes(bytes >> shift << shift);
            prop_assert_eq!(parse(&Raw::Text(size.to_string())), Some(size));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse(&Raw::Text(text));
        }
    }
}
