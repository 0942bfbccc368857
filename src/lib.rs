//! sandboxd, the service around the core.

pub mod config;
