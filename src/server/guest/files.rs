//! File requests: read, write, list, describe, move and remove files in a sandbox.

use std::convert::Infallible;

use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Entry, Event, Facts, Failure, Request};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::file::{File, FileReason, ListFilesResult};

use super::{ENGINE_FAILED, GuestCall, TOO_MANY_STREAMS, disconnected, unexpected, unreachable};
use crate::guest::stream::{GuestFrame, GuestStream, GuestStreamError};
use crate::protocol::answer::{self, Answer, ReadFile};
use crate::protocol::content::StoredContent;
use crate::protocol::guest::{GuestRequest, MAX_FILES, whole_characters};
use crate::protocol::notification::Notification;
use crate::server::guest::attachments::AttachedInput;
use crate::server::memory::{ORDINARY_ANSWER, Retention};

/// Bytes of the first read, before the size of the file is known.
const FIRST_READ: u64 = 64 << 10;

/// The maximum memory of a list of files.
const MAX_LISTING: usize = 16 << 20;

/// The maximum bytes of names and link targets in one answer.
const MAX_NAMES: usize = 4 << 20;

impl GuestCall<'_> {
    pub(super) async fn file(&self, chat: ChatId, call: GuestRequest) -> Result<Answer, Error> {
        let bytes = |path: &String| Bytes::from(path.as_str());
        match call {
            GuestRequest::ReadFile { path, offset, length, stream: true } => {
                let stream = self.open_stream(chat, Request::Read { path: bytes(&path), offset, length }).await?;
                self.stream_file(stream, offset, length).await.map_err(|error| of_file(&path, error))
            }
            GuestRequest::ReadFile { path, offset, length, stream: false } => {
                self.read_file(chat, &path, offset, length).await
            }
            GuestRequest::WriteFile { path, content, mode, parents } => {
                let request = Request::Write { path: bytes(&path), mode, parents };
                let stream = self.open_stream(chat, request).await?;
                let written = match content {
                    Some(content) => write(stream, &content).await,
                    None => done(self.receive_upload(chat, stream).await?),
                };
                written.map_err(|error| of_file(&path, error))
            }
            GuestRequest::ListFiles { path } => self.list_files(chat, &path).await,
            GuestRequest::StatFile { path } => {
                self.file_request(chat, Request::Facts { path: bytes(&path) }, &path).await
            }
            GuestRequest::MakeDirectory { path, mode, parents } => {
                let request = Request::MakeDirectory { path: bytes(&path), mode, parents };
                self.file_request(chat, request, &path).await
            }
            GuestRequest::RemoveFile { path, recursive } => {
                self.file_request(chat, Request::Remove { path: bytes(&path), recursive }, &path).await
            }
            GuestRequest::MoveFile { from, to } => {
                self.file_request(chat, Request::Move { from: bytes(&from), to: bytes(&to) }, &from).await
            }
            other => Err(ErrorKind::Internal.error(format!("{other:?} is not a file request"))),
        }
    }

    async fn file_request(&self, chat: ChatId, request: Request, path: &str) -> Result<Answer, Error> {
        match self.open_stream(chat, request).await?.answer().await {
            Ok(Event::Done {}) => Ok(Answer::DONE),
            Ok(Event::Facts { facts }) => Ok(Answer::File(answer::file(facts))),
            Ok(other) => Err(unexpected(Ok(other))),
            Err(error) => Err(of_file(path, error)),
        }
    }

    /// Forwards the data of `sandbox.input`, of any length, until init replies with the outcome.
    pub(super) async fn receive_upload(
        &self,
        chat: ChatId,
        stream: GuestStream,
    ) -> Result<Result<Event, GuestStreamError>, Error> {
        let GuestStream { mut reader, mut writer } = stream;
        let transfer = self.attachments.new_command();
        let mut attachment = self.attachments.attach(chat, transfer);
        self.notify(Notification::Started { command: transfer }).await.map_err(|_| disconnected())?;
        let receiving = async {
            loop {
                if let AttachedInput::Input { bytes, end, memory: _memory } = attachment.next_input().await {
                    let _ = writer.data(&bytes).await;
                    if end {
                        let _ = writer.end().await;
                    }
                }
            }
        };
        tokio::select! {
            event = reader.next_event() => Ok(event),
            () = receiving => Err(disconnected()),
            // Init writes no file before the end of the data.
            () = self.disconnected.cancelled() => Err(disconnected()),
            () = self.shutdown.cancelled() => Err(ErrorKind::ShuttingDown.error("the service is shutting down")),
        }
    }

    /// Reads a small part first, which needs only the connection's own memory. Memory for a large file is reserved while
    /// no part of the file is held, neither here nor in the sandbox.
    async fn read_file(&self, chat: ChatId, path: &str, offset: u64, length: u64) -> Result<Answer, Error> {
        let guest = self.guest(&self.sandbox_to_read(chat).await?)?;
        let read = async |length: u64| {
            let request = Request::Read { path: Bytes::from(path), offset, length };
            let stream = guest.open_stream(&request).await.map_err(unreachable)?;
            read_content(stream, length).await.map_err(|error| of_file(path, error))
        };
        let first = length.min(FIRST_READ);
        let memory = self.reserve_own(first as usize).await.map_err(|_| disconnected())?;
        let (mut facts, mut content) = read(first).await?;
        if content.len() as u64 == first && first < length {
            drop((content, memory));
            let left = facts.size.saturating_sub(offset);
            // Some files, such as those of the kernel, report no size. Others grow during the read.
            let wanted = if left < first { length } else { length.min(left + FIRST_READ) };
            self.hold(self.reserve(wanted as usize, Retention::Brief).await.map_err(|_| disconnected())?);
            (facts, content) = read(wanted).await?;
        } else {
            self.hold(memory);
        }
        let bytes = content.len() as u64;
        Ok(Answer::ReadFile(Box::new(ReadFile::of(Some(content), bytes, facts))))
    }

    /// Sends a file as notifications.
    async fn stream_file(&self, mut stream: GuestStream, start: u64, length: u64) -> Result<Answer, GuestStreamError> {
        let Event::Facts { facts } = stream.reader.event().await? else {
            return Err(GuestStreamError::InvalidResponse);
        };
        // The beginning of a character whose rest is not received yet.
        let (mut partial, mut read) = (Vec::new(), 0);
        loop {
            let joined;
            let (bytes, is_last) = match stream.reader.soon().await? {
                GuestFrame::Data(bytes) => {
                    read += bytes.len() as u64;
                    // A correct init never sends more than requested.
                    if read > length {
                        return Err(GuestStreamError::InvalidResponse);
                    }
                    if partial.is_empty() {
                        (bytes, false)
                    } else {
                        joined = [&partial, bytes].concat();
                        (joined.as_slice(), false)
                    }
                }
                GuestFrame::End => (partial.as_slice(), true),
                _ => return Err(GuestStreamError::InvalidResponse),
            };
            // At the end, an incomplete character is sent too.
            let whole = if is_last { bytes.len() } else { whole_characters(bytes) };
            let offset = start + read - bytes.len() as u64;
            let (complete, rest) = bytes.split_at(whole);
            if !complete.is_empty() && self.notify(Notification::Data { offset, bytes: complete }).await.is_err() {
                return Err(GuestStreamError::Broken);
            }
            if is_last {
                return Ok(Answer::ReadFile(Box::new(ReadFile::of(None, read, facts))));
            }
            partial = rest.to_vec();
        }
    }

    /// Lists a directory. Most directories fit into the memory of an ordinary answer, which is already reserved.
    async fn list_files(&self, chat: ChatId, path: &str) -> Result<Answer, Error> {
        let guest = self.guest(&self.sandbox_to_read(chat).await?)?;
        let list = async |limit: usize| {
            let request = Request::ReadDirectory { path: Bytes::from(path) };
            let stream = guest.open_stream(&request).await.map_err(unreachable)?;
            list(stream, limit).await.map_err(|error| of_file(path, error))
        };
        let mut files = list(ORDINARY_ANSWER).await?;
        if files.truncated {
            drop(files);
            self.hold(self.reserve(MAX_LISTING, Retention::Brief).await.map_err(|_| disconnected())?);
            files = list(MAX_LISTING).await?;
        }
        Ok(Answer::Files(files))
    }
}

