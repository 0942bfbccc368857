//! A process that is our child, or one that an earlier run left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

/// How often one that is not our child is looked at.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Process {
    pid: Pid,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Reaped once it has ended, or its pid would stay in use.
    Child(Child),
    /// Known by what its arguments contain.
    Left { mark: PathBuf },
}

impl Process {
    pub(super) fn child(child: Child) -> io::Result<Self> {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32)).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, kind: Kind::Child(child) })
    }

    /// The process that `pid_file` names, if it lives and is not another by now: its arguments contain `mark`.
    pub(super) fn alive(pid_file: &Path, mark: &Path) -> Option<Self> {
        let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok().and_then(Pid::from_raw)?;
        is_marked(pid, mark).then(|| Self { pid, kind: Kind::Left { mark: mark.to_owned() } })
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) {
        match &mut self.kind {
            Kind::Child(child) => drop(child.wait().await),
            Kind::Left { mark } => {
                while is_marked(self.pid, mark) {
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }
}

/// A process that has ended but was not reaped has no arguments left.
fn is_marked(pid: Pid, mark: &Path) -> bool {
    let mark = mark.as_os_str().as_encoded_bytes();
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.windows(mark.len()).any(|part| part == mark)
}
