//! sandboxd: the service, its client, and their shared code. The actors are in the crate `sandboxd_actors`.

pub mod cli;
pub mod client;
pub mod config;
#[cfg(feature = "crash-points")]
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
