//! What one connection owes its caller: requests under way, and answers that the caller has not read yet.
//!
//! Both are bounded. Where a bound is reached, [`Outbox::admit`] waits, nothing more is read from the connection, and
//! the caller's own writes come to a halt: back-pressure, without an error and without a stalled neighbour. A stream
//! waits in the same way, with what it has to send next.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::memory::{PATIENCE, Reservation, Share};
use crate::protocol::answer::Answer;
use crate::protocol::error::{Error, Kind};
use crate::protocol::notification::Notification;
use crate::protocol::request::Id;
use crate::protocol::response::{self, Line};

/// A buffer that an unusually large answer has blown up is not kept.
const USUAL_BUFFER: usize = 64 << 10;

/// What streams may leave unread. They can wait, and find later what they have to send; answers come first.
const STREAM_BUFFER: usize = 256 << 10;

/// Less than this within [`PATIENCE`] is not reading.
const LEAST_READ: usize = 1 << 20;

/// How often a write that does not go on is looked at.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Outbox {
    max_in_flight: usize,
    max_output: usize,
    share: Share,
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
    queue: VecDeque<Item>,
    /// In the queue, without those that have a reservation.
    unread: usize,
    /// Taken by the writer, and not on its way yet.
    writing: usize,
    /// No more requests are expected: done once everything is answered.
    finishing: bool,
    /// Nobody reads any more: answers are dropped.
    closed: bool,
}

#[derive(Debug)]
enum Item {
    /// Whole lines.
    Lines(Vec<u8>),
    Reserved(ReservedLine),
}

/// A line whose memory was counted before there was an answer.
#[derive(Debug)]
struct ReservedLine {
    line: Line,
    memory: Reservation,
}

impl ReservedLine {
    /// Appends the next piece, and gives back its memory; false once there is none left.
    fn put_piece(&mut self, out: &mut Vec<u8>) -> bool {
        let put = self.line.put_piece(out);
        self.memory.shrink_to(self.line.held());
        put
    }
}

impl State {
    fn put(&mut self, line: &[u8]) {
        self.unread += line.len();
        match self.queue.back_mut() {
            Some(Item::Lines(lines)) => lines.extend_from_slice(line),
            _ => self.queue.push_back(Item::Lines(line.to_vec())),
        }
    }
}

impl Outbox {
    pub(super) fn new(max_in_flight: usize, max_output: usize, share: Share) -> Arc<Self> {
        let (room, work, stream_room) = (Notify::new(), Notify::new(), Notify::new());
        Arc::new(Self { max_in_flight, max_output, share, state: Mutex::default(), room, work, stream_room })
    }

