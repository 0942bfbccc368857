//! What a command printed while no caller was attached: the last of it, bounded for each command and in total.

use std::collections::VecDeque;

use sandbox_init::wire::{Event, Kind};

use crate::budget::Budget;
use crate::stream_socket::StreamSocket;

/// Kept of each command's output.
const KEPT: usize = 1024 * 1024;

/// Output in small pieces is put together up to this size.
const CHUNK: usize = 16 * 1024;

/// What a chunk costs beside its bytes.
const OVERHEAD: usize = 64;

#[derive(Debug)]
pub(crate) struct OutputBuffer {
    chunks: VecDeque<(Kind, Vec<u8>)>,
    /// In memory, so with what each chunk costs.
    size: usize,
    missed: u64,
    budget: Budget,
}

impl OutputBuffer {
    pub(crate) fn new(budget: &Budget) -> Self {
        Self { chunks: VecDeque::new(), size: 0, missed: 0, budget: budget.clone() }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn keep(&mut self, kind: Kind, bytes: &[u8]) {
        match self.chunks.back_mut() {
            Some((last, chunk)) if *last == kind && chunk.len() + bytes.len() <= CHUNK => {
                let before = chunk.capacity();
                chunk.extend_from_slice(bytes);
                let grown = chunk.capacity() - before;
                self.count(grown);
            }
            _ => {
                let chunk = bytes.to_vec();
                self.count(chunk.capacity() + OVERHEAD);
                self.chunks.push_back((kind, chunk));
            }
        }
        while self.size > KEPT {
            self.drop_oldest();
        }
    }

    /// Takes back what was on its way to the service and did not arrive: it was printed before all that is kept.
    pub(crate) fn put_back(&mut self, kind: Kind, bytes: Vec<u8>) {
        self.count(bytes.capacity() + OVERHEAD);
        self.chunks.push_front((kind, bytes));
        while self.size > KEPT {
            self.drop_oldest();
        }
    }

    pub(crate) fn drop_oldest(&mut self) {
        if let Some(chunk) = self.pop() {
            self.missed += chunk.1.len() as u64;
        }
    }

    /// Hands on as much as the channel takes. Whether that was all.
    pub(crate) fn replay(&mut self, channel: &mut StreamSocket) -> bool {
        if self.missed > 0 {
            channel.send(Kind::Event, &Event::Missed { bytes: std::mem::take(&mut self.missed) });
            let _ = channel.flush();
        }
        while !channel.is_full() {
            let Some((kind, bytes)) = self.pop() else { return true };
            channel.send_data(kind, &bytes);
            let _ = channel.flush();
        }
        self.is_empty()
    }

    fn pop(&mut self) -> Option<(Kind, Vec<u8>)> {
        let chunk = self.chunks.pop_front()?;
        let cost = chunk.1.capacity() + OVERHEAD;
        self.size -= cost;
        self.budget.drop_kept(cost);
        Some(chunk)
    }

    fn count(&mut self, bytes: usize) {
        self.size += bytes;
        self.budget.keep(bytes);
    }
}

impl Drop for OutputBuffer {
    fn drop(&mut self) {
        self.budget.drop_kept(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget::new(Some(32 << 20), None)
    }

    fn bytes(retained: &OutputBuffer) -> usize {
        retained.chunks.iter().map(|(_, chunk)| chunk.len()).sum()
    }

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let mut retained = OutputBuffer::new(&budget());
        for _ in 0..3 {
            retained.keep(Kind::Stdout, &vec![0; KEPT / 2 - OVERHEAD]);
        }
        let half = KEPT / 2 - OVERHEAD;
        assert_eq!((bytes(&retained), retained.missed, retained.chunks.len()), (2 * half, half as u64, 2));
    }

    #[test]
    fn output_in_single_bytes_costs_no_more_than_in_one_piece() {
        let mut retained = OutputBuffer::new(&budget());
        for n in 0..3 * KEPT {
            retained.keep(if n % 100 == 0 { Kind::Stderr } else { Kind::Stdout }, b"x");
        }
        let capacity: usize = retained.chunks.iter().map(|(_, chunk)| chunk.capacity() + OVERHEAD).sum();
        assert!(capacity == retained.size && capacity <= KEPT && bytes(&retained) > KEPT / 4);
        assert_eq!(retained.missed as usize + bytes(&retained), 3 * KEPT);
    }

    #[test]
    fn the_total_counts_what_is_kept_and_no_more() {
        let budget = budget();
        let mut commands: Vec<OutputBuffer> = (0..3).map(|_| OutputBuffer::new(&budget)).collect();
        for retained in &mut commands {
            retained.keep(Kind::Stdout, &vec![0; KEPT - OVERHEAD]);
        }
        assert!(budget.keeps_too_much(), "2 MiB of 32");
        commands[0].drop_oldest();
        assert!(!budget.keeps_too_much());
        drop(commands);
        budget.keep(2 << 20);
        assert!(!budget.keeps_too_much(), "all of it was given back");
    }
}
