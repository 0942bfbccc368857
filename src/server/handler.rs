//! Executes calls: resolves profiles and host paths, calls the core, and converts the result to an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, InstanceName, ProfileName};
use sandboxd_actors::domain::outcome::SandboxError;
use sandboxd_actors::domain::profile::Profile;
use sandboxd_actors::domain::sandbox::Sandbox;
use sandboxd_actors::engine::bounded::Bounded;
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::sandboxes::Sandboxes;
use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::system::{ConnectionLimits, InfoResult};
use tokio_util::sync::CancellationToken;

use super::access::Role;
use super::leases::Leases;
use super::outbox::Ticket;
use super::snapshots::create_error;
use crate::doctor::Doctor;
use crate::guest::{GuestsOnDisk, GuestsViaEngine};
use crate::languages::Languages;
use crate::profiles::Profiles;
use crate::protocol::answer::{self, Answer, List};
use crate::protocol::error::{of_engine, of_sandbox, path_unavailable};
use crate::protocol::params::{Call, Create};
use crate::protocol::pools::Hint;
use crate::server::guest::{Attachments, GuestCall, Syncs};
use crate::storage::volumes::{VolumePolicy, VolumeRefused};

/// The profile of a create without a profile.
const DEFAULT_PROFILE: &str = "default";

