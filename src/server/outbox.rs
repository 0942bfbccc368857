//! What one connection owes its caller: requests under way, and answers that the caller has not read yet.
//!
//! Both are bounded. Where a bound is reached, [`Outbox::admit`] waits, nothing more is read from the connection, and
//! the caller's own writes come to a halt: back-pressure, without an error and without a stalled neighbour. A stream
//! waits in the same way, with what it has to send next.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::protocol::answer::Answer;
use crate::protocol::error::{Error, Kind};
use crate::protocol::notification::Notification;
use crate::protocol::request::Id;
use crate::protocol::response;

/// A buffer that an unusually large answer has blown up is not kept.
const USUAL_BUFFER: usize = 64 << 10;

/// What streams may leave unread. They can wait, and find later what they have to send; answers come first.
const STREAM_BUFFER: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Outbox {
    max_in_flight: usize,
    max_output: usize,
    state: Mutex<State>,
    /// Wakes the reader, which waits for room, and the writer, which waits for answers.
    room: Notify,
    work: Notify,
    /// Wakes every stream that waits for room.
    stream_room: Notify,
}

/// Nobody reads any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    answers: Vec<u8>,
    /// Taken by the writer, and not on its way yet.
    writing: usize,
    /// No more requests are expected: done once everything is answered.
    finishing: bool,
    /// Nobody reads any more: answers are dropped.
    closed: bool,
}

impl Outbox {
    pub(super) fn new(max_in_flight: usize, max_output: usize) -> Arc<Self> {
        let (room, work, stream_room) = (Notify::new(), Notify::new(), Notify::new());
        Arc::new(Self { max_in_flight, max_output, state: Mutex::default(), room, work, stream_room })
    }

    /// Waits until one more request can be taken on. For a single reader.
    pub(super) async fn admit(self: &Arc<Self>) -> Ticket {
        loop {
            {
                let mut state = self.state();
                let unread = state.answers.len() + state.writing;
                if state.in_flight < self.max_in_flight && unread < self.max_output {
                    state.in_flight += 1;
                    return Ticket { outbox: Arc::clone(self), id: None, answer: None };
                }
            }
            self.room.notified().await;
        }
    }

    /// Lets [`Outbox::write_to`] end once everything is answered and written.
    pub(super) fn finish(&self) {
        self.state().finishing = true;
        self.work.notify_one();
    }

    /// Writes answers as they come, all that are ready at once, until [`Outbox::finish`] or until the caller has taken
    /// nothing for `stall`. For a single writer.
    pub(super) async fn write_to(&self, mut sink: impl AsyncWrite + Unpin, stall: Duration) -> io::Result<()> {
        let _closed = CloseOnDrop(self);
        let mut batch = Vec::new();
        while self.take(&mut batch).await {
            let mut rest = batch.as_slice();
            while !rest.is_empty() {
                let written = tokio::time::timeout(stall, sink.write(rest)).await??;
                rest = &rest[written..];
            }
        }
        sink.shutdown().await
    }

    /// Exchanges the written batch for the next one; false once there is none to come.
    async fn take(&self, batch: &mut Vec<u8>) -> bool {
        batch.clear();
        if batch.capacity() > USUAL_BUFFER {
            *batch = Vec::new();
        }
        loop {
            let (found, finished) = {
                let mut state = self.state();
                state.writing = state.answers.len();
                std::mem::swap(batch, &mut state.answers);
                (state.writing > 0, state.finishing && state.in_flight == 0)
            };
            self.room.notify_one();
            self.stream_room.notify_waiters();
            if found || finished {
                return found;
            }
            self.work.notified().await;
        }
    }

    /// Waits until the caller has read enough of what it has been sent. Nothing is sent if it is dropped before.
    async fn push(&self, line: &[u8]) -> Result<(), Closed> {
        loop {
            // Made before the look, so that no room made in between is missed.
            let room = self.stream_room.notified();
            {
                let mut state = self.state();
                if state.closed {
                    return Err(Closed);
                }
                if state.answers.len() + state.writing < self.max_output.min(STREAM_BUFFER) {
                    state.answers.extend_from_slice(line);
                    break;
                }
            }
            room.await;
        }
        self.work.notify_one();
        Ok(())
    }

