//! The core of sandboxd.
