//! Trees on their way to and from the service.

use std::io;

use sandbox_init::codec::Bytes;
use sandbox_init::tree::{Packing, Totals, TreeError, Unpacking};
use sandbox_init::wire::{Event, Kind};

use crate::files::path;
use crate::stream_socket::StreamSocket;

/// What an open directory takes while it is read.
const LEVEL: usize = 10 * 1024;

/// Looked at for one chunk at most, so that a directory of nothing but sockets does not take all of a turn.
const ENTRIES: usize = 256;

pub(crate) fn packing(at: &Bytes) -> io::Result<Packing> {
    Packing::open(path(at))
}

pub(crate) fn unpacking(at: &Bytes, parents: bool) -> io::Result<Unpacking> {
    Unpacking::open(path(at), parents)
}

/// What the open directories take beside the buffers of the stream.
pub(crate) fn held(packing: &Packing) -> usize {
    packing.depth() * LEVEL
}

/// Sends what comes next. What many small files amount to is put together.
pub(crate) fn advance(packing: &mut Packing, channel: &mut StreamSocket) -> Result<Option<Totals>, TreeError> {
    let size = channel.chunk();
    let mut chunk = Vec::new();
    let mut totals = None;
    for _ in 0..ENTRIES {
        let Some(room) = size.checked_sub(chunk.len()).filter(|room| *room > 0) else { break };
        totals = packing.advance(&mut chunk, room)?;
        if totals.is_some() {
            break;
        }
    }
    if !chunk.is_empty() {
        channel.send_data(Kind::Data, &chunk);
    }
    Ok(totals)
}

pub(crate) fn event(Totals { entries, bytes, skipped }: Totals) -> Event {
    Event::Tree { entries, bytes, skipped }
}
