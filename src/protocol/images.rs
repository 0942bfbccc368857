//! Requests about images.

use std::collections::BTreeMap;

use sandboxd_actors::ports::images::Image;
use sandboxd_protocol::error::Error;
use sandboxd_protocol::image::{ImageBuildParams, ImagePullParams};

#[derive(Debug, PartialEq)]
pub enum ImageCall {
    List,
    Pull { image: String },
    Build(Box<ImageBuild>),
    Refresh { repository: String, force: bool },
    Prune { dry_run: bool },
}

#[derive(Debug, PartialEq)]
pub struct ImageBuild {
    /// The path as the caller wrote it.
    pub context: String,
    pub dockerfile: String,
    pub tag: String,
    pub arguments: BTreeMap<String, String>,
}

impl ImageCall {
    pub(super) fn pull(given: ImagePullParams) -> Result<Self, Error> {
        Ok(ImageCall::Pull { image: reference("image", given.image)? })
    }

    pub(super) fn build(given: ImageBuildParams) -> Result<Self, Error> {
        let tag = reference("tag", given.tag)?;
        if tag.contains('@') {
            return Err(Error::invalid_params("tag", "must be a name, not a digest"));
        }
        let dockerfile = given.dockerfile.unwrap_or_else(|| "Dockerfile".to_owned());
        if dockerfile.starts_with('/') || dockerfile.split('/').any(|part| part == "..") {
            return Err(Error::invalid_params("dockerfile", "must be a path within the context"));
        }
        let (tag, arguments) = (Image::full_tag(&tag), given.args.unwrap_or_default());
        Ok(ImageCall::Build(Box::new(ImageBuild { context: given.context, dockerfile, tag, arguments })))
    }
}

/// Checks that the name of an image is safe to pass to an engine.
fn reference(field: &str, text: String) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    match text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 512 && text.chars().all(plain) {
        true => Ok(text),
        false => Err(Error::invalid_params(field, "must be the name of an image, such as \"registry.local/app:1\"")),
    }
}
