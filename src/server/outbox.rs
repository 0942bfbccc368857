//! What one connection owes its caller: requests under way, and answers that the caller has not read yet.
//!
//! Both are bounded. Where a bound is reached, [`Outbox::admit`] waits, nothing more is read from the connection, and
//! the caller's own writes come to a halt: back-pressure, without an error and without a stalled neighbour.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::protocol::answer::Answer;
use crate::protocol::error::{Error, Kind};
use crate::protocol::request::Id;
use crate::protocol::response;

/// A buffer that an unusually large answer has blown up is not kept.
const USUAL_BUFFER: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Outbox {
    max_in_flight: usize,
    max_output: usize,
    state: Mutex<State>,
    /// Wakes the reader, which waits for room, and the writer, which waits for answers.
    room: Notify,
    work: Notify,
}

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
        let (state, room, work) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(Self { max_in_flight, max_output, state, room, work })
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
            if found || finished {
                return found;
            }
            self.work.notified().await;
        }
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
    }
}
