//! One conversation with a sandbox's init, in frames.

use std::io;
use std::time::Duration;

use sandbox_init::codec::{Value, decode};
use sandbox_init::wire::{self, Control, Event, Failure, HEADER, Kind, MAX_PAYLOAD, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::OwnedSemaphorePermit;

/// How long init may take to go on with what it can do at once. Even a slow disk is faster.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of a file or of a command's output that are held at a time. A longer frame is handed on in pieces, since each
/// stream whose caller does not read holds one.
const PIECE: usize = 48 << 10;

/// What is read ahead: many small frames at once.
const READ_AHEAD: usize = 16 << 10;

/// Both directions, which are independent of each other. Dropping both closes it.
#[derive(Debug)]
pub struct GuestStream {
    pub reader: StreamReader,
    pub writer: StreamWriter,
}

#[derive(Debug)]
pub struct StreamReader {
    socket: BufReader<OwnedReadHalf>,
    payload: Vec<u8>,
    /// What is left of a frame that is handed on in pieces.
    rest: Option<(Kind, usize)>,
    /// Its place among the sandbox's streams, free once it is dropped.
    place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub struct StreamWriter {
    socket: OwnedWriteHalf,
    frame: Vec<u8>,
}

/// What init says.
#[derive(Debug, PartialEq)]
pub enum GuestFrame<'a> {
    Event(Event),
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    Data(&'a [u8]),
    /// There is no more data.
    End,
}

#[derive(Debug, thiserror::Error)]
pub enum GuestStreamError {
    /// The sandbox has ended, most likely.
    #[error("the sandbox's init broke off")]
    Broken,
    #[error("the sandbox's init said nothing for {ANSWER_LIMIT:?}")]
    Silent,
    #[error("the sandbox's init said something that makes no sense")]
    InvalidResponse,
    #[error("{}", String::from_utf8_lossy(&.0.message.0))]
    Failed(Failure),
}

impl GuestStream {
    pub(super) async fn open(socket: UnixStream, request: &Request) -> io::Result<Self> {
        let (from, to) = socket.into_split();
        let socket = BufReader::with_capacity(READ_AHEAD, from);
        let reader = StreamReader { socket, payload: Vec::new(), rest: None, place: None };
        let mut writer = StreamWriter { socket: to, frame: Vec::new() };
        let mut message = Vec::new();
        request.put(&mut message);
        if message.len() > MAX_PAYLOAD {
            return Err(io::Error::other(format!("a request of {} bytes is too long", message.len())));
        }
        writer.send(Kind::Request, &message).await?;
        Ok(Self { reader, writer })
    }

    /// The same, with its place among the sandbox's streams.
    pub(super) fn holding(mut self, place: Option<OwnedSemaphorePermit>) -> Self {
        self.reader.place = place;
        self
    }

    /// Waits until init has started the command. Whoever is told that it has not must not find it running later: init
    /// starts no command whose conversation is closed, and kills one that it has just started.
    pub async fn started(&mut self) -> Result<Event, GuestStreamError> {
        let outcome = self.reader.event().await;
        if matches!(outcome, Err(GuestStreamError::Silent)) {
            self.give_up();
        }
        outcome
    }

    /// Sends a kill without waiting: a socket that takes no more has not been read by init either.
    pub fn give_up(&mut self) {
        let mut frame = Vec::new();
        wire::put_message(&mut frame, Kind::Control, &Control::Kill {});
        let _ = self.writer.socket.try_write(&frame);
    }

    /// For a conversation that has one answer.
    pub async fn answer(mut self) -> Result<Event, GuestStreamError> {
        self.reader.event().await
    }
}

impl StreamReader {
    pub async fn next(&mut self) -> Result<GuestFrame<'_>, GuestStreamError> {
        let (kind, whole) = match self.rest.take() {
            Some(rest) => rest,
            None => {
                let mut start = [0; HEADER];
                self.socket.read_exact(&mut start).await.map_err(|_| GuestStreamError::Broken)?;
                wire::header(start).map_err(|_| GuestStreamError::InvalidResponse)?
            }
        };
        let length = match kind {
            Kind::Stdout | Kind::Stderr | Kind::Data => whole.min(PIECE),
            Kind::End | Kind::Event | Kind::Hello | Kind::Request | Kind::Control => whole,
        };
        self.rest = (length < whole).then_some((kind, whole - length));
        self.payload.resize(length, 0);
        self.socket.read_exact(&mut self.payload).await.map_err(|_| GuestStreamError::Broken)?;
        match kind {
            Kind::Stdout => Ok(GuestFrame::Stdout(&self.payload)),
            Kind::Stderr => Ok(GuestFrame::Stderr(&self.payload)),
            Kind::Data => Ok(GuestFrame::Data(&self.payload)),
            Kind::End => Ok(GuestFrame::End),
            Kind::Event => match decode(&self.payload).map_err(|_| GuestStreamError::InvalidResponse)? {
                Event::Failed { failure } => Err(GuestStreamError::Failed(failure)),
                event => Ok(GuestFrame::Event(event)),
            },
            Kind::Hello | Kind::Request | Kind::Control => Err(GuestStreamError::InvalidResponse),
        }
    }

    /// The next thing said, where init has nothing to wait for.
    pub async fn soon(&mut self) -> Result<GuestFrame<'_>, GuestStreamError> {
        tokio::time::timeout(ANSWER_LIMIT, self.next()).await.map_err(|_| GuestStreamError::Silent)?
    }

    /// The same, and it has to be an event.
    pub async fn event(&mut self) -> Result<Event, GuestStreamError> {
        tokio::time::timeout(ANSWER_LIMIT, self.next_event()).await.map_err(|_| GuestStreamError::Silent)?
    }

    /// An event, however long it takes.
    pub async fn next_event(&mut self) -> Result<Event, GuestStreamError> {
        match self.next().await? {
            GuestFrame::Event(event) => Ok(event),
            _ => Err(GuestStreamError::InvalidResponse),
        }
    }
}

impl StreamWriter {
    /// Bytes of a file or of standard input, however many.
    pub async fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(MAX_PAYLOAD) {
            self.send(Kind::Data, chunk).await?;
        }
        Ok(())
    }

    pub async fn end(&mut self) -> io::Result<()> {
        self.send(Kind::End, &[]).await
    }

    pub async fn control(&mut self, control: &Control) -> io::Result<()> {
        let mut message = Vec::new();
        control.put(&mut message);
        self.send(Kind::Control, &message).await
    }

    async fn send(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.frame.clear();
        wire::put_data(&mut self.frame, kind, payload);
        self.socket.write_all(&self.frame).await
    }
}
