//! The effects of a chat: tasks that the lifecycle asks for. Each one calls the ports and returns one outcome.

pub mod discover;
pub mod launch;
pub mod pause;
pub mod readiness;
pub mod snapshot;
pub mod teardown;
