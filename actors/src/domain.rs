//! The domain types and their rules. Each value is parsed once and is always valid. The modules have no side effects.

pub mod container;
pub mod create_request;
pub mod ended;
pub mod environment;
pub mod hash;
pub mod host_path;
pub mod ids;
pub mod labels;
pub mod outcome;
pub mod profile;
pub mod sandbox;
pub mod snapshot;
pub mod subnet;
