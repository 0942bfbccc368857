//! The core of sandboxd: domain types, pure state machines, the actors, and the ports they need.
//!
//! Nothing in here knows an engine's API, a socket, a file format or a command line. What the core needs of the outside
//! it asks for through ports: [`engine::Engine`], [`probe::Probe`], [`directories::ChatDirectories`],
//! [`interior::Guests`], [`slot::Slots`], [`clock::Clock`], [`journal::Journal`], [`images::Images`],
//! [`sources::Sources`].

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
