//! From parameters to a call: every field is checked here, once, and a wrong one is named.

use std::collections::BTreeMap;
use std::time::Duration;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::ids::{AgentId, ChatId, LeaseId, ProfileName, SnapshotId, WorkspaceId};
use sandboxd_actors::domain::snapshot::SnapshotLabel;
use serde::Deserialize;

use super::error::{Error, Kind};
use super::fields::{NoFields, duration, fields, optional, required, required_duration};
use super::images::{self, ImageCall};
use super::listing::{Filter, ListFields};
use super::method::Method;
use super::pools::{Hint, HintFields, PoolFields};
use super::request::Text;
use crate::protocol::guest::{self, Exec, GuestRequest, SyncFields};

/// What a caller asks for, as far as it can be checked without knowing this host.
#[derive(Debug, PartialEq)]
pub enum Call {
    Create(Box<Create>),
    Get(ChatId),
    List {
        after: Option<ChatId>,
        limit: usize,
        filter: Filter,
    },
    Renew {
        chat: ChatId,
        ttl: Duration,
    },
    Touch(ChatId),
    Pause(ChatId),
    Resume(ChatId),
    Lease {
        chat: ChatId,
        duration: Duration,
        durable: bool,
    },
    Release {
        chat: ChatId,
        lease: LeaseId,
    },
    /// With a snapshot first, or without, or as its profile says.
    Delete {
        chat: ChatId,
        snapshot: Option<bool>,
        /// Removes the chat's directory as well.
        purge: bool,
    },
    Snapshot {
        chat: ChatId,
        label: Option<SnapshotLabel>,
    },
    Snapshots(Snapshots),
    DeleteSnapshot(SnapshotId),
    GuestRequest(ChatId, GuestRequest),
    Hint(Hint),
    Pools,
    /// Of this profile, or of all.
    DrainPools(Option<ProfileName>),
    FillPools(Option<ProfileName>),
    Image(ImageCall),
    Watch(Watch),
    Health,
    Info,
    Doctor,
    Reconcile {
        dry_run: bool,
    },
}

#[derive(Debug, PartialEq)]
pub struct Create {
    pub chat: ChatId,
    pub agent: AgentId,
    pub workspace: Option<WorkspaceId>,
    /// As the caller wrote it.
    pub volume: Option<String>,
    pub profile: Option<ProfileName>,
    /// What the sandbox begins with.
    pub snapshot: Option<SnapshotId>,
    pub environment: Environment,
    pub ttl: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    /// What is run in a new sandbox before anything else may write.
    pub sync: Option<Box<Exec>>,
}

/// Which snapshots somebody wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshots {
    /// Of this chat alone.
    pub chat: Option<ChatId>,
    /// Only those that were made before this one.
    pub after: Option<SnapshotId>,
    pub limit: usize,
}

/// Which events somebody wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// The last event that is known already; without it, only what happens from now on is wanted.
    pub after: Option<u64>,
    /// Of this chat alone.
    pub chat: Option<ChatId>,
}

/// How many sandboxes or snapshots one page has.
pub const DEFAULT_PAGE: usize = 100;
pub const MAX_PAGE: usize = 1000;

