//! Files in a sandbox.

use std::convert::Infallible;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Entry, Event, Facts, Failure, Request};
use sandboxd_actors::domain::ids::ChatId;

use super::{Desk, ENGINE_FAILED, TOO_MANY_STREAMS, gone, unexpected};
use crate::guest::stream::{Conversation, ConversationError, Said};
use crate::protocol::content::Kept;
use crate::protocol::error::{Error, Kind};
use crate::protocol::guest::answer::{Done, FileFields, Files, InsideAnswer, ReadFile};
use crate::protocol::guest::file_reason::FileReason;
use crate::protocol::guest::{Inside, MAX_FILES, whole_characters};
use crate::protocol::notification::Notification;
use crate::server::guest::attachments::Steer;
use crate::server::memory::{Holding, ORDINARY};

/// Read of a file before its size is known.
const FIRST_READ: u64 = 64 << 10;

/// The memory that the largest list of files takes.
const MAX_LISTING: usize = 16 << 20;

/// Bytes of names and of links' targets that one answer tells.
const MAX_NAMES: usize = 4 << 20;

impl Desk<'_> {
    pub(super) async fn file(&self, chat: ChatId, call: Inside) -> Result<InsideAnswer, Error> {
        let bytes = |path: &String| Bytes::from(path.as_str());
        match call {
            Inside::ReadFile { path, offset, length, stream: true } => {
                let conversation = self.ask(chat, Request::Read { path: bytes(&path), offset, length }).await?;
                self.tell_file(conversation, offset, length).await.map_err(|error| of_file(&path, error))
            }
            Inside::ReadFile { path, offset, length, stream: false } => {
                self.read_file(chat, &path, offset, length).await
            }
            Inside::WriteFile { path, content, mode, parents } => {
                let request = Request::Write { path: bytes(&path), mode, parents };
                let conversation = self.ask(chat, request).await?;
                let written = match content {
                    Some(content) => write(conversation, &content).await,
                    None => done(self.receive(chat, conversation).await?),
                };
                written.map_err(|error| of_file(&path, error))
            }
            Inside::ListFiles { path } => self.list_files(chat, &path).await,
            Inside::StatFile { path } => self.simple(chat, Request::Facts { path: bytes(&path) }, &path).await,
            Inside::MakeDirectory { path, mode, parents } => {
                let request = Request::MakeDirectory { path: bytes(&path), mode, parents };
                self.simple(chat, request, &path).await
            }
            Inside::RemoveFile { path, recursive } => {
                self.simple(chat, Request::Remove { path: bytes(&path), recursive }, &path).await
            }
            Inside::MoveFile { from, to } => {
                self.simple(chat, Request::Move { from: bytes(&from), to: bytes(&to) }, &from).await
            }
            other => Err(Kind::Internal.error(format!("{other:?} is not about a file"))),
        }
    }

    async fn simple(&self, chat: ChatId, request: Request, path: &str) -> Result<InsideAnswer, Error> {
        match self.ask(chat, request).await?.answer().await {
            Ok(Event::Done {}) => Ok(InsideAnswer::Done(Done {})),
            Ok(Event::Facts { facts }) => Ok(InsideAnswer::File(facts.into())),
            Ok(other) => Err(unexpected(Ok(other))),
            Err(error) => Err(of_file(path, error)),
        }
    }

    /// Hands on what is sent with `sandbox.input`, however much it is, until init says what became of it.
    pub(super) async fn receive(
        &self,
        chat: ChatId,
        conversation: Conversation,
    ) -> Result<Result<Event, ConversationError>, Error> {
        let Conversation { mut listening, mut speaking } = conversation;
        let transfer = self.steering.new_command();
        let mut wheel = self.steering.take(chat, transfer);
        self.notify(Notification::Started { command: transfer }).await.map_err(|_| gone())?;
        let receiving = async {
            loop {
                if let Steer::Input { bytes, end, memory: _memory } = wheel.turned().await {
                    let _ = speaking.data(&bytes).await;
                    if end {
                        let _ = speaking.end().await;
                    }
                }
            }
        };
        tokio::select! {
            event = listening.next_event() => Ok(event),
            () = receiving => Err(gone()),
            // Without its end, nothing is written.
            () = self.gone.cancelled() => Err(gone()),
            () = self.shutdown.cancelled() => Err(Kind::ShuttingDown.error("the service is shutting down")),
        }
    }

    /// Reads a small part first, which needs only memory of the connection's own. Memory for a large file is reserved
    /// while none of it is held, neither here nor in the sandbox.
    async fn read_file(&self, chat: ChatId, path: &str, offset: u64, length: u64) -> Result<InsideAnswer, Error> {
        let entrance = self.interior(&self.visited(chat).await?)?;
        let read = async |length: u64| {
            let conversation = entrance.converse(&Request::Read { path: Bytes::from(path), offset, length }).await?;
            gather(conversation, length).await.map_err(|error| of_file(path, error))
        };
        let first = length.min(FIRST_READ);
        let memory = self.reserve_own(first as usize).await?;
        let (mut facts, mut content) = read(first).await?;
        if content.len() as u64 == first && first < length {
            drop((content, memory));
            let left = facts.size.saturating_sub(offset);
            // Some files, such as those of the kernel, do not know their size. Others grow while they are read.
            let wanted = if left < first { length } else { length.min(left + FIRST_READ) };
            self.hold(self.reserve(wanted as usize, Holding::Brief).await?);
            (facts, content) = read(wanted).await?;
        } else {
            self.hold(memory);
        }
        let bytes = content.len() as u64;
        Ok(InsideAnswer::Read(Box::new(ReadFile::of(Some(content), bytes, facts.into()))))
    }

    /// Sends a file bit by bit.
    async fn tell_file(
        &self,
        mut conversation: Conversation,
        start: u64,
        length: u64,
    ) -> Result<InsideAnswer, ConversationError> {
        let Event::Facts { facts } = conversation.listening.event().await? else {
            return Err(ConversationError::Nonsense);
        };
        // The beginning of a character whose rest has not come yet.
        let (mut begun, mut read) = (Vec::new(), 0);
        loop {
            let joined;
            let (bytes, is_last) = match conversation.listening.soon().await? {
                Said::Data(bytes) => {
                    read += bytes.len() as u64;
                    // More than was asked for is not init's doing.
                    if read > length {
                        return Err(ConversationError::Nonsense);
                    }
                    if begun.is_empty() {
                        (bytes, false)
                    } else {
                        joined = [&begun, bytes].concat();
                        (joined.as_slice(), false)
                    }
                }
                Said::End => (begun.as_slice(), true),
                _ => return Err(ConversationError::Nonsense),
            };
            // At the end, what is left is told as it is.
            let whole = if is_last { bytes.len() } else { whole_characters(bytes) };
            let offset = start + read - bytes.len() as u64;
            let (told, rest) = bytes.split_at(whole);
            if !told.is_empty() && self.notify(Notification::Data { offset, bytes: told }).await.is_err() {
                return Err(ConversationError::Broken);
            }
            if is_last {
                return Ok(InsideAnswer::Read(Box::new(ReadFile::of(None, read, facts.into()))));
            }
            begun = rest.to_vec();
        }
    }

    /// Most directories fit into the memory that every listing has.
    async fn list_files(&self, chat: ChatId, path: &str) -> Result<InsideAnswer, Error> {
        let entrance = self.interior(&self.visited(chat).await?)?;
        let list = async |most: usize| {
            let conversation = entrance.converse(&Request::ReadDirectory { path: Bytes::from(path) }).await?;
            list(conversation, most).await.map_err(|error| of_file(path, error))
        };
        let mut files = list(ORDINARY).await?;
        if files.truncated {
            drop(files);
            self.hold(self.reserve(MAX_LISTING, Holding::Brief).await?);
            files = list(MAX_LISTING).await?;
        }
        Ok(InsideAnswer::Files(files))
    }
}

