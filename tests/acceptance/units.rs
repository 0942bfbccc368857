//! Tests of the service under systemd: its units, socket activation and notifications.

mod activation;
mod files;
mod host;
mod machine;
mod notification;
mod systemd;
