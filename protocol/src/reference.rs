//! The reference of the protocol for people: Markdown from the tables, the schemas and the examples.
//!
//! Descriptions are the doc comments of the types. `docs/protocol-reference.md` is this text; a test compares them.

mod layout;
pub(crate) mod order;
mod types;

use std::fmt::Write as _;

use self::layout::layout;
use self::types::Types;
use crate::error::{ErrorKind, StartFailureCause};
use crate::example::Example;
use crate::method::Method;
use crate::notification::Notification;

const HEAD: &str = "\
# Protocol reference

Generated from the types in [`protocol/`](../protocol): do not edit, but run
`UPDATE_REFERENCE=1 cargo test -p sandboxd-protocol`. [protocol.md](protocol.md) explains the protocol, and
[`protocol/schema.json`](../protocol/schema.json) has the same content as JSON Schema. The tests play every example.

Contents: [methods](#methods) · [notifications](#notifications) · [types](#types) · [words](#words) · [errors](#errors)
";

/// Returns the reference as Markdown. The error names an example that is not JSON.
pub fn document(examples: &[Example]) -> Result<String, serde_json::Error> {
    let types = Types::new()?;
    let mut text = HEAD.to_owned();
    text += "\n## Methods\n\n| method | role | purpose |\n|---|---|---|\n";
    for method in Method::ALL {
        let (link, role) = (link(method.name()), method.role());
        text += &format!("| {link} | {role} | {} |\n", method.summary());
    }
    for method in Method::ALL {
        text += &of_method(method, &types, examples)?;
    }
    text += &notifications(&types);
    text += "\n## Types\n\nEvery field of a result is present, and null if it is unknown or does not apply, unless its \
             meaning says that it is left out.\n";
    text += &types.objects();
    text += "\n## Words\n\nStrings with a fixed set of values. Later versions may add values.\n";
    text += &types.words(|name, word| {
        let causes = (name == "StartFailureCause").then_some(StartFailureCause::ALL)?;
        let cause = causes.into_iter().find(|cause| cause.as_str() == word)?;
        Some(("retryable", yes_or_no(cause.is_retryable())))
    });
    text += &errors(&types);
    Ok(text)
}

/// Returns the section of a method.
fn of_method(method: Method, types: &Types, examples: &[Example]) -> Result<String, serde_json::Error> {
    let mut text = format!("\n### `{}`\n\n{}\n", method.name(), method.summary());
    let description = method.description();
    if !description.is_empty() {
        text += &format!("\n{description}\n");
    }
    text += &format!("\n**Role**: {}\n", method.role());
    text += &types.params(method);
    text += &types.result(method);
    let streams: Vec<_> = method.streams().iter().map(|notification| quoted(notification.method())).collect();
    if !streams.is_empty() {
        text += &format!("\n**[Notifications](#notifications)**: {}\n", streams.join(", "));
    }
    let kinds: Vec<_> = method.errors().iter().map(|kind| quoted(kind.as_str())).collect();
    if !kinds.is_empty() {
        text += &format!("\n**[Errors](#errors)**: {}\n", kinds.join(", "));
    }
    text += &of_examples(method, examples)?;
    Ok(text)
}

/// Returns the examples of a method.
fn of_examples(method: Method, examples: &[Example]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for example in examples.iter().filter(|example| example.method == method) {
        let note = example.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
        text += &format!("\n**Example**{note}\n\n```json\n");
        for message in &example.messages {
            text += &format!("{}\n", layout(message)?);
        }
        text += "```\n";
    }
    Ok(text)
}

/// Returns the section of the notifications.
fn notifications(types: &Types) -> String {
    let mut text =
        "\n## Notifications\n\nMessages that the service sends ahead of the result of a request. The `id` in \
                    their `params` is the id of that request.\n\n\
                    | notification | of | meaning |\n|---|---|---|\n"
            .to_owned();
    for notification in Notification::ALL {
        let senders = Method::ALL.into_iter().filter(|method| method.streams().contains(&notification));
        let senders: Vec<_> = senders.map(|method| link(method.name())).collect();
        let (name, summary) = (notification.method(), notification.summary());
        let _ = writeln!(text, "| `{name}` | {} | {summary} |", senders.join(", "));
    }
    text += "\n| notification | further params | type | meaning |\n|---|---|---|---|\n";
    for notification in Notification::ALL {
        for row in types.notification_rows(notification) {
            let _ = writeln!(text, "| `{}` {row}", notification.method());
        }
    }
    text
}

/// Returns the section of the errors.
fn errors(types: &Types) -> String {
    let mut text = "\n## Errors\n\nEvery method may also answer the errors of the protocol, such as `invalid_params`, \
                    `unauthorized`, `shutting_down` and `internal`. Not every error has all its details.\n\n\
                    | kind | code | retryable | meaning | details |\n|---|---|---|---|---|\n"
        .to_owned();
    for kind in ErrorKind::ALL {
        let retryable = if kind.has_exceptions() { "depends" } else { yes_or_no(kind.is_retryable()) };
        let details = kind.details().iter().map(|(name, meaning)| format!("`{name}`: {}", types.with_links(meaning)));
        let details = details.collect::<Vec<_>>().join("; ");
        let (code, meaning) = (kind.code(), kind.description());
        let _ = writeln!(text, "| `{kind}` | {code} | {retryable} | {meaning} | {details} |");
    }
    text
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn quoted(word: &str) -> String {
    format!("`{word}`")
}

/// Returns a link to the section with this name.
fn link(name: &str) -> String {
    let anchor: String = name.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
    format!("[`{name}`](#{})", anchor.to_lowercase())
}
