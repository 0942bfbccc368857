//! From a line to a request: the envelope that JSON-RPC prescribes.

mod scan;

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::error::Category;
use serde_json::value::RawValue;

use sandboxd_protocol::method::Method;

use super::error::{Error, Kind};

/// A well-formed request. Its parameters are not looked at yet.
#[derive(Debug)]
pub struct RequestLine<'a> {
    /// Absent in a notification, which is carried out but not answered.
    pub id: Option<Id>,
    pub method: Method,
    pub params: Option<&'a str>,
}

/// A line that is no request.
#[derive(Debug)]
pub struct Refused {
    /// Absent for a notification, which is not answered even then.
    pub id: Option<Id>,
    pub error: Error,
}

/// What the caller recognises its answer by: the JSON text of a string, a number or null, given back as it came.
#[derive(Debug, Clone)]
pub struct Id(Option<Box<RawValue>>);

impl Id {
    /// For a line whose id could not be found out.
    pub const NULL: Id = Id(None);

    /// Held for every request under way, so it must not be as long as a line may be.
    pub const MAX_BYTES: usize = 256;

    pub fn as_json(&self) -> &RawValue {
        self.0.as_deref().unwrap_or(RawValue::NULL)
    }
}

pub fn parse(line: &[u8]) -> Result<RequestLine<'_>, Refused> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let message = format!("not UTF-8 after {} bytes of the line", error.valid_up_to());
        Refused { id: Some(scan::id_in(line)), error: Kind::ParseError.error(message) }
    })?;
    if !text.trim_start().starts_with('{') {
        return Err(unidentified(not_an_object(text)));
    }
    let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|error| malformed(text, &error))?;
    let id = envelope.id.map(identify).transpose().map_err(unidentified)?;
    if envelope.jsonrpc.as_ref().is_none_or(|version| version.0 != "2.0") {
        return Err(invalid(id, r#"jsonrpc must be "2.0""#.to_owned()));
    }
    let Some(Text(method)) = envelope.method else {
        return Err(invalid(id, "method is missing".to_owned()));
    };
    match Method::from_name(&method) {
        Some(method) => Ok(RequestLine { id, method, params: envelope.params.map(RawValue::get) }),
        None => {
            let known = Method::ALL.map(Method::name).join(", ");
            let shown: String = method.chars().take(64).collect();
            let error = Kind::MethodNotFound.error(format!("there is no method {shown:?}; there are {known}"));
            Err(Refused { id, error })
        }
    }
}

/// A string that is borrowed from the line unless it has escapes. (Within an `Option`, a bare `Cow` never borrows.)
#[derive(serde::Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Text<'a>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Unlike `Option`'s own reading, takes null for a value: an id that is null is not an id that is absent.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

fn identify(raw: &RawValue) -> Result<Id, Error> {
    let text = raw.get();
    if !text.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9' | 'n')) {
        return Err(Kind::InvalidRequest.error("id must be a string, a number or null"));
    }
    if text.len() > Id::MAX_BYTES {
        return Err(Kind::InvalidRequest.error(format!("id must be at most {} bytes long", Id::MAX_BYTES)));
    }
    Ok(Id(Some(raw.to_owned())))
}

/// The id of a request of which only the beginning is known.
pub fn id_in_prefix(prefix: &[u8]) -> Id {
    scan::id_in(prefix)
}

/// Tells text that is no JSON from JSON that is no request, and finds the id of either where it can be read.
fn malformed(text: &str, error: &serde_json::Error) -> Refused {
    #[derive(serde::Deserialize)]
    struct Identified<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        id: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Identified<'_>>(text) {
        Err(error) if error.classify() != Category::Data => {
            Refused { id: Some(scan::id_in(text.as_bytes())), error: Kind::ParseError.error(error.to_string()) }
        }
        Err(error) => invalid(None, error.to_string()),
        Ok(found) => invalid(found.id.and_then(|id| identify(id).ok()), error.to_string()),
    }
}

fn not_an_object(text: &str) -> Error {
    match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => Kind::ParseError.error(error.to_string()),
        Ok(_) if text.trim_start().starts_with('[') => {
            Kind::InvalidRequest.error("batches are not supported: send each request on a line of its own")
        }
        Ok(_) => Kind::InvalidRequest.error("a request must be an object"),
    }
}

