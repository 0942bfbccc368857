//! What sandbox-init and the service say to each other, and what both of them do.
//!
//! Init connects out to the service's socket, says who it is ([`wire::Hello`]), and from then on is handed one end of a
//! socket pair for each **conversation** (a byte with a descriptor attached). A conversation is one request, whatever
//! follows from it, and an end: each has a socket of its own, so none waits for another and the kernel holds back
//! whoever is too fast.

pub mod codec;
pub mod own_process;
pub mod tar;
pub mod tree;
pub mod wire;
