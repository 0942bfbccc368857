//! How long the reaper's looks at the deadlines take, as it tells it itself, to whoever records its metrics.

use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram as Spread;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

const TICK: &str = "sandboxd_reaper_pass_duration_seconds";

/// Nanoseconds. All clones are the same.
#[derive(Clone)]
pub(crate) struct Ticks(Arc<Mutex<Spread<u64>>>);

impl Ticks {
    /// Listens from now on, for all of this process.
    pub(crate) fn listen(empty: Spread<u64>) -> Result<Self, metrics::SetRecorderError<Self>> {
        let ticks = Self(Arc::new(Mutex::new(empty)));
        metrics::set_global_recorder(ticks.clone())?;
        Ok(ticks)
    }

    /// Those since this was last asked.
    pub(crate) fn take(&self) -> Spread<u64> {
        let mut ticks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = ticks.clone();
        ticks.reset();
        taken
    }
}

impl HistogramFn for Ticks {
    fn record(&self, seconds: f64) {
        let nanoseconds = (seconds * 1e9) as u64;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanoseconds);
    }
}

impl Recorder for Ticks {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if key.name() == TICK { Histogram::from_arc(Arc::new(self.clone())) } else { Histogram::noop() }
    }
}
