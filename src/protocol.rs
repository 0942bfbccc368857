//! The service's side of the protocol: JSON-RPC 2.0 over the socket, one message per line.
//!
//! The crate `sandboxd-protocol` defines the messages, and tests play its examples. The module is pure: it parses a
//! line into a [`request::RequestLine`] and a [`params::Call`], and encodes an [`answer::Answer`], an error or a
//! [`notification::Notification`] as a line.

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
