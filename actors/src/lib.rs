//! The core of sandboxd: domain types, pure state machines, the actors, and the ports they need.
//!
//! Nothing in here knows an engine's API, a socket, a file format or a command line. What the core needs of the outside
//! it asks for through ports: [`engine::Engine`], [`probe::Probe`], [`directories::ChatDirectories`],
//! [`interior::Interiors`], [`slot::Slots`], [`clock::Clock`], [`journal::Journal`], [`images::Images`],
//! [`sources::Sources`].

pub mod builder;
pub mod chat;
pub mod claims;
pub mod clock;
pub mod container;
pub mod directories;
pub mod ended;
pub mod engine;
pub mod environment;
pub mod hash;
pub mod host_path;
pub mod ids;
pub mod images;
pub mod interior;
pub mod journal;
pub mod labels;
pub mod outcome;
pub mod pool;
pub mod probe;
pub mod profile;
pub mod reaper;
pub mod reconciler;
pub mod request;
pub mod root;
pub mod sandbox;
pub mod sandboxes;
pub mod slot;
pub mod snapshot;
pub mod sources;
pub mod watcher;
