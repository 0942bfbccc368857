//! Every error of the core, and what a caller is told.

use std::collections::HashSet;
use std::time::Duration;

use sandboxd_actors::domain::ids::{ContainerId, SessionId};
use sandboxd_actors::ports::engine::{Exit, Operation};

use super::*;

fn told(failure: StartFailure) -> Error {
    SandboxError::StartFailed { chat: chat(), failure }.into()
}

fn chat() -> sandboxd_actors::domain::ids::ChatId {
    "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().expect("a UUID")
}

fn unreachable() -> EngineError {
    EngineError::Unreachable { message: "connection refused".into() }
}

#[test]
fn kinds_and_codes_belong_together_one_to_one() {
    let names: HashSet<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    let codes: HashSet<_> = Kind::ALL.iter().map(|kind| kind.code()).collect();
    assert_eq!((names.len(), codes.len()), (Kind::ALL.len(), Kind::ALL.len()));
}

#[test]
fn a_conflict_names_the_differing_fields() {
    let session = SessionId::random();
    let error = Error::from(SandboxError::Conflict { chat: chat(), session, fields: vec!["agent_id", "profile"] });
    assert_eq!(error.kind, Kind::SandboxConflict);
    assert!(!error.retryable);
    assert_eq!(error.details["fields"], json!(["agent_id", "profile"]));
    assert_eq!(error.details["session_id"], json!(session.to_string()));
}

#[test]
fn an_engine_that_does_not_answer_is_never_the_sandboxs_fault() {
    let timed_out = EngineError::TimedOut { operation: Operation::Start, limit: Duration::from_secs(1) };
    for error in [
        told(StartFailure::Engine(unreachable())),
        told(StartFailure::Engine(timed_out.clone())),
        told(StartFailure::PredecessorRemains(timed_out.into())),
        SandboxError::Unknown { chat: chat(), error: unreachable() }.into(),
        SandboxError::DeleteOwed { chat: chat(), error: unreachable().into() }.into(),
    ] {
        assert_eq!((error.kind, error.retryable), (Kind::EngineUnavailable, true), "{error:?}");
        assert!(error.details["reason"].as_str().is_some_and(|reason| reason.contains("engine")), "{error:?}");
    }
}

#[test]
fn a_death_is_told_with_its_cause() {
    let death = Death {
        exit: Some(Exit { code: 137, oom_killed: true }),
        memory_limit_bytes: Some(1 << 20),
        log_tail: vec!["allocating".into()],
    };
    let error = told(StartFailure::Died(death));
    assert_eq!((error.kind, error.retryable), (Kind::SandboxStartFailed, false));
    assert_eq!(
        Value::from(error.details),
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
    let image = told(StartFailure::Engine(EngineError::ImageNotFound { image: "base:1".into() }));
    assert_eq!((image.kind, image.retryable), (Kind::ImageNotFound, false));
    assert_eq!(image.details["image"], "base:1");
    assert!(
        image.message.ends_with("; `sandboxctl image pull base:1` gets it; `image build` and `image refresh` make one")
    );

    let not_ready =
        StartFailure::NotReady { limit: Duration::from_millis(1500), last: "refused".into(), log_tail: vec![] };
    let not_ready = told(not_ready);
    assert_eq!((not_ready.kind, not_ready.retryable), (Kind::ReadinessTimeout, true));
    assert_eq!(not_ready.details["timeout"], 1.5);

    let refused = told(StartFailure::Engine(EngineError::Refused {
        operation: Operation::Create,
        message: "no such runtime".into(),
    }));
    assert_eq!((refused.kind, refused.retryable), (Kind::SandboxStartFailed, false));
    assert!(refused.message.contains("no such runtime"));

    let in_the_way = StartFailure::InTheWay { name: "n".into(), holder: ContainerId::new("c"), why: "not ours".into() };
    assert_eq!(told(in_the_way).details["container_id"], "c");
}

#[test]
fn what_passes_by_itself_can_be_retried() {
    let owed = Error::from(SandboxError::DeleteOwed {
        chat: chat(),
        error: EngineError::Refused { operation: Operation::Remove, message: "device busy".into() }.into(),
    });
    assert_eq!((owed.kind, owed.retryable), (Kind::SandboxDeleteFailed, true));
    assert_eq!(owed.details["owed"], true);

    let recovering = SandboxError::Recovering { chat: chat(), retry_after: Duration::from_millis(250) };
    let recovering = Error::from(recovering);
    assert_eq!((recovering.kind, recovering.retryable), (Kind::Busy, true));
    assert_eq!(recovering.details["retry_after"], 0.25);

    let no_answer = Error::from(SandboxError::NoAnswer { chat: chat(), limit: Duration::from_secs(1) });
    assert_eq!((no_answer.kind, no_answer.retryable), (Kind::Internal, true));
    assert!(Error::from(SandboxError::ShuttingDown).retryable);
}
