//! sandboxd, the service around the core.

pub mod base_image;
pub mod chat_directories;
pub mod cli;
pub mod client;
pub mod config;
#[cfg(debug_assertions)]
pub mod crash_points;
pub mod credentials;
pub mod doctor;
pub mod engine;
pub mod file_system;
pub mod host_paths;
pub mod instance_lock;
pub mod interiors;
pub mod journal;
pub mod languages;
pub mod probe;
pub mod profiles;
pub mod protocol;
pub mod repositories;
pub mod server;
pub mod service;
pub mod systemd;
pub mod telemetry;
pub mod workshop;
