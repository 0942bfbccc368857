//! The wire of sandboxd: the one definition of every request, result, notification and error.
//!
//! The service speaks JSON-RPC 2.0, one message per line, over a Unix socket. Each message body is a serde type of this
//! crate with a JSON Schema; [`method::Method`] is the table of methods, [`notification::Notification`] that of the
//! notifications and [`error::ErrorKind`] that of the errors. [`schema::document`] turns all three into one JSON Schema
//! document, whose descriptions are the doc comments of the types; [`reference::document`] writes the same for people,
//! with the [examples](example::all).
//!
//! Conventions of the types:
//!
//! - Parameters refuse unknown fields. An optional parameter that is null counts as absent, and is left out when it is
//!   serialised.
//! - Results contain every field; a field whose value is unknown or does not apply is null. A field that is left out
//!   instead says so.
//! - Ids are strings. The service accepts any usual spelling of a UUID and answers with the canonical one.
//! - Durations are [`time::Seconds`], points in time are [`time::Time`].

#![forbid(unsafe_code)]

mod text;
mod words;

pub mod command;
pub mod empty;
pub mod error;
pub mod event;
pub mod example;
pub mod file;
pub mod guest;
pub mod image;
pub mod method;
pub mod notification;
pub mod parse;
pub mod pool;
pub mod reference;
pub mod sandbox;
pub mod schema;
pub mod snapshot;
pub mod system;
pub mod time;

/// Version of the protocol, which rises with every change that breaks a caller.
pub const VERSION: u32 = 1;
