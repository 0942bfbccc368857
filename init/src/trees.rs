//! Trees on their way to and from the service.

use std::io;

use sandbox_init::codec::Bytes;
use sandbox_init::tree::{Packing, Totals, TreeError, Unpacking};
use sandbox_init::wire::{Event, Kind};

use crate::channel::Channel;
use crate::files::path;

/// Sent at once; what many small files amount to is put together.
const CHUNK: usize = 128 * 1024;

/// Looked at for one chunk at most, so that a directory of nothing but sockets does not take all of a turn.
const ENTRIES: usize = 256;

pub(crate) fn packing(at: &Bytes) -> io::Result<Packing> {
    Packing::open(path(at))
}

pub(crate) fn unpacking(at: &Bytes, parents: bool) -> io::Result<Unpacking> {
    Unpacking::open(path(at), parents)
}

pub(crate) fn advance(packing: &mut Packing, channel: &mut Channel) -> Result<Option<Totals>, TreeError> {
    let mut chunk = Vec::new();
    let mut totals = None;
    for _ in 0..ENTRIES {
        let Some(room) = CHUNK.checked_sub(chunk.len()).filter(|room| *room > 0) else { break };
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
