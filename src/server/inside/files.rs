//! Files in a sandbox.

use std::convert::Infallible;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Entry, Event, Failure, Request};
use sandboxd_actors::ids::ChatId;

use super::steering::Steer;
use super::{Desk, ENGINE_FAILED, gone, unexpected};
use crate::interiors::conversation::{Conversation, ConversationError, Said};
use crate::protocol::error::{Error, Kind};
use crate::protocol::inside::answer::{Done, FileFields, Files, InsideAnswer, ReadFile};
use crate::protocol::inside::file_reason::FileReason;
use crate::protocol::inside::{Inside, MAX_FILES, whole_characters};
use crate::protocol::notification::Notification;

/// Bytes of names and of links' targets that one answer tells.
const MAX_NAMES: usize = 4 << 20;

impl Desk<'_> {
    pub(super) async fn file(&self, chat: ChatId, call: Inside) -> Result<InsideAnswer, Error> {
        let bytes = |path: &String| Bytes::from(path.as_str());
        match call {
            Inside::ReadFile { path, offset, length, stream } => {
                let conversation = self.ask(chat, Request::Read { path: bytes(&path), offset, length }).await?;
                let telling = stream.then_some(offset);
                self.read(conversation, length, telling).await.map_err(|error| of_file(&path, error))
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
            Inside::ListFiles { path } => {
                let conversation = self.ask(chat, Request::ReadDirectory { path: bytes(&path) }).await?;
                list(conversation).await.map_err(|error| of_file(&path, error))
            }
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
                if let Steer::Input { bytes, end } = wheel.turned().await {
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

    /// `telling` is where in the file the caller is to be told of it bit by bit.
    async fn read(
        &self,
        mut conversation: Conversation,
        length: u64,
        telling: Option<u64>,
    ) -> Result<InsideAnswer, ConversationError> {
        let Event::Facts { facts } = conversation.listening.event().await? else {
            return Err(ConversationError::Nonsense);
        };
        let (mut kept, mut read) = (Vec::new(), 0);
        loop {
            let told = match conversation.listening.soon().await? {
                Said::Data(bytes) => {
                    read += bytes.len() as u64;
                    // More than was asked for is not init's doing.
                    if read > length {
                        return Err(ConversationError::Nonsense);
                    }
                    kept.extend_from_slice(bytes);
                    false
                }
                Said::End => true,
                _ => return Err(ConversationError::Nonsense),
            };
            if let Some(start) = telling {
                // At the end, what is left is told as it is.
                let whole = if told { kept.len() } else { whole_characters(&kept) };
                let offset = start + read - kept.len() as u64;
                let rest = kept.split_off(whole);
                let notified =
                    kept.is_empty() || self.notify(Notification::Data { offset, bytes: &kept }).await.is_ok();
                if !notified {
                    return Err(ConversationError::Broken);
                }
                kept = rest;
            }
            if told {
                let content = telling.is_none().then_some(kept);
                return Ok(InsideAnswer::Read(Box::new(ReadFile::of(content, read, facts.into()))));
            }
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

async fn list(mut conversation: Conversation) -> Result<InsideAnswer, ConversationError> {
    let (mut files, mut bytes): (Vec<FileFields>, usize) = (Vec::new(), 0);
    loop {
        match conversation.listening.soon().await? {
            Said::Event(Event::Entries { entries }) => {
                bytes += entries.iter().map(in_names).sum::<usize>();
                files.extend(entries.into_iter().map(FileFields::from));
            }
            Said::End => return Ok(InsideAnswer::Files(Files { files, truncated: false })),
            _ => return Err(ConversationError::Nonsense),
        }
        if files.len() >= MAX_FILES || bytes >= MAX_NAMES {
            files.truncate(MAX_FILES);
            return Ok(InsideAnswer::Files(Files { files, truncated: true }));
        }
    }
}

fn in_names(entry: &Entry) -> usize {
    entry.name.0.len() + entry.facts.target.as_ref().map_or(0, |target| target.0.len())
}

pub(super) fn of_file(path: &str, error: ConversationError) -> Error {
    let ConversationError::Failed(Failure { errno, message }) = error else { return unexpected(Err(error)) };
    if errno == ENGINE_FAILED {
        return unexpected(Err(ConversationError::Failed(Failure { errno, message })));
    }
    let message = String::from_utf8_lossy(&message.0).into_owned();
    Kind::FileError
        .error(format!("{path}: {message}"))
        .with("path", path)
        .with("reason", FileReason::of(errno).as_str())
}
