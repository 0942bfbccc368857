//! Ending what a command of the engine's has started, from the host: an engine can start commands, but not end them.
//!
//! A process is only ever touched if the kernel says that it is in the container's control group, which nothing in a
//! container can leave, and by a descriptor, so that its number cannot become another's in between.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_init::wire::COMMAND_VARIABLE;

/// Each round finds what was started while the one before was killing.
const ROUNDS: usize = 100;

/// Kills a command: its process group, its descendants, and what carries its mark.
pub(super) fn kill_all(container: &str, leader: i32, mark: &str) -> io::Result<()> {
    let mark = format!("{COMMAND_VARIABLE}={mark}");
    let mut killed = HashSet::new();
    for _ in 0..ROUNDS {
        let processes = processes(container);
        let found: Vec<i32> =
            belonging(&processes, leader, &mark).into_iter().filter(|process| killed.insert(*process)).collect();
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

/// One that has ended meanwhile needs no signal.
fn send(container: &str, process: i32, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process) else { return Ok(()) };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // Looked at again now that it can be no other.
    if !is_in(container, process) {
        return Ok(());
    }
    match pidfd_send_signal(&descriptor, signal) {
        Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether that process can be reached from here at all.
pub(super) fn is_in(container: &str, process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/cgroup")).is_ok_and(|groups| names(&groups, container))
}

/// As `/docker/ID`, `/docker-ID.scope` or the like; an id is too long to be part of anything else.
fn names(groups: &str, container: &str) -> bool {
    container.len() == 64 && groups.lines().any(|group| group.contains(container))
}

#[derive(Debug, Clone, Copy)]
struct Stat {
    parent: i32,
    group: i32,
}

/// One of a container's processes, whichever comes first.
pub(in crate::guest) fn any_of(container: &str) -> Option<i32> {
    processes(container).into_keys().next()
}

/// Of a container, without those that only wait to be reaped.
fn processes(container: &str) -> HashMap<i32, Stat> {
    let stat = |process: i32| Some((process, stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)?));
    numbers(container).filter_map(stat).collect()
}

/// Of all processes of a container, each looked for when it is asked for.
fn numbers(container: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(move |process| is_in(container, *process))
}

/// How many processes of a container the kernel had killed for want of memory at one time.
#[derive(Debug, Clone)]
pub(super) struct MemoryGroup {
    events: PathBuf,
    kills: u64,
}

impl MemoryGroup {
    /// Absent where the container's control group cannot be seen from here.
    pub(super) fn of(container: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", numbers(container).next()?)).ok()?;
        let events = memory_events(&groups, container)?;
        Some(Self { kills: oom_kills(&events)?, events })
    }

    #[cfg(test)]
    pub(super) fn since(events: &Path, kills: u64) -> Self {
        Self { events: events.to_owned(), kills }
    }

    /// Whether it has killed more since then.
    pub(super) fn has_run_out(&self) -> bool {
        oom_kills(&self.events).is_some_and(|kills| kills > self.kills)
    }
}

/// In the container's own group, whose count has those of all groups that are made in it.
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

/// The name in the second field may hold anything, also spaces and brackets.
fn stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    Some(Stat { parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

fn belonging(processes: &HashMap<i32, Stat>, leader: i32, mark: &str) -> Vec<i32> {
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
        assert!(!names("0::/user.slice", ""), "anything contains nothing");
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
    fn what_belongs_is_found_by_group_and_by_descent() {
        let of = |parent, group| Stat { parent, group };
        let processes =
            HashMap::from([(10, of(1, 10)), (11, of(10, 11)), (12, of(11, 12)), (13, of(1, 10)), (14, of(1, 14))]);
        let mut found = belonging(&processes, 10, "SANDBOXD_COMMAND=none");
        found.sort_unstable();
        assert_eq!(found, [10, 11, 12, 13]);
    }
}
