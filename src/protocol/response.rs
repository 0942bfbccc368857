//! From an answer to a line.

use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::Answer;
use super::error::Error;
use super::request::Id;

/// The whole line, with its end.
pub fn encode(id: &Id, outcome: &Result<Answer, Error>) -> Vec<u8> {
    let (result, error) = match outcome {
        Ok(answer) => (Some(answer), None),
        Err(error) => (None, Some(error)),
    };
    let mut line = Vec::with_capacity(1024);
    serde_json::to_writer(&mut line, &Response { jsonrpc: "2.0", id: id.as_json(), result, error })
        .expect("strings, numbers and maps with string keys can be written to memory");
    line.push(b'\n');
    line
}

#[derive(Serialize)]
struct Response<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Error>,
}
