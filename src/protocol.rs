//! What is said over the socket: JSON-RPC 2.0, one message per line.
//!
//! `docs/protocol.md` is the specification, and the tests hold this module to it. Everything in here is pure: a line
//! becomes a [`request::RequestLine`] and a [`params::Call`], an [`answer::Answer`] or an [`error::Error`] becomes a line,
//! and so does a [`notification::Notification`].

pub mod answer;
pub mod check;
pub mod content;
pub mod error;
mod escape;
pub mod guest;
pub mod images;
pub mod listing;
pub mod notification;
pub mod params;
pub mod pools;
pub mod request;
pub mod response;
mod words;
