//! `image base`: builds the base image on this host, with or without a service.

use std::io;
use std::process::Stdio;

use clap::Args;
use futures_util::stream::{self, Stream};
use sandboxd_actors::ports::images::{ImageError, Images as _};
use sandboxd_protocol::empty::NoParams;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::system::InfoResult;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::short_id;
use crate::cli::Exit;
use crate::cli::failure::CliError;
use crate::client::Client;
use crate::engine::docker::{DockerEngine, InvalidHost};
use crate::images::base;

/// The size of a chunk sent to the engine.
const CHUNK: usize = 256 << 10;

#[derive(Debug, Args)]
pub(in crate::cli) struct Base {
    /// Build the image again with the newest packages, even if it is up to date
    #[arg(long)]
    force: bool,
    /// Name of the image
    #[arg(long, short, value_name = "NAME[:TAG]", default_value = base::TAG)]
    tag: String,
    /// Engine, such as unix:///run/docker.sock; if not given, the service's engine or the one that it would find
    #[arg(long, value_name = "HOST")]
    engine: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum BaseImageError {
    #[error("--engine: {0}")]
    Host(#[from] InvalidHost),
    #[error("cannot build the base image: {0}")]
    Image(#[from] ImageError),
    #[error("cannot build the base image: bash: {0}")]
    Bash(io::Error),
    #[error("cannot build the base image; see the output above")]
    Script,
}

/// Builds the image unless it is up to date. The service is only asked for its engine.
pub(in crate::cli) async fn make(
    service: Option<&Client>,
    base: &Base,
    json: bool,
) -> Result<(Exit, String), CliError> {
    let host = match (&base.engine, service) {
        (Some(host), _) => host.clone(),
        (None, Some(service)) => engine_of(service).await.unwrap_or_else(|| "auto".to_owned()),
        (None, None) => "auto".to_owned(),
    };
    let (id, changed) = ensure(&host, base).await?;
    let tag = &base.tag;
    let shown = match json {
        true => json!({ "image": tag, "image_id": id, "changed": changed }).to_string(),
        false if changed => format!("{tag} ({})", short_id(&id)),
        false => format!("{tag} is up to date ({}); --force builds it again", short_id(&id)),
    };
    Ok((Exit::Done, shown + "\n"))
}

async fn engine_of(service: &Client) -> Option<String> {
    let info: InfoResult = service.call(Method::SystemInfo, NoParams {}).await.ok()?;
    Some(info.engine?.host)
}

/// Returns the id of the image, and whether it was built.
async fn ensure(host: &str, base: &Base) -> Result<(String, bool), BaseImageError> {
    let engine = DockerEngine::connect(host)?;
    let there = engine.inspect(&base.tag).await?;
    if let Some(image) = there.filter(|image| !base.force && base::is_up_to_date(image)) {
        return Ok((image.id, false));
    }
    let mut script = Command::new("bash")
        .args(["-c", base::SCRIPT, "debian-root"])
        .args(base::PACKAGES)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(BaseImageError::Bash)?;
    // The import starts with the first output, because the script prints only a complete root file system.
    let Some(first) = next_chunk(&mut script).await.map_err(BaseImageError::Bash)? else {
        return Err(BaseImageError::Script);
    };
    let id = engine.import_image(&base.tag, base::instructions(), archive(first, script)).await?;
    Ok((id, true))
}

/// Returns the script's output. If the script fails, the stream ends with an error, so that no incomplete archive
/// becomes an image.
fn archive(first: Vec<u8>, script: Child) -> impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static {
    stream::try_unfold((Some(first), script), async |(first, mut script)| {
        let chunk = match first {
            Some(first) => Some(first),
            None => next_chunk(&mut script).await?,
        };
        match chunk {
            Some(chunk) => Ok(Some((chunk, (None, script)))),
            None if script.wait().await?.success() => Ok(None),
            None => Err(io::Error::other("the script failed")),
        }
    })
}

/// Returns the next chunk, or `None` at the end of the script's output.
async fn next_chunk(script: &mut Child) -> io::Result<Option<Vec<u8>>> {
    let output = script.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut chunk = Vec::with_capacity(CHUNK);
    output.read_buf(&mut chunk).await?;
    Ok((!chunk.is_empty()).then_some(chunk))
}
