//! Users and groups of the host and of a sandbox, and file modes.

use std::fmt;

use serde::{Serialize, Serializer};

use super::section::Parsed;
use super::source::Raw;

/// A user or group of the host, by name or by number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    Id(u32),
    Name(String),
}

/// The user of a sandbox's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: Option<u32>,
}

/// Permission bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    pub const fn bits(self) -> u32 {
        self.0
    }
}

pub(super) fn principal(raw: &Raw) -> Parsed<Principal> {
    // The characters that useradd(8) allows, and the `$` of machine accounts.
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.$".contains(c);
    let text = raw.text().unwrap_or_default();
    match id(text) {
        Some(id) => Ok(Principal::Id(id)),
        None if text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(plain) => {
            Ok(Principal::Name(text.into()))
        }
        None => Err(raw.refuse(r#"a name or id as a string, such as "alice" or "1000""#)),
    }
}

pub(super) fn user(raw: &Raw) -> Parsed<User> {
    let parse = |text: &str| match text.split_once(':') {
        Some((uid, gid)) => Some(User { uid: id(uid)?, gid: Some(id(gid)?) }),
        None => Some(User { uid: id(text)?, gid: None }),
    };
    let user = raw.text().and_then(parse);
    user.ok_or_else(|| raw.refuse(r#"a numeric "uid" or "uid:gid""#))
}

/// Parses an octal string. A TOML integer would be decimal, so it is refused.
pub(super) fn mode(raw: &Raw) -> Parsed<Mode> {
    let octal = |text: &&str| matches!(text.len(), 3 | 4) && text.bytes().all(|b| b.is_ascii_digit());
    raw.text()
        .filter(octal)
        .and_then(|text| u32::from_str_radix(text, 8).ok())
        .filter(|bits| *bits <= 0o777)
        .map(Mode)
        .ok_or_else(|| raw.refuse(r#"an octal string such as "0660""#))
}

/// `u32::MAX` is the kernel's "no id".
fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|id| *id != u32::MAX)
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Id(id) => write!(f, "{id}"),
            Principal::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gid {
            Some(gid) => write!(f, "{}:{gid}", self.uid),
            None => write!(f, "{}", self.uid),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for User {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Raw {
        Raw::String(text.into())
    }

    #[test]
    fn principals_are_names_or_numbers() {
        assert_eq!(principal(&string("1000")), Ok(Principal::Id(1000)));
        assert_eq!(principal(&string("www-data")), Ok(Principal::Name("www-data".into())));
        for wrong in ["", "-x", "a b", "a:b", "4294967295", "99999999999", "1a"] {
            assert!(principal(&string(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_sandbox_user_is_numeric() {
        let both = User { uid: 1000, gid: Some(50) };
        assert_eq!(user(&string("1000:50")), Ok(both));
        assert_eq!(user(&string("0")), Ok(User { uid: 0, gid: None }));
        for wrong in ["", "root", "1000:", ":50", "1:2:3", "+1", "1000:users"] {
            assert!(user(&string(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(mode(&string("0660")).map(Mode::bits), Ok(0o660));
        assert_eq!(mode(&string("600")).map(Mode::bits), Ok(0o600));
        for wrong in ["", "rw", "0888", "7777", "+660", "00660", "0o660"] {
            assert!(mode(&string(wrong)).is_err(), "{wrong:?}");
        }
        assert!(mode(&Raw::Integer(660)).is_err());
    }
}
