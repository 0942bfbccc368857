//! One command: its process, its descriptors, and its end.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{COMMAND_VARIABLE, CommandFacts, Ending, How, Kind, Run, Size};

use crate::budget::Budget;
use crate::output_buffer::OutputBuffer;
use crate::poll::{Interest, Poll, Token, Watched};
use crate::program::{self, Program};
use crate::stream_socket::{Filled, StreamSocket, read_some};
use crate::{process_tree, terminal, usage};

/// The kernel's default size of a pipe, and the size of a pipe whose output is read fast: it needs fewer reads.
const PIPE: usize = 64 * 1024;
const WIDE_PIPE: usize = 512 * 1024;

/// Reads from one output in a row. Other descriptors are served in between.
const MAX_READS: usize = 16;

/// Bytes of a command's arguments that a list of commands shows.
const MAX_ARGUMENT_BYTES: usize = 512;

/// The character that ends the input of a terminal (`EOT`).
const END_OF_TRANSMISSION: u8 = 4;

#[derive(Debug)]
pub(crate) struct Command {
    id: u64,
    /// Clipped to [`MAX_ARGUMENT_BYTES`].
    arguments: Vec<Bytes>,
    leader: Pid,
    started: Instant,
    deadline: Option<Instant>,
    outputs: Vec<Output>,
    input: Option<Input>,
    retained: OutputBuffer,
    /// The stream that its output is sent to.
    pub(crate) attached: Option<Token>,
    exit: Option<(How, Duration)>,
    timed_out: bool,
    killed: bool,
    /// The count of OOM kills when the command started.
    oom_kills: Option<u64>,
}

#[derive(Debug)]
struct Output {
    kind: Kind,
    from: Watched,
    is_wide: bool,
    /// All output that was printed before the command ended has been read.
    is_drained: bool,
}

#[derive(Debug)]
struct Input {
    to: Watched,
    pending: Vec<u8>,
    is_last: bool,
    is_terminal: bool,
}

impl Command {
    pub(crate) fn start(poll: &mut Poll, program: &Program, budget: &Budget, run: Run) -> io::Result<Self> {
        let Run { id, arguments, environment, directory, timeout, terminal, input, .. } = run;
        let text = |bytes: &Bytes| OsString::from_vec(bytes.0.clone());
        let (name, rest) = arguments
            .split_first()
            .ok_or_else(|| io::Error::other("the command is empty; it needs at least the name of a program"))?;
        let mut command = program.prepare(&text(name));
        command.args(rest.iter().map(text));
        command.envs(environment.iter().map(|(name, value)| (text(name), text(value))));
        command.env(COMMAND_VARIABLE, process_tree::mark(id));
        if let Some(directory) = directory.as_ref().map(text) {
            // The error of the system would not tell a missing directory from a missing program.
            if !Path::new(&directory).is_dir() {
                let message = format!("the directory {directory:?} does not exist");
                return Err(io::Error::new(io::ErrorKind::NotADirectory, message));
            }
            command.current_dir(directory);
        }

        let mut outputs = Vec::new();
        let stdin = if let Some(size) = &terminal {
            let master = terminal::attach(&mut command, size)?;
            let stdin = master.try_clone()?;
            outputs.push((Kind::Stdout, master));
            Some(stdin)
        } else {
            command.process_group(0);
            for kind in [Kind::Stdout, Kind::Stderr] {
                let (ours, theirs) = pipe()?;
                let theirs = Stdio::from(theirs);
                if kind == Kind::Stdout {
                    command.stdout(theirs)
                } else {
                    command.stderr(theirs)
                };
                outputs.push((kind, ours));
            }
            let (theirs, ours) =
                if input { pipe().map(|(r, w)| (Stdio::from(r), Some(w)))? } else { (Stdio::null(), None) };
            command.stdin(theirs);
            ours
        };
        for descriptor in outputs.iter().map(|(_, fd)| fd).chain(&stdin) {
            rustix::io::ioctl_fionbio(descriptor, true)?;
        }

        let oom_kills = usage::oom_kills();
        let child = command.spawn()?;
        let started = Instant::now();
        let watch =
            |(kind, fd)| Ok(Output { kind, from: poll.watch(fd, Interest::READ)?, is_wide: false, is_drained: false });
        let outputs = outputs.into_iter().map(watch).collect::<io::Result<_>>()?;
        let is_terminal = terminal.is_some();
        let input = stdin
            .map(|to| {
                Ok::<_, io::Error>(Input {
                    to: poll.watch(to, Interest::NONE)?,
                    pending: Vec::new(),
                    is_last: false,
                    is_terminal,
                })
            })
            .transpose()?;
        Ok(Self {
            id,
            arguments: clipped(&arguments),
            leader: program::pid_of(&child),
            started,
            deadline: timeout.map(|limit| started + Duration::from_millis(limit)),
            outputs,
            input,
            retained: OutputBuffer::new(budget),
            attached: None,
            exit: None,
            timed_out: false,
            killed: false,
            oom_kills,
        })
    }

