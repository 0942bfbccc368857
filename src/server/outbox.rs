//! The outgoing side of one connection: its active requests, and the answers that the caller has not read yet.
//!
//! Both are bounded. At a bound, [`Outbox::admit`] waits, the server stops reading from the connection, and the
//! caller's writes block: back-pressure without an error and without an effect on other connections. A stream waits in
//! the same way before it encodes its next notification.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandboxd_protocol::error::{Error, ErrorKind};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::memory::{ConnectionMemory, Reservation, SLOW_CALLER_LIMIT};
use crate::protocol::answer::Answer;
use crate::protocol::notification::Notification;
use crate::protocol::request::Id;
use crate::protocol::response::{self, Line};

/// A buffer of more than twice this size, grown by a large answer, is dropped.
const USUAL_BUFFER: usize = 64 << 10;

/// Unread bytes at which streams wait. Lower than the limit of answers, since a stream can produce its data later.
const STREAM_BUFFER: usize = 256 << 10;

/// The least that a caller must read within [`SLOW_CALLER_LIMIT`] while other connections wait for its memory.
const MIN_READ: usize = 1 << 20;

/// How often a blocked write is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Outbox {
    max_in_flight: usize,
    max_output: usize,
    memory: ConnectionMemory,
    state: Mutex<State>,
    /// Wakes the reader, which waits for room, and the writer, which waits for answers.
    room: Notify,
    work: Notify,
    /// Wakes every stream that waits for room.
    stream_room: Notify,
}

/// The connection is closed: its caller reads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    queue: VecDeque<Item>,
    /// Bytes in the queue, except those with a reservation.
    unread: usize,
    /// Bytes that the writer has taken and not written yet.
    writing: usize,
    /// No more requests follow: the outbox is done once every request is answered.
    finishing: bool,
    /// The caller reads no more: answers are dropped.
    closed: bool,
}

#[derive(Debug)]
enum Item {
    /// Whole lines.
    Lines(Vec<u8>),
    Reserved(ReservedLine),
}

/// A line whose memory was reserved before the answer was made.
#[derive(Debug)]
struct ReservedLine {
    line: Line,
    memory: Reservation,
}

