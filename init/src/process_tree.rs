//! Killing a command with all processes that it has started, also those outside its process group.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandbox_init::wire::COMMAND_VARIABLE;

/// Each round finds the processes that were started during the round before. A killed process starts no others.
const ROUNDS: usize = 100;

/// Kills the processes of a command: its process group, its descendants, and, where their environment can be read,
/// processes that were orphaned on purpose. The reaper handles zombies.
pub(crate) fn kill_all(leader: Pid, command: u64) {
    let _ = kill_process_group(leader, Signal::KILL);
    let marker = format!("{COMMAND_VARIABLE}={}", mark(command));
    let mut killed = HashSet::new();
    for _ in 0..ROUNDS {
        let found: Vec<Pid> = processes_of(leader, &marker).into_iter().filter(|pid| killed.insert(*pid)).collect();
        if found.is_empty() {
            return;
        }
        for process in found {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// Returns the value of [`COMMAND_VARIABLE`] for a command. It differs from that of another init which shares this
/// `/proc`.
pub(crate) fn mark(command: u64) -> String {
    format!("{}.{command}", rustix::process::getpid().as_raw_nonzero())
}

/// The fields of `/proc/PID/stat` that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    group: i32,
    is_zombie: bool,
}

impl Stat {
    /// Parses the line. The name in the second field may contain spaces and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        Some(Self { parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, is_zombie })
    }
}

fn processes_of(leader: Pid, marker: &str) -> Vec<Pid> {
    let leader = leader.as_raw_nonzero().get();
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let processes = processes();
    let mut belongs: HashMap<i32, bool> = HashMap::from([(own, false), (leader, true), (0, false)]);
    for &process in processes.keys() {
        // Walks from the process to its ancestors until a verdict is known. The verdict holds for all processes on the
        // way.
        let mut walked = Vec::new();
        let mut at = process;
        let verdict = loop {
            if let Some(&known) = belongs.get(&at) {
                break known;
            }
            walked.push(at);
            match processes.get(&at) {
                Some(stat) if stat.group == leader || is_marked(at, marker) => break true,
                Some(stat) if walked.len() <= processes.len() => at = stat.parent,
                _ => break false,
            }
        };
        belongs.extend(walked.into_iter().map(|pid| (pid, verdict)));
    }
    let alive = |(pid, stat): (i32, Stat)| (!stat.is_zombie && belongs.get(&pid) == Some(&true)).then_some(pid);
    processes.into_iter().filter_map(alive).filter_map(Pid::from_raw).collect()
}

fn processes() -> HashMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let stat = |pid: i32| Some((pid, Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(stat).collect()
}

fn is_marked(process: i32, marker: &str) -> bool {
    fs::read(format!("/proc/{process}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_contain_any_character() {
        let parsed = Stat::parse("7 (a) Z 1 (b) S 3 4 5").unwrap();
        assert_eq!(parsed, Stat { parent: 3, group: 4, is_zombie: false });
        assert!(Stat::parse("7 (a) Z 3 4").unwrap().is_zombie);
        assert_eq!(Stat::parse(""), None);
    }
}
