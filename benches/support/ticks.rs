//! Durations of the reaper's ticks, as its metrics report them.

use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram as Spread;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

const TICK: &str = "sandboxd_reaper_pass_duration_seconds";

/// Durations in nanoseconds. All clones share them.
#[derive(Clone)]
pub(crate) struct Ticks(Arc<Mutex<Spread<u64>>>);

impl Ticks {
    /// Installs the recorder for this process.
    pub(crate) fn listen(empty: Spread<u64>) -> Result<Self, metrics::SetRecorderError<Self>> {
        let ticks = Self(Arc::new(Mutex::new(empty)));
        metrics::set_global_recorder(ticks.clone())?;
        Ok(ticks)
    }

    /// Returns the durations since the last call.
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
