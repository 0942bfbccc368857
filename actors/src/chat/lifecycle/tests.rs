//! The lifecycle, one statement of behaviour at a time. [`Stage`] plays everybody around it: callers, engine and clock.

mod any_order;
mod creating;
mod deleting;
mod finding;
mod owing;
mod verifying;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::chat::discovery::Found;
use crate::engine::{ContainerState, EngineError, Exit, Health, Observed};
use crate::host_path::HostPath;
use crate::ids::{ContainerId, InstanceName};
use crate::labels::SessionLabels;
use crate::outcome::Death;
use crate::request::tests::request;

const TRUST: Duration = Duration::from_secs(2);

/// A chat on a stage: requests and events go in, and what comes out is kept until a test asks for it.
struct Stage {
    lifecycle: Lifecycle,
    now: Timestamp,
    waiters: u64,
    containers: u32,
    answers: BTreeMap<WaiterId, Reply>,
    /// What was asked of the world and is not answered yet, oldest first.
    open: Vec<Effect>,
    history: Vec<Transition>,
}

impl Stage {
    fn absent() -> Self {
        Self::with(Lifecycle::absent(request().chat, name(), TRUST), Vec::new())
    }

    fn unknown() -> Self {
        Self::with(Lifecycle::unknown(request().chat, name(), TRUST), Vec::new())
    }

    fn adopting(found: &Found) -> Self {
        let (lifecycle, effects) = Lifecycle::absent(request().chat, name(), TRUST).adopting(found, noon());
        Self::with(lifecycle, effects)
    }

    /// With a sandbox that was created just now.
    fn running() -> Self {
        let mut stage = Self::absent();
        let create = stage.create();
        stage.launch_succeeds();
        stage.created(create);
        stage
    }

    /// With a sandbox that is being removed.
    fn deleting() -> Self {
        let mut stage = Self::running();
        stage.delete();
        stage
    }

    /// With a sandbox whose first removal failed.
    fn owing() -> Self {
        let mut stage = Self::deleting();
        stage.tear_down_fails();
        stage
    }

    fn with(lifecycle: Lifecycle, effects: Vec<Effect>) -> Self {
        let (answers, open, history) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut stage = Self { lifecycle, now: noon(), waiters: 0, containers: 0, answers, open, history };
        stage.receive(effects);
        stage
    }

    fn tell(&mut self, event: Event) {
        let effects = self.lifecycle.handle(event, self.now);
        self.receive(effects);
    }

    fn receive(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer { waiter, reply } => {
                    assert!(waiter.0 < self.waiters, "{waiter:?} never asked anything");
                    let before = self.answers.insert(waiter, reply);
                    assert!(before.is_none(), "{waiter:?} was answered before: {before:?}");
                }
                Effect::Publish(transition) => self.history.push(transition),
                effect => self.open.push(effect),
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    // Callers.

    fn waiter(&mut self) -> WaiterId {
        self.waiters += 1;
        WaiterId(self.waiters - 1)
    }

    fn create(&mut self) -> WaiterId {
        self.create_with(request())
    }

    fn create_with(&mut self, request: CreateRequest) -> WaiterId {
        let (waiter, session) = (self.waiter(), SessionId::random());
        self.tell(Event::Request(Request::Create { waiter, request: Box::new(request), session }));
        waiter
    }

    fn delete(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.tell(Event::Request(Request::Delete { waiter }));
        waiter
    }

    fn get(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.tell(Event::Request(Request::Get { waiter }));
        waiter
    }

    /// What a get is answered at once.
    fn seen(&mut self) -> Option<Sandbox> {
        let get = self.get();
        self.got(get).expect("get does not fail where the chat is known")
    }

    fn is_waiting(&self, waiter: WaiterId) -> bool {
        !self.answers.contains_key(&waiter)
    }

    fn reply(&mut self, waiter: WaiterId) -> Reply {
        self.answers.remove(&waiter).unwrap_or_else(|| panic!("{waiter:?} is not answered; open: {:?}", self.open))
    }

    fn create_answer(&mut self, waiter: WaiterId) -> Result<Created, SandboxError> {
        let Reply::Create(answer) = self.reply(waiter) else { panic!("{waiter:?} did not ask for a sandbox") };
        answer
    }

    fn created(&mut self, waiter: WaiterId) -> Created {
        self.create_answer(waiter).expect("the create succeeds")
    }

    fn start_failure(&mut self, waiter: WaiterId) -> StartFailure {
        match self.create_answer(waiter) {
            Err(SandboxError::StartFailed { failure, .. }) => failure,
            other => panic!("expected a failed start, got {other:?}"),
        }
    }

    fn conflict(&mut self, waiter: WaiterId) -> Vec<&'static str> {
        match self.create_answer(waiter) {
            Err(SandboxError::Conflict { fields, .. }) => fields,
            other => panic!("expected a conflict, got {other:?}"),
        }
    }

    fn got(&mut self, waiter: WaiterId) -> Result<Option<Sandbox>, SandboxError> {
        let Reply::Get(answer) = self.reply(waiter) else { panic!("{waiter:?} did not get") };
        answer
    }

    fn delete_answer(&mut self, waiter: WaiterId) -> Result<Deletion, SandboxError> {
        let Reply::Delete(answer) = self.reply(waiter) else { panic!("{waiter:?} did not delete") };
        answer
    }

    fn deleted_session(&mut self, waiter: WaiterId) -> SessionId {
        match self.delete_answer(waiter) {
            Ok(Deletion::Deleted { session, .. }) => session,
            other => panic!("expected a deletion, got {other:?}"),
        }
    }

