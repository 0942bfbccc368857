//! Copies files into and out of a sandbox, in chunks: neither side holds a whole file.

use std::convert::Infallible;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandboxd_protocol::command::InputParams;
use sandboxd_protocol::empty::Empty;
use sandboxd_protocol::file::{self, FileKind, PathParams, ReadFileParams, ReadFileResult, WriteFileParams};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification::{DataNotification, StartedNotification};
use serde::Serialize;
use serde::de::IgnoredAny;
use uuid::Uuid;

use super::progress::Progress;
use super::running::content;
use super::trees;
use crate::cli::chats::is_prefix;
use crate::cli::failure::CliError;
use crate::cli::{Exit, Service, parsed};
use crate::client::{Client, ClientError, Stream};

/// The size of a chunk. In base64 it has to fit into a line of the protocol.
const CHUNK: usize = 256 << 10;

const PERMISSIONS: u32 = 0o777;

/// The source or target of a copy. A local name that looks like CHAT:PATH needs a `./` prefix.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) enum Place {
    Local(PathBuf),
    Stdio,
    Sandbox { chat: String, path: String },
}

impl Place {
    pub(super) fn parse(text: &str) -> Result<Self, Infallible> {
        let is_chat = |text: &str| Uuid::try_parse(text).is_ok() || is_prefix(text);
        Ok(match text.split_once(':') {
            _ if text == "-" => Place::Stdio,
            Some((chat, path)) if is_chat(chat) => Place::Sandbox { chat: chat.to_owned(), path: path.to_owned() },
            _ => Place::Local(text.into()),
        })
    }

    pub(super) fn chat(&mut self) -> Option<&mut String> {
        match self {
            Place::Sandbox { chat, .. } => Some(chat),
            Place::Local(_) | Place::Stdio => None,
        }
    }
}

/// The options of a copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyOptions {
    pub(super) parents: bool,
    pub(super) recursive: bool,
}

