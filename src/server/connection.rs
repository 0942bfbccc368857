//! One connection: lines in, answers out, each request in a task of its own.
//!
//! A request outlives its connection. A caller that goes away is not told the outcome, but what it asked for is done.
//! What ends with it: a watch, once there are no more requests to come, the leases that are held for it, and the
//! commands that it did not want to go on.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_protocol::method::Method;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::access::Role;
use super::handler::Handler;
use super::leases::Leases;
use super::lines::{Line, Lines};
use super::measure::Measures;
use super::memory::{Holding, Memory, ORDINARY};
use super::outbox::{Outbox, Ticket};
use super::watch::Watch;
use super::{Limits, limit_fields};
use crate::protocol::error::{Error, Kind};
use crate::protocol::guest::{Exec, GuestRequest};
use crate::protocol::images::ImageCall;
use crate::protocol::params::{Call, Create};
use crate::protocol::request::{self, Id, RequestLine};
use crate::server::guest::Order;

/// What all connections have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) handler: Handler,
    pub(super) limits: Limits,
    pub(super) measures: Measures,
    pub(super) memory: Arc<Memory>,
    /// From then on every request is refused, and a connection ends once it has answered what is under way.
    pub(super) shutdown: CancellationToken,
}

#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    role: Role,
    outbox: Arc<Outbox>,
    leases: Arc<Leases>,
    /// No more requests are expected, or the service shuts down: what has no end by itself ends now.
    ending: CancellationToken,
    /// Nobody will read an answer.
    gone: CancellationToken,
}

/// How often it is looked whether a caller that sends no more still reads.
const LOOK: Duration = Duration::from_millis(50);

/// A request that is longer is counted while it is under way.
const SHORT_LINE: usize = 4 << 10;

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, role: Role) -> Self {
        let outbox = Outbox::new(shared.limits.max_in_flight, shared.limits.max_output, shared.memory.share());
        let ending = shared.shutdown.child_token();
        Self { shared, role, outbox, leases: Arc::default(), ending, gone: CancellationToken::new() }
    }

    /// Serves until the caller has no more requests and has read every answer, or is gone.
    pub(super) async fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        let _ending = self.ending.clone().drop_guard();
        let _gone = self.gone.clone().drop_guard();
        let socket = stream.as_fd().try_clone_to_owned()?;
        let (source, sink) = stream.split();
        let reading = async {
            // A broken connection shows when writing, if there is anything left to write.
            let lines = Lines::new(source, self.shared.limits.max_line, self.outbox.share());
            let _ = self.read(lines, &socket).await;
            self.ending.cancel();
            self.outbox.finish();
            while !is_hung_up(&socket) {
                tokio::time::sleep(LOOK).await;
            }
            self.gone.cancel();
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

    /// Gives back what was held for the caller. To be called once it is gone.
    pub(super) async fn end(self) {
        self.leases.end(&self.shared.handler.sandboxes).await;
    }

    async fn read(&self, mut lines: Lines<'_, impl tokio::io::AsyncRead + Unpin>, socket: &OwnedFd) -> io::Result<()> {
        while let Some(line) = lines.next().await? {
            // Lines that are answered at once must not keep a thread from everybody else.
            tokio::task::coop::consume_budget().await;
            match line {
                Line::Whole(line) if line.trim_ascii().is_empty() => {}
                Line::Whole(line) => {
                    let Some(Some(ticket)) = unless_hung_up(socket, self.admit(line.len())).await else { break };
                    self.take(ticket, line);
                }
                Line::TooLong(beginning) => {
                    let limit = self.shared.limits.max_line;
                    let error = Kind::LineTooLong.error(format!("a line must be at most {limit} bytes long"));
                    let id = request::id_in_prefix(beginning);
                    let Some(ticket) = unless_hung_up(socket, self.outbox.admit()).await else { break };
                    self.refuse(ticket, Some(id), error.with("limit", limit));
                }
            }
        }
        Ok(())
    }

    /// Waits until a request of this length can be taken on. `None`: the connection is closed.
    async fn admit(&self, length: usize) -> Option<Ticket> {
        let memory = match length > SHORT_LINE {
            true => Some(self.outbox.share().either(length, Holding::Lasting).await.ok()?),
            false => None,
        };
        let ticket = self.outbox.admit().await;
        if let Some(memory) = memory {
            ticket.hold_request(memory);
        }
        Some(ticket)
    }

    fn take(&self, ticket: Ticket, line: &[u8]) {
        let received = Instant::now();
        let RequestLine { id, method, params } = match request::parse(line) {
            Ok(request) => request,
            Err(refused) => return self.refuse(ticket, refused.id, refused.error),
        };
        let ticket = ticket.identified(id);
        match self.permit(method).and_then(|()| Call::parse(method, params)) {
            Ok(call) => self.start(ticket, method, call, received),
            Err(error) => {
                let refused = Err(error);
                self.shared.measures.answered(method, &refused, received.elapsed());
                ticket.answer(refused);
            }
        }
    }

    fn permit(&self, method: Method) -> Result<(), Error> {
        if self.shared.shutdown.is_cancelled() {
            return Err(Kind::ShuttingDown.error("the service is shutting down"));
        }
        if self.role == Role::ReadOnly && !method.only_reads() {
            return Err(Kind::Unauthorized.error(format!("the read-only role does not allow {}", method.name())));
        }
        Ok(())
    }

    fn start(&self, ticket: Ticket, method: Method, call: Call, received: Instant) {
        let shared = Arc::clone(&self.shared);
        let chat = call.chat().map(tracing::field::display);
        let span = tracing::debug_span!("request", method = method.name(), chat.id = chat);
        let (leases, ending, gone) = (Arc::clone(&self.leases), self.ending.clone(), self.gone.clone());
        let (is_listing, role) = (method.is_listing(), self.role);
        // Begun in the order of the lines: what is asked for after it is seen by it.
        let work = match call {
            Call::Watch(watch) if ticket.wants_answer() => {
                Work::Watch(Watch::begin(shared.handler.sandboxes.journal(), watch))
            }
            Call::GuestRequest(chat, inside) => {
                let order = Order::of(&shared.handler.syncs, chat, &inside);
                Work::GuestRequest(chat, inside, order)
            }
            Call::Create(create) if create.sync.is_some() => Work::Create(create),
            Call::Image(image) => Work::Image(image),
            call => Work::Call(call),
        };
        let work = async move {
            if is_listing {
                // Where the connection is closed, there is no answer to hold.
                if let Ok(memory) = ticket.share().own(ORDINARY).await {
                    ticket.hold_answer(memory);
                }
            }
            let outcome = match work {
                Work::Watch(watch) => watch.run(&ticket, &ending).await,
                Work::GuestRequest(chat, inside, order) => match order {
                    Ok(order) => {
                        let desk = shared.handler.desk(role, Some(&ticket), &gone, &shared.shutdown);
                        Box::pin(desk.handle(chat, inside, order)).await
                    }
                    Err(error) => Err(error),
                },
                Work::Create(mut create) => {
                    let (chat, sync) = (create.chat, create.sync.take());
                    let outcome =
                        shared.handler.handle(Call::Create(create), &leases, limit_fields(&shared.limits)).await;
                    if let (Ok(answer), Some(sync)) = (&outcome, sync)
                        && answer.is_of_a_new_sandbox()
                    {
                        bring_up_to_date(&shared, chat, sync);
                    }
                    outcome
                }
                Work::Image(image) => shared.handler.image(image, &ticket, &shared.shutdown).await,
                Work::Call(call) => shared.handler.handle(call, &leases, limit_fields(&shared.limits)).await,
            };
            match &outcome {
                Err(error) if error.data.kind == Kind::Internal => {
                    tracing::error!(error = error.message, "request failed")
                }
                // Without the message, which may quote what the caller sent.
                Err(error) => tracing::debug!(kind = error.data.kind.as_str(), "request failed"),
                Ok(_) => {}
            }
            shared.measures.answered(method, &outcome, received.elapsed());
            ticket.answer(outcome);
        };
        tokio::spawn(work.instrument(span));
    }

    fn refuse(&self, ticket: Ticket, id: Option<Id>, error: Error) {
        self.shared.measures.no_request(error.data.kind);
        ticket.identified(id).answer(Err(error));
    }
}