    // The engine.

    /// Takes the oldest open effect of a kind.
    fn take<T>(&mut self, kind: &str, pick: impl Fn(&Effect) -> Option<T>) -> T {
        let found = self.open.iter().enumerate().find_map(|(at, effect)| Some((at, pick(effect)?)));
        let (at, picked) = found.unwrap_or_else(|| panic!("no {kind} is open, but {:?}", self.open));
        self.open.remove(at);
        picked
    }

    fn launch(&mut self) -> (Generation, SessionId) {
        self.take("launch", |effect| match effect {
            Effect::Launch { generation, session, .. } => Some((*generation, *session)),
            _ => None,
        })
    }

    fn launch_succeeds(&mut self) -> ContainerId {
        let (generation, _) = self.launch();
        let started = self.started();
        let Ok(Launched::Started { container, .. }) = &started else { unreachable!() };
        let container = container.clone();
        self.tell(Event::Launched { generation, result: started });
        container
    }

    fn started(&mut self) -> Result<Launched, LaunchFailure> {
        self.containers += 1;
        let container = ContainerId::new(format!("container-{}", self.containers));
        Ok(Launched::Started { container, endpoint: None, started_at: self.now })
    }

    fn launch_fails(&mut self, remains: Remains) {
        let (generation, _) = self.launch();
        let failure = LaunchFailure { failure: StartFailure::NoAddress, remains };
        self.tell(Event::Launched { generation, result: Err(failure) });
    }

    fn launch_finds(&mut self, found: Found) {
        let (generation, _) = self.launch();
        self.tell(Event::Launched { generation, result: Ok(Launched::Found(Box::new(found))) });
    }

    fn cancel(&mut self) -> Generation {
        self.take("cancellation", |effect| match effect {
            Effect::CancelLaunch { generation } => Some(*generation),
            _ => None,
        })
    }

    /// What is to be torn down, and whether gracefully.
    fn tear_down(&mut self) -> (Generation, Option<ContainerId>, bool) {
        self.take("tear-down", |effect| match effect {
            Effect::TearDown { generation, container, graceful } => Some((*generation, container.clone(), *graceful)),
            _ => None,
        })
    }

    fn tear_down_succeeds(&mut self) -> Option<ContainerId> {
        let (generation, container, _) = self.tear_down();
        self.tell(Event::TornDown { generation, result: Ok(()) });
        container
    }

    fn tear_down_fails(&mut self) {
        let (generation, ..) = self.tear_down();
        self.tell(Event::TornDown { generation, result: Err(unreachable()) });
    }

    /// Lets the oldest timer ring; answers what it was set to.
    fn retry(&mut self) -> Duration {
        let (generation, attempt, delay) = self.take("timer", |effect| match effect {
            Effect::RetryAfter { generation, attempt, delay } => Some((*generation, *attempt, *delay)),
            _ => None,
        });
        self.tell(Event::RetryDue { generation, attempt });
        delay
    }

    fn looked(&mut self, result: Result<Option<Found>, EngineError>) {
        self.take("look", |effect| matches!(effect, Effect::Look).then_some(()));
        self.tell(Event::Looked(result.map(|found| found.map(Box::new))));
    }

    fn checked(&mut self, liveness: Liveness) {
        let generation = self.take("check", |effect| match effect {
            Effect::Check { generation, .. } => Some(*generation),
            _ => None,
        });
        self.tell(Event::Checked { generation, liveness });
    }

    fn assert_nothing_is_open(&self) {
        assert!(self.open.is_empty(), "{:?}", self.open);
    }

    /// Nothing is open and nothing is owned: the actor may retire.
    fn assert_idle(&self) {
        self.assert_nothing_is_open();
        assert!(self.lifecycle.is_idle(), "{:?}", self.lifecycle.phase());
        assert!(self.lifecycle.is_settled());
    }
}

fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn instance() -> InstanceName {
    "default".parse().unwrap()
}

fn name() -> ContainerName {
    ContainerName::of(&instance(), request().chat)
}

fn unreachable() -> EngineError {
    EngineError::Unreachable { message: "connection refused".into() }
}

fn from_another_agent() -> CreateRequest {
    CreateRequest { agent: "another".parse().unwrap(), ..request() }
}

/// A container of the chat, as [`request`] would have made it at noon, in another run of the service.
fn found(state: ContainerState) -> Found {
    let request = request();
    let labels = SessionLabels {
        instance: instance(),
        chat: request.chat,
        session: SessionId::random(),
        agent: request.agent.clone(),
        volume: request.volume.clone(),
        port: request.profile.port,
        profile: request.profile.name.clone(),
        spec_hash: "0".into(),
        created_at: noon(),
        expires_at: request.expires_at(noon()),
        idle_timeout: request.idle_timeout(),
    };
    let container = Observed {
        id: ContainerId::new("found"),
        name: name().to_string(),
        image: request.profile.image.clone(),
        labels: labels.encode(),
        state,
        started_at: Some(noon()),
        address: None,
        health: None,
    };
    let death = match state {
        ContainerState::Exited(exit) => Some(Death { exit, memory_limit_bytes: None, log_tail: vec![] }),
        _ => None,
    };
    Found { labels, container, death }
}

/// As [`found`], but past its deadline at noon.
fn found_expired(state: ContainerState) -> Found {
    let mut found = found(state);
    found.labels.expires_at = noon();
    found
}

fn out_of_memory() -> Exit {
    Exit { code: 137, oom_killed: true }
}

fn ended() -> ContainerState {
    ContainerState::Exited(Some(out_of_memory()))
}
