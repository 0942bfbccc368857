//! sandboxd, the service around the core.
