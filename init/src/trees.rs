//! The transfer of trees between the guest and the service.

use std::io;

use sandbox_init::codec::Bytes;
use sandbox_init::tree::{Packing, Totals, TreeError, Unpacking};
use sandbox_init::wire::{Event, Kind};

use crate::files::path;
use crate::stream_socket::StreamSocket;

/// The memory of an open directory while it is read.
const DIRECTORY_COST: usize = 10 * 1024;

/// The entries read for one chunk at most, so that a directory full of sockets does not delay other streams.
const MAX_ENTRIES: usize = 256;

pub(crate) fn packing(at: &Bytes) -> io::Result<Packing> {
    Packing::open(path(at))
}

pub(crate) fn unpacking(at: &Bytes, parents: bool) -> io::Result<Unpacking> {
    Unpacking::open(path(at), parents)
}

/// Returns the memory of the open directories, which counts beside the buffers of the stream.
pub(crate) fn memory(packing: &Packing) -> usize {
    packing.depth() * DIRECTORY_COST
}

/// Sends the next chunk of the archive. Small files share a chunk.
pub(crate) fn advance(packing: &mut Packing, channel: &mut StreamSocket) -> Result<Option<Totals>, TreeError> {
    let size = channel.chunk();
    let mut chunk = Vec::new();
    let mut totals = None;
    for _ in 0..MAX_ENTRIES {
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
