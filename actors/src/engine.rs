//! The engine port as the core uses it: every call bounded and measured, claimed slots shown as their sandboxes, and a
//! fair queue in front of the expensive calls.

pub mod bounded;
pub mod claimed;
pub mod fair_queue;
