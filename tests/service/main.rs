//! Tests of the service in one process: a real socket, a real journal and a fake engine.

#[path = "../support/in_process.rs"]
mod support;

mod code;
mod config;
mod connections;
mod deadlines;
mod events;
mod guest;
mod hostile_guest;
mod journal;
mod links;
mod logs_and_stats;
mod protocol_bytes;
mod protocol_docs;
mod read_only;
mod sandboxctl;
mod sandboxctl_guest;
mod start_up;
mod trees;
