//! The image commands, with a progress display for pulls and builds.

pub(super) mod base;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use chrono::Utc;
use clap::Subcommand;
use sandboxd_protocol::empty::NoParams;
use sandboxd_protocol::image::*;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification::ProgressNotification;
use serde::Serialize;
use serde_json::value::RawValue;

use super::arguments::{variable, variables};
use super::columns::{Columns, Width};
use super::failure::CliError;
use super::moment::relative;
use super::tables::short;
use super::{Exit, Service, parsed};
use crate::cli::guest::size;
use crate::client::{ClientError, Notification};

#[derive(Debug, Subcommand)]
pub(super) enum ImageCommand {
    /// Pull an image from its registry
    Pull {
        #[arg(value_name = "IMAGE")]
        image: String,
    },
    /// Build the image of the default profile from Debian packages: a shell, Python and git
    Base(base::Base),
    /// Build an image from a directory on the service's host
    Build {
        /// Build context; a directory below one of images.context_roots
        #[arg(value_name = "DIRECTORY")]
        context: String,
        /// Name of the image
        #[arg(long, short, value_name = "NAME[:TAG]")]
        tag: String,
        /// Path of the Dockerfile in the build context
        #[arg(long, short = 'f', value_name = "PATH")]
        dockerfile: Option<String>,
        /// Build argument; without a value, it is taken from your environment
        #[arg(long = "arg", value_name = "NAME[=VALUE]", value_parser = variable)]
        arguments: Vec<(String, String)>,
    },
    /// Build the image of a repository now if it is stale
    Refresh {
        #[arg(value_name = "REPOSITORY")]
        repository: String,
        /// Build the image even if it is up to date
        #[arg(long)]
        force: bool,
    },
    /// Remove the images that are not needed
    Prune {
        /// Only list the images
        #[arg(long)]
        dry_run: bool,
    },
}

pub(super) async fn execute(service: &Service, command: &ImageCommand) -> Result<(Exit, String), CliError> {
    match command {
        ImageCommand::Base(base) => base::make(Some(&service.client), base, service.json).await,
        ImageCommand::Pull { image } => {
            follow(service, Method::ImagePull, ImagePullParams { image: image.clone() }).await
        }
        ImageCommand::Build { context, tag, dockerfile, arguments } => {
            let (context, tag, dockerfile) = (context.clone(), tag.clone(), dockerfile.clone());
            let params = ImageBuildParams { context, tag, dockerfile, args: variables(arguments) };
            follow(service, Method::ImageBuild, params).await
        }
        ImageCommand::Refresh { repository, force } => {
            let params = ImageRefreshParams { repository: repository.clone(), force: Some(*force) };
            follow(service, Method::ImageRefresh, params).await
        }
        ImageCommand::Prune { dry_run } => {
            let params = ImagePruneParams { dry_run: Some(*dry_run) };
            service.call_and_show(Method::ImagePrune, params, pruned_table).await
        }
    }
}

pub(super) async fn list(service: &Service) -> Result<(Exit, String), CliError> {
    service.call_and_show(Method::ImageList, NoParams {}, listing_table).await
}

async fn follow(service: &Service, method: Method, params: impl Serialize) -> Result<(Exit, String), CliError> {
    let mut stream = service.client.stream(method, params).await?;
    let mut display = ProgressDisplay::new(service.json);
    while let Some(notification) = stream.next().await {
        display.show(&notification)?;
    }
    drop(display);
    let result: Box<RawValue> = stream.end().await?;
    Ok((Exit::Done, service.show(&result, result_line)?))
}

fn result_line(result: ImageResult, _: Width) -> String {
    let ImageResult { image, image_id, commit, changed } = result;
    let commit = commit.map(|commit| format!(", commit {}", short(&commit))).unwrap_or_default();
    let change = if changed { "" } else { " is up to date" };
    format!("{image}{change} ({}{commit})\n", short_id(&image_id))
}

/// The progress display: the lines of a build, and on a terminal one changing line for the layers of a pull.
struct ProgressDisplay {
    json: bool,
    is_terminal: bool,
    layers: BTreeMap<String, (u64, u64)>,
    unfinished: bool,
}

impl ProgressDisplay {
    fn new(json: bool) -> Self {
        Self { json, is_terminal: std::io::stderr().is_terminal(), layers: BTreeMap::new(), unfinished: false }
    }

    fn show(&mut self, notification: &Notification) -> Result<(), ClientError> {
        if self.json {
            return Ok(());
        }
        let ProgressNotification { progress, .. } = parsed(&notification.params)?;
        let mut stderr = std::io::stderr();
        match (self.line(&progress), self.is_terminal) {
            (None, _) => {
                if std::mem::take(&mut self.unfinished) {
                    let _ = writeln!(stderr);
                }
                let _ = writeln!(stderr, "{}", progress.message);
            }
            (Some(line), true) => {
                self.unfinished = true;
                let _ = write!(stderr, "\r\x1b[K{line}");
            }
            // Download steps are not printed to a file.
            (Some(_), false) => {}
        }
        Ok(())
    }

