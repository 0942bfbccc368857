//! Files on the host: chat directories, request volumes, and the bounded worker pool that all of it runs on.

pub mod chat_directories;
pub mod file_system;
pub mod volumes;
