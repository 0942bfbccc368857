//! Starting of processes: the image's own program, and the programs of commands.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus};
use sandbox_init::wire::How;

use crate::OWN_VARIABLES;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("cannot start {program:?}: {error}")]
    Program { program: OsString, error: io::Error },
    #[error("cannot set up init: {0}")]
    System(#[from] io::Error),
}

impl InitError {
    /// Returns the exit code that a shell would use.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            Self::System(_) => 125,
        }
    }
}

/// The image's program, and the environment of it and of every command.
#[derive(Debug)]
pub(crate) struct Program {
    arguments: Vec<OsString>,
    /// Added to the environment of this process.
    environment: Vec<(OsString, OsString)>,
    /// The program starts only when the sandbox is bound.
    waits: bool,
    process: Option<Pid>,
}

impl Program {
    pub(crate) fn new(arguments: Vec<OsString>, waits: bool) -> Self {
        Self { arguments, environment: Vec::new(), waits, process: None }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the process. Absent before the start, and for an image without a program.
    pub(crate) fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Prepares a command with the sandbox's environment, without init's own variables.
    pub(crate) fn prepare(&self, program: &OsString) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        command
    }

    /// Starts the program in its own process group.
    pub(crate) fn start(&mut self) -> Result<(), InitError> {
        if let Some((program, arguments)) = self.arguments.split_first() {
            let started = self.prepare(program).args(arguments).process_group(0).spawn();
            let child = started.map_err(|error| InitError::Program { program: program.clone(), error })?;
            self.process = Some(pid_of(&child));
        }
        Ok(())
    }

    /// Ends the wait and starts the program.
    pub(crate) fn begin(&mut self) -> Result<(), InitError> {
        if !std::mem::replace(&mut self.waits, false) {
            return Err(InitError::System(Errno::EXIST.into()));
        }
        self.start()
    }

    /// Ends the wait with the chat's environment. The wait ends even if the program does not start, because the sandbox
    /// is assigned to a chat.
    pub(crate) fn bind(&mut self, environment: Vec<(OsString, OsString)>) -> Result<(), InitError> {
        if !std::mem::replace(&mut self.waits, false) {
            return Err(InitError::System(Errno::EXIST.into()));
        }
        self.environment = environment;
        // A directory that was mounted over the working directory meanwhile is only found by its path.
        let here = std::env::current_dir()?;
        std::env::set_current_dir(here)?;
        self.start()
    }
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

/// The exit code of a shell whose command was killed.
const KILLED: i32 = 128 + Signal::KILL.as_raw();

/// Marks an end as an OOM kill, for a command during which the kernel has killed a process because of the memory limit.
pub(crate) fn out_of_memory(how: How) -> How {
    match how {
        How::Signal { signal } if signal == Signal::KILL.as_raw() => How::OutOfMemory {},
        How::Code { code: KILLED } => How::CodeOutOfMemory { code: KILLED },
        other => other,
    }
}

/// Returns the exit code of init for the end of its program.
pub(crate) fn exit_code(how: &How) -> ExitCode {
    ExitCode::from(match how {
        How::Code { code } => *code as u8,
        How::Signal { signal } => 128 + *signal as u8,
        How::OutOfMemory {} => KILLED as u8,
        How::CodeOutOfMemory { code } => *code as u8,
    })
}

/// Returns the exit code for a signal that ends an init without a program.
pub(crate) fn exit_code_on_signal(signal: Signal) -> Option<ExitCode> {
    let ends = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal);
    ends.then(|| exit_code(&How::Signal { signal: signal.as_raw() }))
}

impl From<InitError> for io::Error {
    fn from(error: InitError) -> Self {
        match error {
            InitError::System(error) => error,
            // The service evaluates the system's error number.
            InitError::Program { error, .. } => error,
        }
    }
}