    /// Returns the sum over all layers, or `None` if the notification is not about a layer.
    fn line(&mut self, progress: &Progress) -> Option<String> {
        let layer = progress.layer.as_ref()?;
        if let (Some(done), Some(total)) = (progress.done_bytes, progress.total_bytes) {
            self.layers.insert(layer.clone(), (done, total));
        }
        let (done, total) = self.layers.values().fold((0, 0), |(done, total), it| (done + it.0, total + it.1));
        Some(format!("{}: {}  {} of {}", layer, progress.message, size(done), size(total)))
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if self.unfinished {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn listing_table(listing: ImageListResult, width: Width) -> String {
    let now = Utc::now();
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut table = Columns::new(&[
        ("IMAGE", 0),
        ("ID", 1),
        ("ORIGIN", 2),
        ("SIZE", 0),
        ("CREATED", 3),
        ("COMMIT", 5),
        ("STALE", 4),
        ("PROFILES", 0),
    ]);
    for image in listing.images {
        let name = if image.tags.is_empty() { "-".to_owned() } else { image.tags.join(", ") };
        let stale = image.stale.map(|stale| if stale { "yes" } else { "no" }.to_owned());
        let profiles = (!image.profiles.is_empty()).then(|| image.profiles.join(", "));
        table.row([
            name,
            short_id(&image.image_id).to_owned(),
            image.origin.to_string(),
            size(image.bytes),
            relative(image.created_at, now),
            known(image.commit.as_deref().map(short).map(str::to_owned)),
            known(stale),
            known(profiles),
        ]);
    }
    let mut shown = table.text(width);
    if !listing.repositories.is_empty() {
        let mut table = Columns::new(&[
            ("REPOSITORY", 0),
            ("BRANCH", 2),
            ("COMMIT", 3),
            ("CHECKED", 1),
            ("STATE", 0),
            ("FAILURE", 0),
        ]);
        for repository in listing.repositories {
            let state = match (repository.building, repository.stale) {
                (true, _) => "building",
                (false, true) => "stale",
                (false, false) => "up to date",
            };
            table.row([
                repository.repository,
                repository.branch,
                known(repository.commit.as_deref().map(short).map(str::to_owned)),
                known(repository.checked_at.map(|at| relative(at, now))),
                state.to_owned(),
                known(repository.failure.map(|failure| failure.message)),
            ]);
        }
        shown = format!("{shown}\n{}", table.text(width));
    }
    shown
}

fn pruned_table(pruned: ImagePruneResult, _: Width) -> String {
    let ImagePruneResult { dry_run, removed, bytes, .. } = pruned;
    let done = if dry_run { "to be removed" } else { "removed" };
    let summary = format!("{} images {done}, freeing {}\n", removed.len(), size(bytes));
    let mut table = Columns::without_header(3);
    for image in removed {
        table.row([short_id(&image.image_id).to_owned(), size(image.bytes), image.tags.join(", ")]);
    }
    table.text(Width::UNLIMITED) + &summary
}

/// Returns a short image id without the hash name.
pub(super) fn short_id(id: &str) -> &str {
    short(id.strip_prefix("sha256:").unwrap_or(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn progress(layer: Option<&str>, message: &str, done: Option<u64>, total: Option<u64>) -> Progress {
        Progress { message: message.into(), layer: layer.map(String::from), done_bytes: done, total_bytes: total }
    }

    #[test]
    fn the_layers_of_a_pull_are_added_up() {
        let mut display =
            ProgressDisplay { json: false, is_terminal: false, layers: BTreeMap::new(), unfinished: false };
        display.line(&progress(Some("a"), "Downloading", Some(512), Some(1024)));
        let line = display.line(&progress(Some("b"), "Downloading", Some(512), Some(1024))).expect("of a layer");
        assert_eq!(line, "b: Downloading  1.0 KiB of 2.0 KiB");
        assert_eq!(display.line(&progress(None, "Step 1/2 : FROM a", None, None)), None);
    }

    #[test]
    fn images_and_repositories_are_listed() {
        let shown = listing_table(
            serde_json::from_value(json!({
                "images": [{
                    "image_id": "sha256:0123456789abcdef", "tags": ["app:latest"], "bytes": 1024,
                    "created_at": "2026-01-31T09:30:00.000Z", "origin": "repository", "repository": "app",
                    "commit": "0123456789abcdef", "built_at": null, "stale": true, "profiles": ["default"],
                }],
                "repositories": [{
                    "repository": "app", "branch": "main", "image": "app:latest", "image_id": null,
                    "commit": "0123456789abcdef", "built_at": null, "head": null, "checked_at": null,
                    "stale": true, "building": false, "failure": { "at": "2026-01-31T09:30:00.000Z", "message": "no" },
                }],
            }))
            .expect("a listing"),
            Width::UNLIMITED,
        );
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[1].starts_with("app:latest  0123456789ab  repository  1.0 KiB"), "{shown}");
        assert!(lines[4].contains("stale") && lines[4].ends_with("no"), "{shown}");
    }
}
