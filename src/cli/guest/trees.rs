//! Copies directories into and out of a sandbox, as archives that neither side holds as a whole.
//!
//! Archives from a sandbox are not trusted: they are unpacked only below the target directory.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sandbox_init::tree::{Packing, Totals, TreeError, Unpacking};
use sandboxd_protocol::empty::Empty;
use sandboxd_protocol::file::{FileReason, MakeDirectoryParams, TreeResult, WriteTreeParams};
use sandboxd_protocol::method::Method;

use super::progress::Progress;
use super::transfer::{next_chunk, path_params, send};
use crate::cli::failure::CliError;
use crate::cli::{Exit, Service};
use crate::client::ClientError;

/// Downloads a directory, like `cp`: into an existing directory, or under a new name.
pub(super) async fn download(service: &Service, chat: &str, path: &str, to: &Path) -> Result<(Exit, String), CliError> {
    let to = match Path::new(path).file_name() {
        Some(name) if to.is_dir() => to.join(name),
        _ => to.to_owned(),
    };
    let mut stream = service.client.stream(Method::SandboxReadTree, path_params(chat, path)).await?;
    let mut progress = Progress::new(&to.to_string_lossy(), None, service.json);
    let mut unpacking = None;
    while let Some(bytes) = next_chunk(&mut stream).await? {
        // The target is created with the first chunk, which shows that the source exists.
        let unpacking = match &mut unpacking {
            Some(unpacking) => unpacking,
            None => unpacking.insert(opened(&to)?),
        };
        unpacking.take(&bytes).map_err(|error| failed(&to, error))?;
        progress.advance(bytes.len());
    }
    let read: TreeResult = stream.end().await?;
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
) -> Result<(Exit, String), CliError> {
    let packing = Packing::open(from).map_err(|error| CliError::local(from, error))?;
    if !parents {
        let (chat_id, path) = (chat.to_owned(), path.to_owned());
        let params = MakeDirectoryParams { chat_id, path, mode: None, parents: None };
        match service.client.call::<Empty>(Method::SandboxMakeDirectory, params).await {
            Err(ClientError::Failed(failure)) if failure.detail("reason") == Some(FileReason::Exists) => {}
            made => drop(made?),
        }
    }
    let params = WriteTreeParams { chat_id: chat.to_owned(), path: path.to_owned(), parents: Some(parents) };
    let mut archive = Archive { packing, made: Vec::new(), read: 0, totals: None };
    let name = from.to_string_lossy();
    let (exit, _) = send(service, chat, Method::SandboxWriteTree, params, &mut archive, &name, None).await?;
    Ok((exit, skipped(archive.totals.unwrap_or_default().skipped)))
}

fn opened(to: &Path) -> Result<Unpacking, CliError> {
    let made = match std::fs::create_dir(to) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Unpacking::open(to, false),
    };
    made.map_err(|error| CliError::local(to, error))
}

fn failed(to: &Path, TreeError { entry, error }: TreeError) -> CliError {
    let shown = String::from_utf8_lossy(&entry).escape_debug().to_string();
    let place = if entry.is_empty() { to.to_owned() } else { PathBuf::from(format!("{}/{shown}", to.display())) };
    CliError::local(&place, error)
}

fn skipped(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "1 entry was skipped: it is not a file, directory or link\n".to_owned(),
        count => format!("{count} entries were skipped: they are not files, directories or links\n"),
    }
}

/// An archive that is packed while it is read.
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
