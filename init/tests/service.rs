//! Tests of sandbox-init from the view of the service, without a container: init runs as a process of this machine and
//! connects to a socket of the test.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sandbox_init::codec::{Bytes, Value, decode};
use sandbox_init::wire::{
    self, Control, Event, FileKind, HEADER, Hello, How, Kind, Request, Run, SECRET_VARIABLE, SOCKET_VARIABLE, Size,
    WAIT_VARIABLE,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-init");

struct Init {
    process: Child,
    listener: UnixListener,
    link: UnixStream,
    directory: tempfile::TempDir,
}

impl Init {
    fn with_program(program: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(program);
        Self::started(command)
    }

    /// Starts an init that waits to be bound.
    fn waiting(program: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(program).env(WAIT_VARIABLE, "1");
        Self::started(command)
    }

    fn started(mut command: Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        command.env(SECRET_VARIABLE, "ab".repeat(32)).env(SOCKET_VARIABLE, &socket);
        let process = command.stdout(Stdio::piped()).spawn().unwrap();
        let link = accept(&listener);
        Self { process, listener, link, directory }
    }

    fn new() -> Self {
        Self::with_program(&[])
    }

    fn path(&self, name: &str) -> Bytes {
        self.directory.path().join(name).to_str().unwrap().into()
    }

    fn ask(&self, request: Request) -> GuestStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut stream = GuestStream { socket: ours };
        stream.send(Kind::Request, &request);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        let descriptors = [theirs.as_fd()];
        assert!(attached.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&self.link, &[IoSlice::new(&[1])], &mut attached, SendFlags::empty()).unwrap();
        stream
    }

    fn run(&self, id: u64, change: impl FnOnce(&mut Run), arguments: &[&str]) -> GuestStream {
        let mut command = Run {
            id,
            arguments: arguments.iter().map(|text| Bytes::from(*text)).collect(),
            environment: Vec::new(),
            directory: None,
            timeout: None,
            terminal: None,
            input: false,
            detached: false,
        };
        change(&mut command);
        self.ask(Request::Run { command })
    }

    fn shell(&self, id: u64, line: &str) -> GuestStream {
        self.run(id, |_| (), &["sh", "-c", line])
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn accept(listener: &UnixListener) -> UnixStream {
    let (mut link, _) = listener.accept().unwrap();
    let (kind, payload) = frame(&mut link).unwrap();
    assert_eq!(kind, Kind::Hello);
    let hello: Hello = decode(&payload).unwrap();
    assert_eq!((hello.version, hello.secret), (wire::VERSION, [0xab; 32]));
    link
}

fn frame(socket: &mut UnixStream) -> Option<(Kind, Vec<u8>)> {
    let mut start = [0; HEADER];
    socket.read_exact(&mut start).ok()?;
    let (kind, length) = wire::header(start).unwrap();
    let mut payload = vec![0; length];
    socket.read_exact(&mut payload).unwrap();
    Some((kind, payload))
}

struct GuestStream {
    socket: UnixStream,
}

#[derive(Default)]
struct Received {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    data: Vec<u8>,
    events: Vec<Event>,
}

impl Received {
    fn how(&self) -> How {
        match self.events.last() {
            Some(Event::Ended { ending }) => ending.how.clone(),
            other => panic!("it did not end: {other:?}"),
        }
    }

    fn failure(&self) -> (i32, String) {
        match self.events.last() {
            Some(Event::Failed { failure }) => {
                (failure.errno, String::from_utf8_lossy(&failure.message.0).into_owned())
            }
            other => panic!("it did not fail: {other:?}"),
        }
    }
}

impl GuestStream {
    fn send(&mut self, kind: Kind, message: &impl Value) {
        let mut bytes = Vec::new();
        wire::put_message(&mut bytes, kind, message);
        self.socket.write_all(&bytes).unwrap();
    }

    fn send_data(&mut self, kind: Kind, data: &[u8]) {
        let mut bytes = Vec::new();
        wire::put_data(&mut bytes, kind, data);
        self.socket.write_all(&bytes).unwrap();
    }

    fn event(&mut self) -> Event {
        let (kind, payload) = frame(&mut self.socket).unwrap();
        assert_eq!(kind, Kind::Event);
        decode(&payload).unwrap()
    }

    /// Waits until a detached command has started.
    fn started(mut self) {
        assert!(matches!(self.event(), Event::Started { .. }));
    }

    fn read_to_end(mut self) -> Received {
        let mut received = Received::default();
        while let Some((kind, payload)) = frame(&mut self.socket) {
            match kind {
                Kind::Stdout => received.stdout.extend(payload),
                Kind::Stderr => received.stderr.extend(payload),
                Kind::Data => received.data.extend(payload),
                Kind::Event => received.events.push(decode(&payload).unwrap()),
                Kind::End => {}
                other => panic!("{other:?}"),
            }
        }
        received
    }
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "the condition did not become true");
        std::thread::yield_now();
    }
}

