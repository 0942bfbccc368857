//! Processor time of this process. Other load on the machine hardly affects it.

use std::io;
use std::time::{Duration, Instant};

/// The kernel's unit in this file, on all relevant architectures.
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
pub(crate) struct Moment {
    at: Instant,
    used: Duration,
}

#[derive(Clone, Copy)]
pub(crate) struct Time {
    pub(crate) passed: Duration,
    pub(crate) used: Duration,
}

impl Moment {
    pub(crate) fn now() -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        // The second field, the program's name in parentheses, may contain any characters.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks: u32 = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum();
        Ok(Self { at: Instant::now(), used: TICK * ticks })
    }

    pub(crate) fn elapsed(self) -> io::Result<Time> {
        let now = Self::now()?;
        Ok(Time { passed: now.at - self.at, used: now.used.saturating_sub(self.used) })
    }
}
