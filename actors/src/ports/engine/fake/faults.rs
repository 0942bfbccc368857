//! Faults that tests inject into calls to the fake engine.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::ports::engine::EngineError;

/// A fault of one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Fails without effect.
    Fail(EngineError),
    /// Takes effect, and reports a failure.
    DoThenFail(EngineError),
    /// Has no effect, and reports success.
    FalseSuccess,
    /// Never answers and has no effect.
    Hang,
    Delay(Duration),
    /// Takes effect and answers after the gate is opened.
    Hold(Gate),
    /// Takes effect at once and answers after the gate is opened: the answer is stale by then.
    HoldAnswer(Gate),
    Panic,
}

impl Fault {
    pub fn unreachable() -> Self {
        Fault::Fail(EngineError::Unreachable { message: "connection refused".into() })
    }

    /// The call has no effect, and the caller cannot know.
    pub fn broken_off() -> Self {
        Fault::Fail(EngineError::Interrupted { message: "connection reset".into() })
    }

    /// The call takes effect, and its answer is lost.
    pub fn answer_lost() -> Self {
        Fault::DoThenFail(EngineError::Interrupted { message: "connection reset".into() })
    }
}

/// A gate that blocks calls until it is opened.
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
