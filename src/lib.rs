//! sandboxd, the service around the core.

pub mod cli;
pub mod client;
pub mod config;
#[cfg(debug_assertions)]
pub mod crash_points;
pub mod doctor;
pub mod engine;
pub mod guest;
pub mod images;
pub mod instance_lock;
pub mod journal;
pub mod languages;
pub mod probe;
pub mod profiles;
pub mod protocol;
pub mod server;
pub mod service;
pub mod storage;
pub mod systemd;
pub mod telemetry;