/// Returns the properties and the content of a file.
async fn read_content(mut stream: GuestStream, length: u64) -> Result<(Facts, StoredContent), GuestStreamError> {
    let Event::Facts { facts } = stream.reader.event().await? else {
        return Err(GuestStreamError::InvalidResponse);
    };
    let mut content = StoredContent::default();
    loop {
        match stream.reader.soon().await? {
            // A correct init never sends more than requested.
            GuestFrame::Data(bytes) if (content.len() + bytes.len()) as u64 > length => {
                return Err(GuestStreamError::InvalidResponse);
            }
            GuestFrame::Data(bytes) => content.extend_from_slice(bytes),
            GuestFrame::End => return Ok((facts, content)),
            _ => return Err(GuestStreamError::InvalidResponse),
        }
    }
}

async fn write(stream: GuestStream, content: &[u8]) -> Result<Answer, GuestStreamError> {
    let GuestStream { mut reader, mut writer } = stream;
    let sending = async {
        // If a write fails, init has reported the reason.
        let _ = writer.data(content).await;
        let _ = writer.end().await;
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        event = reader.event() => done(event),
        never = sending => match never {},
    }
}

fn done(event: Result<Event, GuestStreamError>) -> Result<Answer, GuestStreamError> {
    match event? {
        Event::Done {} => Ok(Answer::DONE),
        _ => Err(GuestStreamError::InvalidResponse),
    }
}

