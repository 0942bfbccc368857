//! The core of sandboxd: domain types, pure state machines, the actors, and the ports that they need.
//!
//! The core knows no engine API, socket, file format or command line. It reaches the outside through ports:
//! [`ports::engine::Engine`], [`ports::probe::Probe`], [`ports::chat_directories::ChatDirectories`],
//! [`ports::guest::Guests`], [`ports::slot::Slots`], [`ports::clock::Clock`], [`journal::Journal`],
//! [`ports::images::Images`], [`ports::repositories::Sources`].

pub mod addresses;
pub mod builder;
pub mod chat;
pub mod domain;
pub mod engine;
pub mod journal;
pub mod pool;
pub mod ports;
pub mod reaper;
pub mod reconciler;
pub mod root;
pub mod sandboxes;
pub mod watcher;
