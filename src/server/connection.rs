//! One connection: it reads requests, runs each in its own task, and writes the answers.
//!
//! A request outlives its connection: it is carried out even if the caller disconnects before the answer. The end of a
//! connection ends its watches (already when the caller sends no more requests), its leases that are not durable, and
//! its commands without `on_disconnect = "detach"`.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::method::Method;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::access::Role;
use super::handler::Handler;
use super::leases::Leases;
use super::lines::{Line, Lines};
use super::measure::ServerMetrics;
use super::memory::{Memory, ORDINARY_ANSWER, Retention};
use super::outbox::{Outbox, Ticket};
use super::watch::Watch;
use super::{Limits, limit_fields};
use crate::protocol::guest::{Exec, GuestRequest};
use crate::protocol::images::ImageCall;
use crate::protocol::params::{Call, Create};
use crate::protocol::request::{self, Id, RequestLine};
use crate::server::guest::WriteOrder;

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) handler: Handler,
    pub(super) limits: Limits,
    pub(super) metrics: ServerMetrics,
    pub(super) memory: Arc<Memory>,
    /// Once cancelled, every request is refused, and a connection ends when its active requests are answered.
    pub(super) shutdown: CancellationToken,
}

#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    role: Role,
    outbox: Arc<Outbox>,
    leases: Arc<Leases>,
    /// Cancelled once no more requests follow or the service shuts down. It ends watches.
    ending: CancellationToken,
    /// Cancelled once the caller has disconnected and reads no more answers.
    disconnected: CancellationToken,
}

/// How often the socket is polled for a hang-up while no request is read from it.
const HANG_UP_POLL: Duration = Duration::from_millis(50);

/// The memory of a longer request is reserved while the request is active.
const SHORT_LINE: usize = 4 << 10;

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, role: Role) -> Self {
        let outbox = Outbox::new(shared.limits.max_in_flight, shared.limits.max_output, shared.memory.for_connection());
        let ending = shared.shutdown.child_token();
        Self { shared, role, outbox, leases: Arc::default(), ending, disconnected: CancellationToken::new() }
    }

    /// Serves until the caller has no more requests and has read every answer, or is gone.
    pub(super) async fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        let _ending = self.ending.clone().drop_guard();
        let _disconnected = self.disconnected.clone().drop_guard();
        let socket = stream.as_fd().try_clone_to_owned()?;
        let (source, sink) = stream.split();
        let reading = async {
            // If the connection is broken, a write that is still to come fails too.
            let lines = Lines::new(source, self.shared.limits.max_line, self.outbox.memory());
            let _ = self.read(lines, &socket).await;
            self.ending.cancel();
            self.outbox.finish();
            while !is_hung_up(&socket) {
                tokio::time::sleep(HANG_UP_POLL).await;
            }
            self.disconnected.cancel();
            std::future::pending::<Infallible>().await
        };
        let closing = async {
            self.shared.shutdown.cancelled().await;
            self.outbox.finish();
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            ended = self.outbox.write_to(sink, self.shared.limits.write_stall) => ended,
            never = reading => match never {},
            never = closing => match never {},
        }
    }

    /// Releases the leases of the caller. To be called after it has disconnected.
    pub(super) async fn end(self) {
        self.leases.end(&self.shared.handler.sandboxes).await;
    }

    async fn read(&self, mut lines: Lines<'_, impl tokio::io::AsyncRead + Unpin>, socket: &OwnedFd) -> io::Result<()> {
        while let Some(line) = lines.next().await? {
            // A caller whose lines are answered at once must not occupy a worker thread.
            tokio::task::coop::consume_budget().await;
            match line {
                Line::Whole(line) if line.trim_ascii().is_empty() => {}
                Line::Whole(line) => {
                    let Some(Some(ticket)) = unless_hung_up(socket, self.admit(line.len())).await else { break };
                    self.accept(ticket, line);
                }
                Line::TooLong(beginning) => {
                    let limit = self.shared.limits.max_line;
                    let error = ErrorKind::LineTooLong.error(format!("a line must be at most {limit} bytes long"));
                    let id = request::id_in_prefix(beginning);
                    let Some(ticket) = unless_hung_up(socket, self.outbox.admit()).await else { break };
                    self.refuse(ticket, Some(id), error.with("limit", limit));
                }
            }
        }
        Ok(())
    }

    /// Waits until a request of this length can be accepted. Returns `None` if the connection is closed.
    async fn admit(&self, length: usize) -> Option<Ticket> {
        let memory = match length > SHORT_LINE {
            true => Some(self.outbox.memory().own_or_pooled(length, Retention::Lasting).await.ok()?),
            false => None,
        };
        let ticket = self.outbox.admit().await;
        if let Some(memory) = memory {
            ticket.hold_request_memory(memory);
        }
        Some(ticket)
    }

    fn accept(&self, ticket: Ticket, line: &[u8]) {
        let received = Instant::now();
        let RequestLine { id, method, params } = match request::parse(line) {
            Ok(request) => request,
            Err(refused) => return self.refuse(ticket, refused.id, refused.error),
        };
        let ticket = ticket.identified(id);
        match self.authorize(method).and_then(|()| Call::parse(method, params)) {
            Ok(call) => self.start(ticket, method, call, received),
            Err(error) => {
                let refused = Err(error);
                self.shared.metrics.answered(method, &refused, received.elapsed());
                ticket.answer(refused);
            }
        }
    }

    fn authorize(&self, method: Method) -> Result<(), Error> {
        if self.shared.shutdown.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.error("the service is shutting down"));
        }
        if self.role == Role::ReadOnly && !method.only_reads() {
            return Err(ErrorKind::Unauthorized.error(format!("the read-only role does not allow {}", method.name())));
        }
        Ok(())
    }

    fn start(&self, ticket: Ticket, method: Method, call: Call, received: Instant) {
        let shared = Arc::clone(&self.shared);
        let chat = call.chat().map(tracing::field::display);
        let span = tracing::debug_span!("request", method = method.name(), chat.id = chat);
        let (leases, ending, disconnected) = (Arc::clone(&self.leases), self.ending.clone(), self.disconnected.clone());
        let (is_listing, role) = (method.is_listing(), self.role);
        // A watch subscribes and a write is queued here, in the order of the lines, before a task runs them.
        let work = match call {
            Call::Watch(watch) if ticket.wants_answer() => {
                Work::Watch(Watch::begin(shared.handler.sandboxes.journal(), watch))
            }
            Call::GuestRequest(chat, request) => {
                let order = WriteOrder::of(&shared.handler.syncs, chat, &request);
                Work::GuestRequest(chat, request, order)
            }
            Call::Create(create) if create.sync.is_some() => Work::Create(create),
            Call::Image(image) => Work::Image(image),
            call => Work::Call(call),
        };
        let work = async move {
            if is_listing {
                // A closed connection needs no memory for an answer.
                if let Ok(memory) = ticket.memory().own(ORDINARY_ANSWER).await {
                    ticket.hold_answer_memory(memory);
                }
            }
            let outcome = match work {
                Work::Watch(watch) => watch.run(&ticket, &ending).await,
                Work::GuestRequest(chat, request, order) => match order {
                    Ok(order) => {
                        let guest_call =
                            shared.handler.guest_call(role, Some(&ticket), &disconnected, &shared.shutdown);
                        Box::pin(guest_call.handle(chat, request, order)).await
                    }
                    Err(error) => Err(error),
                },
                Work::Create(mut create) => {
                    let (chat, sync) = (create.chat, create.sync.take());
                    let outcome =
                        shared.handler.handle(Call::Create(create), &leases, limit_fields(&shared.limits)).await;
                    if let (Ok(answer), Some(sync)) = (&outcome, sync)
                        && answer.is_new_sandbox()
                    {
                        run_sync(&shared, chat, sync);
                    }
                    outcome
                }
                Work::Image(image) => shared.handler.image(image, &ticket, &shared.shutdown).await,
                Work::Call(call) => shared.handler.handle(call, &leases, limit_fields(&shared.limits)).await,
            };
            match &outcome {
                Err(error) if error.data.kind == ErrorKind::Internal => {
                    tracing::error!(error = error.message, "request failed")
                }
                // Without the message, which may quote the caller's input.
                Err(error) => tracing::debug!(kind = error.data.kind.as_str(), "request failed"),
                Ok(_) => {}
            }
            shared.metrics.answered(method, &outcome, received.elapsed());
            ticket.answer(outcome);
        };
        tokio::spawn(work.instrument(span));
    }

    fn refuse(&self, ticket: Ticket, id: Option<Id>, error: Error) {
        self.shared.metrics.no_request(error.data.kind);
        ticket.identified(id).answer(Err(error));
    }
}

