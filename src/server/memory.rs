//! Memory that callers make the service hold for requests and answers, counted before it is taken.
//!
//! ```text
//!              ┌ own: a little for each connection, so that ordinary answers never wait for other callers
//! reservation ─┤
//!              └ pool: one for the service; a connection can hold a part of it, and command output and input
//!                can hold half of it, since those may last
//! ```
//!
//! A reservation waits first among those of its connection, and then as the only one of its connection among those of
//! others. So a caller with many requests waits behind itself. While reservations wait for the pool, a connection that
//! holds a part of it and does not read loses it: see [`Share::is_in_the_way`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Limits;

/// How long a caller that holds a part of the pool may take no bytes, or few, while others wait for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The most that one answer which is not about a file or a command's output weighs: a page of a list, for example.
pub(super) const ORDINARY: usize = 256 << 10;

/// What is counted together.
const UNIT: usize = 1 << 10;

/// The memory of the service.
#[derive(Debug)]
pub(super) struct Memory {
    pool: Arc<Semaphore>,
    /// The part of the pool that may be held by requests which last.
    lasting: Arc<Semaphore>,
    per_connection: usize,
    own: usize,
    /// Reservations that wait for the pool.
    waiting: Arc<AtomicUsize>,
}

/// The memory of one connection.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    own: Arc<Semaphore>,
    /// What this connection may take from the pool.
    pooled: Arc<Semaphore>,
    /// Held by the one reservation of this connection that waits for the pool.
    turn: Mutex<()>,
    /// How many parts of reservations are of the pool.
    holdings: Arc<AtomicUsize>,
    closed: CancellationToken,
}

/// The connection is closed: its caller reads no answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

/// How long memory of the pool may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holding {
    /// Until the guest has delivered and the caller has read.
    Brief,
    /// As long as a command runs.
    Lasting,
}

/// Memory that may be used. It is given back when dropped.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    units: usize,
    permits: Vec<OwnedSemaphorePermit>,
    _of_pool: Option<Counted>,
}

impl Memory {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let per_connection = units(limits.max_memory_per_connection);
        let pool = units(limits.max_memory).max(2 * per_connection);
        Arc::new(Self {
            pool: Arc::new(Semaphore::new(pool)),
            lasting: Arc::new(Semaphore::new(pool / 2)),
            per_connection,
            own: units(limits.max_output.max(ORDINARY)),
            waiting: Arc::default(),
        })
    }

    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share {
            memory: Arc::clone(self),
            own: Arc::new(Semaphore::new(self.own)),
            pooled: Arc::new(Semaphore::new(self.per_connection)),
            turn: Mutex::new(()),
            holdings: Arc::default(),
            closed: CancellationToken::new(),
        }
    }
}

impl Share {
    /// Waits for the connection's own memory. No other connection can make it wait.
    pub(super) async fn own(&self, bytes: usize) -> Result<Reservation, Closed> {
        let units = units(bytes).min(self.memory.own);
        let part = async { Ok(Part { units, permits: vec![permits(&self.own, units).await?], _of_pool: None }) };
        self.unless_closed(part).await.map(Reservation::of)
    }

    /// Waits for memory of the service.
    pub(super) async fn pooled(&self, bytes: usize, holding: Holding) -> Result<Reservation, Closed> {
        let units = units(bytes).min(self.memory.per_connection);
        let part = async {
            let mut held = vec![permits(&self.pooled, units).await?];
            let _turn = self.turn.lock().await;
            let _waiting = Counted::of(&self.memory.waiting);
            if holding == Holding::Lasting {
                held.push(permits(&self.memory.lasting, units).await?);
            }
            held.push(permits(&self.memory.pool, units).await?);
            Ok(Part { units, permits: held, _of_pool: Some(Counted::of(&self.holdings)) })
        };
        self.unless_closed(part).await.map(Reservation::of)
    }

