//! Init's end of a guest stream.

use sandbox_init::codec::decode;
use sandbox_init::wire::{self, Event, HEADER, Kind, MAX_PAYLOAD, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

pub(super) struct Frames {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
}

pub(super) struct Reader(OwnedReadHalf);

pub(super) struct Writer {
    socket: OwnedWriteHalf,
    /// The other side has closed the stream. The work goes on without answers.
    is_closed: bool,
}

impl Frames {
    pub(super) fn new(socket: UnixStream) -> Self {
        let (from, to) = socket.into_split();
        Self { reader: Reader(from), writer: Writer { socket: to, is_closed: false } }
    }
}

impl Reader {
    /// Returns the next frame. `None`: the other side has closed the stream.
    pub(super) async fn next(&mut self) -> Option<(Kind, Vec<u8>)> {
        let mut start = [0; HEADER];
        self.0.read_exact(&mut start).await.ok()?;
        let (kind, length) = wire::header(start).ok()?;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((kind, payload))
    }

    pub(super) async fn request(&mut self) -> Option<Request> {
        match self.next().await? {
            (Kind::Request, payload) => decode(&payload).ok(),
            _ => None,
        }
    }
}

impl Writer {
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) async fn event(&mut self, event: &Event) {
        let mut frame = Vec::new();
        wire::put_message(&mut frame, Kind::Event, event);
        self.send(&frame).await;
    }

    /// Sends data. Waits while the other side does not read.
    pub(super) async fn data(&mut self, kind: Kind, bytes: &[u8]) {
        for chunk in bytes.chunks(MAX_PAYLOAD) {
            let mut frame = Vec::with_capacity(HEADER + chunk.len());
            wire::put_data(&mut frame, kind, chunk);
            self.send(&frame).await;
        }
    }

    pub(super) async fn end(&mut self) {
        let mut frame = Vec::new();
        wire::put_data(&mut frame, Kind::End, &[]);
        self.send(&frame).await;
    }

    async fn send(&mut self, frame: &[u8]) {
        if !self.is_closed && self.socket.write_all(frame).await.is_err() {
            self.is_closed = true;
        }
    }
}
