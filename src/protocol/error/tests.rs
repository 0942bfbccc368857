//! Tests of the mapping from errors of the core to errors of the wire.

use std::time::Duration;

use sandboxd_actors::domain::ids::{ContainerId, SessionId};
use sandboxd_actors::domain::outcome::Death;
use sandboxd_actors::ports::engine::{Exit, Operation};
use serde_json::Value;

use super::*;

fn start_error(failure: StartFailure) -> Error {
    of_sandbox(SandboxError::StartFailed { chat: chat(), failure })
}

fn chat() -> sandboxd_actors::domain::ids::ChatId {
    "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().expect("a UUID")
}

fn unreachable() -> EngineError {
    EngineError::Unreachable { message: "connection refused".into() }
}

#[test]
fn a_conflict_names_the_differing_fields() {
    let session = SessionId::random();
    let error = of_sandbox(SandboxError::Conflict { chat: chat(), session, fields: vec!["agent_id", "profile"] });
    assert_eq!(error.data.kind, ErrorKind::SandboxConflict);
    assert!(!error.data.retryable);
    assert_eq!(error.data.details["fields"], json!(["agent_id", "profile"]));
    assert_eq!(error.data.details["session_id"], json!(session.to_string()));
}

#[test]
fn an_engine_that_does_not_answer_is_never_the_sandboxs_fault() {
    let timed_out = EngineError::TimedOut { operation: Operation::Start, limit: Duration::from_secs(1) };
    for error in [
        start_error(StartFailure::Engine(unreachable())),
        start_error(StartFailure::Engine(timed_out.clone())),
        start_error(StartFailure::PredecessorRemains(timed_out.into())),
        of_sandbox(SandboxError::Unknown { chat: chat(), error: unreachable() }),
        of_sandbox(SandboxError::DeleteOwed { chat: chat(), error: unreachable().into() }),
    ] {
        assert_eq!((error.data.kind, error.data.retryable), (ErrorKind::EngineUnavailable, true), "{error:?}");
        assert!(error.data.details["reason"].as_str().is_some_and(|reason| reason.contains("engine")), "{error:?}");
    }
}

#[test]
fn a_death_is_reported_with_its_cause() {
    let death = Death {
        exit: Some(Exit { code: 137, oom_killed: true }),
        memory_limit_bytes: Some(1 << 20),
        log_tail: vec!["allocating".into()],
    };
    let error = start_error(StartFailure::Died(death));
    assert_eq!((error.data.kind, error.data.retryable), (ErrorKind::SandboxStartFailed, false));
    assert_eq!(
        Value::from(error.data.details),
        json!({
            "chat_id": chat().to_string(),
            "cause": "oom_killed",
            "reason": "it ended while starting: out of memory at its limit of 1048576 bytes, last output: allocating",
            "exit_code": 137,
            "signal": 9,
            "oom_killed": true,
            "memory_limit_bytes": 1_048_576,
            "log_tail": ["allocating"],
        })
    );
}

#[test]
fn failures_with_a_kind_of_their_own_get_it() {
    let image = start_error(StartFailure::Engine(EngineError::ImageNotFound { image: "base:1".into() }));
    assert_eq!((image.data.kind, image.data.retryable), (ErrorKind::ImageNotFound, false));
    assert_eq!(image.data.details["image"], "base:1");
    assert!(
        image.message.ends_with("; `sandboxctl image pull base:1` gets it; `image build` and `image refresh` make one")
    );

    let not_ready =
        StartFailure::NotReady { limit: Duration::from_millis(1500), last: "refused".into(), log_tail: vec![] };
    let not_ready = start_error(not_ready);
    assert_eq!((not_ready.data.kind, not_ready.data.retryable), (ErrorKind::ReadinessTimeout, true));
    assert_eq!(not_ready.data.details["timeout"], 1.5);

    let refused = start_error(StartFailure::Engine(EngineError::Refused {
        operation: Operation::Create,
        message: "no such runtime".into(),
    }));
    assert_eq!((refused.data.kind, refused.data.retryable), (ErrorKind::SandboxStartFailed, false));
    assert!(refused.message.contains("no such runtime"));

    let conflict =
        StartFailure::NameConflict { name: "n".into(), holder: ContainerId::new("c"), why: "not ours".into() };
    assert_eq!(start_error(conflict).data.details["container_id"], "c");
}

#[test]
fn temporary_failures_are_retryable() {
    let owed = of_sandbox(SandboxError::DeleteOwed {
        chat: chat(),
        error: EngineError::Refused { operation: Operation::Remove, message: "device busy".into() }.into(),
    });
    assert_eq!((owed.data.kind, owed.data.retryable), (ErrorKind::SandboxDeleteFailed, true));
    assert_eq!(owed.data.details["owed"], true);

    let recovering = SandboxError::Recovering { chat: chat(), retry_after: Duration::from_millis(250) };
    let recovering = of_sandbox(recovering);
    assert_eq!((recovering.data.kind, recovering.data.retryable), (ErrorKind::Busy, true));
    assert_eq!(recovering.data.details["retry_after"], 0.25);

    let no_answer = of_sandbox(SandboxError::NoAnswer { chat: chat(), limit: Duration::from_secs(1) });
    assert_eq!((no_answer.data.kind, no_answer.data.retryable), (ErrorKind::Internal, true));
    assert!(of_sandbox(SandboxError::ShuttingDown).data.retryable);
}
