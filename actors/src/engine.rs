//! Layers around the engine port: a limit and a measurement for every call, claimed slots shown as their sandboxes, and
//! a fair queue in front of the expensive calls.

pub mod bounded;
pub mod claimed;
pub mod fair_queue;
