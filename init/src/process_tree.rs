//! Ending a command with all that it has started, also what left its process group.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandbox_init::wire::COMMAND_VARIABLE;

/// Each round finds what was started while the one before was killing; a killed process starts nothing any more.
const ROUNDS: usize = 100;

/// Kills what belongs to the command: its process group, its descendants, and, where their environment can be read, those
/// that were orphaned on purpose. Zombies are the reaper's.
pub(crate) fn kill_all(leader: Pid, command: u64) {
    let _ = kill_process_group(leader, Signal::KILL);
    let marker = format!("{COMMAND_VARIABLE}={}", mark(command));
    let mut killed = HashSet::new();
    for _ in 0..ROUNDS {
        let found: Vec<Pid> = belonging(leader, &marker).into_iter().filter(|pid| killed.insert(*pid)).collect();
        if found.is_empty() {
            return;
        }
        for process in found {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The value of [`COMMAND_VARIABLE`] for a command: not that of another init's command, should it share our `/proc`.
pub(crate) fn mark(command: u64) -> String {
    format!("{}.{command}", rustix::process::getpid().as_raw_nonzero())
}

/// As `/proc/PID/stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    group: i32,
    is_zombie: bool,
}

impl Stat {
    /// The name in the second field may hold anything, also spaces and brackets.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        Some(Self { parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, is_zombie })
    }
}

fn belonging(leader: Pid, marker: &str) -> Vec<Pid> {
    let leader = leader.as_raw_nonzero().get();
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let processes = processes();
    let mut belongs: HashMap<i32, bool> = HashMap::from([(own, false), (leader, true), (0, false)]);
    for &process in processes.keys() {
        // From the process upwards, until one is known to belong or not to; what was learned holds for all on the way.
        let mut way = Vec::new();
        let mut at = process;
        let verdict = loop {
            if let Some(&known) = belongs.get(&at) {
                break known;
            }
            way.push(at);
            match processes.get(&at) {
                Some(stat) if stat.group == leader || is_marked(at, marker) => break true,
                Some(stat) if way.len() <= processes.len() => at = stat.parent,
                _ => break false,
            }
        };
        belongs.extend(way.into_iter().map(|pid| (pid, verdict)));
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
    fn a_process_may_be_called_anything() {
        let parsed = Stat::parse("7 (a) Z 1 (b) S 3 4 5").unwrap();
        assert_eq!(parsed, Stat { parent: 3, group: 4, is_zombie: false });
        assert!(Stat::parse("7 (a) Z 3 4").unwrap().is_zombie);
        assert_eq!(Stat::parse(""), None);
    }
}
