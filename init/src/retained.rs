//! What a command printed while nobody listened: the last of it, bounded.

use std::collections::VecDeque;

use sandbox_init::wire::{Event, Kind};

use crate::channel::Channel;

/// Kept of each command's output.
const KEPT: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Retained {
    chunks: VecDeque<(Kind, Vec<u8>)>,
    size: usize,
    missed: u64,
}

impl Retained {
    pub(crate) fn keep(&mut self, kind: Kind, bytes: Vec<u8>) {
        self.size += bytes.len();
        self.chunks.push_back((kind, bytes));
        while self.size > KEPT
            && let Some((_, oldest)) = self.chunks.pop_front()
        {
            self.size -= oldest.len();
            self.missed += oldest.len() as u64;
        }
    }

    /// Hands everything on, and forgets it.
    pub(crate) fn replay(&mut self, channel: &mut Channel) {
        let Retained { chunks, missed, .. } = std::mem::take(self);
        if missed > 0 {
            channel.send(Kind::Event, &Event::Missed { bytes: missed });
        }
        for (kind, bytes) in chunks {
            channel.send_data(kind, &bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let mut retained = Retained::default();
        for _ in 0..3 {
            retained.keep(Kind::Stdout, vec![0; KEPT / 2]);
        }
        assert_eq!((retained.size, retained.missed, retained.chunks.len()), (KEPT, KEPT as u64 / 2, 2));
    }
}