/// Lists a directory. Truncates the list if it needs more memory than `limit`.
async fn list(mut stream: GuestStream, limit: usize) -> Result<ListFilesResult, GuestStreamError> {
    let (mut files, mut names, mut memory): (Vec<File>, usize, usize) = (Vec::new(), 0, 0);
    loop {
        match stream.reader.soon().await? {
            GuestFrame::Event(Event::Entries { entries }) => {
                names += entries.iter().flat_map(name_bytes).count();
                memory += entries.iter().map(memory_of).sum::<usize>();
                files.extend(entries.into_iter().map(answer::entry));
            }
            GuestFrame::End => return Ok(ListFilesResult { files, truncated: false }),
            _ => return Err(GuestStreamError::InvalidResponse),
        }
        if files.len() >= MAX_FILES || names >= MAX_NAMES || memory >= limit {
            files.truncate(MAX_FILES);
            return Ok(ListFilesResult { files, truncated: true });
        }
    }
}

fn name_bytes(entry: &Entry) -> impl Iterator<Item = &u8> {
    entry.name.0.iter().chain(entry.facts.target.iter().flat_map(|target| &target.0))
}

/// Returns the approximate memory of an entry and its JSON, in which a control character takes six bytes.
fn memory_of(entry: &Entry) -> usize {
    const FIELDS: usize = 384;
    FIELDS + name_bytes(entry).map(|byte| if byte.is_ascii_control() { 7 } else { 2 }).sum::<usize>()
}

pub(super) fn of_file(path: &str, error: GuestStreamError) -> Error {
    let GuestStreamError::Failed(Failure { errno, message }) = error else { return unexpected(Err(error)) };
    if [ENGINE_FAILED, TOO_MANY_STREAMS].contains(&errno) {
        return unexpected(Err(GuestStreamError::Failed(Failure { errno, message })));
    }
    let message = String::from_utf8_lossy(&message.0).into_owned();
    ErrorKind::FileError
        .error(format!("{path}: {message}"))
        .with("path", path)
        .with("reason", file_reason(errno).as_str())
}

/// Returns the reason for an error number.
fn file_reason(errno: i32) -> FileReason {
    const KNOWN: [(Errno, FileReason); 10] = [
        (Errno::NOENT, FileReason::NotFound),
        (Errno::ACCESS, FileReason::PermissionDenied),
        (Errno::PERM, FileReason::PermissionDenied),
        (Errno::ROFS, FileReason::ReadOnly),
        (Errno::EXIST, FileReason::Exists),
        (Errno::ISDIR, FileReason::IsADirectory),
        (Errno::NOTDIR, FileReason::NotADirectory),
        (Errno::NOTEMPTY, FileReason::NotEmpty),
        (Errno::NOSPC, FileReason::NoSpace),
        (Errno::DQUOT, FileReason::NoSpace),
    ];
    // The number comes from a guest, and `Errno` panics on a number that the system cannot have.
    let known = KNOWN.into_iter().find(|(known, _)| known.raw_os_error() == errno);
    known.map_or(FileReason::Other, |(_, reason)| reason)
}
