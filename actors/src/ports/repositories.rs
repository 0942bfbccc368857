//! The port to repositories of source code: the head of a branch, and a checkout of its files on the host.

use std::path::PathBuf;

use async_trait::async_trait;

use crate::builder::repository_image::Repository;
use crate::ports::images::ImageError;

/// Reads repositories.
#[async_trait]
pub trait Sources: Send + Sync + 'static {
    /// Returns the commit at the head of the branch.
    async fn head(&self, repository: &Repository) -> Result<String, ImageError>;

    /// Checks out the head of the branch.
    async fn check_out(&self, repository: &Repository) -> Result<Checkout, ImageError>;
}

/// The files of a commit in a directory of the host.
#[derive(Debug)]
pub struct Checkout {
    pub directory: PathBuf,
    pub commit: String,
    /// Keeps the directory until it is dropped.
    pub guard: Box<dyn CheckoutGuard>,
}

/// A guard that removes a checkout when it is dropped.
pub trait CheckoutGuard: Send + Sync + std::fmt::Debug {}
