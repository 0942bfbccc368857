//! The ports: the traits through which the core reaches the outside. The `sandboxd` crate implements them.

pub mod chat_directories;
pub mod clock;
pub mod engine;
pub mod guest;
pub mod images;
pub mod probe;
pub mod repositories;
pub mod slot;
