//! sandboxd, the service around the core.

pub mod config;
pub mod engine;
pub mod profiles;
pub mod telemetry;
