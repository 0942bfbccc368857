//! The port to repositories of source code: what is at the head of a branch, and its files in a directory of the host.

use std::path::PathBuf;

use async_trait::async_trait;

use crate::builder::repository_image::Repository;
use crate::ports::images::ImageError;

#[async_trait]
pub trait Sources: Send + Sync + 'static {
    /// The commit that the branch is at.
    async fn head(&self, repository: &Repository) -> Result<String, ImageError>;

    /// The files of the branch as it is now.
    async fn check_out(&self, repository: &Repository) -> Result<Checkout, ImageError>;
}

#[derive(Debug)]
pub struct Checkout {
    pub directory: PathBuf,
    pub commit: String,
    /// The directory is there for as long as this is.
    pub held: Box<dyn Held>,
}

/// What removes a checkout when it is dropped.
pub trait Held: Send + Sync + std::fmt::Debug {}