impl ReservedLine {
    /// Appends the next piece and releases its memory. Returns false once the line is complete.
    fn put_piece(&mut self, out: &mut Vec<u8>) -> bool {
        let put = self.line.put_piece(out);
        self.memory.shrink_to(self.line.unwritten_bytes());
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
    pub(super) fn new(max_in_flight: usize, max_output: usize, memory: ConnectionMemory) -> Arc<Self> {
        let (room, work, stream_room) = (Notify::new(), Notify::new(), Notify::new());
        Arc::new(Self { max_in_flight, max_output, memory, state: Mutex::default(), room, work, stream_room })
    }

    /// Returns the memory of this connection.
    pub(super) fn memory(&self) -> &ConnectionMemory {
        &self.memory
    }

    /// Waits until one more request can be accepted. For a single reader.
    pub(super) async fn admit(self: &Arc<Self>) -> Ticket {
        loop {
            {
                let mut state = self.state();
                let unread = state.unread + state.writing;
                if state.in_flight < self.max_in_flight && unread < self.max_output {
                    state.in_flight += 1;
                    return Ticket { outbox: Arc::clone(self), id: None, answer: None, reserved: Mutex::default() };
                }
            }
            self.room.notified().await;
        }
    }

    /// Lets [`Outbox::write_to`] return once every request is answered and written.
    pub(super) fn finish(&self) {
        self.state().finishing = true;
        self.work.notify_one();
    }

    /// Writes answers as they come, all that are ready at once, until [`Outbox::finish`], or until the caller has read
    /// no byte for `stall`, or too few while it holds memory that others wait for. For a single writer.
    pub(super) async fn write_to(&self, mut sink: impl AsyncWrite + Unpin, stall: Duration) -> io::Result<()> {
        let _closed = CloseOnDrop(self);
        let (mut batch, mut current) = (Vec::new(), None);
        let mut rate = ReadRate::default();
        while self.take(&mut batch, &mut current).await {
            let mut rest = batch.as_slice();
            while !rest.is_empty() {
                let written = self.write(&mut sink, rest, stall, &mut rate).await?;
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
        rate: &mut ReadRate,
    ) -> io::Result<usize> {
        let begun = Instant::now();
        let mut looked = begun;
        let mut writing = std::pin::pin!(sink.write(bytes));
        loop {
            let written = tokio::time::timeout(POLL_INTERVAL.min(stall), &mut writing).await;
            let now = Instant::now();
            rate.blocked += now - looked;
            looked = now;
            if let Ok(written) = written {
                rate.taken += *written.as_ref().unwrap_or(&0);
                return written;
            }
            if rate.was_slow() && self.memory.blocks_others() {
                tracing::warn!("closing a slow reader: other connections wait for its memory");
                return Err(io::ErrorKind::TimedOut.into());
            }
            if now - begun >= stall {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Replaces the written batch by the next one. Returns false once no more batches follow.
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

    /// Waits until the caller has read enough, and only then encodes and queues the next line. Cancel-safe: a dropped
    /// call queues no line.
    async fn push(&self, encode: impl FnOnce() -> Vec<u8>) -> Result<(), Closed> {
        loop {
            // Created before the check, so that a notification in between is not missed.
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

    fn complete(&self, answer: Option<Line>, memory: Option<Reservation>) {
        let mut state = self.state();
        state.in_flight -= 1;
        match (answer, memory) {
            (Some(line), Some(mut memory)) if !state.closed => {
                memory.shrink_to(line.unwritten_bytes());
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

/// The rate at which a caller reads while writes to it block.
#[derive(Debug, Default)]
struct ReadRate {
    blocked: Duration,
    taken: usize,
}

impl ReadRate {
    /// Returns whether the caller read too little within the last [`SLOW_CALLER_LIMIT`] of blocked time. To be called
    /// while a write is blocked.
    fn was_slow(&mut self) -> bool {
        if self.blocked < SLOW_CALLER_LIMIT {
            return false;
        }
        std::mem::take(self).taken < MIN_READ
    }
}

/// The right and the duty to answer one request.
#[derive(Debug)]
pub(super) struct Ticket {
    outbox: Arc<Outbox>,
    id: Option<Id>,
    answer: Option<Line>,
    reserved: Mutex<RequestMemory>,
}

/// The memory that is reserved for one request.
#[derive(Debug, Default)]
struct RequestMemory {
    /// Held until the request is answered.
    request: Option<Reservation>,
    /// Held until the answer is read.
    answer: Option<Reservation>,
}

impl Ticket {
    /// Sets the id of the request. A request without an id gets no answer.
    pub(super) fn identified(mut self, id: Option<Id>) -> Self {
        self.id = id;
        self
    }

    pub(super) fn wants_answer(&self) -> bool {
        self.id.is_some()
    }

    /// Returns the memory of the connection.
    pub(super) fn memory(&self) -> &ConnectionMemory {
        &self.outbox.memory
    }

    /// Holds the memory of the request until it is answered.
    pub(super) fn hold_request_memory(&self, memory: Reservation) {
        self.reserved().request = Some(memory);
    }

    /// Takes the memory of a request whose content outlives its answer.
    pub(super) fn take_request_memory(&self) -> Option<Reservation> {
        self.reserved().request.take()
    }

    /// Holds the memory of the answer until it is read.
    pub(super) fn hold_answer_memory(&self, memory: Reservation) {
        self.reserved().answer.get_or_insert_default().add(memory);
    }

    /// Sends a notification with the id of the request, ahead of its answer. Fails for a request without an id.
    pub(super) async fn notify(&self, notification: Notification<'_>) -> Result<(), Closed> {
        match &self.id {
            Some(id) => self.outbox.push(|| notification.encode(id)).await,
            None => Err(Closed),
        }
    }

    pub(super) fn answer(mut self, outcome: Result<Answer, Error>) {
        self.answer = self.id.take().map(|id| response::encode(&id, outcome));
    }

    fn reserved(&self) -> MutexGuard<'_, RequestMemory> {
        // No panic can leave the state half changed.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The id is left only if the task of the request panicked.
        if let Some(id) = self.id.take() {
            let defect = ErrorKind::Internal.error("the service failed during this request; see its log");
            self.answer = Some(response::encode(&id, Err(defect)));
        }
        let memory = self.reserved().answer.take();
        self.outbox.complete(self.answer.take(), memory);
    }
}

struct CloseOnDrop<'a>(&'a Outbox);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        state.queue = VecDeque::new();
        drop(state);
        self.0.memory.close();
        self.0.stream_room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Limits;
    use crate::server::memory::{Memory, Retention};
    use futures_util::FutureExt;
    use serde_json::Value;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const STALL_LIMIT: Duration = Duration::from_secs(10);

    fn request(id: u32) -> Option<Id> {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"system.info"}}"#);
        crate::protocol::request::parse(line.as_bytes()).expect("valid").id
    }

    fn outbox(max_in_flight: usize, max_output: usize) -> Arc<Outbox> {
        let memory = Memory::new(&Limits::default());
        Outbox::new(max_in_flight, max_output, memory.for_connection())
    }

    fn refusal() -> Result<Answer, Error> {
        Err(ErrorKind::Busy.error("later"))
    }

    /// A sink that records each write.
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
        outbox.write_to(&mut writes, STALL_LIMIT).await.expect("written");
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
        outbox.write_to(&mut writes, STALL_LIMIT).await.expect("written");
        let answer: Value = serde_json::from_slice(&writes.0[0]).expect("JSON");
        assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&7.into(), &"internal".into()));
    }

    #[tokio::test]
    async fn a_notification_counts_as_in_flight_and_gets_no_answer() {
        let outbox = outbox(1, 1 << 20);
        let ticket = outbox.admit().await.identified(None);
        assert!(outbox.admit().now_or_never().is_none());
        ticket.answer(refusal());
        outbox.admit().await.identified(None).answer(refusal());
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, STALL_LIMIT).await.expect("written");
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
            async move { outbox.write_to(sink, STALL_LIMIT).await }
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
            async move { outbox.write_to(sink, STALL_LIMIT).await }
        });
        assert_eq!(ticket.notify(gap).await, Ok(()));
        drop(reader);
        while ticket.notify(gap).await.is_ok() {}
        assert!(writing.await.expect("no panic").is_err());
    }

    #[tokio::test]
    async fn a_caller_that_reads_no_bytes_is_disconnected() {
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
        let outbox = Outbox::new(8, 1 << 20, memory.for_connection());
        let ticket = outbox.admit().await.identified(request(1));
        let all = 2 << 20;
        ticket.hold_answer_memory(ticket.memory().pooled(all, Retention::Brief).await.expect("open"));
        ticket.answer(refusal());
        assert!(outbox.memory().pooled(all, Retention::Brief).now_or_never().is_none(), "not read yet");
        outbox.finish();
        let mut writes = Writes::default();
        outbox.write_to(&mut writes, STALL_LIMIT).await.expect("written");
        assert_eq!(writes.0.len(), 1);
        assert!(memory.for_connection().pooled(all, Retention::Brief).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_slow_reader_is_disconnected_early_while_others_wait_for_its_memory() {
        let limits = Limits { max_memory: 4 << 20, max_memory_per_connection: 2 << 20, ..Limits::default() };
        let memory = Memory::new(&limits);
        let connections = [memory.for_connection(), memory.for_connection()];
        let outbox = Outbox::new(8, 1 << 20, memory.for_connection());
        let ticket = outbox.admit().await.identified(request(1));
        ticket.hold_answer_memory(ticket.memory().pooled(2 << 20, Retention::Brief).await.expect("open"));
        ticket.notify(Notification::Gap { after: 1, resumes_at: 2 }).await.expect("open");
        let _other = connections[0].pooled(2 << 20, Retention::Brief).await.expect("open");
        let (sink, _unread) = tokio::io::duplex(16);
        let cut_off = {
            let outbox = Arc::clone(&outbox);
            tokio::spawn(async move { outbox.write_to(sink, Duration::from_secs(3600)).await })
        };
        let waiting = connections[1].pooled(2 << 20, Retention::Brief);
        let (waited, ended) = tokio::join!(waiting, async {
            let ended = cut_off.await.expect("no panic");
            drop(ticket);
            ended
        });
        assert!(waited.is_ok() && ended.is_err());
    }
}
