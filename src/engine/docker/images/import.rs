//! Imports an image from one archive, without a build.

use std::io;

use bollard::query_parameters::CreateImageOptions;
use futures_util::{Stream, StreamExt, TryStreamExt};
use sandboxd_actors::ports::images::{ImageError, Images as _};

use super::{docker, failed, id_of, remove_unnamed};
use crate::engine::docker::DockerEngine;

impl DockerEngine {
    /// Creates an image from a root file system and returns its id. The instructions are those of a Dockerfile. An
    /// archive that ends with an error leaves no image. The image that had the tag before is removed, unless it has
    /// another name or a container uses it.
    pub async fn import_image(
        &self,
        tag: &str,
        instructions: Vec<String>,
        archive: impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static,
    ) -> Result<String, ImageError> {
        let docker = docker(self).await?;
        let before = self.inspect(tag).await?;
        let (repository, version) = tag.rsplit_once(':').unwrap_or((tag, "latest"));
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(repository.to_owned()),
            tag: Some(version.to_owned()),
            changes: instructions,
            ..Default::default()
        };
        let body = bollard::body_try_stream(archive.map_ok(Into::into));
        let mut messages = docker.create_image(Some(options), Some(body), None).boxed();
        while messages.try_next().await.map_err(failed)?.is_some() {}
        let id = id_of(docker, tag).await?;
        if let Some(before) = before.filter(|before| before.id != id) {
            remove_unnamed(docker, &before.id).await;
        }
        Ok(id)
    }
}
