//! Parsers of values that several sections share.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use serde::Serializer;

use super::section::Parsed;
use super::source::{Raw, Refusal};

/// Parses a text of one line, which is not empty.
pub(super) fn text(raw: &Raw) -> Parsed<String> {
    match raw.text() {
        Some(text) if !text.is_empty() && !text.chars().any(char::is_control) => Ok(text.into()),
        _ => Err(raw.refuse("a string that is not empty")),
    }
}

/// Parses a name in the engine's form for networks and runtimes.
pub(super) fn plain_name(raw: &Raw) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    raw.text()
        .filter(|name| name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain))
        .map(String::from)
}

/// Checks the name of a table, which a variable must be able to express: there, `_` stands for `-` and `__` for the
/// dot. A `-` at either end, or two in a row, would make one variable mean two keys.
pub(super) fn table_name(kind: &'static str) -> impl Fn(&str) -> Parsed<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    move |name| {
        let is_plain = !name.is_empty() && name.len() <= 63 && name.chars().all(plain);
        if !is_plain {
            return Err(Refusal(format!("expected a {kind}'s name of a-z, 0-9 and -")));
        }
        match name.starts_with('-') || name.ends_with('-') || name.contains("--") {
            true => Err(Refusal(format!(
                "expected a {kind}'s name without - at its ends or twice in a row: its environment variables would be ambiguous"
            ))),
            false => Ok(()),
        }
    }
}

pub(super) fn flag(raw: &Raw) -> Parsed<bool> {
    raw.boolean().ok_or_else(|| raw.refuse("true or false"))
}

/// Parses a whole number from `least` to `most`, inclusive.
pub(super) fn whole<T: TryFrom<i64>>(least: i64, most: i64) -> impl Fn(&Raw) -> Parsed<T> {
    move |raw| {
        raw.integer()
            .filter(|number| (least..=most).contains(number))
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| raw.refuse(format_args!("a whole number from {least} to {most}")))
    }
}

pub(super) fn port(raw: &Raw) -> Parsed<u16> {
    whole(1, u16::MAX.into())(raw).map_err(|_| raw.refuse("a port from 1 to 65535"))
}

/// Parses one of a few words.
pub(super) fn choice<T: Copy>(words: &[(&str, T)]) -> impl Fn(&Raw) -> Parsed<T> {
    move |raw| {
        let given = raw.text();
        let found = words.iter().find(|(word, _)| given == Some(word));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            raw.refuse(words.join(" or "))
        })
    }
}

/// Parses a list of `item`.
pub(super) fn list<T>(item: impl Fn(&Raw) -> Parsed<T>) -> impl Fn(&Raw) -> Parsed<Vec<T>> {
    move |raw| {
        let items = raw.items().ok_or_else(|| raw.refuse("an array"))?;
        let numbered = items.iter().enumerate().map(|(index, raw)| {
            item(raw).map_err(|mut refusal| {
                refusal.0 = format!("item {}: {}", index + 1, refusal.0);
                refusal
            })
        });
        numbered.collect()
    }
}

/// Parses `value`; an empty text is `None`.
pub(super) fn optional<T>(value: impl Fn(&Raw) -> Parsed<T>) -> impl Fn(&Raw) -> Parsed<Option<T>> {
    move |raw| match raw.text() {
        Some("") => Ok(None),
        _ => value(raw).map(Some),
    }
}

/// Parses an absolute path without `..`. Repeated and trailing slashes are removed, so that paths compare.
pub(super) fn absolute_path(raw: &Raw) -> Parsed<PathBuf> {
    let plain = |path: &Path| {
        let steps_up = path.components().any(|part| part == Component::ParentDir);
        path.is_absolute() && !steps_up && !path.to_string_lossy().contains('\0')
    };
    match raw.text().map(Path::new) {
        Some(path) if plain(path) => Ok(path.components().collect()),
        _ => Err(raw.refuse("an absolute path without \"..\"")),
    }
}

/// Parses an absolute path other than `/`.
pub(super) fn path_below_root(raw: &Raw) -> Parsed<PathBuf> {
    match absolute_path(raw)? {
        path if path.parent().is_none() => Err(raw.refuse("a path below \"/\"")),
        path => Ok(path),
    }
}

/// Parses an address to listen at, or `"off"`.
pub(super) fn listen(raw: &Raw) -> Parsed<Option<SocketAddr>> {
    match raw.text() {
        Some("" | "off") => Ok(None),
        text => text
            .and_then(|text| text.parse().ok())
            .map(Some)
            .ok_or_else(|| raw.refuse(r#"an address such as "127.0.0.1:9464", or "off""#)),
    }
}

/// The counterpart of [`listen`]: writes `"off"` explicitly, because an absent key means the default.
pub(super) fn serialize_listen<S: Serializer>(address: &Option<SocketAddr>, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_str("off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Raw {
        Raw::String(text.into())
    }

    #[test]
    fn paths_are_absolute_and_compare_by_meaning() {
        assert_eq!(absolute_path(&string("/srv//data/./x/")), Ok(PathBuf::from("/srv/data/x")));
        for wrong in ["", "srv", "./srv", "/srv/../etc", "/a\0b"] {
            assert!(absolute_path(&string(wrong)).is_err(), "{wrong:?}");
        }
        assert!(absolute_path(&string("/")).is_ok());
        assert!(path_below_root(&string("//.")).is_err());
    }

    #[test]
    fn lists_are_arrays_or_separated_by_commas() {
        let names = list(text);
        let two = Ok(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(names(&Raw::Array(vec![string("a"), string("b")])), two);
        assert_eq!(names(&Raw::Text(r#"["a", 'b']"#.into())), two);
        assert_eq!(names(&Raw::Text("a, b".into())), two);
        assert_eq!(names(&Raw::Text(" ".into())), Ok(vec![]));
        assert!(names(&string("a,b")).is_err(), "a file has arrays for this");
    }

    #[test]
    fn a_wrong_item_is_counted() {
        assert_eq!(
            list(port)(&Raw::Text("80,0".into())).expect_err("port 0").0,
            r#"item 2: expected a port from 1 to 65535, got "0""#
        );
        assert!(list(text)(&Raw::Text("[1".into())).is_err());
    }

    #[test]
    fn listening_can_be_switched_off() {
        assert_eq!(listen(&string("off")), Ok(None));
        assert_eq!(listen(&string("")), Ok(None));
        assert!(matches!(listen(&string("[::1]:80")), Ok(Some(_))));
        assert!(listen(&string("localhost:80")).is_err());
        assert!(listen(&string("127.0.0.1")).is_err());
    }

    #[test]
    fn a_choice_lists_its_words() {
        let format = choice(&[("human", 1), ("json", 2)]);
        assert_eq!(format(&string("json")), Ok(2));
        assert_eq!(format(&string("JSON")).expect_err("upper case").0, r#"expected "human" or "json", got "JSON""#);
    }
}
