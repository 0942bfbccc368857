//! The protocol between sandbox-init and the service, and the code that both share.
//!
//! Init connects to the service's socket and identifies itself ([`wire::Hello`]). For each **guest stream**, the
//! service then passes it one end of a socket pair: a byte with a descriptor attached. A guest stream carries one
//! request, the frames that follow from it, and an end. Each stream has its own socket, so no stream waits for another,
//! and the kernel slows down a sender that is too fast.

pub mod codec;
pub mod own_process;
pub mod tar;
pub mod tree;
pub mod wire;
