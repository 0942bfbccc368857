//! Directory trees, as archives that the guest packs and unpacks.
//!
//! The service only forwards the bytes. It holds at most one frame and the caller's unread notifications: the slower side
//! holds back the other.

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Event, Request};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::Holder;
use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::file::TreeResult;

use super::exec::WorkLease;
use super::files::of_file;
use super::{GuestCall, disconnected, unreachable};
use crate::guest::stream::{GuestFrame, GuestStream, GuestStreamError};
use crate::protocol::answer::Answer;
use crate::protocol::notification::Notification;
use crate::server::access::Role;

impl GuestCall<'_> {
    pub(super) async fn read_tree(&self, chat: ChatId, path: &str) -> Result<Answer, Error> {
        let lease = match self.role {
            Role::Full => WorkLease::acquire(self.sandboxes, chat, Holder::Transfer, self.max_lease).await?,
            Role::ReadOnly => WorkLease::without_lease(self.sandboxes, self.running(chat).await?),
        };
        let reading = async {
            let request = Request::ReadTree { path: Bytes::from(path) };
            let stream = self.guest(&lease.sandbox)?.open_stream(&request).await.map_err(unreachable)?;
            tree(path, self.stream_archive(stream).await?)
        };
        let outcome = tokio::select! {
            outcome = reading => outcome,
            never = lease.renew() => match never {},
            () = self.disconnected.cancelled() => Err(disconnected()),
            () = self.shutdown.cancelled() => Err(ErrorKind::ShuttingDown.error("the service is shutting down")),
        };
        lease.release().await;
        outcome
    }

    pub(super) async fn write_tree(&self, chat: ChatId, path: &str, parents: bool) -> Result<Answer, Error> {
        let lease = WorkLease::acquire(self.sandboxes, chat, Holder::Transfer, self.max_lease).await?;
        let writing = async {
            let request = Request::WriteTree { path: Bytes::from(path), parents };
            let stream = self.guest(&lease.sandbox)?.open_stream(&request).await.map_err(unreachable)?;
            tree(path, self.receive_upload(chat, stream).await?)
        };
        let outcome = tokio::select! {
            outcome = writing => outcome,
            never = lease.renew() => match never {},
        };
        lease.release().await;
        outcome
    }

    async fn stream_archive(&self, mut stream: GuestStream) -> Result<Result<Event, GuestStreamError>, Error> {
        let mut offset = 0;
        loop {
            match stream.reader.soon().await {
                Ok(GuestFrame::Data(bytes)) => {
                    self.notify(Notification::Archive { offset, bytes }).await.map_err(|_| disconnected())?;
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
