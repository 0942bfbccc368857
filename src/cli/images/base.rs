//! `image base`: makes the base image on this host, with or without a service.

use std::io;
use std::process::Stdio;

use clap::Args;
use futures_util::stream::{self, Stream};
use sandboxd_actors::ports::images::{ImageError, Images as _};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::short_id;
use crate::cli::Exit;
use crate::cli::failure::Trouble;
use crate::client::Client;
use crate::engine::docker::{DockerEngine, InvalidHost};
use crate::images::base;

/// Handed to the engine at a time.
const PIECE: usize = 256 << 10;

#[derive(Debug, Args)]
pub(in crate::cli) struct Base {
    /// Make it anew, with the packages' newest versions, even if it is there
    #[arg(long)]
    force: bool,
    /// The name of the image
    #[arg(long, short, value_name = "NAME[:TAG]", default_value = base::TAG)]
    tag: String,
    /// The engine, such as unix:///run/docker.sock; otherwise the service's or, without a service, the one it would find
    #[arg(long, value_name = "HOST")]
    engine: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum BaseImageError {
    #[error("--engine: {0}")]
    Host(#[from] InvalidHost),
    #[error("the base image cannot be made: {0}")]
    Image(#[from] ImageError),
    #[error("the base image cannot be made: bash: {0}")]
    Bash(io::Error),
    #[error("the base image cannot be made; the reason is above")]
    Script,
}

/// Makes the image unless the engine has it. The service is asked for nothing but its engine.
pub(in crate::cli) async fn make(service: Option<&Client>, base: &Base, json: bool) -> Result<(Exit, String), Trouble> {
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
        false => format!("{tag} is up to date ({}); --force makes it anew", short_id(&id)),
    };
    Ok((Exit::Done, shown + "\n"))
}

async fn engine_of(service: &Client) -> Option<String> {
    let info: Value = service.call("system.info", json!({})).await.ok()?;
    Some(info["engine"]["host"].as_str()?.to_owned())
}

/// Returns the id of the image, and whether it was made.
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
    // The engine is asked only once the root is made, which is when the script begins to print it.
    let Some(first) = next_piece(&mut script).await.map_err(BaseImageError::Bash)? else {
        return Err(BaseImageError::Script);
    };
    let id = engine.import_image(&base.tag, base::instructions(), archive(first, script)).await?;
    Ok((id, true))
}

/// The script's output, with an error at its end if the script failed, so that no incomplete archive becomes an image.
fn archive(first: Vec<u8>, script: Child) -> impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static {
    stream::try_unfold((Some(first), script), async |(first, mut script)| {
        let piece = match first {
            Some(first) => Some(first),
            None => next_piece(&mut script).await?,
        };
        match piece {
            Some(piece) => Ok(Some((piece, (None, script)))),
            None if script.wait().await?.success() => Ok(None),
            None => Err(io::Error::other("the script failed")),
        }
    })
}

/// `None` at the end of the script's output.
async fn next_piece(script: &mut Child) -> io::Result<Option<Vec<u8>>> {
    let output = script.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut piece = Vec::with_capacity(PIECE);
    output.read_buf(&mut piece).await?;
    Ok((!piece.is_empty()).then_some(piece))
}
