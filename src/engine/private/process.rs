//! A process that is a child of the service, or that an earlier run of the service started.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

/// The polling interval for a process that is not a child.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Process {
    pid: Pid,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A child is reaped when it exits; otherwise its pid stays in use.
    Child(Child),
    /// A process of an earlier run, identified by `mark` in its arguments.
    Adopted { mark: PathBuf },
}

impl Process {
    pub(super) fn child(child: Child) -> io::Result<Self> {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32)).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, kind: Kind::Child(child) })
    }

    /// Returns the process of `pid_file` if it is alive and its arguments contain `mark`, so that the pid was not
    /// reused.
    pub(super) fn alive(pid_file: &Path, mark: &Path) -> Option<Self> {
        let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok().and_then(Pid::from_raw)?;
        is_marked(pid, mark).then(|| Self { pid, kind: Kind::Adopted { mark: mark.to_owned() } })
    }

    /// Waits until the process exits.
    pub(super) async fn ended(&mut self) {
        match &mut self.kind {
            Kind::Child(child) => drop(child.wait().await),
            Kind::Adopted { mark } => {
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

/// A zombie has no arguments, so it counts as exited.
fn is_marked(pid: Pid, mark: &Path) -> bool {
    let mark = mark.as_os_str().as_encoded_bytes();
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.windows(mark.len()).any(|part| part == mark)
}