impl Call {
    pub fn parse(method: Method, params: Option<&str>) -> Result<Call, Error> {
        let params = params.unwrap_or("{}");
        if let Some((chat, inside)) = guest::parse(method, params)? {
            return Ok(Call::GuestRequest(chat, inside));
        }
        if let Some(image) = images::parse(method, params)? {
            return Ok(Call::Image(image));
        }
        match method {
            Method::SandboxCreate => {
                fields::<CreateFields<'_>>(params)?.checked().map(|create| Call::Create(Box::new(create)))
            }
            Method::SandboxGet => fields::<ChatFields<'_>>(params)?.checked().map(Call::Get),
            Method::SandboxDelete => fields::<DeleteFields<'_>>(params)?.checked(),
            Method::SandboxSnapshot => fields::<SnapshotFields<'_>>(params)?.checked(),
            Method::SnapshotList => fields::<SnapshotsFields<'_>>(params)?.checked(),
            Method::SnapshotDelete => fields::<DeleteSnapshotFields<'_>>(params)?.checked(),
            Method::SandboxList => fields::<ListFields<'_>>(params)?.checked(),
            Method::SystemHealth => fields::<NoFields>(params).map(|NoFields {}| Call::Health),
            Method::SystemInfo => fields::<NoFields>(params).map(|NoFields {}| Call::Info),
            Method::SystemDoctor => fields::<NoFields>(params).map(|NoFields {}| Call::Doctor),
            Method::SandboxRenew => fields::<RenewFields<'_>>(params)?.checked(),
            Method::SandboxTouch => fields::<ChatFields<'_>>(params)?.checked().map(Call::Touch),
            Method::SandboxPause => fields::<ChatFields<'_>>(params)?.checked().map(Call::Pause),
            Method::SandboxResume => fields::<ChatFields<'_>>(params)?.checked().map(Call::Resume),
            Method::SandboxLease => fields::<LeaseFields<'_>>(params)?.checked(),
            Method::SandboxRelease => fields::<ReleaseFields<'_>>(params)?.checked(),
            Method::EventsWatch => fields::<WatchFields<'_>>(params)?.checked().map(Call::Watch),
            Method::SandboxHint => fields::<HintFields<'_>>(params)?.checked().map(Call::Hint),
            Method::PoolStatus => fields::<NoFields>(params).map(|NoFields {}| Call::Pools),
            Method::PoolDrain => fields::<PoolFields<'_>>(params)?.checked().map(Call::DrainPools),
            Method::PoolFill => fields::<PoolFields<'_>>(params)?.checked().map(Call::FillPools),
            Method::SystemReconcile => fields::<ReconcileFields>(params).map(ReconcileFields::checked),
            // All others are about the inside or about images.
            _ => Err(Kind::MethodNotFound.error(method.name())),
        }
    }

    /// The chat it is about, if it is about one.
    pub fn chat(&self) -> Option<ChatId> {
        match self {
            Call::Create(create) => Some(create.chat),
            Call::Get(chat)
            | Call::Touch(chat)
            | Call::Pause(chat)
            | Call::Resume(chat)
            | Call::Delete { chat, .. }
            | Call::Snapshot { chat, .. }
            | Call::Renew { chat, .. }
            | Call::Lease { chat, .. }
            | Call::GuestRequest(chat, _)
            | Call::Release { chat, .. } => Some(*chat),
            Call::Watch(watch) => watch.chat,
            Call::Snapshots(snapshots) => snapshots.chat,
            Call::Hint(hint) => hint.chat,
            Call::List { .. }
            | Call::DeleteSnapshot(_)
            | Call::Pools
            | Call::DrainPools(_)
            | Call::FillPools(_)
            | Call::Image(_) => None,
            Call::Health | Call::Info | Call::Doctor | Call::Reconcile { .. } => None,
        }
    }
}

// Every field is optional to serde, so that a missing one is reported by the same means as a wrong one.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    #[serde(borrow)]
    agent_id: Option<Text<'a>>,
    #[serde(borrow)]
    workspace_id: Option<Text<'a>>,
    #[serde(borrow)]
    volume_host_path: Option<Text<'a>>,
    #[serde(borrow)]
    profile: Option<Text<'a>>,
    #[serde(borrow)]
    snapshot_id: Option<Text<'a>>,
    env: Option<BTreeMap<String, String>>,
    ttl: Option<f64>,
    idle_timeout: Option<f64>,
    git: Option<GitIdentity>,
    sync: Option<SyncFields>,
}

/// Whom commits in the sandbox are by.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GitIdentity {
    name: String,
    email: String,
}