/// The services that requests use.
pub struct Handler {
    pub instance: InstanceName,
    pub sandboxes: Sandboxes,
    pub guests: Arc<GuestsOnDisk>,
    /// For sandboxes without an init.
    pub guests_via_engine: GuestsViaEngine,
    pub engine: Bounded,
    pub doctor: Doctor,
    pub volumes: VolumePolicy,
    /// The directories that a build context may be in.
    pub contexts: VolumePolicy,
    pub profiles: Arc<Profiles>,
    pub languages: Languages,
    pub clock: Arc<dyn Clock>,
    /// The maximum duration of a lease.
    pub max_lease: Duration,
    pub attachments: Attachments,
    pub syncs: Syncs,
    pub started: Instant,
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Handler {
    /// Handles every call except guest requests, image requests and watches, which send notifications.
    pub(super) async fn handle(&self, call: Call, leases: &Leases, limits: ConnectionLimits) -> Result<Answer, Error> {
        match call {
            Call::Create(create) => {
                let request = self.resolve(*create).await?;
                let snapshot = request.snapshot;
                let created = self.sandboxes.create(request).await.map_err(|error| create_error(error, snapshot))?;
                Ok(Answer::Created(Box::new(answer::created(&created, self.clock.now()))))
            }
            Call::Get(chat) => self.sandbox_answer(self.sandboxes.find(chat).await),
            Call::Renew { chat, ttl } => self.sandbox_answer(self.sandboxes.renew(chat, ttl).await),
            // A touch resumes a paused sandbox.
            Call::Touch(chat) | Call::Resume(chat) => self.sandbox_answer(self.sandboxes.touch(chat).await),
            Call::Pause(chat) => self.sandbox_answer(self.sandboxes.pause(chat).await),
            Call::Lease { chat, duration, durable } => self.lease(chat, duration, durable, leases).await,
            Call::Release { chat, lease } => {
                let released = self.sandboxes.release(chat, lease).await;
                if released.is_ok() {
                    leases.remove(lease);
                }
                self.sandbox_answer(released)
            }
            Call::Delete { chat, snapshot, purge } => {
                let deletion = self.sandboxes.delete_with(chat, snapshot).await.map_err(of_sandbox)?;
                let purged = purge && self.sandboxes.purge(chat).await.map_err(of_sandbox)?;
                Ok(Answer::Deleted(answer::deletion(chat, &deletion, purged)))
            }
            Call::List { after, limit, filter } => {
                let mut page = self.sandboxes.list(after, limit).await.map_err(of_sandbox)?;
                page.sandboxes.retain(|sandbox| filter.matches(sandbox));
                let list = List::of(page, self.clock.now());
                list.map(Answer::List).map_err(|error| ErrorKind::Internal.error(error.to_string()))
            }
            Call::Snapshot { chat, label } => {
                let snapshot = self.sandboxes.snapshot(chat, label).await.map_err(of_sandbox)?;
                Ok(Answer::Snapshot(answer::snapshot(&snapshot)))
            }
            Call::Snapshots(query) => self.snapshots(query).await,
            Call::DeleteSnapshot(snapshot) => self.delete_snapshot(snapshot).await,
            Call::Watch(_) => Err(ErrorKind::InvalidRequest.error("a watch needs an id")),
            Call::Image(_) => Err(ErrorKind::Internal.error("an image request reached the wrong handler")),
            Call::GuestRequest(..) => Err(ErrorKind::Internal.error("a guest request reached the wrong handler")),
            Call::Hint(Hint { profile, chat, ttl }) => {
                let profile = self.profile(profile.as_ref())?.name.clone();
                let hinted = self.sandboxes.hint(profile.clone(), chat, ttl).await;
                Ok(Answer::Hinted(answer::hint(&profile, chat, hinted)))
            }
            Call::DrainPools(profile) => {
                let profile = self.named_profile(profile.as_ref())?;
                Ok(Answer::Pools(answer::pools(self.sandboxes.drain_pools(profile).await)))
            }
            Call::FillPools(profile) => {
                let profile = self.named_profile(profile.as_ref())?;
                Ok(Answer::Pools(answer::pools(self.sandboxes.fill_pools(profile).await)))
            }
            Call::Pools => Ok(Answer::Pools(answer::pools(self.sandboxes.pools().await))),
            Call::Health => {
                let (engine, sandboxes, state) =
                    tokio::join!(self.engine.identify(), self.sandboxes.count(), self.doctor.state_is_writable());
                Ok(Answer::Health(answer::health(engine, sandboxes, state)))
            }
            Call::Info => Ok(Answer::Info(self.info(limits).await)),
            Call::Doctor => Ok(Answer::Checks(self.doctor.examine().await)),
            Call::Reconcile { dry_run } => {
                let report = self.sandboxes.reconcile(Trigger::Request, dry_run).await;
                Ok(Answer::Reconciled(answer::report(&report.map_err(of_engine)?)))
            }
        }
    }

    pub(super) fn guest_call<'a>(
        &'a self,
        role: Role,
        ticket: Option<&'a Ticket>,
        disconnected: &'a CancellationToken,
        shutdown: &'a CancellationToken,
    ) -> GuestCall<'a> {
        GuestCall {
            sandboxes: &self.sandboxes,
            guests: &self.guests,
            guests_via_engine: &self.guests_via_engine,
            engine: &self.engine,
            languages: &self.languages,
            attachments: &self.attachments,
            syncs: &self.syncs,
            clock: &*self.clock,
            max_lease: self.max_lease,
            role,
            ticket,
            disconnected,
            shutdown,
        }
    }

    fn sandbox_answer(&self, outcome: Result<Sandbox, SandboxError>) -> Result<Answer, Error> {
        let sandbox = outcome.map_err(of_sandbox)?;
        Ok(Answer::Sandbox(Box::new(answer::sandbox(&sandbox, self.clock.now()))))
    }

    async fn lease(&self, chat: ChatId, duration: Duration, durable: bool, leases: &Leases) -> Result<Answer, Error> {
        if duration > self.max_lease {
            let most = self.max_lease.as_secs_f64();
            let got = duration.as_secs_f64();
            return Err(Error::invalid_params("duration", format!("must be at most {most} (leases.max), got {got}")));
        }
        let lease = Lease::of_caller(duration, durable);
        let sandbox = self.sandboxes.lease(chat, lease).await.map_err(of_sandbox)?;
        if !durable {
            leases.add(&self.sandboxes, chat, lease.id, duration).await;
        }
        let now = self.clock.now();
        // The chat may have shortened the lease: it ends at most the maximum after the sandbox's absolute deadline.
        let hold = sandbox.held_by.iter().find(|hold| hold.id == Some(lease.id));
        let until = hold.map_or(now, |hold| hold.until);
        Ok(Answer::Leased(Box::new(answer::leased(&sandbox, lease.id, until, now))))
    }

    async fn resolve(&self, create: Create) -> Result<CreateRequest, Error> {
        let volume = match &create.volume {
            Some(text) => match self.volume_in_use(create.chat, text).await {
                Some(volume) => Some(volume),
                None => Some(self.volumes.resolve(text).await.map_err(|why| path_error("volume_host_path", why))?),
            },
            None => None,
        };
        let profile_named = create.profile.is_some();
        let profile = match create.snapshot {
            None => self.profile(create.profile.as_ref())?,
            Some(id) => {
                let snapshot = self.find_snapshot(id).await?;
                // Without a named profile, the profile of the snapshot is used if it still exists.
                let before = Some(&snapshot.origin.profile).filter(|name| self.profiles.contains_key(*name));
                self.with_snapshot(self.profile(create.profile.as_ref().or(before))?, id)
            }
        };
        Ok(CreateRequest {
            chat: create.chat,
            agent: create.agent,
            workspace: create.workspace,
            volume,
            profile,
            profile_named,
            snapshot: create.snapshot,
            environment: create.environment,
            ttl: create.ttl,
            idle_timeout: create.idle_timeout,
        })
    }

    /// Returns the volume of the chat's sandbox if the caller names the same path. Such a path needs no lookup in the file
    /// system, which costs several times as much as the rest of a reuse. If the sandbox ends before the create reaches
    /// it, the check of the mounted directory still applies.
    async fn volume_in_use(&self, chat: ChatId, text: &str) -> Option<HostPath> {
        let volume = self.sandboxes.find(chat).await.ok()?.volume?;
        (volume.as_str() == text).then_some(volume)
    }

    /// Returns the profile that the caller names, if any. Fails if it does not exist.
    fn named_profile(&self, name: Option<&ProfileName>) -> Result<Option<ProfileName>, Error> {
        name.map(|name| self.profile(Some(name)).map(|profile| profile.name.clone())).transpose()
    }

    fn profile(&self, name: Option<&ProfileName>) -> Result<Arc<Profile>, Error> {
        let name = name.map_or(DEFAULT_PROFILE, ProfileName::as_str);
        let found = self.profiles.iter().find(|(known, _)| known.as_str() == name);
        found.map(|(_, profile)| Arc::clone(profile)).ok_or_else(|| {
            let known: Vec<_> = self.profiles.keys().map(ProfileName::as_str).collect();
            Error::invalid_params("profile", format!("there is no profile {name:?}; there are {}", known.join(", ")))
        })
    }

    async fn info(&self, limits: ConnectionLimits) -> InfoResult {
        InfoResult {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: sandboxd_protocol::VERSION,
            instance: self.instance.to_string(),
            uptime: self.started.elapsed().as_secs_f64(),
            engine: self.engine.identify().await.ok().map(answer::engine_info),
            profiles: self.profiles.keys().map(ToString::to_string).collect(),
            limits,
        }
    }
}

/// Maps the error of a host path that the caller gave in `field`.
pub(super) fn path_error(field: &str, why: VolumeRefused) -> Error {
    match why {
        VolumeRefused::Unavailable(_) => path_unavailable(field, why),
        why => Error::invalid_params(field, why),
    }
}
