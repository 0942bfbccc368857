//! The memory of requests and answers, reserved before it is allocated.
//!
//! ```text
//!              ┌ own: a little for each connection, so that ordinary answers never wait for other callers
//! reservation ─┤
//!              └ pool: one for the service; a connection can hold a part of it, and command output and input
//!                can hold half of it, since commands may run long
//! ```
//!
//! A reservation waits first among those of its connection. Only one reservation per connection waits for the pool, so
//! that a caller with many requests delays only itself. While reservations wait for the pool, a connection that holds a
//! part of it and does not read is closed: see [`ConnectionMemory::blocks_others`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Limits;

/// How long a caller that holds a part of the pool may read few or no bytes while others wait for the pool.
pub(super) const SLOW_CALLER_LIMIT: Duration = Duration::from_secs(2);

/// The maximum size of an answer without file content or command output, such as a page of a list.
pub(super) const ORDINARY_ANSWER: usize = 256 << 10;

/// Bytes per semaphore permit.
const UNIT: usize = 1 << 10;

/// The memory of the service.
#[derive(Debug)]
pub(super) struct Memory {
    pool: Arc<Semaphore>,
    /// The part of the pool that reservations of [`Retention::Lasting`] may hold.
    lasting: Arc<Semaphore>,
    per_connection: usize,
    own: usize,
    /// Reservations that wait for the pool.
    waiting: Arc<AtomicUsize>,
}

/// The memory of one connection.
#[derive(Debug)]
pub(super) struct ConnectionMemory {
    memory: Arc<Memory>,
    own: Arc<Semaphore>,
    /// The part of the pool that this connection may hold.
    pooled: Arc<Semaphore>,
    /// Held by the one reservation of this connection that waits for the pool.
    pool_queue: Mutex<()>,
    /// The number of reserved parts that belong to the pool.
    pool_parts: Arc<AtomicUsize>,
    closed: CancellationToken,
}

/// The connection is closed: its caller reads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

/// The time that memory of the pool may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retention {
    /// Until the guest has delivered and the caller has read.
    Brief,
    /// As long as a command runs.
    Lasting,
}

/// Reserved memory. It is released on drop.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    units: usize,
    permits: Vec<OwnedSemaphorePermit>,
    _pool_count: Option<Counted>,
}

impl Memory {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let per_connection = units(limits.max_memory_per_connection);
        let pool = units(limits.max_memory).max(2 * per_connection);
        Arc::new(Self {
            pool: Arc::new(Semaphore::new(pool)),
            lasting: Arc::new(Semaphore::new(pool / 2)),
            per_connection,
            own: units(limits.max_output.max(ORDINARY_ANSWER)),
            waiting: Arc::default(),
        })
    }

    pub(super) fn for_connection(self: &Arc<Self>) -> ConnectionMemory {
        ConnectionMemory {
            memory: Arc::clone(self),
            own: Arc::new(Semaphore::new(self.own)),
            pooled: Arc::new(Semaphore::new(self.per_connection)),
            pool_queue: Mutex::new(()),
            pool_parts: Arc::default(),
            closed: CancellationToken::new(),
        }
    }
}

impl ConnectionMemory {
    /// Waits for the connection's own memory. No other connection can make it wait.
    pub(super) async fn own(&self, bytes: usize) -> Result<Reservation, Closed> {
        let units = units(bytes).min(self.memory.own);
        let part = async { Ok(Part { units, permits: vec![permits(&self.own, units).await?], _pool_count: None }) };
        self.unless_closed(part).await.map(Reservation::of)
    }

    /// Waits for memory of the pool.
    pub(super) async fn pooled(&self, bytes: usize, retention: Retention) -> Result<Reservation, Closed> {
        let units = units(bytes).min(self.memory.per_connection);
        let part = async {
            let mut held = vec![permits(&self.pooled, units).await?];
            let _queued = self.pool_queue.lock().await;
            let _waiting = Counted::of(&self.memory.waiting);
            if retention == Retention::Lasting {
                held.push(permits(&self.memory.lasting, units).await?);
            }
            held.push(permits(&self.memory.pool, units).await?);
            Ok(Part { units, permits: held, _pool_count: Some(Counted::of(&self.pool_parts)) })
        };
        self.unless_closed(part).await.map(Reservation::of)
    }

    /// Reserves the connection's own memory if enough is free, or else waits for memory of the pool.
    pub(super) async fn own_or_pooled(&self, bytes: usize, retention: Retention) -> Result<Reservation, Closed> {
        let units = units(bytes);
        match u32::try_from(units).map(|number| Arc::clone(&self.own).try_acquire_many_owned(number)) {
            Ok(Ok(permit)) => Ok(Reservation::of(Part { units, permits: vec![permit], _pool_count: None })),
            _ => self.pooled(bytes, retention).await,
        }
    }

    /// Returns whether this connection holds memory of the pool while others wait for it.
    pub(super) fn blocks_others(&self) -> bool {
        self.memory.waiting.load(Ordering::Relaxed) > 0 && self.pool_parts.load(Ordering::Relaxed) > 0
    }

