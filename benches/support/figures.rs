//! Results that are passed between processes and printed as tables.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::processor::Time;
use crate::table::Table;

/// The named results of one process, in the order of their measurement.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Bytes per item: heap, and resident memory where it is meaningful.
    memory: Vec<(String, f64, Option<f64>)>,
    /// Nanoseconds: median, 99th percentile and maximum.
    spreads: Vec<(String, [f64; 3])>,
    /// Elapsed time and processor time.
    seconds: Vec<(String, f64, f64)>,
}

impl Figures {
    pub(crate) fn memory(&mut self, name: &str, (heap, resident): (f64, f64)) {
        self.memory.push((name.to_owned(), heap, Some(resident)));
    }

    /// Adds a heap size, where resident memory is not meaningful.
    pub(crate) fn heap(&mut self, name: &str, heap: f64) {
        self.memory.push((name.to_owned(), heap, None));
    }

    pub(crate) fn spread(&mut self, name: &str, took: &Histogram<u64>) {
        let quantile = |quantile| took.value_at_quantile(quantile) as f64;
        self.spreads.push((name.to_owned(), [quantile(0.5), quantile(0.99), took.max() as f64]));
    }

    pub(crate) fn took(&mut self, name: &str, time: Time) {
        self.seconds.push((name.to_owned(), time.passed.as_secs_f64(), time.used.as_secs_f64()));
    }

    /// Prints the results as tables.
    pub(crate) fn print_against(&self, floor: &Figures) {
        let mut memory = Table::new(["memory for each, KiB", "heap", "resident", "heap ÷ idle actor"]);
        let (_, of_idle, _) = floor.memory[0];
        for (name, heap, resident) in floor.memory.iter().chain(&self.memory) {
            let resident = resident.map_or_else(|| "–".to_owned(), kib);
            memory.row([name.clone(), kib(*heap), resident, format!("{:.2}×", heap / of_idle)]);
        }
        println!("{memory}");

        let mut spreads = Table::new(["one at a time", "p50 µs", "p99 µs", "longest µs", "p50 ÷ call"]);
        let (_, [call, ..]) = self.spreads[0];
        for (name, [median, high, longest]) in &self.spreads {
            let ratio = format!("{:.2}×", median / call);
            spreads.row([name.clone(), micros(*median), micros(*high), micros(*longest), ratio]);
        }
        println!("{spreads}");

        let mut passes = Table::new(["all of them", "s", "CPU s", "CPU ÷ idle actors"]);
        let (.., of_idle) = floor.seconds[0];
        for (name, passed, used) in floor.seconds.iter().chain(&self.seconds) {
            let ratio = format!("{:.2}×", used / of_idle);
            passes.row([name.clone(), format!("{passed:.2}"), format!("{used:.2}"), ratio]);
        }
        println!("{passes}");
    }
}

fn kib(bytes: f64) -> String {
    format!("{:.2}", bytes / 1024.0)
}

fn micros(nanoseconds: f64) -> String {
    format!("{:.1}", nanoseconds / 1e3)
}