    fn settle(&self, answer: Option<Vec<u8>>) {
        let mut state = self.state();
        state.in_flight -= 1;
        if let Some(answer) = answer
            && !state.closed
        {
            state.answers.extend_from_slice(&answer);
        }
        drop(state);
        self.room.notify_one();
        self.work.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right, and the duty, to answer one request.
#[derive(Debug)]
pub(super) struct Ticket {
    outbox: Arc<Outbox>,
    id: Option<Id>,
    answer: Option<Vec<u8>>,
}

impl Ticket {
    /// The request turned out to want an answer, under this id.
    pub(super) fn identified(mut self, id: Option<Id>) -> Self {
        self.id = id;
        self
    }

    pub(super) fn wants_answer(&self) -> bool {
        self.id.is_some()
    }

    /// Sends something ahead of the answer, under the same id. A request without an id is sent nothing.
    pub(super) async fn notify(&self, notification: Notification<'_>) -> Result<(), Closed> {
        match &self.id {
            Some(id) => self.outbox.push(&notification.encode(id)).await,
            None => Err(Closed),
        }
    }

    pub(super) fn answer(mut self, outcome: &Result<Answer, Error>) {
        self.answer = self.id.take().map(|id| response::encode(&id, outcome));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Still there only if the task that was to answer panicked.
        if let Some(id) = self.id.take() {
            let defect = Kind::Internal.error("the service failed while it worked on this request");
            self.answer = Some(response::encode(&id, &Err(defect)));
        }
        self.outbox.settle(self.answer.take());
    }
}

struct CloseOnDrop<'a>(&'a Outbox);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        state.answers = Vec::new();
        drop(state);
        self.0.stream_room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use serde_json::Value;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn request(id: u32) -> Option<Id> {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"system.info"}}"#);
        crate::protocol::request::parse(line.as_bytes()).expect("valid").id
    }

    fn refusal() -> Result<Answer, Error> {
        Err(Kind::Busy.error("later"))
    }

    /// Remembers each write by itself.
    #[derive(Debug, Default)]
    struct Writes(Vec<Vec<u8>>);

    impl AsyncWrite for &mut Writes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn answers_that_are_ready_leave_in_one_write() {
        let outbox = Outbox::new(8, 1 << 20);
        for id in 0..5 {
            outbox.admit().await.identified(request(id)).answer(&refusal());
        }
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, PATIENCE).await.expect("written");
        assert_eq!(writes.0.len(), 1);
        assert_eq!(writes.0[0].iter().filter(|byte| **byte == b'\n').count(), 5);
    }

    #[tokio::test]
    async fn a_request_whose_task_panics_is_answered() {
        let outbox = Outbox::new(8, 1 << 20);
        let ticket = outbox.admit().await.identified(request(7));
        let task = tokio::spawn(async move {
            let _ticket = ticket;
            panic!("a defect");
        });
        assert!(task.await.is_err());
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, PATIENCE).await.expect("written");
        let answer: Value = serde_json::from_slice(&writes.0[0]).expect("JSON");
        assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&7.into(), &"internal".into()));
    }

    #[tokio::test]
    async fn a_notification_takes_a_place_and_gets_no_answer() {
        let outbox = Outbox::new(1, 1 << 20);
        let ticket = outbox.admit().await.identified(None);
        assert!(outbox.admit().now_or_never().is_none());
        ticket.answer(&refusal());
        outbox.admit().await.identified(None).answer(&refusal());
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, PATIENCE).await.expect("written");
        assert!(writes.0.is_empty());
    }

    #[tokio::test]
    async fn unread_answers_keep_further_requests_out_until_they_are_read() {
        let outbox = Outbox::new(8, 1);
        outbox.admit().await.identified(request(1)).answer(&refusal());
        assert!(outbox.admit().now_or_never().is_none());
        let (sink, mut reader) = tokio::io::duplex(16);
        let writing = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move { outbox.write_to(sink, PATIENCE).await }
        });
        tokio::task::yield_now().await;
        assert!(outbox.admit().now_or_never().is_none(), "taken by the writer, but not by the reader");
        let mut answer = Vec::new();
        let reading = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut answer);
        let admitted = async {
            drop(outbox.admit().await);
            outbox.finish();
        };
        let (read, ()) = tokio::join!(reading, admitted);
        assert!(read.is_ok() && answer.ends_with(b"\n"));
        writing.await.expect("no panic").expect("written");
    }

    #[tokio::test]
    async fn a_stream_waits_for_its_reader_and_ends_with_it() {
        let outbox = Outbox::new(8, 1);
        let ticket = outbox.admit().await.identified(request(1));
        let gap = Notification::Gap { after: 1, resumes_at: 2 };
        assert_eq!(ticket.notify(gap).await, Ok(()));
        assert!(ticket.notify(gap).now_or_never().is_none(), "the first is not read yet");
        let (sink, reader) = tokio::io::duplex(1 << 10);
        let writing = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move { outbox.write_to(sink, PATIENCE).await }
        });
        assert_eq!(ticket.notify(gap).await, Ok(()));
        drop(reader);
        while ticket.notify(gap).await.is_ok() {}
        assert!(writing.await.expect("no panic").is_err());
    }

    #[tokio::test]
    async fn a_caller_that_takes_nothing_is_given_up() {
        let outbox = Outbox::new(8, 1 << 20);
        outbox.admit().await.identified(request(1)).answer(&refusal());
        let (sink, _unread) = tokio::io::duplex(16);
        let error = outbox.write_to(sink, Duration::from_millis(10)).await.expect_err("given up");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