impl GitIdentity {
    /// As git takes it from the environment, which every command in the sandbox has.
    fn variables(self) -> Result<[(&'static str, String); 4], Error> {
        for (field, value) in [("git.name", &self.name), ("git.email", &self.email)] {
            if value.trim().is_empty() || value.contains(['\0', '\n', '<', '>']) {
                let message = "must not be blank, nor contain a line break or an angle bracket";
                return Err(Error::invalid_params(field, message));
            }
        }
        let Self { name, email } = self;
        Ok([
            ("GIT_AUTHOR_NAME", name.clone()),
            ("GIT_AUTHOR_EMAIL", email.clone()),
            ("GIT_COMMITTER_NAME", name),
            ("GIT_COMMITTER_EMAIL", email),
        ])
    }
}

impl CreateFields<'_> {
    fn checked(self) -> Result<Create, Error> {
        let mut environment =
            Environment::checked(self.env.unwrap_or_default()).map_err(|error| Error::invalid_params("env", error))?;
        if let Some(identity) = self.git {
            for (name, value) in identity.variables()? {
                environment = environment.with(name, &value);
            }
        }
        Ok(Create {
            chat: required("chat_id", self.chat_id)?,
            agent: required("agent_id", self.agent_id)?,
            workspace: optional("workspace_id", self.workspace_id)?,
            volume: optional("volume_host_path", self.volume_host_path)?,
            profile: optional("profile", self.profile)?,
            snapshot: optional("snapshot_id", self.snapshot_id)?,
            environment,
            ttl: duration("ttl", self.ttl)?,
            idle_timeout: duration("idle_timeout", self.idle_timeout)?,
            sync: self.sync.map(SyncFields::checked).transpose()?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
}

impl ChatFields<'_> {
    fn checked(self) -> Result<ChatId, Error> {
        required("chat_id", self.chat_id)
    }
}

/// How many are to be on one page.
pub(super) fn page(limit: Option<u64>) -> Result<usize, Error> {
    match limit {
        None => Ok(DEFAULT_PAGE),
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| (1..=MAX_PAGE).contains(limit))
            .ok_or_else(|| Error::invalid_params("limit", format!("must be from 1 to {MAX_PAGE}, got {limit}"))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    snapshot: Option<bool>,
    purge: Option<bool>,
}

impl DeleteFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        let (chat, purge) = (required("chat_id", self.chat_id)?, self.purge.unwrap_or_default());
        Ok(Call::Delete { chat, snapshot: self.snapshot, purge })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    #[serde(borrow)]
    label: Option<Text<'a>>,
}

impl SnapshotFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        Ok(Call::Snapshot { chat: required("chat_id", self.chat_id)?, label: optional("label", self.label)? })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotsFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    limit: Option<u64>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
}

impl SnapshotsFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        let (chat, after) = (optional("chat_id", self.chat_id)?, optional("after", self.after)?);
        Ok(Call::Snapshots(Snapshots { chat, after, limit: page(self.limit)? }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteSnapshotFields<'a> {
    #[serde(borrow)]
    snapshot_id: Option<Text<'a>>,
}

impl DeleteSnapshotFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        required("snapshot_id", self.snapshot_id).map(Call::DeleteSnapshot)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    ttl: Option<f64>,
}

impl RenewFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        Ok(Call::Renew { chat: required("chat_id", self.chat_id)?, ttl: required_duration("ttl", self.ttl)? })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    duration: Option<f64>,
    durable: Option<bool>,
}

impl LeaseFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        Ok(Call::Lease {
            chat: required("chat_id", self.chat_id)?,
            duration: required_duration("duration", self.duration)?,
            durable: self.durable.unwrap_or_default(),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    #[serde(borrow)]
    lease_id: Option<Text<'a>>,
}

impl ReleaseFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        Ok(Call::Release { chat: required("chat_id", self.chat_id)?, lease: required("lease_id", self.lease_id)? })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchFields<'a> {
    after: Option<u64>,
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
}

impl WatchFields<'_> {
    fn checked(self) -> Result<Watch, Error> {
        // A journal counts with signed numbers; what it cannot have written cannot be asked for.
        match self.after {
            Some(after) if i64::try_from(after).is_err() => {
                Err(Error::invalid_params("after", format!("must be the number of an event, got {after}")))
            }
            after => Ok(Watch { after, chat: optional("chat_id", self.chat_id)? }),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReconcileFields {
    dry_run: Option<bool>,
}

impl ReconcileFields {
    fn checked(self) -> Call {
        Call::Reconcile { dry_run: self.dry_run.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests;