/// An invalid request is answered even without an id: it may have been meant to have one.
fn invalid(id: Option<Id>, message: String) -> Refused {
    Refused { id: Some(id.unwrap_or(Id::NULL)), error: Kind::InvalidRequest.error(message) }
}

fn unidentified(error: Error) -> Refused {
    Refused { id: Some(Id::NULL), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (String, Kind) {
        let refused = parse(line.as_bytes()).expect_err(line);
        (refused.id.expect(line).as_json().get().to_owned(), refused.error.data.kind)
    }

    #[test]
    fn a_request_keeps_its_id_as_it_was_written() {
        for id in ["7", "-0.50", "1e400", r#""a""#, r#""\u00e9""#, "null"] {
            let line = format!(r#" {{"id":{id},"method":"system.info","jsonrpc":"2.0"}} "#);
            let request = parse(line.as_bytes()).expect(id);
            assert_eq!(request.id.expect(id).as_json().get(), id);
            assert_eq!(request.method, Method::SystemInfo);
            assert_eq!(request.params, None);
        }
    }

    #[test]
    fn a_request_without_id_is_a_notification() {
        let request = parse(br#"{"jsonrpc":"2.0","method":"sandbox.get","params":{"chat_id":1}}"#).expect("valid");
        assert!(request.id.is_none());
        assert_eq!(request.params, Some(r#"{"chat_id":1}"#));
        let unknown = parse(br#"{"jsonrpc":"2.0","method":"no.such"}"#).expect_err("unknown method");
        assert!(unknown.id.is_none());
    }

    #[test]
    fn what_is_no_json_is_told_from_what_is_no_request() {
        let null = "null".to_owned();
        for line in ["", "{", "[", "nul", r#"{"method":1"#, r#"{"jsonrpc":"2.0"}x"#] {
            assert_eq!(refused(line), (null.clone(), Kind::ParseError), "{line}");
        }
        for line in ["1", "null", "[]", r#"["2.0",1,"system.info"]"#, "{}", r#"{"id":{},"method":"system.info"}"#] {
            assert_eq!(refused(line), (null.clone(), Kind::InvalidRequest), "{line}");
        }
    }

    #[test]
    fn a_line_that_is_broken_behind_its_id_is_answered_by_it() {
        for line in [r#"{"id":1,"method":1"#, r#"{"id":1}x"#, r#"{"method":"m","id":1,"params":{"a":tru}}"#] {
            assert_eq!(refused(line), ("1".to_owned(), Kind::ParseError), "{line}");
        }
        let refused = parse(b"{\"id\":1,\"method\":\"\xff\"}").expect_err("not UTF-8");
        assert_eq!(refused.id.expect("an id").as_json().get(), "1");
    }

    #[test]
    fn an_invalid_request_is_answered_by_its_id_where_it_has_one() {
        for line in [
            r#"{"id":"x","method":"system.info"}"#,
            r#"{"id":"x","jsonrpc":"1.0","method":"system.info"}"#,
            r#"{"id":"x","jsonrpc":2.0,"method":"system.info"}"#,
            r#"{"id":"x","jsonrpc":"2.0"}"#,
            r#"{"id":"x","jsonrpc":"2.0","method":7}"#,
            r#"{"jsonrpc":"2.0","method":"system.info","parms":{},"id":"x"}"#,
        ] {
            assert_eq!(refused(line), (r#""x""#.to_owned(), Kind::InvalidRequest), "{line}");
        }
    }

    #[test]
    fn an_endless_id_is_refused() {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"system.info"}}"#, "x".repeat(Id::MAX_BYTES));
        assert_eq!(refused(&line), ("null".to_owned(), Kind::InvalidRequest));
    }

    #[test]
    fn nesting_without_end_is_no_danger() {
        let deep = "[".repeat(200_000) + &"]".repeat(200_000);
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"sandbox.get","params":{deep}}}"#);
        assert_eq!(parse(line.as_bytes()).expect("valid").params.map(str::len), Some(400_000));
    }
}
