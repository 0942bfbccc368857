//! The output that a command printed while no caller was attached: its last part, limited for each command and in
//! total.

use std::collections::VecDeque;

use sandbox_init::wire::{Event, Kind};

use crate::budget::Budget;
use crate::stream_socket::StreamSocket;

/// The bytes buffered for each command.
const MAX_BUFFERED: usize = 1024 * 1024;

/// Small pieces of output are merged up to this size.
const CHUNK: usize = 16 * 1024;

/// The memory of a chunk beside its bytes.
const OVERHEAD: usize = 64;

#[derive(Debug)]
pub(crate) struct OutputBuffer {
    chunks: VecDeque<(Kind, Vec<u8>)>,
    /// The memory of all chunks, overhead included.
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

    pub(crate) fn push(&mut self, kind: Kind, bytes: &[u8]) {
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
        while self.size > MAX_BUFFERED {
            self.drop_oldest();
        }
    }

    /// Puts back output that was not sent. It is older than all buffered output.
    pub(crate) fn put_back(&mut self, kind: Kind, bytes: Vec<u8>) {
        self.count(bytes.capacity() + OVERHEAD);
        self.chunks.push_front((kind, bytes));
        while self.size > MAX_BUFFERED {
            self.drop_oldest();
        }
    }

    pub(crate) fn drop_oldest(&mut self) {
        if let Some(chunk) = self.pop() {
            self.missed += chunk.1.len() as u64;
        }
    }

    /// Sends as much as the stream accepts. Returns whether the buffer is empty.
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
        self.budget.release_output(cost);
        Some(chunk)
    }

    fn count(&mut self, bytes: usize) {
        self.size += bytes;
        self.budget.count_output(bytes);
    }
}

impl Drop for OutputBuffer {
    fn drop(&mut self) {
        self.budget.release_output(self.size);
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
    fn the_oldest_output_is_dropped_first_and_counted() {
        let mut retained = OutputBuffer::new(&budget());
        for _ in 0..3 {
            retained.push(Kind::Stdout, &vec![0; MAX_BUFFERED / 2 - OVERHEAD]);
        }
        let half = MAX_BUFFERED / 2 - OVERHEAD;
        assert_eq!((bytes(&retained), retained.missed, retained.chunks.len()), (2 * half, half as u64, 2));
    }

    #[test]
    fn output_in_single_bytes_costs_no_more_than_in_one_piece() {
        let mut retained = OutputBuffer::new(&budget());
        for n in 0..3 * MAX_BUFFERED {
            retained.push(if n % 100 == 0 { Kind::Stderr } else { Kind::Stdout }, b"x");
        }
        let capacity: usize = retained.chunks.iter().map(|(_, chunk)| chunk.capacity() + OVERHEAD).sum();
        assert!(capacity == retained.size && capacity <= MAX_BUFFERED && bytes(&retained) > MAX_BUFFERED / 4);
        assert_eq!(retained.missed as usize + bytes(&retained), 3 * MAX_BUFFERED);
    }

    #[test]
    fn the_total_counts_exactly_the_buffered_output() {
        let budget = budget();
        let mut commands: Vec<OutputBuffer> = (0..3).map(|_| OutputBuffer::new(&budget)).collect();
        for retained in &mut commands {
            retained.push(Kind::Stdout, &vec![0; MAX_BUFFERED - OVERHEAD]);
        }
        assert!(budget.is_output_exceeded(), "2 MiB of 32");
        commands[0].drop_oldest();
        assert!(!budget.is_output_exceeded());
        drop(commands);
        budget.count_output(2 << 20);
        assert!(!budget.is_output_exceeded(), "all of it was given back");
    }
}