/// Runs the sync that a sandbox was created with. Its place is taken before the create is answered, so that whatever its
/// caller writes then comes after it.
fn bring_up_to_date(shared: &Arc<Shared>, chat: ChatId, sync: Box<Exec>) {
    let inside = GuestRequest::Exec(sync);
    // Creates that were one are one sync.
    let Ok(order) = Order::of(&shared.handler.syncs, chat, &inside) else { return };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        // Whoever asked for it may go away.
        let nobody = CancellationToken::new();
        let desk = shared.handler.desk(Role::Full, None, &nobody, &shared.shutdown);
        if let Err(error) = Box::pin(desk.handle(chat, inside, order)).await {
            tracing::warn!(chat.id = %chat, error = error.message, "a sandbox was not brought up to date");
        }
    });
}

/// Waits, unless the other side closes meanwhile.
async fn unless_hung_up<T>(socket: &OwnedFd, wait: impl Future<Output = T>) -> Option<T> {
    let mut wait = std::pin::pin!(wait);
    loop {
        match tokio::time::timeout(LOOK, &mut wait).await {
            Ok(waited) => return Some(waited),
            Err(_) if is_hung_up(socket) => return None,
            Err(_) => {}
        }
    }
}

/// Whether the other side has closed, not only said that it will send no more.
fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut polled, Some(&now)), Ok(0) | Err(_)) && polled[0].revents().contains(PollFlags::HUP)
}

enum Work {
    Call(Call),
    Image(ImageCall),
    /// With something to be done in the sandbox that it makes.
    Create(Box<Create>),
    GuestRequest(ChatId, GuestRequest, Result<Order, Error>),
    Watch(Watch),
}
