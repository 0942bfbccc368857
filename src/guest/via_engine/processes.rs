//! Killing the processes of a command from the host: an engine can start commands, but not kill them.
//!
//! A signal is sent only to a process that the kernel lists in the container's control group, which no process of a
//! container can leave. It is sent by a descriptor, so that the process id cannot be reused in between.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_init::wire::COMMAND_VARIABLE;

/// Each round finds the processes that were started during the round before.
const ROUNDS: usize = 100;

/// Kills a command: its process group, its descendants, and the processes with its mark.
pub(super) fn kill_all(container: &str, leader: i32, mark: &str) -> io::Result<()> {
    let mark = format!("{COMMAND_VARIABLE}={mark}");
    let mut killed = HashSet::new();
    for _ in 0..ROUNDS {
        let processes = processes(container);
        let found: Vec<i32> =
            processes_of(&processes, leader, &mark).into_iter().filter(|process| killed.insert(*process)).collect();
        if found.is_empty() {
            break;
        }
        for process in found {
            send(container, process, Signal::KILL)?;
        }
    }
    Ok(())
}

/// Sends a signal to a command's process group.
pub(super) fn signal_group(container: &str, leader: i32, signal: Signal) -> io::Result<()> {
    for (process, stat) in processes(container) {
        if stat.group == leader {
            send(container, process, signal)?;
        }
    }
    Ok(())
}

/// Sends a signal. A process that has ended meanwhile needs none.
fn send(container: &str, process: i32, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process) else { return Ok(()) };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // Checked again with the descriptor open, because the process id cannot be reused now.
    if !is_in(container, process) {
        return Ok(());
    }
    match pidfd_send_signal(&descriptor, signal) {
        Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns whether the process is visible here and belongs to the container.
pub(super) fn is_in(container: &str, process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/cgroup")).is_ok_and(|groups| names(&groups, container))
}

/// Looks for `/docker/ID`, `/docker-ID.scope` or similar. An id is too long to be part of another name.
fn names(groups: &str, container: &str) -> bool {
    container.len() == 64 && groups.lines().any(|group| group.contains(container))
}

#[derive(Debug, Clone, Copy)]
struct Stat {
    parent: i32,
    group: i32,
}

/// Returns any process of a container.
pub(in crate::guest) fn any_of(container: &str) -> Option<i32> {
    processes(container).into_keys().next()
}

/// Returns the processes of a container, without zombies.
fn processes(container: &str) -> HashMap<i32, Stat> {
    let stat = |process: i32| Some((process, stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)?));
    numbers(container).filter_map(stat).collect()
}

/// Iterates over the process ids of a container lazily.
fn numbers(container: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(move |process| is_in(container, *process))
}

/// The count of OOM kills of a container at one time.
#[derive(Debug, Clone)]
pub(super) struct MemoryGroup {
    events: PathBuf,
    kills: u64,
}

impl MemoryGroup {
    /// Reads the count. Absent if the container's control group is not visible here.
    pub(super) fn of(container: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", numbers(container).next()?)).ok()?;
        let events = memory_events(&groups, container)?;
        Some(Self { kills: oom_kills(&events)?, events })
    }

    #[cfg(test)]
    pub(super) fn since(events: &Path, kills: u64) -> Self {
        Self { events: events.to_owned(), kills }
    }

    /// Returns whether the kernel has killed more processes since then.
    pub(super) fn has_run_out(&self) -> bool {
        oom_kills(&self.events).is_some_and(|kills| kills > self.kills)
    }
}

/// Returns the file of the container's own group, whose count includes all groups below it.
fn memory_events(groups: &str, container: &str) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.events"),
            _ if controllers.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", "memory.oom_control"),
            _ => return None,
        };
        let after = path.find(container)? + container.len();
        let end = path[after..].find('/').map_or(path.len(), |slash| after + slash);
        Some(Path::new(root).join(path[..end].trim_start_matches('/')).join(file))
    })
}

fn oom_kills(events: &Path) -> Option<u64> {
    fs::read_to_string(events).ok()?.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Parses `/proc/PID/stat`. The name in the second field may contain spaces and parentheses.
fn stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    Some(Stat { parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

fn processes_of(processes: &HashMap<i32, Stat>, leader: i32, mark: &str) -> Vec<i32> {
    let mut belongs: HashSet<i32> = processes
        .iter()
        .filter(|(process, stat)| **process == leader || stat.group == leader || is_marked(**process, mark))
        .map(|(process, _)| *process)
        .collect();
    loop {
        let children = processes.iter().filter(|(_, stat)| belongs.contains(&stat.parent)).map(|(process, _)| *process);
        let new: Vec<i32> = children.filter(|process| !belongs.contains(process)).collect();
        if new.is_empty() {
            return belongs.into_iter().collect();
        }
        belongs.extend(new);
    }
}

fn is_marked(process: i32, mark: &str) -> bool {
    fs::read(format!("/proc/{process}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_the_container_count() {
        let id = "ab".repeat(32);
        assert!(names(&format!("12:pids:/docker/{id}\n0::/"), &id));
        assert!(names(&format!("0::/system.slice/docker-{id}.scope"), &id));
        assert!(!names("0::/user.slice", &id));
        assert!(!names("0::/user.slice", ""), "an empty id matches no group");
        assert!(!is_in(&id, std::process::id() as i32));
    }

    #[test]
    fn the_memory_of_a_container_is_found_in_both_versions_of_control_groups() {
        let id = "ab".repeat(32);
        let found = |groups: String| memory_events(&groups, &id).map(|path| path.display().to_string());
        let first = found(format!("9:pids:/docker/{id}\n4:memory:/docker/{id}\n0::/docker/{id}\n"));
        assert_eq!(first, Some(format!("/sys/fs/cgroup/memory/docker/{id}/memory.oom_control")));
        let second = found(format!("0::/system.slice/docker-{id}.scope/made/inside\n"));
        assert_eq!(second, Some(format!("/sys/fs/cgroup/system.slice/docker-{id}.scope/memory.events")));
        assert_eq!(found("0::/user.slice\n".into()), None);
    }

    #[test]
    fn a_container_has_run_out_of_memory_once_the_kernel_has_killed_more() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let count = |kills: u64| fs::write(file.path(), format!("oom 9\noom_kill {kills}\noom_group_kill 0\n"));
        count(2).expect("written");
        assert_eq!(oom_kills(file.path()), Some(2));
        let before = MemoryGroup::since(file.path(), 2);
        assert!(!before.has_run_out());
        count(3).expect("written");
        assert!(before.has_run_out());
    }

    #[test]
    fn processes_of_a_command_are_found_by_group_and_by_descent() {
        let of = |parent, group| Stat { parent, group };
        let processes =
            HashMap::from([(10, of(1, 10)), (11, of(10, 11)), (12, of(11, 12)), (13, of(1, 10)), (14, of(1, 14))]);
        let mut found = processes_of(&processes, 10, "SANDBOXD_COMMAND=none");
        found.sort_unstable();
        assert_eq!(found, [10, 11, 12, 13]);
    }
}
