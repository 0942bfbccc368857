//! Layers around the engine port: a limit and a measurement for every call, and a fair queue in front of the expensive
//! calls.

pub mod bounded;
pub mod fair_queue;
