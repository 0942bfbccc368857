//! Checks of parameters: the only place that does so. An error names the parameter.

use std::time::Duration;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::ids::{AgentId, ChatId, LeaseId, ProfileName, SnapshotId, WorkspaceId};
use sandboxd_actors::domain::snapshot::SnapshotLabel;
use sandboxd_protocol::error::Error;
use sandboxd_protocol::event::WatchParams;
use sandboxd_protocol::method::{Method, Request};
use sandboxd_protocol::sandbox::{CreateParams, GitIdentity, HintParams};
use sandboxd_protocol::snapshot::SnapshotListParams;

use super::check::{self, optional, optional_duration};
use super::guest::{Exec, GuestRequest};
use super::images::ImageCall;
use super::listing::Filter;
use super::pools::Hint;

/// A request whose parameters are checked, as far as possible without knowledge of this host.
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
    /// `snapshot`: take one first or not; as the profile says if absent.
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
    /// The pool of this profile, or all pools.
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
    /// The path as the caller wrote it.
    pub volume: Option<String>,
    pub profile: Option<ProfileName>,
    /// The snapshot that the sandbox is restored from.
    pub snapshot: Option<SnapshotId>,
    pub environment: Environment,
    pub ttl: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    /// The command that runs in a new sandbox before other requests may write.
    pub sync: Option<Box<Exec>>,
}

/// The snapshots to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshots {
    /// Only the snapshots of this chat.
    pub chat: Option<ChatId>,
    /// Only the snapshots that are older than this one.
    pub after: Option<SnapshotId>,
    pub limit: usize,
}

/// The events to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// The last event that the caller knows; only new events if absent.
    pub after: Option<u64>,
    /// Only the events of this chat.
    pub chat: Option<ChatId>,
}

/// The number of sandboxes or snapshots in a page.
pub const DEFAULT_PAGE: usize = 100;
pub const MAX_PAGE: usize = 1000;

impl Call {
    /// Parses and checks the parameters of a method.
    pub fn parse(method: Method, params: Option<&str>) -> Result<Call, Error> {
        Request::parse(method, params.unwrap_or("{}")).and_then(Call::checked)
    }

