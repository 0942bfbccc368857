//! Starting a process: the image's own program, or a command's.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, WaitStatus};
use sandbox_init::wire::How;

use crate::OWN_VARIABLES;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("{program:?} cannot be started: {error}")]
    Program { program: OsString, error: io::Error },
    #[error("this system lacks what is needed: {0}")]
    System(#[from] io::Error),
}

impl InitError {
    /// As a shell would.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            Self::System(_) => 125,
        }
    }
}

/// In a process group of its own, without what only init is to know.
pub(crate) fn prepare(program: &OsString) -> Command {
    let mut command = Command::new(program);
    for variable in OWN_VARIABLES {
        command.env_remove(variable);
    }
    command
}

pub(crate) fn start(arguments: &[OsString]) -> Result<Option<Pid>, InitError> {
    let Some((program, arguments)) = arguments.split_first() else { return Ok(None) };
    let started = prepare(program).args(arguments).process_group(0).spawn();
    let child = started.map_err(|error| InitError::Program { program: program.clone(), error })?;
    Ok(Some(pid_of(&child)))
}

pub(crate) fn pid_of(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

pub(crate) fn how(status: WaitStatus) -> How {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => How::Code { code },
        (None, Some(signal)) => How::Signal { signal },
        (None, None) => How::Code { code: 0 },
    }
}

/// What this process exits with after its program ended so.
pub(crate) fn exit_code(how: &How) -> ExitCode {
    ExitCode::from(match how {
        How::Code { code } => *code as u8,
        How::Signal { signal } => 128 + *signal as u8,
    })
}

/// What it exits with if it was told to and has no program that would decide.
pub(crate) fn told_to_end(signal: Signal) -> Option<ExitCode> {
    let ends = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal);
    ends.then(|| exit_code(&How::Signal { signal: signal.as_raw() }))
}
