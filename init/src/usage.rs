//! The sandbox's use of resources, read from its own control group and network namespace. Values that these do not show
//! are absent.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use sandbox_init::wire::Usage;

/// The most bytes read from one file, so that no process of the sandbox can make init read without end.
const MAX_FILE: u64 = 64 * 1024;

/// A memory limit from here on means no limit: version 1 writes a number of about 2⁶³ for it.
const NO_LIMIT: u64 = 1 << 60;

pub(crate) fn usage() -> Usage {
    usage_of(Path::new("/sys/fs/cgroup"), Path::new("/proc/net/dev"))
}

/// Returns how many processes of the sandbox the kernel has killed because the memory limit was reached.
pub(crate) fn oom_kills() -> Option<u64> {
    oom_kills_of(Path::new("/sys/fs/cgroup"))
}

fn oom_kills_of(group: &Path) -> Option<u64> {
    let events = text(&group.join("memory.events")).or_else(|| text(&group.join("memory/memory.oom_control")));
    field(&events?, "oom_kill")
}

fn usage_of(group: &Path, network: &Path) -> Usage {
    let usage = if group.join("cgroup.controllers").exists() { version_2(group) } else { version_1(group) };
    let [received, sent] = text(network).map(|table| traffic(&table)).unwrap_or_default();
    let now = clock_gettime(ClockId::Monotonic);
    let at = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000;
    Usage { at, received, sent, ..usage }
}

/// Reads control groups of version 2: one directory for all controllers.
fn version_2(group: &Path) -> Usage {
    let at = |name: &str| group.join(name);
    let cache = text(&at("memory.stat")).and_then(|stat| field(&stat, "inactive_file"));
    Usage {
        cpu: text(&at("cpu.stat")).and_then(|stat| field(&stat, "usage_usec")),
        memory: number(&at("memory.current")).map(|used| used.saturating_sub(cache.unwrap_or(0))),
        memory_limit: number(&at("memory.max")),
        processes: number(&at("pids.current")),
        process_limit: number(&at("pids.max")),
        written: text(&at("io.stat"))
            .map(|stat| sum(stat.split_whitespace().filter_map(|word| word.strip_prefix("wbytes=")))),
        ..Usage::default()
    }
}

/// Reads control groups of version 1: one directory for each controller.
fn version_1(group: &Path) -> Usage {
    let at = |name: &str| group.join(name);
    let cache = text(&at("memory/memory.stat")).and_then(|stat| field(&stat, "total_inactive_file"));
    let written =
        |stat: String| sum(stat.lines().filter_map(|line| line.split_once(" Write ")).map(|(_, bytes)| bytes));
    Usage {
        cpu: number(&at("cpuacct/cpuacct.usage")).map(|nanoseconds| nanoseconds / 1000),
        memory: number(&at("memory/memory.usage_in_bytes")).map(|used| used.saturating_sub(cache.unwrap_or(0))),
        memory_limit: number(&at("memory/memory.limit_in_bytes")).filter(|limit| *limit < NO_LIMIT),
        processes: number(&at("pids/pids.current")),
        process_limit: number(&at("pids/pids.max")),
        written: text(&at("blkio/blkio.throttle.io_service_bytes")).map(written),
        ..Usage::default()
    }
}

fn text(path: &Path) -> Option<String> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Reads a number. Absent for the word "max".
fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

fn field(stat: &str, name: &str) -> Option<u64> {
    let mut fields = stat.lines().filter_map(|line| line.split_once(' '));
    fields.find(|(field, _)| *field == name)?.1.trim().parse().ok()
}

fn sum<'a>(numbers: impl Iterator<Item = &'a str>) -> u64 {
    numbers.filter_map(|number| number.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// Returns the bytes received and sent on all interfaces except loopback.
fn traffic(table: &str) -> [Option<u64>; 2] {
    let interfaces = table.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    let columns: Vec<Vec<&str>> = interfaces.map(|(_, numbers)| numbers.split_whitespace().collect()).collect();
    [0, 8].map(|column| Some(sum(columns.iter().filter_map(|numbers| numbers.get(column).copied()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        directory
    }

    fn read(files: &[(&str, &str)]) -> Usage {
        let directory = directory(files);
        Usage { at: 0, ..usage_of(directory.path(), &directory.path().join("dev")) }
    }

    const NETWORK: &str = "Inter-|   Receive      |  Transmit\n face |bytes    packets errs drop\n    \
        lo:     999       1    0    0    0     0          0         0  999 1 0 0 0 0 0 0\n  \
        eth0:    1000      10    0    0    0     0          0         0  200 2 0 0 0 0 0 0\n  \
        eth1: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";

    #[test]
    fn version_2_is_read_from_one_directory() {
        let usage = read(&[
            ("cgroup.controllers", "cpu io memory pids\n"),
            ("cpu.stat", "usage_usec 1500000\nuser_usec 1\n"),
            ("memory.current", "5000\n"),
            ("memory.stat", "anon 3000\ninactive_file 1000\n"),
            ("memory.max", "max\n"),
            ("pids.current", "3\n"),
            ("pids.max", "256\n"),
            ("io.stat", "8:0 rbytes=1 wbytes=70 rios=1\n8:16 rbytes=1 wbytes=7\n"),
            ("dev", NETWORK),
        ]);
        let expected = Usage {
            cpu: Some(1_500_000),
            memory: Some(4000),
            processes: Some(3),
            process_limit: Some(256),
            received: Some(1001),
            sent: Some(202),
            written: Some(77),
            ..Usage::default()
        };
        assert_eq!(usage, expected);
    }

    #[test]
    fn version_1_is_read_from_a_directory_for_each_controller() {
        let usage = read(&[
            ("cpuacct/cpuacct.usage", "1500000000\n"),
            ("memory/memory.usage_in_bytes", "5000\n"),
            ("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("pids/pids.current", "3\n"),
            ("pids/pids.max", "max\n"),
            ("blkio/blkio.throttle.io_service_bytes", "8:0 Read 1\n8:0 Write 70\n8:16 Write 7\nTotal 78\n"),
        ]);
        let expected = Usage {
            cpu: Some(1_500_000),
            memory: Some(4000),
            processes: Some(3),
            written: Some(77),
            ..Usage::default()
        };
        assert_eq!(usage, expected);
    }

    #[test]
    fn oom_kills_are_read_from_both_versions() {
        let kills = |name, content| oom_kills_of(directory(&[(name, content)]).path());
        assert_eq!(kills("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        let version_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n";
        assert_eq!(kills("memory/memory.oom_control", version_1), Some(5));
        assert_eq!(kills("memory/memory.oom_control", "oom_kill_disable 0\n"), None, "of an old kernel");
    }

    #[test]
    fn missing_files_give_absent_values() {
        assert_eq!(read(&[]), Usage::default());
        assert_eq!(read(&[("cgroup.controllers", ""), ("cpu.stat", "invalid_response"), ("dev", "")]).cpu, None);
    }
}
