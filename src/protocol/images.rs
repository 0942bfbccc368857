//! Images on the wire: what can be asked for, what is answered, and how far it has come.

use std::collections::BTreeMap;

use sandboxd_actors::builder::{Listed, Listing, Made, Pruned, RepositoryStatus};
use sandboxd_actors::ports::images::labels::Origin;
use sandboxd_actors::ports::images::{Image, Progress};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::fields::{NoFields, fields};
use super::method::Method;
use super::text::Time;

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
    /// As the caller wrote it.
    pub context: String,
    pub dockerfile: String,
    pub tag: String,
    pub arguments: BTreeMap<String, String>,
}

/// The call of a method about images; `None` for any other.
pub(super) fn parse(method: Method, params: &str) -> Result<Option<ImageCall>, Error> {
    let call = match method {
        Method::ImageList => fields::<NoFields>(params).map(|NoFields {}| ImageCall::List)?,
        Method::ImagePull => {
            let image = required("image", fields::<PullFields>(params)?.image)?;
            ImageCall::Pull { image: reference("image", image)? }
        }
        Method::ImageBuild => ImageCall::Build(Box::new(fields::<BuildFields>(params)?.checked()?)),
        Method::ImageRefresh => {
            let RefreshFields { repository, force } = fields(params)?;
            ImageCall::Refresh { repository: required("repository", repository)?, force: force.unwrap_or_default() }
        }
        Method::ImagePrune => {
            let PruneFields { dry_run } = fields(params)?;
            ImageCall::Prune { dry_run: dry_run.unwrap_or_default() }
        }
        _ => return Ok(None),
    };
    Ok(Some(call))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PullFields {
    image: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BuildFields {
    context: Option<String>,
    dockerfile: Option<String>,
    tag: Option<String>,
    args: Option<BTreeMap<String, String>>,
}

impl BuildFields {
    fn checked(self) -> Result<ImageBuild, Error> {
        let tag = reference("tag", required("tag", self.tag)?)?;
        if tag.contains('@') {
            return Err(Error::invalid_params("tag", "must be a name, not a digest"));
        }
        let dockerfile = self.dockerfile.unwrap_or_else(|| "Dockerfile".to_owned());
        if dockerfile.starts_with('/') || dockerfile.split('/').any(|part| part == "..") {
            return Err(Error::invalid_params("dockerfile", "must be a path within the context"));
        }
        Ok(ImageBuild {
            context: required("context", self.context)?,
            dockerfile,
            tag: Image::full_tag(&tag),
            arguments: self.args.unwrap_or_default(),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefreshFields {
    repository: Option<String>,
    force: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PruneFields {
    dry_run: Option<bool>,
}

fn required(field: &str, value: Option<String>) -> Result<String, Error> {
    value.ok_or_else(|| Error::invalid_params(field, "is required"))
}

/// The name of an image, as far as it is safe to hand to an engine.
fn reference(field: &str, text: String) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    match text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 512 && text.chars().all(plain) {
        true => Ok(text),
        false => Err(Error::invalid_params(field, "must be the name of an image, such as \"registry.local/app:1\"")),
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ImageAnswer {
    Listing(ListingFields),
    Made(MadeFields),
    Pruned(PrunedFields),
}

#[derive(Debug, Serialize)]
pub struct ListingFields {
    images: Vec<ImageFields>,
    repositories: Vec<RepositoryFields>,
}

impl From<Listing> for ListingFields {
    fn from(listing: Listing) -> Self {
        Self {
            images: listing.images.into_iter().map(ImageFields::from).collect(),
            repositories: listing.repositories.into_iter().map(RepositoryFields::from).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct ImageFields {
    image_id: String,
    tags: Vec<String>,
    bytes: u64,
    created_at: Time,
    /// Who made it.
    origin: &'static str,
    repository: Option<String>,
    commit: Option<String>,
    built_at: Option<Time>,
    stale: Option<bool>,
    profiles: Vec<String>,
}

impl From<Listed> for ImageFields {
    fn from(Listed { image, origin, stale, profiles }: Listed) -> Self {
        let name = match &origin {
            None => "other",
            Some(Origin { source: None, .. }) => "build",
            Some(Origin { source: Some(_), .. }) => "repository",
        };
        let built_at = origin.as_ref().map(|origin| Time(origin.built_at));
        let (repository, commit) =
            origin.and_then(|origin| origin.source).map(|source| (source.repository, source.commit)).unzip();
        let Image { id: image_id, tags, bytes, created_at, .. } = image;
        let created_at = Time(created_at);
        Self { image_id, tags, bytes, created_at, origin: name, repository, commit, built_at, stale, profiles }
    }
}

#[derive(Debug, Serialize)]
struct RepositoryFields {
    repository: String,
    branch: String,
    image: String,
    image_id: Option<String>,
    commit: Option<String>,
    built_at: Option<Time>,
    /// Where the branch was last seen.
    head: Option<String>,
    checked_at: Option<Time>,
    stale: bool,
    building: bool,
    failure: Option<FailureFields>,
}

#[derive(Debug, Serialize)]
struct FailureFields {
    at: Time,
    message: String,
}

impl From<RepositoryStatus> for RepositoryFields {
    fn from(status: RepositoryStatus) -> Self {
        let RepositoryStatus { repository, standing, image, stale, building } = status;
        let (image_id, origin) = image.unzip();
        let built_at = origin.as_ref().map(|origin| Time(origin.built_at));
        let failure =
            standing.failure.map(|failure| FailureFields { at: Time(failure.at), message: failure.error.to_string() });
        Self {
            repository: repository.name.clone(),
            branch: repository.branch.clone(),
            image: repository.tag.clone(),
            image_id,
            commit: origin.and_then(|origin| origin.source).map(|source| source.commit),
            built_at,
            head: standing.head,
            checked_at: standing.looked_at.map(Time),
            stale,
            building,
            failure,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct MadeFields {
    image: String,
    image_id: String,
    commit: Option<String>,
    changed: bool,
}

impl From<Made> for MadeFields {
    fn from(Made { image, id, commit, changed }: Made) -> Self {
        Self { image, image_id: id, commit, changed }
    }
}

#[derive(Debug, Serialize)]
pub struct PrunedFields {
    dry_run: bool,
    removed: Vec<RemovedFields>,
    build_cache_bytes: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct RemovedFields {
    image_id: String,
    tags: Vec<String>,
    bytes: u64,
}

impl PrunedFields {
    pub fn of(pruned: Pruned, dry_run: bool) -> Self {
        let bytes = pruned.bytes();
        let fields = |image: Image| RemovedFields { image_id: image.id, tags: image.tags, bytes: image.bytes };
        let removed = pruned.images.into_iter().map(fields).collect();
        Self { dry_run, removed, build_cache_bytes: pruned.build_cache_bytes, bytes }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ProgressFields<'a> {
    message: &'a str,
    layer: Option<&'a str>,
    done_bytes: Option<u64>,
    total_bytes: Option<u64>,
}

impl<'a> From<&'a Progress> for ProgressFields<'a> {
    fn from(progress: &'a Progress) -> Self {
        let Progress { message, layer, done_bytes, total_bytes } = progress;
        Self { message, layer: layer.as_deref(), done_bytes: *done_bytes, total_bytes: *total_bytes }
    }
}
