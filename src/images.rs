//! Images: the base image, the setup of the image builder, source repositories, and credentials.

pub mod base;
pub mod builder;
pub mod credentials;
pub mod repositories;
