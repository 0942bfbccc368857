//! Compares admission with a model that knows a chat only by a few facts.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::chat::phase::{
    Creating, Deleting, Failed, Origin, RemovalStep, Running, Stopping, Successor, Switch, Switching, Unknown,
};
use crate::domain::create_request::tests::request;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerId, ContainerName, WorkspaceId};
use crate::domain::outcome::Outcome;
use crate::domain::sandbox::{Sandbox, Status};

/// All inputs of a decision. Times are in seconds after the sandbox was created.
#[derive(Debug, Clone)]
struct Facts {
    has: Has,
    agent_differs: bool,
    /// Of the sandbox, and of the request.
    workspaces: [Option<u8>; 2],
    /// Of the sandbox, and of the request.
    volumes: [Option<u8>; 2],
    profile_differs: bool,
    profile_named: bool,
    now: i64,
    seen_at: i64,
    used_at: i64,
    ends_at: i64,
    held_until: Option<i64>,
    idle_timeout: i64,
    trust: i64,
    on_expire: OnExpire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    Unknown,
    Absent,
    Launch,
    Sandbox,
    /// Paused, or being paused or resumed.
    Asleep {
        paused: bool,
        switching: bool,
    },
    /// A stop is under way, or will be retried at this time.
    Ending(Reason, Option<i64>),
    Failure(Reason),
    Stopped(Reason),
    Removal,
    RemovalWithSuccessor,
}

fn facts() -> impl Strategy<Value = Facts> {
    let has = prop_oneof![
        1 => Just(Has::Unknown),
        1 => Just(Has::Absent),
        1 => Just(Has::Launch),
        4 => Just(Has::Sandbox),
        1 => any::<bool>().prop_map(|switching| Has::Asleep { paused: true, switching }),
        1 => Just(Has::Asleep { paused: false, switching: true }),
        1 => prop::option::of(0i64..100).prop_map(|retry_at| Has::Ending(Reason::Expired, retry_at)),
        1 => Just(Has::Failure(Reason::OomKilled)),
        1 => Just(Has::Failure(Reason::Vanished)),
        1 => Just(Has::Stopped(Reason::Idle)),
        1 => Just(Has::Removal),
        1 => Just(Has::RemovalWithSuccessor),
    ];
    let differs = || prop::bool::weighted(0.2);
    let flags = (differs(), differs(), any::<bool>());
    let workspaces = [prop::option::of(0u8..2), prop::option::weighted(0.3, 0u8..2)];
    let volumes = [prop::option::weighted(0.8, 0u8..1), prop::option::weighted(0.6, 0u8..2)];
    let held = prop::option::weighted(0.3, 0i64..100);
    let on_expire = prop::sample::select(vec![OnExpire::Delete, OnExpire::Stop, OnExpire::Pause]);
    let times = (0i64..100, 0i64..110, 0i64..100, 1i64..100, held, 1i64..100, 0i64..20);
    (has, flags, workspaces, volumes, times, on_expire).prop_map(
        |(has, flags, workspaces, volumes, times, on_expire)| {
            let (agent_differs, profile_differs, profile_named) = flags;
            let (now, seen_at, used_at, ends_at, held_until, idle_timeout, trust) = times;
            Facts {
                has,
                agent_differs,
                workspaces,
                volumes,
                profile_differs,
                profile_named,
                now,
                seen_at,
                used_at,
                ends_at,
                held_until,
                idle_timeout,
                trust,
                on_expire,
            }
        },
    )
}

impl Facts {
    fn create(&self) -> Admission<CreateWork> {
        let mut differing = Vec::new();
        if self.agent_differs {
            differing.push("agent_id");
        }
        match self.workspaces {
            [_, None] => {}
            [of_sandbox, given] if of_sandbox == given => {}
            _ => differing.push("workspace_id"),
        }
        match self.volumes {
            [_, None] => {}
            [of_sandbox, named] if of_sandbox == named => {}
            _ => differing.push("volume_host_path"),
        }
        if self.profile_differs && self.profile_named {
            differing.push("profile");
        }
        // A lease holds off both deadlines. Idle time counts from the end of the lease.
        let held_until = self.held_until.unwrap_or(0);
        let (ends_at, idle_at) = (self.ends_at.max(held_until), self.used_at.max(held_until) + self.idle_timeout);
        // A paused sandbox is not idle. A sandbox that is paused when idle does not end by idleness.
        let idles = !matches!(self.has, Has::Asleep { paused: true, .. }) && self.on_expire != OnExpire::Pause;
        let over = match (ends_at <= self.now, idle_at <= self.now && idles) {
            (true, true) => Some(if ends_at <= idle_at { Reason::Expired } else { Reason::Idle }),
            (true, false) => Some(Reason::Expired),
            (false, true) => Some(Reason::Idle),
            (false, false) => None,
        };
        let trusted = (0..=self.trust).contains(&(self.now - self.seen_at));
        match (self.has, over) {
            (Has::Unknown, _) => Admission::Do(CreateWork::Discover),
            (Has::Absent, _) => Admission::Do(CreateWork::Launch),
            (Has::Removal, _) => Admission::Do(CreateWork::QueueSuccessor),
            (Has::Failure(reason) | Has::Stopped(reason) | Has::Ending(reason, _), _)
            | (Has::Sandbox | Has::Asleep { .. }, Some(reason)) => Admission::Do(CreateWork::Replace(reason)),
            // From here on a sandbox exists or is coming, and the request must match it.
            _ if !differing.is_empty() => {
                Admission::Refused(Refusal { session: self.sandbox().session, fields: differing })
            }
            (Has::Launch, _) => Admission::Do(CreateWork::JoinLaunch),
            (Has::RemovalWithSuccessor, _) => Admission::Do(CreateWork::JoinSuccessor),
            (Has::Asleep { .. }, None) => Admission::Do(CreateWork::Wake),
            (Has::Sandbox, None) if trusted => Admission::AlreadyDone,
            (Has::Sandbox, None) => Admission::Do(CreateWork::Verify),
        }
    }