    pub(crate) fn leader(&self) -> Pid {
        self.leader
    }

    /// Returns the tokens of the command's descriptors.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        let input = self.input.iter().map(|input| input.to.token());
        self.outputs.iter().map(|output| output.from.token()).chain(input).collect()
    }

    /// Returns the deadline of a command that still runs.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.exit.is_none())
    }

    pub(crate) fn facts(&self) -> CommandFacts {
        CommandFacts {
            id: self.id,
            arguments: self.arguments.clone(),
            process: self.leader.as_raw_nonzero().get(),
            age: micros(self.started.elapsed()),
            attached: self.attached.is_some(),
            ending: self.ending(),
        }
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        let (how, duration) = self.exit.clone()?;
        Some(Ending { how, duration: micros(duration), timed_out: self.timed_out, killed: self.killed })
    }

    /// Returns whether the command has ended and its output was read; by the caller, if one is attached.
    pub(crate) fn is_finished(&self) -> bool {
        let is_sent = self.attached.is_none() || self.retained.is_empty();
        self.exit.is_some() && is_sent && self.outputs.iter().all(|output| output.is_drained)
    }

    /// Records the end of the process. `oom_kills`: see [`usage::oom_kills`]. A kill by init never counts as an OOM
    /// kill.
    pub(crate) fn has_exited(&mut self, how: How, oom_kills: Option<u64>) {
        let is_oom_kill = oom_kills > self.oom_kills && self.oom_kills.is_some() && !self.timed_out && !self.killed;
        let how = if is_oom_kill { program::out_of_memory(how) } else { how };
        self.exit = Some((how, self.started.elapsed()));
        self.input = None;
    }

    pub(crate) fn time_out(&mut self) {
        self.timed_out = true;
        self.deadline = None;
        process_tree::kill_all(self.leader, self.id);
    }

    pub(crate) fn kill(&mut self) {
        self.killed = self.exit.is_none();
        process_tree::kill_all(self.leader, self.id);
    }

    pub(crate) fn signal(&self, signal: i32) -> Result<(), Errno> {
        let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        if self.exit.is_some() {
            return Err(Errno::SRCH);
        }
        kill_process_group(self.leader, signal)
    }

    pub(crate) fn resize(&self, size: &Size) {
        if let Some(input) = self.input.as_ref().filter(|input| input.is_terminal) {
            let _ = terminal::resize(input.to.as_fd(), size);
        }
    }

    /// Sends the output to this stream from now on, beginning with the buffered output.
    pub(crate) fn attach(&mut self, channel: &StreamSocket) {
        self.attached = Some(channel.token());
    }

    /// Buffers the output from now on. Output that the stream has not sent goes back into the buffer.
    pub(crate) fn detach(&mut self, channel: &StreamSocket) {
        self.attached = None;
        let unsent: Vec<_> = channel.unsent_output().collect();
        for (kind, bytes) in unsent.into_iter().rev() {
            self.retained.put_back(kind, bytes);
        }
        self.pump(None);
    }

    /// Returns the memory of the buffered output.
    pub(crate) fn buffered(&self) -> usize {
        self.retained.size()
    }

    pub(crate) fn drop_oldest_output(&mut self) {
        self.retained.drop_oldest();
    }

    /// Reads the command's output, and sends it to `channel`, or buffers it without one.
    pub(crate) fn pump(&mut self, mut channel: Option<&mut StreamSocket>) {
        if let Some(channel) = channel.as_deref_mut()
            && (channel.flush().is_err() || !self.retained.replay(channel))
        {
            return self.outputs.iter_mut().for_each(|output| output.from.set_interest(Interest::NONE));
        }
        let has_exited = self.exit.is_some();
        let retained = &mut self.retained;
        self.outputs.retain_mut(|output| {
            for _ in 0..MAX_READS {
                if channel.as_ref().is_some_and(|channel| channel.is_full()) {
                    output.from.set_interest(Interest::NONE);
                    return true;
                }
                let filled = match channel.as_deref_mut() {
                    Some(channel) => {
                        if !output.is_wide && channel.widen_pipe(WIDE_PIPE - PIPE) {
                            let _ = fcntl_setpipe_size(&output.from, WIDE_PIPE);
                            output.is_wide = true;
                        }
                        let filled = channel.fill(output.kind, &output.from, usize::MAX);
                        let _ = channel.flush();
                        filled
                    }
                    None => {
                        let mut bytes = Vec::new();
                        let filled = read_some(&output.from, &mut bytes, 64 * 1024);
                        if !bytes.is_empty() {
                            retained.push(output.kind, &bytes);
                        }
                        filled
                    }
                };
                match filled {
                    Ok(Filled::Some(_)) => {}
                    Ok(Filled::WouldBlock) => {
                        output.is_drained = has_exited;
                        break;
                    }
                    Ok(Filled::End) | Err(_) => return false,
                }
            }
            output.from.set_interest(Interest::READ);
            true
        });
    }

    /// Writes bytes to standard input. A command that has closed its standard input gets none.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if let Some(input) = &mut self.input {
            input.pending.extend_from_slice(bytes);
        }
        self.push_input();
    }

    pub(crate) fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.is_last = true;
            if input.is_terminal {
                input.pending.push(END_OF_TRANSMISSION);
            }
        }
        self.push_input();
    }

    pub(crate) fn wants_input(&self) -> bool {
        self.input.as_ref().is_none_or(|input| input.pending.is_empty())
    }

    pub(crate) fn push_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        let mut written = 0;
        let is_open = loop {
            if written == input.pending.len() {
                // A terminal stays open: its size can still change.
                break !input.is_last || input.is_terminal;
            }
            match rustix::io::write(&input.to, &input.pending[written..]) {
                Ok(length) => written += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                Err(_) => break false,
            }
        };
        if is_open {
            input.pending.drain(..written);
            input.to.set_interest(if input.pending.is_empty() { Interest::NONE } else { Interest::WRITE });
        } else {
            self.input = None;
        }
    }

    /// Returns the outputs that other processes may still print to. They must be read further, so that those processes
    /// neither block nor die of `SIGPIPE`.
    pub(crate) fn into_leftovers(self) -> Vec<Watched> {
        self.outputs.into_iter().map(|output| output.from).collect()
    }
}

/// Clips the arguments to [`MAX_ARGUMENT_BYTES`].
fn clipped(arguments: &[Bytes]) -> Vec<Bytes> {
    let mut room = MAX_ARGUMENT_BYTES;
    let fits = |argument: &Bytes| {
        let clipped = argument.0[..argument.0.len().min(room)].to_vec();
        let is_shown = room > 0;
        room = room.saturating_sub(argument.0.len() + 4);
        is_shown.then_some(Bytes(clipped))
    };
    arguments.iter().map_while(fits).collect()
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
