//! Examples: messages as they are on the wire, in the order in which the tests play them.

use serde::Deserialize;

use crate::method::Method;

/// The file of examples. A line is the head of an example, or a message of the example before it.
const FILE: &str = include_str!("../examples.jsonl");

/// Messages that show a method.
#[derive(Debug, Clone)]
pub struct Example {
    /// The method that the example belongs to.
    pub method: Method,
    /// The circumstances of the example.
    pub note: Option<String>,
    /// Whether the messages are played in sequence with those of the other examples. Another test covers the rest.
    pub is_played: bool,
    /// JSON texts of the requests, answers and notifications.
    pub messages: Vec<&'static str>,
}

/// Head of an example in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    example: String,
    note: Option<String>,
    played: Option<bool>,
}

/// Returns all examples in playing order. The error names the line.
pub fn all() -> Result<Vec<Example>, String> {
    let mut examples: Vec<Example> = Vec::new();
    for (number, line) in (1..).zip(FILE.lines()) {
        if line.starts_with(r#"{"example":"#) {
            let head: Head = serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
            let Some(method) = Method::from_name(&head.example) else {
                return Err(format!("line {number}: unknown method {}", head.example));
            };
            let is_played = head.played.unwrap_or(true);
            examples.push(Example { method, note: head.note, is_played, messages: Vec::new() });
        } else {
            let example = examples.last_mut().ok_or(format!("line {number}: a message before the first example"))?;
            example.messages.push(line);
        }
    }
    Ok(examples)
}
