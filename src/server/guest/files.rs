//! Files in a sandbox.

use std::convert::Infallible;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Entry, Event, Facts, Failure, Request};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_protocol::file::{File, ListFilesResult};

use super::{ENGINE_FAILED, GuestCall, TOO_MANY_STREAMS, gone, unexpected, unreachable};
use crate::guest::stream::{GuestFrame, GuestStream, GuestStreamError};
use crate::protocol::answer::{self, Answer, ReadFile};
use crate::protocol::content::StoredContent;
use crate::protocol::error::{Error, Kind};
use crate::protocol::guest::file_reason::file_reason;
use crate::protocol::guest::{GuestRequest, MAX_FILES, whole_characters};
use crate::protocol::notification::Notification;
use crate::server::guest::attachments::AttachedInput;
use crate::server::memory::{Holding, ORDINARY};

/// Read of a file before its size is known.
const FIRST_READ: u64 = 64 << 10;

/// The memory that the largest list of files takes.
const MAX_LISTING: usize = 16 << 20;

/// Bytes of names and of links' targets that one answer tells.
const MAX_NAMES: usize = 4 << 20;

impl GuestCall<'_> {
    pub(super) async fn file(&self, chat: ChatId, call: GuestRequest) -> Result<Answer, Error> {
        let bytes = |path: &String| Bytes::from(path.as_str());
        match call {
            GuestRequest::ReadFile { path, offset, length, stream: true } => {
                let conversation = self.ask(chat, Request::Read { path: bytes(&path), offset, length }).await?;
                self.tell_file(conversation, offset, length).await.map_err(|error| of_file(&path, error))
            }
            GuestRequest::ReadFile { path, offset, length, stream: false } => {
                self.read_file(chat, &path, offset, length).await
            }
            GuestRequest::WriteFile { path, content, mode, parents } => {
                let request = Request::Write { path: bytes(&path), mode, parents };
                let conversation = self.ask(chat, request).await?;
                let written = match content {
                    Some(content) => write(conversation, &content).await,
                    None => done(self.receive(chat, conversation).await?),
                };
                written.map_err(|error| of_file(&path, error))
            }
            GuestRequest::ListFiles { path } => self.list_files(chat, &path).await,
            GuestRequest::StatFile { path } => self.simple(chat, Request::Facts { path: bytes(&path) }, &path).await,
            GuestRequest::MakeDirectory { path, mode, parents } => {
                let request = Request::MakeDirectory { path: bytes(&path), mode, parents };
                self.simple(chat, request, &path).await
            }
            GuestRequest::RemoveFile { path, recursive } => {
                self.simple(chat, Request::Remove { path: bytes(&path), recursive }, &path).await
            }
            GuestRequest::MoveFile { from, to } => {
                self.simple(chat, Request::Move { from: bytes(&from), to: bytes(&to) }, &from).await
            }
            other => Err(Kind::Internal.error(format!("{other:?} is not about a file"))),
        }
    }

    async fn simple(&self, chat: ChatId, request: Request, path: &str) -> Result<Answer, Error> {
        match self.ask(chat, request).await?.answer().await {
            Ok(Event::Done {}) => Ok(Answer::DONE),
            Ok(Event::Facts { facts }) => Ok(Answer::File(answer::file(facts))),
            Ok(other) => Err(unexpected(Ok(other))),
            Err(error) => Err(of_file(path, error)),
        }
    }

    /// Hands on what is sent with `sandbox.input`, however much it is, until init says what became of it.
    pub(super) async fn receive(
        &self,
        chat: ChatId,
        conversation: GuestStream,
    ) -> Result<Result<Event, GuestStreamError>, Error> {
        let GuestStream { mut reader, mut writer } = conversation;
        let transfer = self.attachments.new_command();
        let mut wheel = self.attachments.take(chat, transfer);
        self.notify(Notification::Started { command: transfer }).await.map_err(|_| gone())?;
        let receiving = async {
            loop {
                if let AttachedInput::Input { bytes, end, memory: _memory } = wheel.turned().await {
                    let _ = writer.data(&bytes).await;
                    if end {
                        let _ = writer.end().await;
                    }
                }
            }
        };
        tokio::select! {
            event = reader.next_event() => Ok(event),
            () = receiving => Err(gone()),
            // Without its end, nothing is written.
            () = self.gone.cancelled() => Err(gone()),
            () = self.shutdown.cancelled() => Err(Kind::ShuttingDown.error("the service is shutting down")),
        }
    }

    /// Reads a small part first, which needs only memory of the connection's own. Memory for a large file is reserved
    /// while none of it is held, neither here nor in the sandbox.
    async fn read_file(&self, chat: ChatId, path: &str, offset: u64, length: u64) -> Result<Answer, Error> {
        let entrance = self.interior(&self.visited(chat).await?)?;
        let read = async |length: u64| {
            let request = Request::Read { path: Bytes::from(path), offset, length };
            let conversation = entrance.open_stream(&request).await.map_err(unreachable)?;
            gather(conversation, length).await.map_err(|error| of_file(path, error))
        };
        let first = length.min(FIRST_READ);
        let memory = self.reserve_own(first as usize).await.map_err(|_| gone())?;
        let (mut facts, mut content) = read(first).await?;
        if content.len() as u64 == first && first < length {
            drop((content, memory));
            let left = facts.size.saturating_sub(offset);
            // Some files, such as those of the kernel, do not know their size. Others grow while they are read.
            let wanted = if left < first { length } else { length.min(left + FIRST_READ) };
            self.hold(self.reserve(wanted as usize, Holding::Brief).await.map_err(|_| gone())?);
            (facts, content) = read(wanted).await?;
        } else {
            self.hold(memory);
        }
        let bytes = content.len() as u64;
        Ok(Answer::ReadFile(Box::new(ReadFile::of(Some(content), bytes, facts))))
    }

    /// Sends a file bit by bit.
    async fn tell_file(
        &self,
        mut conversation: GuestStream,
        start: u64,
        length: u64,
    ) -> Result<Answer, GuestStreamError> {
        let Event::Facts { facts } = conversation.reader.event().await? else {
            return Err(GuestStreamError::InvalidResponse);
        };
        // The beginning of a character whose rest has not come yet.
        let (mut begun, mut read) = (Vec::new(), 0);
        loop {
            let joined;
            let (bytes, is_last) = match conversation.reader.soon().await? {
                GuestFrame::Data(bytes) => {
                    read += bytes.len() as u64;
                    // More than was asked for is not init's doing.
                    if read > length {
                        return Err(GuestStreamError::InvalidResponse);
                    }
                    if begun.is_empty() {
                        (bytes, false)
                    } else {
                        joined = [&begun, bytes].concat();
                        (joined.as_slice(), false)
                    }
                }
                GuestFrame::End => (begun.as_slice(), true),
                _ => return Err(GuestStreamError::InvalidResponse),
            };
            // At the end, what is left is told as it is.
            let whole = if is_last { bytes.len() } else { whole_characters(bytes) };
            let offset = start + read - bytes.len() as u64;
            let (told, rest) = bytes.split_at(whole);
            if !told.is_empty() && self.notify(Notification::Data { offset, bytes: told }).await.is_err() {
                return Err(GuestStreamError::Broken);
            }
            if is_last {
                return Ok(Answer::ReadFile(Box::new(ReadFile::of(None, read, facts))));
            }
            begun = rest.to_vec();
        }
    }

    /// Most directories fit into the memory that every listing has.
    async fn list_files(&self, chat: ChatId, path: &str) -> Result<Answer, Error> {
        let entrance = self.interior(&self.visited(chat).await?)?;
        let list = async |most: usize| {
            let request = Request::ReadDirectory { path: Bytes::from(path) };
            let conversation = entrance.open_stream(&request).await.map_err(unreachable)?;
            list(conversation, most).await.map_err(|error| of_file(path, error))
        };
        let mut files = list(ORDINARY).await?;
        if files.truncated {
            drop(files);
            self.hold(self.reserve(MAX_LISTING, Holding::Brief).await.map_err(|_| gone())?);
            files = list(MAX_LISTING).await?;
        }
        Ok(Answer::Files(files))
    }
}

