//! The service under systemd: its units, the socket that outlives it, and what it says about itself.

mod activation;
mod files;
mod host;
mod machine;
mod notification;
mod systemd;
