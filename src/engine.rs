//! The engines that carry the sandboxes: adapters of the core's [`Engine`](sandboxd_actors::engine::Engine) port.

pub mod claimed;
pub mod condition;
pub mod docker;
pub mod inside;
pub mod private;
