//! Starting a process: the image's own program, or a command's.

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

/// What the image starts, and the environment it and every command get.
#[derive(Debug)]
pub(crate) struct Program {
    arguments: Vec<OsString>,
    /// On top of this process's own.
    environment: Vec<(OsString, OsString)>,
    /// Nothing is started before the sandbox is somebody's.
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

    /// Absent before it was started, and where the image has none.
    pub(crate) fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Without what only init is to know.
    pub(crate) fn prepare(&self, program: &OsString) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        command
    }

    /// In a process group of its own.
    pub(crate) fn start(&mut self) -> Result<(), InitError> {
        if let Some((program, arguments)) = self.arguments.split_first() {
            let started = self.prepare(program).args(arguments).process_group(0).spawn();
            let child = started.map_err(|error| InitError::Program { program: program.clone(), error })?;
            self.process = Some(pid_of(&child));
        }
        Ok(())
    }

    /// Ends the wait, and changes nothing else.
    pub(crate) fn begin(&mut self) -> Result<(), InitError> {
        if !std::mem::replace(&mut self.waits, false) {
            return Err(InitError::System(Errno::EXIST.into()));
        }
        self.start()
    }

    /// Ends the wait. It is over also if the program does not start, for the sandbox is somebody's by now.
    pub(crate) fn bind(&mut self, environment: Vec<(OsString, OsString)>) -> Result<(), InitError> {
        if !std::mem::replace(&mut self.waits, false) {
            return Err(InitError::System(Errno::EXIST.into()));
        }
        self.environment = environment;
        // What was mounted at the working directory meanwhile is found by its name only.
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

/// What a shell exits with after the command that it waited for was killed.
const KILLED: i32 = 128 + Signal::KILL.as_raw();

/// The same end, if the kernel has killed a process of the sandbox for want of memory while it ran.
pub(crate) fn out_of_memory(how: How) -> How {
    match how {
        How::Signal { signal } if signal == Signal::KILL.as_raw() => How::OutOfMemory {},
        How::Code { code: KILLED } => How::CodeOutOfMemory { code: KILLED },
        other => other,
    }
}

/// What this process exits with after its program ended so.
pub(crate) fn exit_code(how: &How) -> ExitCode {
    ExitCode::from(match how {
        How::Code { code } => *code as u8,
        How::Signal { signal } => 128 + *signal as u8,
        How::OutOfMemory {} => KILLED as u8,
        How::CodeOutOfMemory { code } => *code as u8,
    })
}

/// What it exits with if it was told to and has no program that would decide.
pub(crate) fn told_to_end(signal: Signal) -> Option<ExitCode> {
    let ends = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal);
    ends.then(|| exit_code(&How::Signal { signal: signal.as_raw() }))
}

impl From<InitError> for io::Error {
    fn from(error: InitError) -> Self {
        match error {
            InitError::System(error) => error,
            // What the system said is what the service goes by.
            InitError::Program { error, .. } => error,
        }
    }
}
