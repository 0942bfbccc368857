//! The progress display of a copy.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The width of the progress bar.
const WIDTH: usize = 24;

/// The time between two updates of the display.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Progress {
    name: String,
    total: Option<u64>,
    done: u64,
    started: Instant,
    shown: Option<Instant>,
    is_hidden: bool,
}

impl Progress {
    /// Returns a progress display, which is hidden if standard error is not a terminal.
    pub(super) fn new(name: &str, total: Option<u64>, is_hidden: bool) -> Self {
        let is_hidden = is_hidden || !std::io::stderr().is_terminal();
        Self { name: name.to_owned(), total, done: 0, started: Instant::now(), shown: None, is_hidden }
    }

    pub(super) fn hidden() -> Self {
        Self::new("", None, true)
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if !self.is_hidden && self.shown.is_none_or(|shown| shown.elapsed() >= UPDATE_INTERVAL) {
            self.shown = Some(Instant::now());
            self.show();
        }
    }

    fn show(&self) {
        let line = line(&self.name, self.done, self.total, self.started.elapsed());
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            self.show();
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn line(name: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let rate = size((done as f64 / elapsed.as_secs_f64().max(0.001)) as u64);
    match total.filter(|total| *total > 0) {
        Some(total) => {
            let part = (done as f64 / total as f64).min(1.0);
            let bar = "#".repeat((part * WIDTH as f64) as usize);
            format!("{name}  [{bar:<WIDTH$}] {:3.0}%  {}  {rate}/s", part * 100.0, size(done))
        }
        None => format!("{name}  {}  {rate}/s", size(done)),
    }
}

/// Formats a number of bytes with its unit.
pub(in crate::cli) fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = format!("{bytes} B");
    let mut amount = bytes as f64;
    for unit in units {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        shown = format!("{amount:.1} {unit}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_progress_and_rate() {
        let second = Duration::from_secs(1);
        let half = line("f", 512 << 10, Some(1 << 20), second);
        assert_eq!(half, "f  [############            ]  50%  512.0 KiB  512.0 KiB/s");
        assert_eq!(line("f", 3, None, second), "f  3 B  3 B/s");
        assert_eq!(size(3 << 30), "3.0 GiB");
    }
}
