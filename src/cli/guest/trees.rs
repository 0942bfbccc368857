//! Directories on their way into and out of a sandbox, as archives that neither side ever holds as a whole.
//!
//! What comes out of a sandbox is not trusted: nothing of it is put anywhere but into the directory it is meant for.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sandbox_init::tree::{Packing, Totals, TreeError, Unpacking};
use serde::Deserialize;
use serde_json::{Value, json};

use super::progress::Progress;
use super::transfer::{next_part, send};
use crate::cli::failure::Trouble;
use crate::cli::{Exit, Service};
use crate::client::ClientError;

/// Into a directory that is there, as `cp` does, or under the new name.
pub(super) async fn download(service: &Service, chat: &str, path: &str, to: &Path) -> Result<(Exit, String), Trouble> {
    let to = match Path::new(path).file_name() {
        Some(name) if to.is_dir() => to.join(name),
        _ => to.to_owned(),
    };
    let mut stream = service.client.stream("sandbox.read_tree", json!({ "chat_id": chat, "path": path })).await?;
    let mut progress = Progress::new(&to.to_string_lossy(), None, service.json);
    let mut unpacking = None;
    while let Some(bytes) = next_part(&mut stream).await? {
        // Only now is it known that there is something to be put there.
        let unpacking = match &mut unpacking {
            Some(unpacking) => unpacking,
            None => unpacking.insert(opened(&to)?),
        };
        unpacking.take(&bytes).map_err(|error| failed(&to, error))?;
        progress.advance(bytes.len());
    }
    let read: Transferred = stream.end().await?;
    if let Some(mut unpacking) = unpacking {
        unpacking.finish().map_err(|error| failed(&to, error))?;
    }
    Ok((Exit::Done, skipped(read.skipped)))
}

pub(super) async fn upload(
    service: &Service,
    from: &Path,
    chat: &str,
    path: &str,
    parents: bool,
) -> Result<(Exit, String), Trouble> {
    let packing = Packing::open(from).map_err(|error| Trouble::local(from, error))?;
    if !parents {
        let made: Result<Value, _> =
            service.client.call("sandbox.make_directory", json!({ "chat_id": chat, "path": path })).await;
        match made {
            Err(ClientError::Failed(failure)) if failure.data.details.get("reason") == Some(&json!("exists")) => {}
            made => drop(made?),
        }
    }
    let params = json!({ "chat_id": chat, "path": path, "parents": parents });
    let mut archive = Archive { packing, made: Vec::new(), read: 0, totals: None };
    let name = from.to_string_lossy();
    let (exit, _) = send(service, "sandbox.write_tree", params, &mut archive, &name, None).await?;
    Ok((exit, skipped(archive.totals.unwrap_or_default().skipped)))
}

fn opened(to: &Path) -> Result<Unpacking, Trouble> {
    let made = match std::fs::create_dir(to) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Unpacking::open(to, false),
    };
    made.map_err(|error| Trouble::local(to, error))
}

fn failed(to: &Path, TreeError { entry, error }: TreeError) -> Trouble {
    let shown = String::from_utf8_lossy(&entry).escape_debug().to_string();
    let place = if entry.is_empty() { to.to_owned() } else { PathBuf::from(format!("{}/{shown}", to.display())) };
    Trouble::local(&place, error)
}

/// The answer, as far as it matters here.
#[derive(Deserialize)]
struct Transferred {
    skipped: u64,
}

fn skipped(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "1 entry was skipped: it is no file, directory or link\n".to_owned(),
        count => format!("{count} entries were skipped: they are no files, directories or links\n"),
    }
}

/// An archive that is made as it is read.
struct Archive {
    packing: Packing,
    made: Vec<u8>,
    read: usize,
    totals: Option<Totals>,
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.made.len() {
            if self.totals.is_some() {
                return Ok(0);
            }
            self.made.clear();
            self.read = 0;
            self.totals = self.packing.advance(&mut self.made, buffer.len()).map_err(io::Error::other)?;
        }
        let length = buffer.len().min(self.made.len() - self.read);
        buffer[..length].copy_from_slice(&self.made[self.read..self.read + length]);
        self.read += length;
        Ok(length)
    }
}
