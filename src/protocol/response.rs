//! Encoding of answers as lines.

use std::collections::VecDeque;

use sandboxd_protocol::error::Error;
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::{Answer, Trailing};
use super::content::{Form, StoredContent};
use super::request::Id;

/// A line that is written piece by piece. The memory of each piece is released when it is written.
#[derive(Debug, Default)]
pub struct Line {
    parts: VecDeque<Part>,
}

#[derive(Debug)]
enum Part {
    Json(Vec<u8>),
    /// Content whose quotation marks are in the parts before and after it.
    Content(Form, StoredContent),
}

impl Line {
    /// Returns the number of bytes that are not written yet.
    pub fn unwritten_bytes(&self) -> usize {
        let unwritten_bytes = |part: &Part| match part {
            Part::Json(bytes) => bytes.len(),
            Part::Content(_, stored) => stored.len(),
        };
        self.parts.iter().map(unwritten_bytes).sum()
    }

    /// Appends the next piece. Returns false once no piece is left.
    pub fn put_piece(&mut self, out: &mut Vec<u8>) -> bool {
        loop {
            match self.parts.front_mut() {
                None => return false,
                Some(Part::Json(bytes)) => {
                    out.append(bytes);
                    self.parts.pop_front();
                    return true;
                }
                Some(Part::Content(form, stored)) => {
                    if stored.put_chunk(*form, out) {
                        return true;
                    }
                    self.parts.pop_front();
                }
            }
        }
    }

    /// Returns the whole line.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.put_piece(&mut bytes) {}
        bytes
    }

    fn put(&mut self, json: &[u8]) {
        match self.parts.back_mut() {
            Some(Part::Json(bytes)) => bytes.extend_from_slice(json),
            _ => self.parts.push_back(Part::Json(json.to_vec())),
        }
    }

    fn put_trailing(&mut self, Trailing { opening, content, closing }: Trailing) {
        self.put(b",");
        self.put(opening.as_bytes());
        match content {
            None => self.put(br#""text":null,"base64":null"#),
            Some(stored) => {
                let form = stored.form();
                let (before, after): (&[u8], &[u8]) = match form {
                    Form::Text => (br#""text":""#, br#"","base64":null"#),
                    Form::Base64 => (br#""text":null,"base64":""#, br#"""#),
                };
                self.put(before);
                self.parts.push_back(Part::Content(form, stored));
                self.put(after);
            }
        }
        self.put(closing.as_bytes());
    }
}

/// Encodes an answer or an error as a line, with its newline.
pub fn encode(id: &Id, mut outcome: Result<Answer, Error>) -> Line {
    let trailing = outcome.as_mut().map_or_else(|_| Vec::new(), Answer::trailing);
    let (result, error) = match &outcome {
        Ok(answer) => (Some(answer), None),
        Err(error) => (None, Some(error)),
    };
    let mut json = Vec::with_capacity(1024);
    serde_json::to_writer(&mut json, &Response { jsonrpc: "2.0", id: id.as_json(), result, error })
        .expect("strings, numbers and maps with string keys can be written to memory");
    // The content follows the other fields of the result: the ends of the result and of the line are appended last.
    json.truncate(json.len() - 2);
    let mut line = Line { parts: VecDeque::from([Part::Json(json)]) };
    for part in trailing {
        line.put_trailing(part);
    }
    line.put(b"}}\n");
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
