//! The event loop: signals, guest streams, and the output of commands.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Resource, WaitOptions, getrlimit, kill_process, wait};
use sandbox_init::codec::{Bytes, decode};
use sandbox_init::wire::{Control, Event, Kind, Request, Run};

use crate::budget::Budget;
use crate::command::Command;
use crate::link::{Address, Link};
use crate::poll::{Interest, Poll, Token, Watched};
use crate::program::{self, InitError, Program};
use crate::signals::{Arrived, Signals};
use crate::stream::{Role, Stream, request};
use crate::stream_socket::{Filled, read_some};
use crate::{files, usage};

/// The most ended commands that are kept for a later attach.
const MAX_ENDED: usize = 64;

/// The most commands in a list, so that the list fits into a frame. The last ones are listed.
const MAX_LISTED: usize = 256;

/// Runs until the program ends, or, without a program, until a signal ends init.
pub(crate) fn run(address: Option<Address>, mut program: Program) -> Result<ExitCode, InitError> {
    let mut poll = Poll::new()?;
    let signals = Signals::catch()?;
    let signal_fd = poll.watch(signals.descriptor()?, Interest::READ)?;
    if !program.waits() {
        program.start()?;
    }
    let link = address.map(Link::new);
    let budget = Budget::new(usage::usage().memory_limit, getrlimit(Resource::Nofile).current);
    let (streams, commands, owners, leftovers) = Default::default();
    let event_loop = EventLoop {
        poll,
        signals,
        signal_fd,
        program,
        link,
        budget,
        streams,
        commands,
        owners,
        leftovers,
        ended: None,
    };
    Ok(event_loop.run()?)
}

#[derive(Debug)]
struct EventLoop {
    poll: Poll,
    signals: Signals,
    signal_fd: Watched,
    program: Program,
    link: Option<Link>,
    budget: Budget,
    streams: HashMap<Token, Stream>,
    commands: BTreeMap<u64, Command>,
    /// The command of each descriptor.
    owners: HashMap<Token, u64>,
    /// Outputs of removed commands; see [`Command::into_leftovers`].
    leftovers: HashMap<Token, Watched>,
    /// Set when the program could not be started.
    ended: Option<ExitCode>,
}

impl EventLoop {
    fn run(mut self) -> io::Result<ExitCode> {
        let mut ready = Vec::new();
        loop {
            if let Some(link) = &mut self.link {
                link.reconnect(&mut self.poll);
            }
            self.kill_timed_out();
            let next = self.commands.values().filter_map(Command::deadline);
            let next = next.chain(self.link.as_ref().and_then(Link::next_attempt)).min();
            let limit = next.map(|moment| moment.saturating_duration_since(Instant::now()));
            self.poll.wait(limit, &mut ready)?;
            for &token in &ready {
                if token == self.signal_fd.token() {
                    if let Some(code) = self.handle_signals() {
                        return Ok(code);
                    }
                } else if self.link.as_ref().is_some_and(|link| link.is(token)) {
                    self.accept_streams();
                } else if self.streams.contains_key(&token) {
                    self.serve_stream(token);
                } else if let Some(&command) = self.owners.get(&token) {
                    self.advance(command);
                } else {
                    self.drain(token);
                }
            }
            if let Some(code) = self.ended {
                return Ok(code);
            }
        }
    }

    fn handle_signals(&mut self) -> Option<ExitCode> {
        for arrived in self.signals.arrived() {
            match (arrived, self.program.process()) {
                (Arrived::ChildEnded, _) => {
                    if let Some(code) = self.reap() {
                        return Some(code);
                    }
                }
                (Arrived::ForProgram(signal), Some(program)) => {
                    let _ = kill_process(program, signal);
                }
                (Arrived::ForProgram(signal), None) => {
                    if let Some(code) = program::exit_code_on_signal(signal) {
                        return Some(code);
                    }
                }
            }
        }
        None
    }