/// All that init says of a file.
async fn gather(mut conversation: GuestStream, length: u64) -> Result<(Facts, StoredContent), GuestStreamError> {
    let Event::Facts { facts } = conversation.reader.event().await? else {
        return Err(GuestStreamError::InvalidResponse);
    };
    let mut content = StoredContent::default();
    loop {
        match conversation.reader.soon().await? {
            // More than was asked for is not init's doing.
            GuestFrame::Data(bytes) if (content.len() + bytes.len()) as u64 > length => {
                return Err(GuestStreamError::InvalidResponse);
            }
            GuestFrame::Data(bytes) => content.extend_from_slice(bytes),
            GuestFrame::End => return Ok((facts, content)),
            _ => return Err(GuestStreamError::InvalidResponse),
        }
    }
}

async fn write(conversation: GuestStream, content: &[u8]) -> Result<Answer, GuestStreamError> {
    let GuestStream { mut reader, mut writer } = conversation;
    let sending = async {
        // Where it fails, init has said why.
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

/// Ends early where the list would weigh more than `most`.
async fn list(mut conversation: GuestStream, most: usize) -> Result<ListFilesResult, GuestStreamError> {
    let (mut files, mut names, mut weight): (Vec<File>, usize, usize) = (Vec::new(), 0, 0);
    loop {
        match conversation.reader.soon().await? {
            GuestFrame::Event(Event::Entries { entries }) => {
                names += entries.iter().flat_map(in_names).count();
                weight += entries.iter().map(weigh).sum::<usize>();
                files.extend(entries.into_iter().map(answer::entry));
            }
            GuestFrame::End => return Ok(ListFilesResult { files, truncated: false }),
            _ => return Err(GuestStreamError::InvalidResponse),
        }
        if files.len() >= MAX_FILES || names >= MAX_NAMES || weight >= most {
            files.truncate(MAX_FILES);
            return Ok(ListFilesResult { files, truncated: true });
        }
    }
}

fn in_names(entry: &Entry) -> impl Iterator<Item = &u8> {
    entry.name.0.iter().chain(entry.facts.target.iter().flat_map(|target| &target.0))
}

/// About the memory that an entry takes, together with its JSON, in which a control character is six bytes long.
fn weigh(entry: &Entry) -> usize {
    const FIELDS: usize = 384;
    FIELDS + in_names(entry).map(|byte| if byte.is_ascii_control() { 7 } else { 2 }).sum::<usize>()
}

pub(super) fn of_file(path: &str, error: GuestStreamError) -> Error {
    let GuestStreamError::Failed(Failure { errno, message }) = error else { return unexpected(Err(error)) };
    if [ENGINE_FAILED, TOO_MANY_STREAMS].contains(&errno) {
        return unexpected(Err(GuestStreamError::Failed(Failure { errno, message })));
    }
    let message = String::from_utf8_lossy(&message.0).into_owned();
    Kind::FileError.error(format!("{path}: {message}")).with("path", path).with("reason", file_reason(errno).as_str())
}