    /// The connection's own memory if it has as much left, or else memory of the service.
    pub(super) async fn either(&self, bytes: usize, holding: Holding) -> Result<Reservation, Closed> {
        let units = units(bytes);
        match u32::try_from(units).map(|number| Arc::clone(&self.own).try_acquire_many_owned(number)) {
            Ok(Ok(permit)) => Ok(Reservation::of(Part { units, permits: vec![permit], _of_pool: None })),
            _ => self.pooled(bytes, holding).await,
        }
    }

    /// Whether this connection holds memory that others wait for.
    pub(super) fn is_in_the_way(&self) -> bool {
        self.memory.waiting.load(Ordering::Relaxed) > 0 && self.holdings.load(Ordering::Relaxed) > 0
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

    /// Gives back all that is not needed for so many bytes.
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

/// Counted for as long as it is there.
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

    fn brief(share: &Share, bytes: usize) -> Option<Reservation> {
        share.pooled(bytes, Holding::Brief).now_or_never().map(|reserved| reserved.expect("open"))
    }

    #[test]
    fn a_connection_holds_a_part_of_the_pool_and_leaves_the_rest_to_others() {
        let memory = memory();
        let (greedy, other) = (memory.share(), memory.share());
        let held = brief(&greedy, 2 * MIB).expect("there is room");
        assert!(brief(&greedy, 2 * MIB).is_none(), "more than its part");
        assert!(brief(&other, 2 * MIB).is_some());
        drop(held);
        assert!(brief(&greedy, 3 * MIB).is_some());
    }

    #[test]
    fn own_memory_is_there_while_the_pool_is_used_up() {
        let memory = memory();
        let shares = [(); 4].map(|()| memory.share());
        let held: Vec<_> = shares.iter().map_while(|share| brief(share, 3 * MIB)).collect();
        assert_eq!(held.len(), 2);
        assert!(brief(&shares[3], 3 * MIB).is_none());
        assert!(shares[3].own(MIB).now_or_never().is_some());
    }

    #[test]
    fn what_lasts_leaves_half_of_the_pool() {
        let memory = memory();
        let shares = [(); 3].map(|()| memory.share());
        let lasting = |share: &Share| share.pooled(2 * MIB, Holding::Lasting).now_or_never();
        let held: Vec<_> = shares.iter().map_while(lasting).collect();
        assert_eq!(held.len(), 2);
        assert!(brief(&shares[2], 3 * MIB).is_some());
    }

    #[test]
    fn a_holder_is_in_the_way_only_while_another_connection_waits() {
        let memory = memory();
        let shares = [(); 3].map(|()| memory.share());
        let _held = [brief(&shares[0], 3 * MIB), brief(&shares[1], 3 * MIB)];
        assert!(!shares[0].is_in_the_way());
        let mut waiting = Box::pin(shares[2].pooled(3 * MIB, Holding::Brief));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(shares[0].is_in_the_way() && !shares[2].is_in_the_way());
        drop(waiting);
        assert!(!shares[0].is_in_the_way());
    }

    #[test]
    fn memory_is_given_back_bit_by_bit_and_altogether() {
        let memory = memory();
        let share = memory.share();
        let mut held = brief(&share, 2 * MIB).expect("there is room");
        held.add(share.own(MIB).now_or_never().expect("there is room").expect("open"));
        held.shrink_to(MIB + 1);
        assert_eq!(held.bytes(), MIB + UNIT);
        assert!(brief(&share, 2 * MIB - UNIT).is_some() && share.own(MIB).now_or_never().is_some());
        drop(held);
        assert!(brief(&share, 3 * MIB).is_some());
    }

    #[test]
    fn the_end_of_a_connection_ends_its_waits() {
        let share = memory().share();
        let _held = brief(&share, 3 * MIB);
        let mut waiting = Box::pin(share.pooled(MIB, Holding::Brief));
        assert!((&mut waiting).now_or_never().is_none());
        share.close();
        assert!(matches!(waiting.now_or_never(), Some(Err(Closed))));
    }
}