    fn delete(&self) -> Admission<DeleteWork> {
        match self.has {
            Has::Unknown => Admission::Do(DeleteWork::Discover),
            Has::Absent => Admission::AlreadyDone,
            Has::Launch => Admission::Do(DeleteWork::Cancel),
            Has::Sandbox | Has::Asleep { .. } | Has::Ending(..) | Has::Failure(_) | Has::Stopped(_) => {
                Admission::Do(DeleteWork::Remove)
            }
            Has::Removal | Has::RemovalWithSuccessor => Admission::Do(DeleteWork::JoinRemoval),
        }
    }

    fn request(&self) -> CreateRequest {
        let mut request = request();
        request.profile_named = self.profile_named;
        request.workspace = self.workspaces[1].map(workspace);
        if self.agent_differs {
            request.agent = "another".parse().unwrap();
        }
        request.volume = self.volumes[1].map(volume);
        if self.profile_differs {
            Arc::make_mut(&mut request.profile).name = "another".parse().unwrap();
        }
        request
    }

    fn sandbox(&self) -> Sandbox {
        let request = request();
        Sandbox {
            session: "0b58dd1e-5d3c-4ec5-9b7c-3c1bfb8ee0c1".parse().unwrap(),
            chat: request.chat,
            agent: request.agent,
            workspace: self.workspaces[0].map(workspace),
            volume: self.volumes[0].map(volume),
            profile: request.profile.name.clone(),
            image: request.profile.image.clone(),
            snapshot: None,
            container_name: ContainerName::of(&"default".parse().unwrap(), request.chat),
            container: Some(ContainerId::new("container")),
            endpoint: None,
            status: if let Has::Asleep { paused: true, .. } = self.has { Status::Paused } else { Status::Running },
            reason: if let Has::Failure(reason) | Has::Stopped(reason) = self.has { reason } else { Reason::Ready },
            message: None,
            created_at: at(0),
            started_at: Some(at(0)),
            last_activity_at: at(self.used_at),
            expires_at: at(self.ends_at),
            idle_timeout: seconds(self.idle_timeout),
            held_until: self.held_until.map(at),
            held_by: Vec::new(),
            durable_leases: Vec::new(),
        }
    }

    fn phase(&self) -> Phase {
        let sandbox = self.sandbox();
        let request = Box::new(request());
        let deleting = |successor| {
            Phase::Deleting(Box::new(Deleting {
                snapshot: None,
                sandbox: Sandbox { session: SessionId::random(), ..self.sandbox() },
                deleters: vec![],
                failed: None,
                successor,
                step: RemovalStep::Removing,
                graceful: true,
                recorded: true,
                attempt: 0,
            }))
        };
        let (outcome, waiters) = (Outcome::Created, vec![]);
        match self.has {
            Has::Unknown => Phase::Unknown(Unknown::default()),
            Has::Absent => Phase::Absent,
            Has::Launch => {
                let origin = Origin::Request {
                    request,
                    outcome,
                    waiters,
                    saving: None,
                    launch: crate::domain::outcome::Launch::Cold,
                };
                Phase::Creating(Box::new(Creating { sandbox, origin }))
            }
            Has::Sandbox => Phase::Running(Box::new(Running::new(sandbox, at(self.seen_at)))),
            Has::Asleep { paused, switching } => {
                let switch = if paused { Switch::Resume } else { Switch::Pause };
                let (reason, saving, waiting) = (Reason::Requested, None, vec![]);
                let switching = switching.then_some(Switching { switch, reason, saving, waiting });
                Phase::Running(Box::new(Running { switching, ..Running::new(sandbox, at(self.seen_at)) }))
            }
            Has::Ending(reason, retry_at) => {
                let stopping = Some(Stopping { reason, retry_at: retry_at.map(at) });
                Phase::Running(Box::new(Running { stopping, ..Running::new(sandbox, at(self.seen_at)) }))
            }
            Has::Failure(_) => Phase::Failed(Box::new(Failed { sandbox, restarts: 0 })),
            Has::Stopped(_) => Phase::Stopped(Box::new(sandbox)),
            Has::Removal => deleting(None),
            Has::RemovalWithSuccessor => deleting(Some(Successor { sandbox, request, waiters, outcome })),
        }
    }
}

fn workspace(number: u8) -> WorkspaceId {
    WorkspaceId::new(uuid::Uuid::from_u128(number.into()))
}

fn volume(number: u8) -> HostPath {
    HostPath::from_canonical(&Path::new("/data").join(number.to_string())).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + chrono::TimeDelta::seconds(seconds)
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn a_create_is_admitted_as_the_model_says(facts in facts()) {
        let admission = create(&facts.phase(), &facts.request(), at(facts.now), seconds(facts.trust), facts.on_expire);
        prop_assert_eq!(admission, facts.create());
    }

    #[test]
    fn a_delete_is_admitted_as_the_model_says(facts in facts()) {
        prop_assert_eq!(delete(&facts.phase()), facts.delete());
    }
}
