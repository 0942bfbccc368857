//! The copy of a claim beside the sandbox's socket. Only a service with a new journal reads it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ContainerId, SessionId};
use sandboxd_actors::domain::labels;
use sandboxd_actors::pool::claims::Claim;
use serde::{Deserialize, Serialize};

const CLAIM: &str = "claim";

#[derive(Serialize, Deserialize)]
struct Stored {
    slot: String,
    container: String,
    labels: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    /// The path on the host, by the mount's target.
    mounts: BTreeMap<String, String>,
}

/// Writes the copy atomically. It is not flushed; see [`flush`].
pub(super) fn write(directory: &Path, claim: &Claim) -> io::Result<()> {
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let stored = Stored {
        slot: claim.slot.to_string(),
        container: claim.container.to_string(),
        labels: claim.labels.clone(),
        environment: claim.environment.iter().map(text).collect(),
        mounts: claim.mounts.iter().map(|(target, source)| (target.clone(), source.to_string())).collect(),
    };
    let (path, draft) = (directory.join(CLAIM), directory.join("claim.draft"));
    let text = serde_json::to_vec(&stored).map_err(io::Error::other)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?.write_all(&text)?;
    fs::rename(draft, path)
}

/// Flushes the copy, and the renames of its directories, to disk.
pub(super) fn flush(directory: &Path) -> io::Result<()> {
    File::open(directory.join(CLAIM))?.sync_all()?;
    File::open(directory)?.sync_all()?;
    directory.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

pub(super) fn read(directory: &Path, session: SessionId) -> io::Result<Claim> {
    let stored: Stored = serde_json::from_slice(&fs::read(directory.join(CLAIM))?).map_err(io::Error::other)?;
    let chat =
        stored.labels.get(labels::CHAT_ID).ok_or_else(|| io::Error::other("the copy of the claim has no chat id"))?;
    let source = |(target, source): (String, String)| {
        Ok((target, HostPath::from_canonical(Path::new(&source)).map_err(io::Error::other)?))
    };
    Ok(Claim {
        slot: stored.slot.parse().map_err(io::Error::other)?,
        session,
        chat: chat.parse().map_err(io::Error::other)?,
        container: ContainerId::new(stored.container),
        environment: Environment::recorded(stored.environment),
        mounts: stored.mounts.into_iter().map(source).collect::<io::Result<_>>()?,
        labels: stored.labels,
    })
}
