//! Tests of the whole service on a real engine: the program, its socket and its containers.

#[path = "../support/containers.rs"]
mod containers;
#[path = "../support/create_params.rs"]
mod create_params;
#[path = "../support/daemon.rs"]
mod daemon;
#[path = "../support/engine.rs"]
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
mod engine_conformance;
mod engine_trouble;
mod fallback;
mod first_use;
mod guest;
mod hanging_volumes;
mod images;
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
mod private_engine;
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
