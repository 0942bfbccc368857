//! Commands whose stream breaks, on an engine that only pretends.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use sandbox_init::wire::{Request, Usage};
use sandboxd_actors::ids::{ContainerId, SessionId};

use super::*;
use crate::engine::inside::{Archive, EngineInside, Surroundings, Upload};
use crate::interiors::conversation::{Conversation, ConversationError};
use crate::interiors::{Entrance, StandIns};

/// Runs one command without end, whose stream breaks at once.
struct Breaking {
    looks: AtomicUsize,
}

#[async_trait]
impl EngineInside for Breaking {
    async fn exec(&self, _: &ContainerId, _: Command) -> Result<Execution, InsideError> {
        let broken = || Err(InsideError::Engine("reset by peer".into()));
        let output = futures_util::stream::once(async move { broken() }).boxed();
        Ok(Execution { id: "e".into(), streams: Some(Streams { output, input: Box::pin(tokio::io::sink()) }) })
    }

    async fn look(&self, _: &str) -> Result<Look, InsideError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        Ok(Look { process: Some(4242), exit_code: None })
    }

    async fn resize(&self, _: &str, _: u16, _: u16) -> Result<(), InsideError> {
        Ok(())
    }

    async fn read_archive(&self, _: &ContainerId, _: &str) -> Result<Archive, InsideError> {
        Err(InsideError::NotFound)
    }

    async fn write_archive(&self, _: &ContainerId, _: &str, _: Upload) -> Result<(), InsideError> {
        Err(InsideError::NotFound)
    }

    async fn usage(&self, _: &ContainerId) -> Result<Usage, InsideError> {
        Err(InsideError::NotFound)
    }

    async fn surroundings(&self, _: &ContainerId) -> Result<Surroundings, InsideError> {
        Err(InsideError::NotFound)
    }
}

struct Broken {
    engine: Arc<Breaking>,
    stand_ins: StandIns,
    session: SessionId,
    conversation: Conversation,
}

/// A command that has begun, on an engine whose stream of it breaks.
async fn broken(timeout: Option<u64>) -> Broken {
    let engine = Arc::new(Breaking { looks: AtomicUsize::new(0) });
    let stand_ins = StandIns::new(engine.clone(), "/nonexistent".into());
    let session = SessionId::random();
    let container = ContainerId::new("c".repeat(64));
    let stand_in = stand_ins.of(session, container, None, Default::default());
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
    let mut conversation = stand_in.converse(&Request::Run { command }).await.expect("a conversation");
    assert!(matches!(conversation.listening.next_event().await, Ok(Event::Started { id: 1 })));
    Broken { engine, stand_ins, session, conversation }
}

/// What the command fails with. The pretended process cannot be killed, and that this was tried shows.
async fn failure(conversation: &mut Conversation) -> (i32, String) {
    match conversation.listening.next_event().await {
        Err(ConversationError::Failed(failure)) => {
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
    broken.conversation.speaking.control(&Control::Kill {}).await.expect("sent");
    assert_eq!(failure(&mut broken.conversation).await, (Errno::NOSYS.raw_os_error(), NOT_KILLED.to_owned()));
}

#[tokio::test]
async fn a_command_that_runs_on_after_its_stream_broke_is_told_of_and_stays_known() {
    let mut broken = broken(None).await;
    let (errno, message) = failure(&mut broken.conversation).await;
    assert_eq!(errno, Errno::NOTCONN.raw_os_error());
    assert!(message.contains("reset by peer") && message.contains("still runs"), "{message}");
    let known = broken.stand_ins.commands(broken.session);
    assert_eq!((known.len(), known[0].attached), (1, false));
}
