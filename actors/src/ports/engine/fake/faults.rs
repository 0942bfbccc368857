//! What can be made to go wrong with one call.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::ports::engine::EngineError;

#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing is done.
    Fail(EngineError),
    /// It is done, but the caller is told otherwise.
    DoThenFail(EngineError),
    /// Nothing is done, and the caller is told that it was.
    FalseSuccess,
    /// Never answers, never does it.
    Hang,
    Delay(Duration),
    /// Done and answered once the gate is opened.
    Hold(Gate),
    /// Done at once, and answered once the gate is opened: the answer is old by then.
    HoldAnswer(Gate),
    Panic,
}

impl Fault {
    pub fn unreachable() -> Self {
        Fault::Fail(EngineError::Unreachable { message: "connection refused".into() })
    }

    /// The call is not carried out, and the caller cannot know.
    pub fn broken_off() -> Self {
        Fault::Fail(EngineError::Interrupted { message: "connection reset".into() })
    }

    /// The call is carried out, and the answer is lost.
    pub fn answer_lost() -> Self {
        Fault::DoThenFail(EngineError::Interrupted { message: "connection reset".into() })
    }
}

/// Holds calls back until it is opened.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Gate {
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        // The sender lives in this gate, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}
