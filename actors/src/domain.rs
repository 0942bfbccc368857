//! The domain: the types that the rest of the core speaks in, and their rules. Each value is parsed once and cannot be
//! built wrong. No module in here has side effects.

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