pub(super) async fn copy(
    service: &Service,
    from: &Place,
    to: &Place,
    options: CopyOptions,
) -> Result<(Exit, String), CliError> {
    let CopyOptions { parents, recursive } = options;
    match (from, to) {
        (Place::Sandbox { chat, path }, Place::Local(to))
            if recursive && stat(service, chat, path).await?.kind == FileKind::Directory =>
        {
            trees::download(service, chat, path, to).await
        }
        (Place::Local(from), Place::Sandbox { chat, path }) if recursive && from.is_dir() => {
            trees::upload(service, from, chat, &target_path(path, from), parents).await
        }
        (Place::Sandbox { chat, path }, Place::Stdio) => cat(service, chat, path).await,
        (Place::Sandbox { chat, path }, Place::Local(to)) => download(service, chat, path, to).await,
        (Place::Stdio, Place::Sandbox { chat, path }) => {
            let params = write_params(chat, path, None, parents);
            send(service, chat, Method::SandboxWriteFile, params, io::stdin(), "standard input", None).await
        }
        (Place::Local(from), Place::Sandbox { chat, path }) => {
            let failed = |error| CliError::local(from, error);
            let file = File::open(from).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            if metadata.is_dir() {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            let mode = metadata.is_file().then(|| metadata.permissions().mode() & PERMISSIONS);
            let size = metadata.is_file().then_some(metadata.len());
            let params = write_params(chat, &target_path(path, from), mode, parents);
            let name = from.to_string_lossy();
            send(service, chat, Method::SandboxWriteFile, params, file, &name, size).await
        }
        _ => Err(CliError::Usage("one path has to be in a sandbox, as CHAT:PATH, and the other one local")),
    }
}

pub(super) fn path_params(chat: &str, path: &str) -> PathParams {
    PathParams { chat_id: chat.to_owned(), path: path.to_owned() }
}

fn write_params(chat: &str, path: &str, mode: Option<u32>, parents: bool) -> WriteFileParams {
    let PathParams { chat_id, path } = path_params(chat, path);
    WriteFileParams { chat_id, path, follows: Some(true), mode, parents: Some(parents), ..Default::default() }
}

/// Returns the target path. A path that ends with a slash is the directory for the file.
fn target_path(path: &str, from: &Path) -> String {
    match from.file_name() {
        Some(name) if path.ends_with('/') => format!("{path}{}", name.to_string_lossy()),
        _ => path.to_owned(),
    }
}

pub(super) async fn cat(service: &Service, chat: &str, path: &str) -> Result<(Exit, String), CliError> {
    let stdout = io::stdout().lock();
    match receive(service, chat, path, stdout, &mut Progress::hidden()).await {
        // A reader may close standard output early.
        Err(TransferError::Local(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => return Err(error.at(Path::new("standard output"))),
        Ok(_) => {}
    }
    Ok((Exit::Done, String::new()))
}

async fn download(service: &Service, chat: &str, path: &str, to: &Path) -> Result<(Exit, String), CliError> {
    let to = match Path::new(path).file_name() {
        Some(name) if to.is_dir() => to.join(name),
        _ => to.to_owned(),
    };
    let mut progress = Progress::new(&to.to_string_lossy(), size(service, chat, path).await, service.json);
    let failed = |error| CliError::local(&to, error);
    if fs::metadata(&to).is_ok_and(|there| !there.is_file()) {
        // A device or a pipe is written to, not replaced.
        let file = OpenOptions::new().write(true).open(&to).map_err(failed)?;
        receive(service, chat, path, file, &mut progress).await.map_err(|error| error.at(&to))?;
        return Ok((Exit::Done, String::new()));
    }
    let (draft, file) = Draft::beside(&to).map_err(failed)?;
    let read = receive(service, chat, path, file, &mut progress).await.map_err(|error| error.at(&to))?;
    draft.keep(&to, read.file.mode & PERMISSIONS).map_err(failed)?;
    Ok((Exit::Done, String::new()))
}

async fn stat(service: &Service, chat: &str, path: &str) -> Result<file::File, ClientError> {
    service.client.call(Method::SandboxStatFile, path_params(chat, path)).await
}

/// Returns the size of a file, if known. Only the progress display needs it.
async fn size(service: &Service, chat: &str, path: &str) -> Option<u64> {
    let file = stat(service, chat, path).await.ok()?;
    (file.kind == FileKind::File).then_some(file.size)
}

/// An incomplete file, removed on drop.
struct Draft(PathBuf);

impl Draft {
    fn beside(target: &Path) -> io::Result<(Self, File)> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        name.push(format!(".{}", std::process::id()));
        let draft = target.with_file_name(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
        Ok((Self(draft), file))
    }

    fn keep(self, target: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(&self.0, Permissions::from_mode(mode))?;
        fs::rename(&self.0, target)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Fails after a rename to the target, which is expected.
        let _ = fs::remove_file(&self.0);
    }
}

/// A failure of the service or of the local file.
enum TransferError {
    Service(ClientError),
    Local(io::Error),
}

impl TransferError {
    fn at(self, path: &Path) -> CliError {
        match self {
            TransferError::Service(error) => error.into(),
            TransferError::Local(error) => CliError::local(path, error),
        }
    }
}

impl From<ClientError> for TransferError {
    fn from(error: ClientError) -> Self {
        TransferError::Service(error)
    }
}

async fn receive(
    service: &Service,
    chat: &str,
    path: &str,
    mut to: impl Write,
    progress: &mut Progress,
) -> Result<ReadFileResult, TransferError> {
    let PathParams { chat_id, path } = path_params(chat, path);
    let params = ReadFileParams { chat_id, path, stream: Some(true), ..Default::default() };
    let mut stream = service.client.stream(Method::SandboxReadFile, params).await?;
    while let Some(bytes) = next_chunk(&mut stream).await? {
        to.write_all(&bytes).map_err(TransferError::Local)?;
        progress.advance(bytes.len());
    }
    to.flush().map_err(TransferError::Local)?;
    Ok(stream.end().await?)
}

pub(super) async fn next_chunk(stream: &mut Stream) -> Result<Option<Vec<u8>>, ClientError> {
    let Some(notification) = stream.next().await else { return Ok(None) };
    let DataNotification { text, base64, .. } = parsed(&notification.params)?;
    content(text, base64).map(Some)
}

/// Calls a method and sends the content that follows.
pub(super) async fn send(
    service: &Service,
    chat: &str,
    method: Method,
    params: impl Serialize,
    from: impl Read,
    name: &str,
    size: Option<u64>,
) -> Result<(Exit, String), CliError> {
    let mut stream = service.client.stream(method, params).await?;
    let mut progress = Progress::new(name, size, service.json);
    if let Some(transfer) = started(&mut stream).await? {
        // The answer reports a failure of the service in full.
        match send_chunks(&service.client, chat, transfer, from, &mut progress).await {
            Err(TransferError::Local(error)) => return Err(CliError::local(Path::new(name), error)),
            Ok(()) | Err(TransferError::Service(_)) => {}
        }
    }
    let _: IgnoredAny = stream.end().await?;
    Ok((Exit::Done, String::new()))
}

async fn send_chunks(
    client: &Client,
    chat: &str,
    transfer: u64,
    mut from: impl Read,
    progress: &mut Progress,
) -> Result<(), TransferError> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = fill(&mut from, &mut buffer).map_err(TransferError::Local)?;
        let end = length < buffer.len();
        let base64 = Some(STANDARD.encode(&buffer[..length]));
        let params = InputParams { chat_id: chat.to_owned(), command_id: transfer, text: None, base64, end: Some(end) };
        client.call::<Empty>(Method::SandboxInput, params).await?;
        progress.advance(length);
        if end {
            return Ok(());
        }
    }
}

/// Returns the id that the chunks are sent to, or `None` if the request failed and the answer has the error.
async fn started(stream: &mut Stream) -> Result<Option<u64>, ClientError> {
    match stream.next().await {
        Some(notification) => parsed(&notification.params).map(|started: StartedNotification| Some(started.command_id)),
        None => Ok(None),
    }
}

/// Fills the buffer. Returns less than its length only at the end of the input.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_sandbox_starts_with_its_chat() {
        let place = |text: &str| Place::parse(text).expect("always one");
        for chat in ["67e55044-10b1-426f-9247-bb680e5fe0c8", "67e5"] {
            let within = Place::Sandbox { chat: chat.into(), path: "/a:b".into() };
            assert_eq!(place(&format!("{chat}:/a:b")), within);
        }
        for here in ["odd:name", "./67e5:name"] {
            assert_eq!(place(here), Place::Local(here.into()));
        }
        assert_eq!(place("-"), Place::Stdio);
    }

    #[test]
    fn a_file_goes_into_a_directory_under_its_own_name() {
        assert_eq!(target_path("/volume/", Path::new("a/b.txt")), "/volume/b.txt");
        assert_eq!(target_path("/volume/c", Path::new("a/b.txt")), "/volume/c");
    }
}
