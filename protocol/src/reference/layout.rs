//! Layout of JSON text for people: a value is on one line where it fits, and fields keep their order.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Longest line.
const WIDTH: usize = 110;
/// Longest string that is shown in full, and the length of the part that is shown of a longer one.
const MAX_STRING: usize = 150;
const SHOWN: usize = 40;

/// Returns JSON text in a compact layout.
pub(super) fn layout(json: &str) -> Result<String, serde_json::Error> {
    Ok(Json::parse(json)?.block(0))
}

/// A JSON value whose fields are in the order of the text.
enum Json {
    Object(Vec<(String, Json)>),
    Array(Vec<Json>),
    Scalar(String),
}

impl Json {
    fn parse(text: &str) -> Result<Json, serde_json::Error> {
        match text.as_bytes().first() {
            Some(b'{') => {
                let Entries(entries) = serde_json::from_str(text)?;
                let parsed =
                    entries.into_iter().map(|(name, value)| Ok((format!("{name:?}"), Json::parse(value.get())?)));
                Ok(Json::Object(parsed.collect::<Result<_, serde_json::Error>>()?))
            }
            Some(b'[') => {
                let values: Vec<&RawValue> = serde_json::from_str(text)?;
                Ok(Json::Array(values.into_iter().map(|value| Json::parse(value.get())).collect::<Result<_, _>>()?))
            }
            Some(b'"') if text.len() > MAX_STRING => {
                Ok(Json::Scalar(format!("{}…\"", text.chars().take(SHOWN).collect::<String>())))
            }
            _ => Ok(Json::Scalar(text.to_owned())),
        }
    }

    /// Returns the value on one line.
    fn line(&self) -> String {
        match self {
            Json::Object(fields) if fields.is_empty() => "{}".into(),
            Json::Object(fields) => {
                let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}: {}", value.line())).collect();
                format!("{{ {} }}", fields.join(", "))
            }
            Json::Array(values) => format!("[{}]", values.iter().map(Json::line).collect::<Vec<_>>().join(", ")),
            Json::Scalar(text) => text.clone(),
        }
    }

    /// Returns the value on as many lines as it needs. The first line is not indented.
    fn block(&self, indent: usize) -> String {
        let line = self.line();
        let (open, close, items): (_, _, Vec<String>) = match self {
            _ if indent + line.len() <= WIDTH => return line,
            Json::Scalar(_) => return line,
            Json::Object(fields) => {
                let item = |(name, value): &(String, Json)| format!("{name}: {}", value.block(indent + 2));
                ('{', '}', fields.iter().map(item).collect())
            }
            Json::Array(values) => ('[', ']', values.iter().map(|value| value.block(indent + 2)).collect()),
        };
        let inner = " ".repeat(indent + 2);
        let lines = fill(items, WIDTH.saturating_sub(indent + 2)).join(&format!(",\n{inner}"));
        format!("{open}\n{inner}{lines}\n{}{close}", " ".repeat(indent))
    }
}

/// Joins short items to lines of at most this width. An item of several lines stays alone.
fn fill(items: Vec<String>, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if !line.contains('\n') && !item.contains('\n') && line.len() + item.len() + 2 < width => {
                line.push_str(", ");
                line.push_str(&item);
            }
            _ => lines.push(item),
        }
    }
    lines
}

/// The fields of an object in the order of the text.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_fits_is_on_one_line_and_keeps_its_order() {
        assert_eq!(layout(r#"{"b":[1,2],"a":{},"c":null}"#).unwrap(), r#"{ "b": [1, 2], "a": {}, "c": null }"#);
        let long = "x".repeat(100);
        let text = layout(&format!(r#"{{"b":"{long}","a":{{"c":1}}}}"#)).unwrap();
        assert_eq!(text, format!("{{\n  \"b\": \"{long}\",\n  \"a\": {{ \"c\": 1 }}\n}}"));
    }

    #[test]
    fn short_fields_share_a_line() {
        let items = ["a", "bb", "c\nc", "dd"].map(str::to_owned).to_vec();
        assert_eq!(fill(items.clone(), 10), ["a, bb", "c\nc", "dd"]);
        assert_eq!(fill(items, 4), ["a", "bb", "c\nc", "dd"]);
    }

    #[test]
    fn a_long_string_is_shortened() {
        let text = layout(&format!("\"{}\"", "A".repeat(200))).unwrap();
        assert_eq!(text, format!("\"{}…\"", "A".repeat(SHOWN - 1)));
    }
}