/// Runs the sync of a new sandbox. The sync begins before the create is answered, so that later writes of the caller
/// wait for it.
fn run_sync(shared: &Arc<Shared>, chat: ChatId, sync: Box<Exec>) {
    let request = GuestRequest::Exec(sync);
    // Concurrent creates of one sandbox start one sync.
    let Ok(order) = WriteOrder::of(&shared.handler.syncs, chat, &request) else { return };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        // The sync continues if the caller disconnects.
        let never_cancelled = CancellationToken::new();
        let guest_call = shared.handler.guest_call(Role::Full, None, &never_cancelled, &shared.shutdown);
        if let Err(error) = Box::pin(guest_call.handle(chat, request, order)).await {
            tracing::warn!(chat.id = %chat, error = error.message, "sandbox sync failed");
        }
    });
}

/// Waits for the future. Returns `None` if the caller hangs up first.
async fn unless_hung_up<T>(socket: &OwnedFd, wait: impl Future<Output = T>) -> Option<T> {
    let mut wait = std::pin::pin!(wait);
    loop {
        match tokio::time::timeout(HANG_UP_POLL, &mut wait).await {
            Ok(waited) => return Some(waited),
            Err(_) if is_hung_up(socket) => return None,
            Err(_) => {}
        }
    }
}

/// Returns whether the caller has closed the connection, not only its sending side.
fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut polled, Some(&now)), Ok(0) | Err(_)) && polled[0].revents().contains(PollFlags::HUP)
}

enum Work {
    Call(Call),
    Image(ImageCall),
    /// A create with a sync.
    Create(Box<Create>),
    GuestRequest(ChatId, GuestRequest, Result<WriteOrder, Error>),
    Watch(Watch),
}
