//! Parses lines into requests: the JSON-RPC envelope, without the parameters.

mod scan;

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::error::Category;
use serde_json::value::RawValue;

use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::method::Method;

/// A well-formed request. Its parameters are not parsed yet.
#[derive(Debug)]
pub struct RequestLine<'a> {
    /// Absent in a notification, which is carried out but not answered.
    pub id: Option<Id>,
    pub method: Method,
    pub params: Option<&'a str>,
}

/// A line that is no request.
#[derive(Debug)]
pub struct RejectedLine {
    /// Absent for a notification, which is never answered.
    pub id: Option<Id>,
    pub error: Error,
}

/// The id of a request: the JSON text of a string, a number or null, returned in the answer unchanged.
#[derive(Debug, Clone)]
pub struct Id(Option<Box<RawValue>>);

impl Id {
    /// The id in the answer to a line without a readable id.
    pub const NULL: Id = Id(None);

    /// The maximum length. An id is stored for every active request, so it must be far shorter than a line.
    pub const MAX_BYTES: usize = 256;

    pub fn as_json(&self) -> &RawValue {
        self.0.as_deref().unwrap_or(RawValue::NULL)
    }
}

pub fn parse(line: &[u8]) -> Result<RequestLine<'_>, RejectedLine> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let message = format!("not UTF-8 after {} bytes of the line", error.valid_up_to());
        RejectedLine { id: Some(scan::id_in(line)), error: ErrorKind::ParseError.error(message) }
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
            let error = ErrorKind::MethodNotFound.error(format!("there is no method {shown:?}; there are {known}"));
            Err(RejectedLine { id, error })
        }
    }
}

/// A string that is borrowed from the line unless it has escapes. (In an `Option`, a bare `Cow` never borrows.)
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

/// Deserializes null as a value, unlike `Option`: an id of null differs from an absent id.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

fn identify(raw: &RawValue) -> Result<Id, Error> {
    let text = raw.get();
    if !text.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9' | 'n')) {
        return Err(ErrorKind::InvalidRequest.error("id must be a string, a number or null"));
    }
    if text.len() > Id::MAX_BYTES {
        return Err(ErrorKind::InvalidRequest.error(format!("id must be at most {} bytes long", Id::MAX_BYTES)));
    }
    Ok(Id(Some(raw.to_owned())))
}

/// Returns the id of a request of which only the beginning is known.
pub fn id_in_prefix(prefix: &[u8]) -> Id {
    scan::id_in(prefix)
}

/// Distinguishes invalid JSON from an invalid request, and finds the id if it is readable.
fn malformed(text: &str, error: &serde_json::Error) -> RejectedLine {
    #[derive(serde::Deserialize)]
    struct Identified<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        id: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Identified<'_>>(text) {
        Err(error) if error.classify() != Category::Data => RejectedLine {
            id: Some(scan::id_in(text.as_bytes())),
            error: ErrorKind::ParseError.error(error.to_string()),
        },
        Err(error) => invalid(None, error.to_string()),
        Ok(found) => invalid(found.id.and_then(|id| identify(id).ok()), error.to_string()),
    }
}

fn not_an_object(text: &str) -> Error {
    match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => ErrorKind::ParseError.error(error.to_string()),
        Ok(_) if text.trim_start().starts_with('[') => {
            ErrorKind::InvalidRequest.error("batches are not supported: send each request on a line of its own")
        }
        Ok(_) => ErrorKind::InvalidRequest.error("a request must be an object"),
    }
}

/// Rejects an invalid request. It is answered even without an id, which the caller may have left out by mistake.
fn invalid(id: Option<Id>, message: String) -> RejectedLine {
    RejectedLine { id: Some(id.unwrap_or(Id::NULL)), error: ErrorKind::InvalidRequest.error(message) }
}

fn unidentified(error: Error) -> RejectedLine {
    RejectedLine { id: Some(Id::NULL), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (String, ErrorKind) {
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
    fn invalid_json_and_invalid_requests_are_distinguished() {
        let null = "null".to_owned();
        for line in ["", "{", "[", "nul", r#"{"method":1"#, r#"{"jsonrpc":"2.0"}x"#] {
            assert_eq!(refused(line), (null.clone(), ErrorKind::ParseError), "{line}");
        }
        for line in ["1", "null", "[]", r#"["2.0",1,"system.info"]"#, "{}", r#"{"id":{},"method":"system.info"}"#] {
            assert_eq!(refused(line), (null.clone(), ErrorKind::InvalidRequest), "{line}");
        }
    }

    #[test]
    fn a_line_with_an_error_after_its_id_is_answered_with_the_id() {
        for line in [r#"{"id":1,"method":1"#, r#"{"id":1}x"#, r#"{"method":"m","id":1,"params":{"a":tru}}"#] {
            assert_eq!(refused(line), ("1".to_owned(), ErrorKind::ParseError), "{line}");
        }
        let refused = parse(b"{\"id\":1,\"method\":\"\xff\"}").expect_err("not UTF-8");
        assert_eq!(refused.id.expect("an id").as_json().get(), "1");
    }

    #[test]
    fn an_invalid_request_is_answered_with_its_id() {
        for line in [
            r#"{"id":"x","method":"system.info"}"#,
            r#"{"id":"x","jsonrpc":"1.0","method":"system.info"}"#,
            r#"{"id":"x","jsonrpc":2.0,"method":"system.info"}"#,
            r#"{"id":"x","jsonrpc":"2.0"}"#,
            r#"{"id":"x","jsonrpc":"2.0","method":7}"#,
            r#"{"jsonrpc":"2.0","method":"system.info","parms":{},"id":"x"}"#,
        ] {
            assert_eq!(refused(line), (r#""x""#.to_owned(), ErrorKind::InvalidRequest), "{line}");
        }
    }

    #[test]
    fn an_endless_id_is_refused() {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"system.info"}}"#, "x".repeat(Id::MAX_BYTES));
        assert_eq!(refused(&line), ("null".to_owned(), ErrorKind::InvalidRequest));
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = "[".repeat(200_000) + &"]".repeat(200_000);
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"sandbox.get","params":{deep}}}"#);
        assert_eq!(parse(line.as_bytes()).expect("valid").params.map(str::len), Some(400_000));
    }
}
