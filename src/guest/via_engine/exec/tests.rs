//! Tests of commands whose stream breaks, or whose state the engine cannot report, on a fake engine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use sandbox_init::wire::{Request, Usage};
use sandboxd_actors::domain::ids::{ContainerId, SessionId};

use super::*;
use crate::engine::guest::{Archive, CommandDefaults, EngineGuest, Upload};
use crate::guest::stream::{GuestStream, GuestStreamError};
use crate::guest::{Guest, GuestsViaEngine};
use crate::storage::file_system::FileSystem;

/// An engine that runs one endless command, whose stream breaks at once.
struct Breaking {
    looks: AtomicUsize,
    /// The number of checks that fail at first.
    failing: usize,
}

#[async_trait]
impl EngineGuest for Breaking {
    async fn exec(&self, _: &ContainerId, _: Command) -> Result<Execution, GuestError> {
        let broken = || Err(GuestError::Engine("reset by peer".into()));
        let output = futures_util::stream::once(async move { broken() }).boxed();
        Ok(Execution { id: "e".into(), streams: Some(Streams { output, input: Box::pin(tokio::io::sink()) }) })
    }

    async fn inspect_exec(&self, _: &str) -> Result<ExecStatus, GuestError> {
        if self.looks.fetch_add(1, Ordering::Relaxed) < self.failing {
            return Err(GuestError::Engine("timed out".into()));
        }
        Ok(ExecStatus { process: Some(4242), exit_code: None })
    }

    async fn resize(&self, _: &str, _: u16, _: u16) -> Result<(), GuestError> {
        Ok(())
    }

    async fn read_archive(&self, _: &ContainerId, _: &str) -> Result<Archive, GuestError> {
        Err(GuestError::NotFound)
    }

    async fn write_archive(&self, _: &ContainerId, _: &str, _: Upload) -> Result<(), GuestError> {
        Err(GuestError::NotFound)
    }

    async fn usage(&self, _: &ContainerId) -> Result<Usage, GuestError> {
        Err(GuestError::NotFound)
    }

    async fn command_defaults(&self, _: &ContainerId) -> Result<CommandDefaults, GuestError> {
        Err(GuestError::NotFound)
    }
}

struct Broken {
    engine: Arc<Breaking>,
    guests_via_engine: GuestsViaEngine,
    session: SessionId,
    stream: GuestStream,
}

/// Starts a command on an engine whose stream of it breaks.
async fn broken(timeout: Option<u64>) -> Broken {
    let mut broken = requested(timeout, 0).await;
    assert!(matches!(broken.stream.reader.next_event().await, Ok(Event::Started { id: 1 })));
    broken
}

/// Requests the same command, and does not wait until it has begun.
async fn requested(timeout: Option<u64>, failing: usize) -> Broken {
    let engine = Arc::new(Breaking { looks: AtomicUsize::new(0), failing });
    let nowhere = Path::new("/nonexistent");
    let file_system = FileSystem::new(nowhere, nowhere).unwrap();
    let guests_via_engine = GuestsViaEngine::new(engine.clone(), nowhere.into(), file_system);
    let session = SessionId::random();
    let container = ContainerId::new("c".repeat(64));
    let via_engine = guests_via_engine.of(session, container, None, Default::default());
    let command = Run {
        id: 1,
        arguments: vec!["sleep".into()],
        environment: vec![],
        directory: None,
        timeout,
        terminal: None,
        input: false,
        detached: false,
    };
    let stream = via_engine.open_stream(&Request::Run { command }).await.expect("a stream");
    Broken { engine, guests_via_engine, session, stream }
}

/// Returns the failure of the command. The fake process cannot be killed, and the message shows that a kill was tried.
async fn failure(stream: &mut GuestStream) -> (i32, String) {
    match stream.reader.next_event().await {
        Err(GuestStreamError::Failed(failure)) => {
            (failure.errno, String::from_utf8_lossy(&failure.message.0).into_owned())
        }
        other => panic!("{other:?}"),
    }
}

const NOT_KILLED: &str = "the engine cannot kill commands, and neither can the service: \
    process 4242 of the engine is not visible on this host";

#[tokio::test]
async fn a_broken_stream_leaves_the_time_out_in_force_and_checks_back_off() {
    let mut broken = broken(Some(700)).await;
    assert_eq!(failure(&mut broken.stream).await, (Errno::NOSYS.raw_os_error(), NOT_KILLED.to_owned()));
    let looks = broken.engine.looks.load(Ordering::Relaxed);
    assert!(looks < 20, "{looks} looks");
}

#[tokio::test]
async fn a_broken_stream_leaves_the_kill_in_force() {
    let mut broken = broken(None).await;
    // The stream has broken by then.
    while broken.engine.looks.load(Ordering::Relaxed) < 4 {
        tokio::task::yield_now().await;
    }
    broken.stream.writer.control(&Control::Kill {}).await.expect("sent");
    assert_eq!(failure(&mut broken.stream).await, (Errno::NOSYS.raw_os_error(), NOT_KILLED.to_owned()));
}

#[tokio::test]
async fn a_command_that_runs_on_after_its_stream_broke_is_reported_and_stays_listed() {
    let mut broken = broken(None).await;
    let (errno, message) = failure(&mut broken.stream).await;
    assert_eq!(errno, Errno::NOTCONN.raw_os_error());
    assert!(message.contains("reset by peer") && message.contains("still runs"), "{message}");
    let known = broken.guests_via_engine.commands(broken.session);
    assert_eq!((known.len(), known[0].attached), (1, false));
}

#[tokio::test]
async fn a_failed_first_check_is_repeated() {
    let mut requested = requested(None, 3).await;
    let event = requested.stream.reader.next_event().await;
    assert!(matches!(event, Ok(Event::Started { id: 1 })), "{event:?}");
    assert_eq!(requested.guests_via_engine.commands(requested.session).len(), 1);
}

#[tokio::test]
async fn a_cancelled_command_is_killed_once_it_has_a_process() {
    // Delays double from 5 ms, so that the ninth check is the first past the limit. The tenth and eleventh fail as
    // well.
    let failing = 11;
    let mut requested = requested(None, failing).await;
    let (errno, message) = failure(&mut requested.stream).await;
    assert_eq!(errno, Errno::NOTCONN.raw_os_error());
    assert!(message.contains("timed out"), "{message}");
    // The check that reports the process, and the one right before the kill.
    let looks = || requested.engine.looks.load(Ordering::Relaxed);
    while looks() < failing + 2 {
        tokio::time::sleep(MIN_DELAY).await;
    }
    tokio::time::sleep(10 * MIN_DELAY).await;
    assert_eq!(looks(), failing + 2, "the checks end");
}

#[test]
fn an_oom_kill_is_distinguished_from_other_kills() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "oom_kill 1\n").expect("written");
    let starved = MemoryGroup::since(file.path(), 0);
    let how = |code, killed, memory| ending(code, Duration::ZERO, false, killed, memory).how;
    assert!(matches!(how(137, false, Some(&starved)), How::CodeOutOfMemory { code: 137 }));
    assert!(matches!(how(137, true, Some(&starved)), How::Signal { signal: 9 }), "by the service");
    assert!(matches!(how(1, false, Some(&starved)), How::Code { code: 1 }), "it went on without");
    assert!(matches!(how(137, false, None), How::Code { code: 137 }));
    let other = MemoryGroup::since(file.path(), 1);
    assert!(matches!(how(137, false, Some(&other)), How::Code { code: 137 }), "of an earlier command");
}