    /// Checks the parameters of a request.
    pub fn checked(request: Request) -> Result<Call, Error> {
        let chat = |id: &str| check::parse("chat_id", id);
        let guest = |id: &str, request: GuestRequest| Ok(Call::GuestRequest(chat(id)?, request));
        let profile = |name: Option<String>| optional("profile", name.as_deref());
        match request {
            Request::SandboxCreate(given) => Create::checked(given).map(|create| Call::Create(Box::new(create))),
            Request::SandboxGet(given) => chat(&given.chat_id).map(Call::Get),
            Request::SandboxList(given) => Ok(Call::List {
                after: optional("after", given.after.as_deref())?,
                limit: page(given.limit)?,
                filter: Filter::checked(&given)?,
            }),
            Request::SandboxRenew(given) => {
                Ok(Call::Renew { chat: chat(&given.chat_id)?, ttl: check::duration("ttl", given.ttl)? })
            }
            Request::SandboxTouch(given) => chat(&given.chat_id).map(Call::Touch),
            Request::SandboxPause(given) => chat(&given.chat_id).map(Call::Pause),
            Request::SandboxResume(given) => chat(&given.chat_id).map(Call::Resume),
            Request::SandboxLease(given) => Ok(Call::Lease {
                chat: chat(&given.chat_id)?,
                duration: check::duration("duration", given.duration)?,
                durable: given.durable.unwrap_or_default(),
            }),
            Request::SandboxRelease(given) => {
                Ok(Call::Release { chat: chat(&given.chat_id)?, lease: check::parse("lease_id", &given.lease_id)? })
            }
            Request::SandboxDelete(given) => {
                let (snapshot, purge) = (given.snapshot, given.purge.unwrap_or_default());
                Ok(Call::Delete { chat: chat(&given.chat_id)?, snapshot, purge })
            }
            Request::SandboxSnapshot(given) => {
                Ok(Call::Snapshot { chat: chat(&given.chat_id)?, label: optional("label", given.label.as_deref())? })
            }
            Request::SnapshotList(given) => Snapshots::checked(&given).map(Call::Snapshots),
            Request::SnapshotDelete(given) => check::parse("snapshot_id", &given.snapshot_id).map(Call::DeleteSnapshot),
            Request::SandboxHint(given) => Hint::checked(&given).map(Call::Hint),
            Request::SandboxExec(given) => {
                let id = given.chat_id.clone();
                guest(&id, GuestRequest::Exec(Box::new(Exec::checked(given)?)))
            }
            Request::SandboxRunCode(given) => {
                let id = given.chat_id.clone();
                guest(&id, GuestRequest::run_code(given)?)
            }
            Request::SandboxAttach(given) => guest(&given.chat_id, GuestRequest::attach(&given)?),
            Request::SandboxCommands(given) => guest(&given.chat_id, GuestRequest::Commands),
            Request::SandboxKill(given) => guest(&given.chat_id, GuestRequest::kill(&given)?),
            Request::SandboxInput(given) => {
                let (command, end) = (given.command_id, given.end.unwrap_or_default());
                let bytes = check::bytes(given.text, given.base64)?.unwrap_or_default();
                guest(&given.chat_id, GuestRequest::Input { command, bytes, end })
            }
            Request::SandboxResize(given) => {
                let (command, rows, columns) = (given.command_id, given.rows, given.columns);
                guest(&given.chat_id, GuestRequest::Resize { command, rows, columns })
            }
            Request::SandboxReadFile(given) => {
                let id = given.chat_id.clone();
                guest(&id, GuestRequest::read_file(given)?)
            }
            Request::SandboxWriteFile(given) => {
                let id = given.chat_id.clone();
                guest(&id, GuestRequest::write_file(given)?)
            }
            Request::SandboxListFiles(given) => {
                guest(&given.chat_id, GuestRequest::ListFiles { path: check::path("path", given.path)? })
            }
            Request::SandboxStatFile(given) => {
                guest(&given.chat_id, GuestRequest::StatFile { path: check::path("path", given.path)? })
            }
            Request::SandboxMakeDirectory(given) => {
                let (path, mode) = (check::path("path", given.path)?, check::mode(given.mode)?);
                let parents = given.parents.unwrap_or_default();
                guest(&given.chat_id, GuestRequest::MakeDirectory { path, mode, parents })
            }
            Request::SandboxRemoveFile(given) => {
                let (path, recursive) = (check::path("path", given.path)?, given.recursive.unwrap_or_default());
                guest(&given.chat_id, GuestRequest::RemoveFile { path, recursive })
            }
            Request::SandboxMoveFile(given) => {
                let (from, to) = (check::path("from", given.from)?, check::path("to", given.to)?);
                guest(&given.chat_id, GuestRequest::MoveFile { from, to })
            }
            Request::SandboxReadTree(given) => {
                guest(&given.chat_id, GuestRequest::ReadTree { path: check::path("path", given.path)? })
            }
            Request::SandboxWriteTree(given) => {
                let (path, parents) = (check::path("path", given.path)?, given.parents.unwrap_or_default());
                guest(&given.chat_id, GuestRequest::WriteTree { path, parents })
            }
            Request::SandboxLogs(given) => guest(&given.chat_id, GuestRequest::logs(&given)),
            Request::SandboxStats(given) => guest(&given.chat_id, GuestRequest::stats(&given)?),
            Request::PoolStatus(_) => Ok(Call::Pools),
            Request::PoolDrain(given) => profile(given.profile).map(Call::DrainPools),
            Request::PoolFill(given) => profile(given.profile).map(Call::FillPools),
            Request::ImageList(_) => Ok(Call::Image(ImageCall::List)),
            Request::ImagePull(given) => ImageCall::pull(given).map(Call::Image),
            Request::ImageBuild(given) => ImageCall::build(given).map(Call::Image),
            Request::ImageRefresh(given) => {
                let force = given.force.unwrap_or_default();
                Ok(Call::Image(ImageCall::Refresh { repository: given.repository, force }))
            }
            Request::ImagePrune(given) => {
                Ok(Call::Image(ImageCall::Prune { dry_run: given.dry_run.unwrap_or_default() }))
            }
            Request::EventsWatch(given) => Watch::checked(&given).map(Call::Watch),
            Request::SystemHealth(_) => Ok(Call::Health),
            Request::SystemInfo(_) => Ok(Call::Info),
            Request::SystemDoctor(_) => Ok(Call::Doctor),
            Request::SystemReconcile(given) => Ok(Call::Reconcile { dry_run: given.dry_run.unwrap_or_default() }),
        }
    }

