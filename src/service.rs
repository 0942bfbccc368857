//! The one place where everything is put together.
