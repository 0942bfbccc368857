//! From a call to its answer: what the protocol leaves open is settled here, on this host, and the core does the rest.

use std::sync::Arc;
use std::time::Instant;

use sandboxd_actors::engine::bounded::Bounded;
use sandboxd_actors::ids::{ChatId, InstanceName, ProfileName};
use sandboxd_actors::profile::Profile;
use sandboxd_actors::request::CreateRequest;
use sandboxd_actors::sandboxes::Sandboxes;

use crate::host_paths::VolumePolicy;
use crate::profiles::Profiles;
use crate::protocol;
use crate::protocol::answer::{Answer, Health, Info, LimitFields, List};
use crate::protocol::error::{Error, Kind};
use crate::protocol::params::{Call, Create};

/// The profile of a create that names none.
const DEFAULT_PROFILE: &str = "default";

/// All that a request may need.
#[derive(Debug)]
pub struct Handler {
    pub instance: InstanceName,
    pub sandboxes: Sandboxes,
    pub engine: Bounded,
    pub volumes: VolumePolicy,
    pub profiles: Arc<Profiles>,
    pub started: Instant,
}

impl Handler {
    pub(super) async fn handle(&self, call: Call, limits: LimitFields) -> Result<Answer, Error> {
        match call {
            Call::Create(create) => {
                let request = self.resolve(create)?;
                Ok(Answer::Created(self.sandboxes.create(request).await?))
            }
            Call::Get(chat) => self.sandboxes.get(chat).await?.map(Answer::Sandbox).ok_or_else(|| not_found(chat)),
            Call::Delete(chat) => Ok(Answer::Deletion(chat, self.sandboxes.delete(chat).await?)),
            Call::List { after, limit } => {
                let page = self.sandboxes.list(after, limit).await?;
                List::of(page).map(Answer::List).map_err(|error| Kind::Internal.error(error.to_string()))
            }
            Call::Health => {
                let (engine, sandboxes) = tokio::join!(self.engine.identify(), self.sandboxes.count());
                Ok(Answer::Health(Health::of(engine, sandboxes)))
            }
            Call::Info => Ok(Answer::Info(self.info(limits).await)),
        }
    }

    /// Looks at the host's file system, so it belongs into the request's own task.
    fn resolve(&self, create: Create) -> Result<CreateRequest, Error> {
        let volume = self
            .volumes
            .resolve(&create.volume)
            .map_err(|refused| Error::invalid_params("volume_host_path", refused))?;
        let profile_named = create.profile.is_some();
        Ok(CreateRequest {
            chat: create.chat,
            agent: create.agent,
            volume,
            profile: self.profile(create.profile.as_ref())?,
            profile_named,
            environment: create.environment,
            ttl: create.ttl,
            idle_timeout: create.idle_timeout,
        })
    }

    fn profile(&self, name: Option<&ProfileName>) -> Result<Arc<Profile>, Error> {
        let name = name.map_or(DEFAULT_PROFILE, ProfileName::as_str);
        let found = self.profiles.iter().find(|(known, _)| known.as_str() == name);
        found.map(|(_, profile)| Arc::clone(profile)).ok_or_else(|| {
            let known: Vec<_> = self.profiles.keys().map(ProfileName::as_str).collect();
            Error::invalid_params("profile", format!("there is no profile {name:?}; there are {}", known.join(", ")))
        })
    }

    async fn info(&self, limits: LimitFields) -> Info {
        Info {
            version: env!("CARGO_PKG_VERSION"),
            protocol: protocol::VERSION,
            instance: self.instance.to_string(),
            uptime: self.started.elapsed().as_secs_f64(),
            engine: self.engine.identify().await.ok().map(Into::into),
            profiles: self.profiles.keys().map(ToString::to_string).collect(),
            limits,
        }
    }
}

fn not_found(chat: ChatId) -> Error {
    Kind::SandboxNotFound.error(format!("chat {chat} has no sandbox")).with("chat_id", chat.to_string())
}