    /// Returns the chat of the call, if it concerns a single chat.
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

impl Create {
    fn checked(given: CreateParams) -> Result<Self, Error> {
        let mut environment =
            Environment::checked(given.env.unwrap_or_default()).map_err(|error| Error::invalid_params("env", error))?;
        if let Some(identity) = given.git {
            for (name, value) in git_variables(identity)? {
                environment = environment.with(name, &value);
            }
        }
        Ok(Create {
            chat: check::parse("chat_id", &given.chat_id)?,
            agent: check::parse("agent_id", &given.agent_id)?,
            workspace: optional("workspace_id", given.workspace_id.as_deref())?,
            volume: given.volume_host_path,
            profile: optional("profile", given.profile.as_deref())?,
            snapshot: optional("snapshot_id", given.snapshot_id.as_deref())?,
            environment,
            ttl: optional_duration("ttl", given.ttl)?,
            idle_timeout: optional_duration("idle_timeout", given.idle_timeout)?,
            sync: given.sync.map(Exec::of_sync).transpose()?.map(Box::new),
        })
    }
}

/// Returns the variables through which git learns the author and committer in every command of the sandbox.
fn git_variables(GitIdentity { name, email }: GitIdentity) -> Result<[(&'static str, String); 4], Error> {
    for (field, value) in [("git.name", &name), ("git.email", &email)] {
        if value.trim().is_empty() || value.contains(['\0', '\n', '<', '>']) {
            let message = "must not be blank, nor contain a line break or an angle bracket";
            return Err(Error::invalid_params(field, message));
        }
    }
    Ok([
        ("GIT_AUTHOR_NAME", name.clone()),
        ("GIT_AUTHOR_EMAIL", email.clone()),
        ("GIT_COMMITTER_NAME", name),
        ("GIT_COMMITTER_EMAIL", email),
    ])
}

/// Returns the number of items on a page.
fn page(limit: Option<u64>) -> Result<usize, Error> {
    match limit {
        None => Ok(DEFAULT_PAGE),
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| (1..=MAX_PAGE).contains(limit))
            .ok_or_else(|| Error::invalid_params("limit", format!("must be from 1 to {MAX_PAGE}, got {limit}"))),
    }
}

impl Snapshots {
    fn checked(given: &SnapshotListParams) -> Result<Self, Error> {
        let chat = optional("chat_id", given.chat_id.as_deref())?;
        Ok(Self { chat, after: optional("after", given.after.as_deref())?, limit: page(given.limit)? })
    }
}

impl Hint {
    fn checked(given: &HintParams) -> Result<Self, Error> {
        Ok(Hint {
            profile: optional("profile", given.profile.as_deref())?,
            chat: optional("chat_id", given.chat_id.as_deref())?,
            ttl: optional_duration("ttl", given.ttl)?.unwrap_or(Hint::DEFAULT_TTL),
        })
    }
}

impl Watch {
    fn checked(given: &WatchParams) -> Result<Self, Error> {
        // The journal counts with signed numbers.
        match given.after {
            Some(after) if i64::try_from(after).is_err() => {
                Err(Error::invalid_params("after", format!("must be the number of an event, got {after}")))
            }
            after => Ok(Watch { after, chat: optional("chat_id", given.chat_id.as_deref())? }),
        }
    }
}

#[cfg(test)]
mod tests;
