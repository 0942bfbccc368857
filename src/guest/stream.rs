//! One guest stream, in frames.

use std::io;
use std::time::Duration;

use sandbox_init::codec::{Value, decode};
use sandbox_init::wire::{self, Control, Event, Failure, HEADER, Kind, MAX_PAYLOAD, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::OwnedSemaphorePermit;

/// The time limit of an answer that init can give at once. Even a slow disk is faster.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of a file or of a command's output that are buffered at a time. A longer frame is returned in pieces, since
/// each stream whose caller does not read holds one.
const PIECE: usize = 48 << 10;

/// The size of the read buffer, for many small frames at once.
const READ_AHEAD: usize = 16 << 10;

/// A guest stream with its two independent directions. Dropping both closes it.
#[derive(Debug)]
pub struct GuestStream {
    pub reader: StreamReader,
    pub writer: StreamWriter,
}

#[derive(Debug)]
pub struct StreamReader {
    socket: BufReader<OwnedReadHalf>,
    payload: Vec<u8>,
    /// The rest of a frame that is returned in pieces.
    rest: Option<(Kind, usize)>,
    /// The permit of the stream, released on drop.
    permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub struct StreamWriter {
    socket: OwnedWriteHalf,
    frame: Vec<u8>,
}

/// A frame from init.
#[derive(Debug, PartialEq)]
pub enum GuestFrame<'a> {
    Event(Event),
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    Data(&'a [u8]),
    /// The end of the data.
    End,
}

#[derive(Debug, thiserror::Error)]
pub enum GuestStreamError {
    /// Most likely, the sandbox has ended.
    #[error("the sandbox's init closed the connection")]
    Broken,
    #[error("the sandbox's init did not answer within {ANSWER_LIMIT:?}")]
    Silent,
    #[error("the sandbox's init sent an invalid response")]
    InvalidResponse,
    #[error("{}", String::from_utf8_lossy(&.0.message.0))]
    Failed(Failure),
}

impl GuestStream {
    pub(super) async fn open(socket: UnixStream, request: &Request) -> io::Result<Self> {
        let (from, to) = socket.into_split();
        let socket = BufReader::with_capacity(READ_AHEAD, from);
        let reader = StreamReader { socket, payload: Vec::new(), rest: None, permit: None };
        let mut writer = StreamWriter { socket: to, frame: Vec::new() };
        let mut message = Vec::new();
        request.put(&mut message);
        if message.len() > MAX_PAYLOAD {
            return Err(io::Error::other(format!(
                "the request has {} bytes, more than a frame can hold",
                message.len()
            )));
        }
        writer.send(Kind::Request, &message).await?;
        Ok(Self { reader, writer })
    }

    /// Adds the permit of the stream.
    pub(super) fn with_permit(mut self, permit: Option<OwnedSemaphorePermit>) -> Self {
        self.reader.permit = permit;
        self
    }

    /// Waits until init has started the command. A command that is reported as not started must not run later: init
    /// starts no command whose stream is closed, and kills a command that it has just started.
    pub async fn started(&mut self) -> Result<Event, GuestStreamError> {
        let outcome = self.reader.event().await;
        if matches!(outcome, Err(GuestStreamError::Silent)) {
            self.give_up();
        }
        outcome
    }

    /// Sends a kill without waiting: if the socket is full, init has not read the request either.
    pub fn give_up(&mut self) {
        let mut frame = Vec::new();
        wire::put_message(&mut frame, Kind::Control, &Control::Kill {});
        let _ = self.writer.socket.try_write(&frame);
    }

    /// Returns the answer to a request that has only one.
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

    /// Returns the next frame, where init can send it at once.
    pub async fn soon(&mut self) -> Result<GuestFrame<'_>, GuestStreamError> {
        tokio::time::timeout(ANSWER_LIMIT, self.next()).await.map_err(|_| GuestStreamError::Silent)?
    }

    /// Returns the next event, where init can send it at once.
    pub async fn event(&mut self) -> Result<Event, GuestStreamError> {
        tokio::time::timeout(ANSWER_LIMIT, self.next_event()).await.map_err(|_| GuestStreamError::Silent)?
    }

    /// Returns the next event, without a time limit.
    pub async fn next_event(&mut self) -> Result<Event, GuestStreamError> {
        match self.next().await? {
            GuestFrame::Event(event) => Ok(event),
            _ => Err(GuestStreamError::InvalidResponse),
        }
    }
}

impl StreamWriter {
    /// Sends bytes of a file or of standard input, of any length.
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
