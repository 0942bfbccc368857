//! Directories with all that is in them, as archives that are made and taken apart in the sandbox.
//!
//! Here they are bytes that pass by. However many there are, no more of them are held than one frame and what the caller
//! has not read yet: whoever is slower holds back the other.

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Event, Request};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::Holder;
use sandboxd_protocol::file::TreeResult;

use super::exec::Held;
use super::files::of_file;
use super::{GuestCall, gone, unreachable};
use crate::guest::stream::{GuestFrame, GuestStream, GuestStreamError};
use crate::protocol::answer::Answer;
use crate::protocol::error::{Error, Kind};
use crate::protocol::notification::Notification;
use crate::server::access::Role;

impl GuestCall<'_> {
    pub(super) async fn read_tree(&self, chat: ChatId, path: &str) -> Result<Answer, Error> {
        let held = match self.role {
            Role::Full => Held::take(self.sandboxes, chat, Holder::Transfer, self.max_lease).await?,
            Role::ReadOnly => Held::unheld(self.sandboxes, self.running(chat).await?),
        };
        let reading = async {
            let request = Request::ReadTree { path: Bytes::from(path) };
            let conversation = self.interior(&held.sandbox)?.open_stream(&request).await.map_err(unreachable)?;
            tree(path, self.tell_archive(conversation).await?)
        };
        let outcome = tokio::select! {
            outcome = reading => outcome,
            never = held.keep() => match never {},
            () = self.gone.cancelled() => Err(gone()),
            () = self.shutdown.cancelled() => Err(Kind::ShuttingDown.error("the service is shutting down")),
        };
        held.release().await;
        outcome
    }

    pub(super) async fn write_tree(&self, chat: ChatId, path: &str, parents: bool) -> Result<Answer, Error> {
        let held = Held::take(self.sandboxes, chat, Holder::Transfer, self.max_lease).await?;
        let writing = async {
            let request = Request::WriteTree { path: Bytes::from(path), parents };
            let conversation = self.interior(&held.sandbox)?.open_stream(&request).await.map_err(unreachable)?;
            tree(path, self.receive(chat, conversation).await?)
        };
        let outcome = tokio::select! {
            outcome = writing => outcome,
            never = held.keep() => match never {},
        };
        held.release().await;
        outcome
    }

    async fn tell_archive(&self, mut conversation: GuestStream) -> Result<Result<Event, GuestStreamError>, Error> {
        let mut offset = 0;
        loop {
            match conversation.reader.soon().await {
                Ok(GuestFrame::Data(bytes)) => {
                    self.notify(Notification::Archive { offset, bytes }).await.map_err(|_| gone())?;
                    offset += bytes.len() as u64;
                }
                Ok(GuestFrame::Event(event)) => return Ok(Ok(event)),
                Ok(_) => return Ok(Err(GuestStreamError::InvalidResponse)),
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}

fn tree(path: &str, outcome: Result<Event, GuestStreamError>) -> Result<Answer, Error> {
    match outcome {
        Ok(Event::Tree { entries, bytes, skipped }) => Ok(Answer::Tree(TreeResult { entries, bytes, skipped })),
        Ok(_) => Err(of_file(path, GuestStreamError::InvalidResponse)),
        Err(error) => Err(of_file(path, error)),
    }
}
