//! Images: the base image, the settings of the image builder, repositories of source code, and credentials for them.

pub mod base;
pub mod builder;
pub mod credentials;
pub mod repositories;
