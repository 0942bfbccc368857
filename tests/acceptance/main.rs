//! The whole service from outside, on a real engine: the program itself, its socket, its containers.

#[path = "../support/containers.rs"]
mod containers;
#[path = "../support/create_params.rs"]
mod create_params;
#[path = "../support/daemon.rs"]
mod daemon;
#[path = "../support/engine.rs"]
#[allow(dead_code, reason = "the tests of the engine need the rest")]
mod engine;
#[path = "../support/engine_place.rs"]
mod engine_place;
#[path = "../support/gate.rs"]
mod gate;
#[path = "../support/hanging_mount.rs"]
mod hanging_mount;
#[path = "../support/installation.rs"]
mod installation;
#[path = "../support/interposed_engine.rs"]
mod interposed_engine;
#[path = "../support/network.rs"]
mod network;
#[path = "../support/private_dockerd.rs"]
mod private_dockerd;

mod admission;
mod callers;
mod commands;
mod container;
mod deletion;
mod disk_full;
mod doctor;
mod engine_trouble;
mod fallback;
mod first_use;
mod hanging_volumes;
mod images;
mod inside;
#[cfg(debug_assertions)]
mod kills;
mod lifecycle;
mod load;
mod logs_and_stats;
mod memory;
mod observability;
mod one_binary;
mod outage;
mod pause;
mod pool;
mod propagation;
mod python_and_git;
mod readiness;
mod restart;
mod snapshots;
mod swapped_volumes;
mod trees;
mod two_daemons;
mod units;
mod unread;
mod volumes;