    /// Ends every wait of this connection.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    async fn unless_closed<T>(&self, wait: impl Future<Output = Result<T, Closed>>) -> Result<T, Closed> {
        self.closed.run_until_cancelled(wait).await.unwrap_or(Err(Closed))
    }
}

impl Reservation {
    fn of(part: Part) -> Self {
        Self { parts: vec![part] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.units * UNIT).sum()
    }

    pub(super) fn add(&mut self, other: Reservation) {
        self.parts.extend(other.parts);
    }

    /// Releases the memory beyond `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let needed = units(bytes);
        let mut spare = self.parts.iter().map(|part| part.units).sum::<usize>().saturating_sub(needed);
        while let Some(part) = self.parts.last_mut()
            && spare > 0
        {
            let less = spare.min(part.units);
            spare -= less;
            part.units -= less;
            for permit in &mut part.permits {
                drop(permit.split(less));
            }
            if part.units == 0 {
                self.parts.pop();
            }
        }
    }
}

async fn permits(semaphore: &Arc<Semaphore>, units: usize) -> Result<OwnedSemaphorePermit, Closed> {
    let units = u32::try_from(units).map_err(|_| Closed)?;
    Arc::clone(semaphore).acquire_many_owned(units).await.map_err(|_| Closed)
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

/// An increment of a counter, undone on drop.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const MIB: usize = 1 << 20;

    fn memory() -> Arc<Memory> {
        let (max_memory, max_memory_per_connection) = (8 * MIB, 3 * MIB);
        Memory::new(&Limits { max_memory, max_memory_per_connection, max_output: MIB, ..Limits::default() })
    }

    fn brief(connection: &ConnectionMemory, bytes: usize) -> Option<Reservation> {
        connection.pooled(bytes, Retention::Brief).now_or_never().map(|reserved| reserved.expect("open"))
    }

    #[test]
    fn a_connection_holds_a_part_of_the_pool_and_leaves_the_rest_to_others() {
        let memory = memory();
        let (greedy, other) = (memory.for_connection(), memory.for_connection());
        let held = brief(&greedy, 2 * MIB).expect("there is room");
        assert!(brief(&greedy, 2 * MIB).is_none(), "more than its part");
        assert!(brief(&other, 2 * MIB).is_some());
        drop(held);
        assert!(brief(&greedy, 3 * MIB).is_some());
    }

    #[test]
    fn own_memory_is_there_while_the_pool_is_used_up() {
        let memory = memory();
        let connections = [(); 4].map(|()| memory.for_connection());
        let held: Vec<_> = connections.iter().map_while(|connection| brief(connection, 3 * MIB)).collect();
        assert_eq!(held.len(), 2);
        assert!(brief(&connections[3], 3 * MIB).is_none());
        assert!(connections[3].own(MIB).now_or_never().is_some());
    }

    #[test]
    fn lasting_reservations_leave_half_of_the_pool() {
        let memory = memory();
        let connections = [(); 3].map(|()| memory.for_connection());
        let lasting = |connection: &ConnectionMemory| connection.pooled(2 * MIB, Retention::Lasting).now_or_never();
        let held: Vec<_> = connections.iter().map_while(lasting).collect();
        assert_eq!(held.len(), 2);
        assert!(brief(&connections[2], 3 * MIB).is_some());
    }

    #[test]
    fn a_holder_blocks_others_only_while_another_connection_waits() {
        let memory = memory();
        let connections = [(); 3].map(|()| memory.for_connection());
        let _held = [brief(&connections[0], 3 * MIB), brief(&connections[1], 3 * MIB)];
        assert!(!connections[0].blocks_others());
        let mut waiting = Box::pin(connections[2].pooled(3 * MIB, Retention::Brief));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(connections[0].blocks_others() && !connections[2].blocks_others());
        drop(waiting);
        assert!(!connections[0].blocks_others());
    }

    #[test]
    fn memory_is_released_in_parts_and_on_drop() {
        let memory = memory();
        let connection = memory.for_connection();
        let mut held = brief(&connection, 2 * MIB).expect("there is room");
        held.add(connection.own(MIB).now_or_never().expect("there is room").expect("open"));
        held.shrink_to(MIB + 1);
        assert_eq!(held.bytes(), MIB + UNIT);
        assert!(brief(&connection, 2 * MIB - UNIT).is_some() && connection.own(MIB).now_or_never().is_some());
        drop(held);
        assert!(brief(&connection, 3 * MIB).is_some());
    }

    #[test]
    fn the_end_of_a_connection_ends_its_waits() {
        let connection = memory().for_connection();
        let _held = brief(&connection, 3 * MIB);
        let mut waiting = Box::pin(connection.pooled(MIB, Retention::Brief));
        assert!((&mut waiting).now_or_never().is_none());
        connection.close();
        assert!(matches!(waiting.now_or_never(), Some(Err(Closed))));
    }
}