/// All that init says of a file.
async fn gather(mut conversation: Conversation, length: u64) -> Result<(Facts, Kept), ConversationError> {
    let Event::Facts { facts } = conversation.listening.event().await? else {
        return Err(ConversationError::Nonsense);
    };
    let mut content = Kept::default();
    loop {
        match conversation.listening.soon().await? {
            // More than was asked for is not init's doing.
            Said::Data(bytes) if (content.len() + bytes.len()) as u64 > length => {
                return Err(ConversationError::Nonsense);
            }
            Said::Data(bytes) => content.extend_from_slice(bytes),
            Said::End => return Ok((facts, content)),
            _ => return Err(ConversationError::Nonsense),
        }
    }
}

async fn write(conversation: Conversation, content: &[u8]) -> Result<InsideAnswer, ConversationError> {
    let Conversation { mut listening, mut speaking } = conversation;
    let sending = async {
        // Where it fails, init has said why.
        let _ = speaking.data(content).await;
        let _ = speaking.end().await;
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        event = listening.event() => done(event),
        never = sending => match never {},
    }
}

fn done(event: Result<Event, ConversationError>) -> Result<InsideAnswer, ConversationError> {
    match event? {
        Event::Done {} => Ok(InsideAnswer::Done(Done {})),
        _ => Err(ConversationError::Nonsense),
    }
}

/// Ends early where the list would weigh more than `most`.
async fn list(mut conversation: Conversation, most: usize) -> Result<Files, ConversationError> {
    let (mut files, mut names, mut weight): (Vec<FileFields>, usize, usize) = (Vec::new(), 0, 0);
    loop {
        match conversation.listening.soon().await? {
            Said::Event(Event::Entries { entries }) => {
                names += entries.iter().flat_map(in_names).count();
                weight += entries.iter().map(weigh).sum::<usize>();
                files.extend(entries.into_iter().map(FileFields::from));
            }
            Said::End => return Ok(Files { files, truncated: false }),
            _ => return Err(ConversationError::Nonsense),
        }
        if files.len() >= MAX_FILES || names >= MAX_NAMES || weight >= most {
            files.truncate(MAX_FILES);
            return Ok(Files { files, truncated: true });
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

pub(super) fn of_file(path: &str, error: ConversationError) -> Error {
    let ConversationError::Failed(Failure { errno, message }) = error else { return unexpected(Err(error)) };
    if [ENGINE_FAILED, TOO_MANY_STREAMS].contains(&errno) {
        return unexpected(Err(ConversationError::Failed(Failure { errno, message })));
    }
    let message = String::from_utf8_lossy(&message.0).into_owned();
    Kind::FileError
        .error(format!("{path}: {message}"))
        .with("path", path)
        .with("reason", FileReason::of(errno).as_str())
}
