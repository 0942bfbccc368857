//! Commands whose stream breaks, or that the engine cannot tell of, on an engine that only pretends.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use sandbox_init::wire::{Request, Usage};
use sandboxd_actors::domain::ids::{ContainerId, SessionId};

use super::*;
use crate::engine::guest::{Archive, EngineGuest, Surroundings, Upload};
use crate::guest::stream::{GuestStream, GuestStreamError};
use crate::guest::{Entrance, GuestsViaEngine};

/// Runs one command without end, whose stream breaks at once.
struct Breaking {
    looks: AtomicUsize,
    /// So many looks fail before one tells anything.
    silent: usize,
}

#[async_trait]
impl EngineGuest for Breaking {
    async fn exec(&self, _: &ContainerId, _: Command) -> Result<Execution, GuestError> {
        let broken = || Err(GuestError::Engine("reset by peer".into()));
        let output = futures_util::stream::once(async move { broken() }).boxed();
        Ok(Execution { id: "e".into(), streams: Some(Streams { output, input: Box::pin(tokio::io::sink()) }) })
    }

    async fn look(&self, _: &str) -> Result<Look, GuestError> {
        if self.looks.fetch_add(1, Ordering::Relaxed) < self.silent {
            return Err(GuestError::Engine("timed out".into()));
        }
        Ok(Look { process: Some(4242), exit_code: None })
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

    async fn surroundings(&self, _: &ContainerId) -> Result<Surroundings, GuestError> {
        Err(GuestError::NotFound)
    }
}

struct Broken {
    engine: Arc<Breaking>,
    guests_via_engine: GuestsViaEngine,
    session: SessionId,
    conversation: GuestStream,
}

/// A command that has begun, on an engine whose stream of it breaks.
async fn broken(timeout: Option<u64>) -> Broken {
    let mut broken = asked_for(timeout, 0).await;
    assert!(matches!(broken.conversation.reader.next_event().await, Ok(Event::Started { id: 1 })));
    broken
}

/// The same command, before it is known to have begun.
async fn asked_for(timeout: Option<u64>, silent: usize) -> Broken {
    let engine = Arc::new(Breaking { looks: AtomicUsize::new(0), silent });
    let guests_via_engine = GuestsViaEngine::new(engine.clone(), "/nonexistent".into());
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
    let conversation = via_engine.open_stream(&Request::Run { command }).await.expect("a conversation");
    Broken { engine, guests_via_engine, session, conversation }
}

/// What the command fails with. The pretended process cannot be killed, and that this was tried shows.
async fn failure(conversation: &mut GuestStream) -> (i32, String) {
    match conversation.reader.next_event().await {
        Err(GuestStreamError::Failed(failure)) => {
            (failure.errno, String::from_utf8_lossy(&failure.message.0).into_owned())
        }
        other => panic!("{other:?}"),
    }
}

const NOT_KILLED: &str =
    "the engine cannot end commands, and nor can we: process 4242 of the engine cannot be seen from here";

#[tokio::test]
async fn a_broken_stream_leaves_the_time_out_in_force_and_looks_ever_less_often() {
    let mut broken = broken(Some(700)).await;
    assert_eq!(failure(&mut broken.conversation).await, (Errno::NOSYS.raw_os_error(), NOT_KILLED.to_owned()));
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
    broken.conversation.writer.control(&Control::Kill {}).await.expect("sent");
    assert_eq!(failure(&mut broken.conversation).await, (Errno::NOSYS.raw_os_error(), NOT_KILLED.to_owned()));
}

#[tokio::test]
async fn a_command_that_runs_on_after_its_stream_broke_is_told_of_and_stays_known() {
    let mut broken = broken(None).await;
    let (errno, message) = failure(&mut broken.conversation).await;
    assert_eq!(errno, Errno::NOTCONN.raw_os_error());
    assert!(message.contains("reset by peer") && message.contains("still runs"), "{message}");
    let known = broken.guests_via_engine.commands(broken.session);
    assert_eq!((known.len(), known[0].attached), (1, false));
}

#[tokio::test]
async fn a_first_look_that_fails_is_repeated() {
    let mut asked_for = asked_for(None, 3).await;
    let event = asked_for.conversation.reader.next_event().await;
    assert!(matches!(event, Ok(Event::Started { id: 1 })), "{event:?}");
    assert_eq!(asked_for.guests_via_engine.commands(asked_for.session).len(), 1);
}

#[tokio::test]
async fn a_command_that_is_given_up_is_killed_once_it_has_a_process() {
    // Pauses double from 5 ms, so that the ninth look is the first past the limit: the tenth and eleventh fail as well.
    let silent = 11;
    let mut asked_for = asked_for(None, silent).await;
    let (errno, message) = failure(&mut asked_for.conversation).await;
    assert_eq!(errno, Errno::NOTCONN.raw_os_error());
    assert!(message.contains("timed out"), "{message}");
    // The look that tells of its process, and the one right before its process is reached for.
    let looks = || asked_for.engine.looks.load(Ordering::Relaxed);
    while looks() < silent + 2 {
        tokio::time::sleep(PAUSE).await;
    }
    tokio::time::sleep(10 * PAUSE).await;
    assert_eq!(looks(), silent + 2, "there is an end to it");
}

#[test]
fn a_kill_for_want_of_memory_is_told_from_others() {
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
