//! Storage on the host: chat directories, volumes, and the bounded worker pool for file system calls.

pub mod chat_directories;
pub mod file_system;
pub mod volumes;