    /// Reaps all children that have ended, also orphans.
    fn reap(&mut self) -> Option<ExitCode> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let how = program::how(status);
            if Some(pid) == self.program.process() {
                return Some(program::exit_code(&how));
            }
            let running =
                self.commands.iter_mut().find(|(_, command)| command.leader() == pid && command.ending().is_none());
            if let Some((&id, command)) = running {
                command.has_exited(how, usage::oom_kills());
                self.advance(id);
                self.notify_awaiting(id);
            }
        }
        None
    }

    fn notify_awaiting(&mut self, id: u64) {
        self.streams.retain(|_, stream| {
            if !matches!(stream.role, Role::Awaiting(command) if command == id) {
                return true;
            }
            stream.close_with(&Event::Done {});
            stream.channel.flush().is_ok() && !stream.is_finished()
        });
    }

    fn kill_timed_out(&mut self) {
        let now = Instant::now();
        for command in self.commands.values_mut() {
            if command.deadline().is_some_and(|deadline| deadline <= now) {
                command.time_out();
            }
        }
    }

    fn accept_streams(&mut self) {
        let opened = self.link.as_mut().map(Link::accept).unwrap_or_default();
        for socket in opened {
            if let Ok(stream) = Stream::new(&mut self.poll, socket, self.budget.grant()) {
                let token = stream.token();
                self.streams.insert(token, stream);
                // The request has most often arrived.
                self.serve_stream(token);
            }
        }
    }

    /// Serves a stream as far as possible. The stream is taken out of the map meanwhile; dropping it closes it.
    fn serve_stream(&mut self, token: Token) {
        let Some(mut stream) = self.streams.remove(&token) else { return };
        if !self.advance_stream(&mut stream) {
            if let Role::Attached(id) = stream.role
                && let Some(command) = self.commands.get_mut(&id)
            {
                command.detach(&stream.channel);
                self.limit_buffered_output();
                self.finish(id);
            }
            return;
        }
        let attached = if let Role::Attached(id) = stream.role { Some(id) } else { None };
        self.streams.insert(token, stream);
        if let Some(id) = attached {
            self.advance(id);
        }
    }

    fn advance_stream(&mut self, stream: &mut Stream) -> bool {
        if stream.channel.flush().is_err() || !matches!(stream.channel.receive(stream.intake()), Ok(true)) {
            return false;
        }
        while self.may_receive(stream) {
            match stream.channel.frame() {
                Ok(Some((kind, payload))) => self.take(stream, kind, &payload),
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        stream.produce();
        stream.channel.flush().is_ok() && !stream.is_finished()
    }

    /// Returns whether a further frame can be handled now. Standard input that its command does not read blocks the
    /// service.
    fn may_receive(&self, stream: &mut Stream) -> bool {
        let may_receive = match stream.role {
            Role::Attached(id) => self.commands.get(&id).is_none_or(Command::wants_input),
            _ => true,
        };
        stream.channel.set_reading(may_receive);
        may_receive
    }

    fn take(&mut self, stream: &mut Stream, kind: Kind, payload: &[u8]) {
        match stream.role {
            Role::New => match request(kind, payload) {
                Ok(request) => {
                    if let Some(request) = stream.open(request) {
                        self.open(stream, request);
                    }
                }
                Err(error) => stream.fail(error),
            },
            Role::Attached(id) | Role::Launched(id) => self.control(id, kind, payload),
            _ => stream.take(kind, payload),
        }
    }

    fn open(&mut self, stream: &mut Stream, request: Request) {
        let find = |id, commands: &BTreeMap<u64, Command>| {
            if commands.contains_key(&id) { Ok(id) } else { Err(io::Error::from(Errno::SRCH)) }
        };
        match request {
            Request::Run { command } => self.start(stream, command),
            Request::Attach { id } => match find(id, &self.commands) {
                Ok(id) => self.attach(stream, id),
                Err(error) => stream.fail(error),
            },
            Request::Commands {} => {
                let commands = self.commands.values().rev().take(MAX_LISTED).map(Command::facts);
                let commands = commands.collect::<Vec<_>>().into_iter().rev().collect();
                stream.close_with(&Event::Commands { commands });
            }
            Request::Signal { id, signal } => {
                let outcome = find(id, &self.commands).and_then(|id| Ok(self.commands[&id].signal(signal)?));
                match outcome {
                    Ok(()) => stream.close_with(&Event::Done {}),
                    Err(error) => stream.fail(error),
                }
            }
            Request::Kill { id } => match self.commands.get_mut(&id) {
                Some(command) => {
                    command.kill();
                    stream.close_with(&Event::Done {});
                }
                None => stream.fail(Errno::SRCH),
            },
            Request::Await { id } => match self.commands.get(&id) {
                Some(command) if command.ending().is_none() => stream.role = Role::Awaiting(id),
                Some(_) => stream.close_with(&Event::Done {}),
                None => stream.fail(Errno::SRCH),
            },
            Request::Bind { environment } => {
                let text = |Bytes(bytes)| OsString::from_vec(bytes);
                let environment = environment.into_iter().map(|(name, value)| (text(name), text(value))).collect();
                match self.program.bind(environment) {
                    Ok(()) => stream.close_with(&Event::Done {}),
                    Err(error) => stream.fail(error),
                }
            }
            Request::Begin {} => match self.program.begin() {
                Ok(()) => stream.close_with(&Event::Done {}),
                Err(error) => {
                    if let InitError::Program { .. } = error {
                        eprintln!("sandbox-init: {error}");
                        self.ended = Some(ExitCode::from(error.exit_code()));
                    }
                    stream.fail(error);
                }
            },
            Request::Waiting {} if self.program.waits() => stream.close_with(&Event::Done {}),
            Request::Waiting {} => stream.fail(Errno::EXIST),
            Request::Mounted { path, device, inode } => match files::identity(&path) {
                Ok(there) if there == (device, inode) => stream.close_with(&Event::Done {}),
                Ok(_) => stream.fail(Errno::STALE),
                Err(error) => stream.fail(error),
            },
            // The stream handles the other requests.
            _ => stream.fail(Errno::NOSYS),
        }
    }

    fn start(&mut self, stream: &mut Stream, run: Run) {
        let (id, detached) = (run.id, run.detached);
        if self.commands.contains_key(&id) {
            return stream.fail(Errno::EXIST);
        }
        // The service has given up, and has told its caller that the command was not started.
        if stream.channel.is_abandoned() {
            return stream.fail(Errno::CANCELED);
        }
        match Command::start(&mut self.poll, &self.program, &self.budget, run) {
            Ok(command) => {
                self.owners.extend(command.tokens().into_iter().map(|token| (token, id)));
                self.commands.insert(id, command);
                if detached {
                    stream.channel.send(Kind::Event, &Event::Started { id });
                    stream.role = Role::Launched(id);
                } else {
                    self.attach(stream, id);
                }
            }
            Err(error) => stream.fail(error),
        }
    }

    fn attach(&mut self, stream: &mut Stream, id: u64) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        // The last caller to attach receives the output.
        let before = command.attached.and_then(|token| self.streams.get_mut(&token));
        if let Some(before) = before {
            before.fail(io::Error::other("another caller has attached to the command"));
            let _ = before.channel.flush();
        }
        stream.role = Role::Attached(id);
        stream.channel.send(Kind::Event, &Event::Started { id });
        command.attach(&stream.channel);
    }

    fn control(&mut self, id: u64, kind: Kind, payload: &[u8]) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        match kind {
            Kind::Data => command.feed(payload),
            Kind::End => command.end_input(),
            Kind::Control => match decode(payload) {
                Ok(Control::Signal { signal }) => drop(command.signal(signal)),
                Ok(Control::Kill {}) => command.kill(),
                Ok(Control::Resize { size }) => command.resize(&size),
                Err(_) => {}
            },
            _ => {}
        }
    }

    /// Advances a command: its input, its output, its end.
    fn advance(&mut self, id: u64) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        let was_full = !command.wants_input();
        command.push_input();
        let stream = command.attached.and_then(|token| self.streams.get_mut(&token));
        command.pump(stream.map(|stream| &mut stream.channel));
        let token = command.attached;
        let frames_wait = was_full && command.wants_input();
        self.limit_buffered_output();
        self.finish(id);
        if frames_wait && let Some(token) = token {
            self.serve_stream(token);
        }
    }

    /// Drops the oldest output of the command with the most buffered output, so that no command uses up the budget of
    /// others.
    fn limit_buffered_output(&mut self) {
        while self.budget.is_output_exceeded()
            && let Some(largest) = self.commands.values_mut().max_by_key(|command| command.buffered())
        {
            largest.drop_oldest_output();
        }
    }

    /// Sends the end of a finished command to its stream, or keeps it for a later attach.
    fn finish(&mut self, id: u64) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        let Some(ending) = command.ending().filter(|_| command.is_finished()) else { return };
        let stream = command.attached.and_then(|token| self.streams.get_mut(&token));
        if let Some(stream) = stream {
            stream.close_with(&Event::Ended { ending });
            let token = stream.token();
            self.remove(id);
            if self.streams.get_mut(&token).is_some_and(|it| it.channel.flush().is_err() || it.is_finished()) {
                self.streams.remove(&token);
            }
            return;
        }
        let ended = self.commands.values().filter(|command| command.is_finished()).count();
        if ended > MAX_ENDED
            && let Some(oldest) = self.commands.iter().find(|(_, command)| command.is_finished()).map(|(&id, _)| id)
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(command) = self.commands.remove(&id) else { return };
        self.owners.retain(|_, owner| *owner != id);
        for mut output in command.into_leftovers() {
            output.set_interest(Interest::READ);
            self.leftovers.insert(output.token(), output);
        }
    }

    fn drain(&mut self, token: Token) {
        let Some(output) = self.leftovers.get(&token) else { return };
        if !matches!(read_some(output, &mut Vec::new(), 64 * 1024), Ok(Filled::Some(_) | Filled::WouldBlock)) {
            self.leftovers.remove(&token);
        }
    }
}