#[test]
fn a_command_reports_its_output_and_its_end() {
    let init = Init::new();
    let received = init.shell(1, "echo out; echo err >&2; exit 3").read_to_end();
    assert_eq!((&received.stdout[..], &received.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(received.how(), How::Code { code: 3 });
    assert_eq!(init.shell(2, "kill -9 $$").read_to_end().how(), How::Signal { signal: 9 });
}

#[test]
fn a_command_gets_its_environment_directory_and_input_but_not_the_secret() {
    let init = Init::new();
    let change = |run: &mut Run| {
        run.environment = vec![("A".into(), "b".into())];
        run.directory = Some("/usr".into());
        run.input = true;
    };
    let mut stream = init.run(1, change, &["sh", "-c", "pwd; env; cat"]);
    stream.send_data(Kind::Data, b"input");
    stream.send_data(Kind::End, b"");
    let received = stream.read_to_end();
    let text = String::from_utf8(received.stdout).unwrap();
    assert!(text.starts_with("/usr\n") && text.contains("\nA=b\n") && text.ends_with("input"), "{text}");
    assert!(!text.contains("SANDBOXD_INIT"), "{text}");
}

#[test]
fn a_failed_start_is_reported_with_its_reason() {
    let init = Init::new();
    let (errno, _) = init.run(1, |_| (), &["no-such-program"]).read_to_end().failure();
    assert_eq!(errno, 2);
    let (_, message) = init.run(2, |run| run.directory = Some("/none".into()), &["true"]).read_to_end().failure();
    assert!(message.contains("/none"), "{message}");
    assert!(init.run(3, |_| (), &[]).read_to_end().failure().1.contains("name"));
    assert_eq!(init.ask(Request::Attach { id: 9 }).read_to_end().failure().0, 3);
}

#[test]
fn a_time_out_kills_also_escaped_processes() {
    let init = Init::new();
    // One process in the same group, one in its own session, and one orphaned in its own session.
    let line = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; (setsid sleep 1000 & echo $!); sleep 1000";
    let received = init.run(1, |run| run.timeout = Some(300), &["sh", "-c", line]).read_to_end();
    let text = String::from_utf8(received.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 3);
    for pid in text.lines() {
        eventually(|| !is_alive(pid));
    }
    match received.events.last() {
        Some(Event::Ended { ending }) => assert!(ending.timed_out && ending.how == How::Signal { signal: 9 }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn background_processes_neither_delay_the_end_nor_die_of_it() {
    let init = Init::new();
    let received = init.shell(1, "(while echo tick; do sleep 0.01; done) & echo $!").read_to_end();
    assert_eq!(received.how(), How::Code { code: 0 });
    let text = String::from_utf8(received.stdout).unwrap();
    let pid = text.lines().find(|line| *line != "tick").unwrap().to_owned();
    // The process would block only after more output than a pipe holds. That it still runs shows that its output is
    // read.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    );
}

#[test]
fn a_command_outlives_the_service_and_is_known_to_the_next_one() {
    let mut init = Init::new();
    let go_on = init.directory.path().join("go-on");
    let line = format!("echo one; while ! test -e {}; do sleep 0.01; done; echo two; sleep 1000", go_on.display());
    let mut stream = init.shell(7, &line);
    assert_eq!(stream.event(), Event::Started { id: 7 });
    assert_eq!(frame(&mut stream.socket).unwrap().1, b"one\n");
    drop(stream);
    let (_, other) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut init.link, other));
    init.link = accept(&init.listener);

    eventually(|| match init.ask(Request::Commands {}).event() {
        Event::Commands { commands } => {
            assert_eq!((commands.len(), commands[0].id, &commands[0].arguments[0]), (1, 7, &"sh".into()));
            !commands[0].attached
        }
        other => panic!("{other:?}"),
    });
    std::fs::write(go_on, "").unwrap();
    let mut stream = init.ask(Request::Attach { id: 7 });
    assert_eq!(stream.event(), Event::Started { id: 7 });
    assert_eq!(frame(&mut stream.socket).unwrap(), (Kind::Stdout, b"two\n".to_vec()));
    stream.send(Kind::Control, &Control::Kill {});
    let received = stream.read_to_end();
    assert!(matches!(received.events.last(), Some(Event::Ended { ending }) if ending.killed));
}

#[test]
fn a_detached_command_is_asked_for_later() {
    let init = Init::new();
    init.run(5, |run| run.detached = true, &["sh", "-c", "echo done; exit 4"]).started();
    eventually(|| match init.ask(Request::Commands {}).event() {
        Event::Commands { commands } => commands[0].ending.is_some(),
        other => panic!("{other:?}"),
    });
    let received = init.ask(Request::Attach { id: 5 }).read_to_end();
    assert_eq!((received.stdout.as_slice(), received.how()), (&b"done\n"[..], How::Code { code: 4 }));
    assert_eq!(init.ask(Request::Attach { id: 5 }).read_to_end().failure().0, 3, "the end is reported once");
}

#[test]
fn a_caller_that_does_not_read_blocks_only_its_own_command() {
    let init = Init::new();
    let mut slow = init.shell(1, "head -c 100000000 /dev/zero | tr '\\0' a; echo end >&2");
    assert_eq!(slow.event(), Event::Started { id: 1 });
    assert_eq!(init.shell(2, "echo quick").read_to_end().stdout, b"quick\n");
    let received = slow.read_to_end();
    assert_eq!((received.stdout.len(), &received.stderr[..]), (100_000_000, &b"end\n"[..]));
}

/// Returns the resident memory of a process in bytes.
fn memory_of(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn streams_that_are_not_read_hold_a_few_kilobytes_each() {
    const STREAMS: u64 = 400;
    let init = Init::new();
    let content = vec![7; 4 << 20];
    std::fs::write(init.directory.path().join("large"), &content).unwrap();
    let before = memory_of(&init.process);
    let read = |_| init.ask(Request::Read { path: init.path("large"), offset: 0, length: u64::MAX });
    let mut unread: Vec<GuestStream> = (0..STREAMS).map(read).collect();
    let tree = init.ask(Request::ReadTree { path: init.path("") });
    let output = init.shell(1, "yes");
    // Requests are handled in order, so each stream has sent as much as its socket holds.
    assert_eq!(init.shell(2, "exit 3").read_to_end().how(), How::Code { code: 3 });
    let held = unread.iter().chain([&tree, &output]).map(|it| rustix::io::ioctl_fionread(&it.socket).unwrap());
    let held: Vec<u64> = held.collect();
    assert!(held.iter().all(|bytes| (1..=16 << 10).contains(bytes)), "{held:?}");
    let grown = memory_of(&init.process).saturating_sub(before);
    assert!(grown < STREAMS * (16 << 10), "init takes {grown} bytes for {STREAMS} streams");
    // A stream continues as soon as it is read.
    assert_eq!(unread.pop().unwrap().read_to_end().data, content);
}

#[test]
fn a_stream_beyond_the_budget_is_refused_and_commands_go_on() {
    // Few enough descriptors that 8 streams may be open.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 150; exec \"$0\"", PROGRAM]);
    let init = Init::started(command);
    std::fs::write(init.directory.path().join("large"), vec![7; 1 << 20]).unwrap();
    let read = |_| init.ask(Request::Read { path: init.path("large"), offset: 0, length: u64::MAX });
    let mut streams: Vec<GuestStream> = (0..8).map(read).collect();
    let refused = read(8).read_to_end().failure();
    assert_eq!(refused.0, rustix::io::Errno::NOBUFS.raw_os_error(), "{}", refused.1);
    assert_eq!(init.shell(1, "exit 3").read_to_end().how(), How::Code { code: 3 });
    streams.pop();
    eventually(|| !matches!(read(9).event(), Event::Failed { .. }));
}

#[test]
fn buffered_output_of_many_commands_is_limited_in_total() {
    const COMMANDS: u64 = 40;
    let init = Init::new();
    let line = "head -c 2000000 /dev/zero | tr '\\0' a";
    for id in 0..COMMANDS {
        init.run(id, |run| run.detached = true, &["sh", "-c", line]).started();
    }
    eventually(|| match init.ask(Request::Commands {}).event() {
        Event::Commands { commands } => commands.iter().all(|command| command.ending.is_some()),
        other => panic!("{other:?}"),
    });
    let mut kept = 0;
    for id in 0..COMMANDS {
        let received = init.ask(Request::Attach { id }).read_to_end();
        let missed: u64 =
            received.events.iter().map(|it| if let Event::Missed { bytes } = it { *bytes } else { 0 }).sum();
        assert_eq!(missed + received.stdout.len() as u64, 2_000_000);
        assert!(!received.stdout.is_empty(), "each keeps its share");
        kept += received.stdout.len();
    }
    assert!(kept <= 16 << 20, "{kept} bytes of all commands");
}

#[test]
fn a_command_cancelled_before_it_began_never_starts() {
    let init = Init::new();
    let pid = rustix::process::Pid::from_child(&init.process);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    for (id, detached) in [(1, false), (2, true)] {
        let mark = init.directory.path().join(format!("began-{id}"));
        signal(rustix::process::Signal::STOP);
        let mut cancelled = init.run(id, |run| run.detached = detached, &["touch", mark.to_str().unwrap()]);
        cancelled.send(Kind::Control, &Control::Kill {});
        drop(cancelled);
        signal(rustix::process::Signal::CONT);
        assert_eq!(init.shell(id + 10, "sleep 0.2").read_to_end().how(), How::Code { code: 0 });
        assert!(!mark.exists(), "it was started after the service had given up on it");
    }
}

#[test]
fn a_command_cancelled_when_it_had_just_begun_is_killed() {
    let init = Init::new();
    for (id, detached) in [(1, false), (2, true)] {
        let mut cancelled = init.run(id, |run| run.detached = detached, &["sleep", "1000"]);
        // The command has begun, and the service has not read the event.
        eventually(|| rustix::io::ioctl_fionread(&cancelled.socket).unwrap() > 0);
        cancelled.send(Kind::Control, &Control::Kill {});
        drop(cancelled);
        eventually(|| match init.ask(Request::Commands {}).event() {
            Event::Commands { commands } => commands.iter().all(|command| command.ending.is_some()),
            other => panic!("{other:?}"),
        });
    }
}

#[test]
fn the_secret_is_not_in_the_environment_after_the_start() {
    let init = Init::new();
    let environment = std::fs::read(format!("/proc/{}/environ", init.process.id())).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains(SOCKET_VARIABLE) && !environment.contains("abab"), "{environment}");
}

/// Starts init with a second proc file system, and with bind mounts of its own directory and of one of its files.
fn with_mounts() -> (Init, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let script = "cd \"$1\" && mkdir second own task && touch file && mount -t proc proc second && \
        mount --bind /proc/$$ own && mount --bind /proc/$$/task task && mount --bind /proc/$$/environ file && exec \"$0\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, PROGRAM]).arg(place.path());
    (Init::started(command), place)
}

#[test]
fn no_path_leads_into_inits_own_process() {
    let (init, place) = with_mounts();
    let pid = init.process.id();
    let place = place.path().to_str().unwrap();
    let other = init.shell(1, "echo $$; sleep 1000");
    let other = {
        let mut other = other;
        other.event();
        frame(&mut other.socket).unwrap().1
    };
    let other = String::from_utf8(other).unwrap().trim().to_owned();
    for (name, target) in [("link", "/proc/self/environ"), ("task", "/proc/thread-self"), ("mem", "/proc/self/mem")] {
        std::os::unix::fs::symlink(target, init.directory.path().join(name)).unwrap();
    }
    let linked = |name: &str| init.directory.path().join(name).to_str().unwrap().to_owned();
    let access = rustix::io::Errno::ACCESS.raw_os_error();
    let read = |path: &str| init.ask(Request::Read { path: path.into(), offset: 0, length: 100 }).read_to_end();
    for path in [
        "/proc/self/environ".to_owned(),
        "/proc/self/mem".to_owned(),
        "/proc/self/fdinfo/0".to_owned(),
        "/proc/thread-self/environ".to_owned(),
        format!("/proc/{pid}/environ"),
        format!("/proc/{pid}/task/{pid}/environ"),
        format!("/proc/{other}/../{pid}/environ"),
        format!("/proc/{other}/root/proc/{pid}/environ"),
        linked("link"),
        linked("task/environ"),
        linked("mem"),
        format!("{place}/second/self/environ"),
        format!("{place}/second/{pid}/environ"),
        format!("{place}/own/environ"),
        format!("{place}/task/{pid}/environ"),
        format!("{place}/file"),
    ] {
        assert_eq!(read(&path).failure().0, access, "{path}");
    }
    let own = |name: &str| Bytes::from(format!("/proc/self/{name}"));
    for request in [
        Request::Facts { path: own("environ") },
        Request::Facts { path: own("exe") },
        Request::ReadDirectory { path: own("fd") },
        Request::ReadDirectory { path: format!("{place}/own").into() },
        Request::ReadTree { path: own("") },
        Request::ReadTree { path: format!("{place}/task").into() },
        Request::WriteTree { path: own("task"), parents: false },
        Request::Write { path: own("oom_score_adj"), mode: None, parents: false },
        Request::Move { from: own("environ"), to: init.path("moved") },
        Request::Move { from: init.path("link"), to: own("moved") },
        Request::Remove { path: own("environ"), recursive: false },
        Request::MakeDirectory { path: own("made"), mode: None, parents: false },
        Request::MakeLink { path: own("made"), target: "/".into() },
    ] {
        let received = init.ask(request.clone()).read_to_end();
        assert_eq!(received.failure().0, access, "{request:?}");
    }
    // A tree that contains such a directory is packed without it.
    let received = init.ask(Request::ReadTree { path: place.into() });
    let received = received.read_to_end();
    assert!(!received.data.windows(SOCKET_VARIABLE.len()).any(|window| window == SOCKET_VARIABLE.as_bytes()));
    // Other processes' entries of a proc file system stay readable.
    for path in ["/proc/meminfo".to_owned(), format!("/proc/{other}/status"), format!("{place}/second/meminfo")] {
        assert_eq!(read(&path).data.len(), 100, "{path}");
    }
    assert!(matches!(init.ask(Request::Facts { path: "/proc/self".into() }).event(), Event::Facts { .. }));
    init.ask(Request::Kill { id: 1 }).read_to_end();
}

#[test]
fn the_end_of_a_command_is_reported_to_all_awaiting_streams() {
    let init = Init::new();
    let go_on = init.directory.path().join("go-on");
    let line = format!("while ! test -e {}; do sleep 0.01; done", go_on.display());
    init.run(1, |run| run.detached = true, &["sh", "-c", &line]).started();
    let mut awaiting: Vec<GuestStream> = (0..2).map(|_| init.ask(Request::Await { id: 1 })).collect();
    assert_eq!(init.shell(2, "exit 3").read_to_end().how(), How::Code { code: 3 });
    for it in &awaiting {
        assert_eq!(rustix::io::ioctl_fionread(&it.socket).unwrap(), 0, "it still runs");
    }
    std::fs::write(go_on, "").unwrap();
    for it in &mut awaiting {
        assert_eq!(it.event(), Event::Done {});
    }
    assert_eq!(init.ask(Request::Await { id: 1 }).event(), Event::Done {}, "it has ended already");
    let unknown = init.ask(Request::Await { id: 9 }).read_to_end();
    assert_eq!(unknown.failure().0, rustix::io::Errno::SRCH.raw_os_error());
}

#[test]
fn standard_input_longer_than_a_pipe_arrives_whole_however_slowly_it_is_read() {
    let init = Init::new();
    for line in ["sleep 0.1; wc -c", "dd bs=1000 2>/dev/null | wc -c"] {
        let mut stream = init.run(line.len() as u64, |run| run.input = true, &["sh", "-c", line]);
        for _ in 0..10 {
            stream.send_data(Kind::Data, &vec![b'x'; wire::MAX_PAYLOAD]);
        }
        stream.send_data(Kind::Data, b"");
        stream.send_data(Kind::End, b"");
        let received = stream.read_to_end();
        assert_eq!(String::from_utf8_lossy(&received.stdout).trim(), (10 * wire::MAX_PAYLOAD).to_string());
    }
}

#[test]
fn a_command_gets_a_terminal() {
    let init = Init::new();
    let change = |run: &mut Run| {
        run.terminal = Some(Size { rows: 33, columns: 99 });
        run.input = true;
    };
    let mut stream = init.run(1, change, &["sh"]);
    stream.send_data(Kind::Data, b"test -t 0 && stty size\n");
    stream.send(Kind::Control, &Control::Resize { size: Size { rows: 11, columns: 22 } });
    stream.send_data(Kind::Data, b"stty size; exit 5\n");
    let received = stream.read_to_end();
    let text = String::from_utf8_lossy(&received.stdout).into_owned();
    assert!(text.contains("11 22"), "{text}");
    assert_eq!(received.how(), How::Code { code: 5 });
}

#[test]
fn a_file_is_written_atomically() {
    let init = Init::new();
    let path = init.path("a/b");
    let mut stream = init.ask(Request::Write { path: path.clone(), mode: Some(0o640), parents: true });
    stream.send_data(Kind::Data, b"hello ");
    stream.send_data(Kind::Data, b"world");
    stream.send_data(Kind::End, b"");
    assert_eq!(stream.event(), Event::Done {});

    let mut broken = init.ask(Request::Write { path: path.clone(), mode: None, parents: false });
    broken.send_data(Kind::Data, b"half");
    drop(broken);
    let received = init.ask(Request::Read { path: path.clone(), offset: 6, length: 3 }).read_to_end();
    assert_eq!(received.data, b"wor");
    match &received.events[0] {
        Event::Facts { facts } => assert_eq!((facts.size, facts.mode), (11, 0o640)),
        other => panic!("{other:?}"),
    }
    let directory = init.path("a");
    eventually(|| {
        let received = init.ask(Request::ReadDirectory { path: directory.clone() }).read_to_end();
        matches!(&received.events[..], [Event::Entries { entries }] if entries.len() == 1 && entries[0].name == "b".into())
    });
}

#[test]
fn files_are_moved_described_and_removed() {
    let init = Init::new();
    let (one, two, link) = (init.path("one"), init.path("two"), init.path("link"));
    let done = |request| assert_eq!(init.ask(request).event(), Event::Done {});
    done(Request::MakeDirectory { path: one.clone(), mode: None, parents: false });
    done(Request::Move { from: one.clone(), to: two.clone() });
    done(Request::MakeLink { path: link.clone(), target: "two".into() });
    match init.ask(Request::Facts { path: link.clone() }).event() {
        Event::Facts { facts } => assert_eq!((facts.kind, facts.target), (FileKind::Link {}, Some("two".into()))),
        other => panic!("{other:?}"),
    }
    done(Request::Remove { path: two.clone(), recursive: true });
    assert_eq!(init.ask(Request::Facts { path: two }).read_to_end().failure().0, 2);
    assert_eq!(init.ask(Request::Read { path: "/dev/zero".into(), offset: 0, length: 1 }).read_to_end().failure().0, 0);
    assert_eq!(init.ask(Request::Read { path: "/".into(), offset: 0, length: 1 }).read_to_end().failure().0, 21);
}

#[test]
fn lists_with_long_names_are_split_into_frames() {
    let init = Init::new();
    let target = "x".repeat(4000);
    for n in 0..200 {
        std::os::unix::fs::symlink(&target, init.directory.path().join(format!("{n}{}", "n".repeat(200)))).unwrap();
    }
    let received = init.ask(Request::ReadDirectory { path: init.path("") }).read_to_end();
    let entries = received.events.iter().map(|event| match event {
        Event::Entries { entries } => entries.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(entries.sum::<usize>(), 201, "and the socket");

    let long = "y".repeat(100_000);
    for id in 0..10 {
        init.run(id, |run| run.detached = true, &["sh", "-c", "sleep 1000", &long]).started();
    }
    match init.ask(Request::Commands {}).event() {
        Event::Commands { commands } => {
            let ids: Vec<_> = commands.iter().map(|command| command.id).collect();
            assert_eq!(ids, (0..10).collect::<Vec<_>>());
            assert_eq!(commands[0].arguments[2], "sleep 1000".into());
            assert!(commands[0].arguments[3].0.len() < 512);
        }
        other => panic!("{other:?}"),
    }
    for id in 0..10 {
        init.ask(Request::Kill { id }).read_to_end();
    }
}

#[test]
fn the_program_gets_the_signals_and_gives_the_status() {
    let mut init = Init::with_program(&["sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"]);
    let mut ready = [0; 6];
    init.process.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let pid = rustix::process::Pid::from_child(&init.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(init.process.wait().unwrap().code(), Some(7));
}

#[test]
fn an_invalid_frame_ends_only_its_stream() {
    let init = Init::new();
    for bytes in [&b"\xff\xff\xff\xff\xff"[..], &[2, 3, 0, 0, 0, 9, 9, 9], &[3, 0, 0, 0, 0]] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut stream = GuestStream { socket: ours };
        stream.socket.write_all(bytes).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        let descriptors = [theirs.as_fd()];
        attached.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&init.link, &[IoSlice::new(&[1])], &mut attached, SendFlags::empty()).unwrap();
        drop(theirs);
        stream.read_to_end();
    }
    assert_eq!(init.shell(1, "echo still").read_to_end().stdout, b"still\n");
}

#[test]
fn a_tree_is_read_and_written_beside_other_requests() {
    let init = Init::new();
    let from = init.directory.path().join("from");
    std::fs::create_dir_all(from.join("d")).unwrap();
    std::fs::write(from.join("d/large"), vec![7; 8 << 20]).unwrap();
    let reading = init.ask(Request::ReadTree { path: init.path("from") });
    // The archive is not read for now, and other requests are served.
    assert_eq!(init.shell(1, "exit 3").read_to_end().how(), How::Code { code: 3 });
    let received = reading.read_to_end();
    assert_eq!(received.events, [Event::Tree { entries: 3, bytes: 8 << 20, skipped: 0 }]);

    let mut writing = init.ask(Request::WriteTree { path: init.path("made/to"), parents: true });
    for part in received.data.chunks(100_000) {
        writing.send_data(Kind::Data, part);
    }
    writing.send_data(Kind::End, &[]);
    assert_eq!(writing.event(), Event::Tree { entries: 3, bytes: 8 << 20, skipped: 0 });
    assert_eq!(std::fs::read(init.directory.path().join("made/to/d/large")).unwrap().len(), 8 << 20);

    let mut hostile = init.ask(Request::WriteTree { path: init.path("made/to"), parents: false });
    hostile.send_data(Kind::Data, &[b'x'; 512]);
    assert_eq!(hostile.read_to_end().failure(), (0, "not a tar archive, or a damaged one".to_owned()));
    let missing = init.ask(Request::ReadTree { path: init.path("from/d/large") }).read_to_end();
    assert_eq!(missing.failure().0, rustix::io::Errno::NOTDIR.raw_os_error());
}

#[test]
fn an_init_that_waits_starts_its_program_once_it_is_bound_and_only_once() {
    let mut init = Init::waiting(&["sh", "-c", "echo $OWN $SANDBOXD_INIT_WAIT; exec sleep 100"]);
    assert_eq!(init.ask(Request::Waiting {}).event(), Event::Done {});
    let environment = vec![("OWN".into(), "chat's".into())];
    assert_eq!(init.ask(Request::Bind { environment }).event(), Event::Done {});
    let mut printed = [0; 7];
    init.process.stdout.as_mut().unwrap().read_exact(&mut printed).unwrap();
    assert_eq!(&printed, b"chat's\n");
    assert_eq!(init.shell(2, "echo $OWN").read_to_end().stdout, b"chat's\n", "commands have it too");
    let exist = rustix::io::Errno::EXIST.raw_os_error();
    assert_eq!(init.ask(Request::Waiting {}).read_to_end().failure().0, exist);
    assert_eq!(init.ask(Request::Bind { environment: vec![] }).read_to_end().failure().0, exist);
}

#[test]
fn a_directory_is_distinguished_from_another_one() {
    let init = Init::waiting(&["sleep", "100"]);
    let meant = std::fs::metadata("/tmp").unwrap();
    let mounted = |path: &str| Request::Mounted { path: path.into(), device: meant.dev(), inode: meant.ino() };
    assert_eq!(init.ask(mounted("/tmp")).event(), Event::Done {});
    assert_eq!(init.ask(mounted("/")).read_to_end().failure().0, rustix::io::Errno::STALE.raw_os_error());
    let missing = init.ask(mounted("/no/such/directory")).read_to_end();
    assert_eq!(missing.failure().0, rustix::io::Errno::NOENT.raw_os_error());
}

#[test]
fn a_failed_start_of_the_program_is_reported_to_the_bind_request() {
    let init = Init::waiting(&["/no/such/program"]);
    let received = init.ask(Request::Bind { environment: vec![] }).read_to_end();
    assert_eq!(received.failure().0, rustix::io::Errno::NOENT.raw_os_error());
}

#[test]
fn an_init_that_waits_can_begin_as_if_it_had_not_waited() {
    let mut init = Init::waiting(&["sh", "-c", "echo begun; exec sleep 100"]);
    assert_eq!(init.ask(Request::Begin {}).event(), Event::Done {});
    let mut printed = [0; 6];
    init.process.stdout.as_mut().unwrap().read_exact(&mut printed).unwrap();
    assert_eq!(&printed, b"begun\n");
    let again = init.ask(Request::Begin {}).read_to_end();
    assert_eq!(again.failure().0, rustix::io::Errno::EXIST.raw_os_error());
}

#[test]
fn an_init_that_cannot_begin_ends_as_a_shell_would() {
    let mut init = Init::waiting(&["/no/such/program"]);
    let received = init.ask(Request::Begin {}).read_to_end();
    assert_eq!(received.failure().0, rustix::io::Errno::NOENT.raw_os_error());
    assert_eq!(init.process.wait().unwrap().code(), Some(127));
}
