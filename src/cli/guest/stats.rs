//! The resource usage of a sandbox, as a table.

use sandboxd_protocol::guest::Stats;

use super::size;
use crate::cli::columns::{Columns, Width};

pub(super) fn table(stats: Stats, width: Width) -> String {
    let mut table = Columns::pairs();
    let mut row = |name: &str, value: Option<String>| table.row([name, value.as_deref().unwrap_or("-")]);
    row("cpu", stats.cpu_percent.map(|percent| format!("{percent:.1} % of one CPU")));
    row("cpu time", stats.cpu_seconds.map(|seconds| format!("{seconds:.1} s")));
    row("memory", stats.memory_bytes.map(|bytes| of_limit(size(bytes), bytes, stats.memory_limit_bytes, size)));
    row(
        "processes",
        stats.pids.map(|pids| of_limit(pids.to_string(), pids, stats.pids_limit, |pids| pids.to_string())),
    );
    row("received", stats.received_bytes.map(size));
    row("sent", stats.sent_bytes.map(size));
    row("written", stats.written_bytes.map(size));
    table.text(width)
}

fn of_limit(shown: String, used: u64, limit: Option<u64>, unit: impl Fn(u64) -> String) -> String {
    match limit.filter(|limit| *limit > 0) {
        Some(limit) => format!("{shown} of {} ({:.0} %)", unit(limit), used as f64 / limit as f64 * 100.0),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_have_units_and_limits() {
        let stats = json!({
            "at": "2026-01-31T09:30:00.000Z", "cpu_seconds": 1.204, "cpu_percent": 12.5, "memory_bytes": 24379392,
            "memory_limit_bytes": 1073741824, "pids": 7, "pids_limit": null, "received_bytes": 1048, "sent_bytes": 772,
            "written_bytes": null,
        });
        let shown = table(serde_json::from_value(stats).expect("stats"), Width::UNLIMITED);
        assert_eq!(
            shown,
            "cpu        12.5 % of one CPU\ncpu time   1.2 s\nmemory     23.2 MiB of 1.0 GiB (2 %)\nprocesses  7\n\
             received   1.0 KiB\nsent       772 B\nwritten    -\n"
        );
    }
}