    /// The memory of this connection.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Waits until one more request can be taken on. For a single reader.
    pub(super) async fn admit(self: &Arc<Self>) -> Ticket {
        loop {
            {
                let mut state = self.state();
                let unread = state.unread + state.writing;
                if state.in_flight < self.max_in_flight && unread < self.max_output {
                    state.in_flight += 1;
                    return Ticket { outbox: Arc::clone(self), id: None, answer: None, held: Mutex::default() };
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
    /// nothing for `stall`, or too little while it holds memory that others wait for. For a single writer.
    pub(super) async fn write_to(&self, mut sink: impl AsyncWrite + Unpin, stall: Duration) -> io::Result<()> {
        let _closed = CloseOnDrop(self);
        let (mut batch, mut current) = (Vec::new(), None);
        let mut pace = Pace::default();
        while self.take(&mut batch, &mut current).await {
            let mut rest = batch.as_slice();
            while !rest.is_empty() {
                let written = self.write(&mut sink, rest, stall, &mut pace).await?;
                rest = &rest[written..];
            }
        }
        sink.shutdown().await
    }

    async fn write(
        &self,
        sink: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
        stall: Duration,
        pace: &mut Pace,
    ) -> io::Result<usize> {
        let begun = Instant::now();
        let mut looked = begun;
        let mut writing = std::pin::pin!(sink.write(bytes));
        loop {
            let written = tokio::time::timeout(LOOK.min(stall), &mut writing).await;
            let now = Instant::now();
            pace.blocked += now - looked;
            looked = now;
            if let Ok(written) = written {
                pace.taken += *written.as_ref().unwrap_or(&0);
                return written;
            }
            if pace.was_slow() && self.share.is_in_the_way() {
                tracing::warn!("closing a connection that does not read while others wait for the memory it holds");
                return Err(io::ErrorKind::TimedOut.into());
            }
            if now - begun >= stall {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Exchanges the written batch for the next one; false once there is none to come.
    async fn take(&self, batch: &mut Vec<u8>, current: &mut Option<ReservedLine>) -> bool {
        batch.clear();
        if batch.capacity() > 2 * USUAL_BUFFER {
            *batch = Vec::new();
        }
        loop {
            if let Some(line) = current {
                if line.put_piece(batch) {
                    return true;
                }
                *current = None;
            }
            let (found, finished) = {
                let mut state = self.state();
                state.writing = 0;
                let next = state.queue.pop_front();
                if let Some(Item::Lines(lines)) = &next {
                    state.unread -= lines.len();
                    state.writing = lines.len();
                }
                (next, state.finishing && state.in_flight == 0)
            };
            self.room.notify_one();
            self.stream_room.notify_waiters();
            match found {
                Some(Item::Lines(lines)) => {
                    *batch = lines;
                    return true;
                }
                Some(Item::Reserved(line)) => *current = Some(line),
                None if finished => return false,
                None => self.work.notified().await,
            }
        }
    }

    /// Waits until the caller has read enough of what it has been sent, and only then encodes what it is sent next.
    /// Nothing is sent if it is dropped before.
    async fn push(&self, encode: impl FnOnce() -> Vec<u8>) -> Result<(), Closed> {
        loop {
            // Made before the look, so that no room made in between is missed.
            let room = self.stream_room.notified();
            {
                let mut state = self.state();
                if state.closed {
                    return Err(Closed);
                }
                if state.unread + state.writing < self.max_output.min(STREAM_BUFFER) {
                    state.put(&encode());
                    break;
                }
            }
            room.await;
        }
        self.work.notify_one();
        Ok(())
    }

    fn settle(&self, answer: Option<Line>, memory: Option<Reservation>) {
        let mut state = self.state();
        state.in_flight -= 1;
        match (answer, memory) {
            (Some(line), Some(mut memory)) if !state.closed => {
                memory.shrink_to(line.held());
                state.queue.push_back(Item::Reserved(ReservedLine { line, memory }));
            }
            (Some(line), None) if !state.closed => state.put(&line.into_bytes()),
            _ => {}
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

/// How fast a caller reads while there is something to read.
#[derive(Debug, Default)]
struct Pace {
    blocked: Duration,
    taken: usize,
}

impl Pace {
    /// Whether the last [`PATIENCE`] of waiting for the caller was too long. To be asked whenever a write does not go on.
    fn was_slow(&mut self) -> bool {
        if self.blocked < PATIENCE {
            return false;
        }
        std::mem::take(self).taken < LEAST_READ
    }
}

/// The right, and the duty, to answer one request.
#[derive(Debug)]
pub(super) struct Ticket {
    outbox: Arc<Outbox>,
    id: Option<Id>,
    answer: Option<Line>,
    held: Mutex<Held>,
}

/// Memory that is counted for one request.
#[derive(Debug, Default)]
struct Held {
    /// Until it is answered.
    request: Option<Reservation>,
    /// Until its answer is read.
    answer: Option<Reservation>,
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

    /// The memory of the connection.
    pub(super) fn share(&self) -> &Share {
        &self.outbox.share
    }

    /// Keeps the memory of the request itself until it is answered.
    pub(super) fn hold_request(&self, memory: Reservation) {
        self.held().request = Some(memory);
    }

    /// For a request whose content outlives its answer.
    pub(super) fn take_request(&self) -> Option<Reservation> {
        self.held().request.take()
    }

    /// Keeps the memory of the answer until it is read.
    pub(super) fn hold_answer(&self, memory: Reservation) {
        self.held().answer.get_or_insert_default().add(memory);
    }

    /// Sends something ahead of the answer, under the same id. A request without an id is sent nothing.
    pub(super) async fn notify(&self, notification: Notification<'_>) -> Result<(), Closed> {
        match &self.id {
            Some(id) => self.outbox.push(|| notification.encode(id)).await,
            None => Err(Closed),
        }
    }

    pub(super) fn answer(mut self, outcome: Result<Answer, Error>) {
        self.answer = self.id.take().map(|id| response::encode(&id, outcome));
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // No panic can leave it half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Still there only if the task that was to answer panicked.
        if let Some(id) = self.id.take() {
            let defect = Kind::Internal.error("the service failed while it worked on this request");
            self.answer = Some(response::encode(&id, Err(defect)));
        }
        let memory = self.held().answer.take();
        self.outbox.settle(self.answer.take(), memory);
    }
}

struct CloseOnDrop<'a>(&'a Outbox);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        state.queue = VecDeque::new();
        drop(state);
        self.0.share.close();
        self.0.stream_room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Limits;
    use crate::server::memory::{Holding, Memory};
    use futures_util::FutureExt;
    use serde_json::Value;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn request(id: u32) -> Option<Id> {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"system.info"}}"#);
        crate::protocol::request::parse(line.as_bytes()).expect("valid").id
    }

    fn outbox(max_in_flight: usize, max_output: usize) -> Arc<Outbox> {
        let memory = Memory::new(&Limits::default());
        Outbox::new(max_in_flight, max_output, memory.share())
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
        let outbox = outbox(8, 1 << 20);
        for id in 0..5 {
            outbox.admit().await.identified(request(id)).answer(refusal());
        }
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, PATIENCE).await.expect("written");
        assert_eq!(writes.0.len(), 1);
        assert_eq!(writes.0[0].iter().filter(|byte| **byte == b'\n').count(), 5);
    }

    #[tokio::test]
    async fn a_request_whose_task_panics_is_answered() {
        let outbox = outbox(8, 1 << 20);
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
        let outbox = outbox(1, 1 << 20);
        let ticket = outbox.admit().await.identified(None);
        assert!(outbox.admit().now_or_never().is_none());
        ticket.answer(refusal());
        outbox.admit().await.identified(None).answer(refusal());
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, PATIENCE).await.expect("written");
        assert!(writes.0.is_empty());
    }

    #[tokio::test]
    async fn unread_answers_keep_further_requests_out_until_they_are_read() {
        let outbox = outbox(8, 1);
        outbox.admit().await.identified(request(1)).answer(refusal());
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
        let outbox = outbox(8, 1);
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
        let outbox = outbox(8, 1 << 20);
        outbox.admit().await.identified(request(1)).answer(refusal());
        let (sink, _unread) = tokio::io::duplex(16);
        let error = outbox.write_to(sink, Duration::from_millis(10)).await.expect_err("given up");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn memory_of_an_answer_is_held_until_it_is_read() {
        let limits = Limits { max_memory: 4 << 20, max_memory_per_connection: 2 << 20, ..Limits::default() };
        let memory = Memory::new(&limits);
        let outbox = Outbox::new(8, 1 << 20, memory.share());
        let ticket = outbox.admit().await.identified(request(1));
        let all = 2 << 20;
        ticket.hold_answer(ticket.share().pooled(all, Holding::Brief).await.expect("open"));
        ticket.answer(refusal());
        assert!(outbox.share().pooled(all, Holding::Brief).now_or_never().is_none(), "not read yet");
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, PATIENCE).await.expect("written");
        assert_eq!(writes.0.len(), 1);
        assert!(memory.share().pooled(all, Holding::Brief).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_caller_that_does_not_read_is_cut_off_early_while_others_wait_for_its_memory() {
        let limits = Limits { max_memory: 4 << 20, max_memory_per_connection: 2 << 20, ..Limits::default() };
        let memory = Memory::new(&limits);
        let shares = [memory.share(), memory.share()];
        let outbox = Outbox::new(8, 1 << 20, memory.share());
        let ticket = outbox.admit().await.identified(request(1));
        ticket.hold_answer(ticket.share().pooled(2 << 20, Holding::Brief).await.expect("open"));
        ticket.notify(Notification::Gap { after: 1, resumes_at: 2 }).await.expect("open");
        let _other = shares[0].pooled(2 << 20, Holding::Brief).await.expect("open");
        let (sink, _unread) = tokio::io::duplex(16);
        let cut_off = {
            let outbox = Arc::clone(&outbox);
            tokio::spawn(async move { outbox.write_to(sink, Duration::from_secs(3600)).await })
        };
        let waiting = shares[1].pooled(2 << 20, Holding::Brief);
        let (waited, ended) = tokio::join!(waiting, async {
            let ended = cut_off.await.expect("no panic");
            drop(ticket);
            ended
        });
        assert!(waited.is_ok() && ended.is_err());
    }
}
