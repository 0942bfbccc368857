//! Claims: making a slot the sandbox of a chat.
//!
//! ```text
//! take ─┬─ is the image still the profile's? ───────┬─▶ claim ─┬─ copy ──┬─┬─▶ claim and record committed, answered
//!       └─ the chat's directory ─▶ mounts ─▶ program ┘          └─ ready ─┘ └─▶ rename to the chat's name
//! ```
//!
//! A failure before the claim is copied does not fail the create: the slot is removed, and a container is created
//! instead. The claim is committed together with the sandbox's record, so a warm create costs one flush. No create
//! waits for the rename, which takes an engine some milliseconds: a container without its chat's name is found by its
//! claim, see [`discover`](crate::chat::effects::discover::discover).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::addresses::Address;
use crate::chat::World;
use crate::chat::effects::readiness::wait_until_ready;
use crate::chat::events::{LaunchFailure, Launched, Remains};
use crate::domain::container::{Binding, compose_binding};
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{ContainerId, ContainerName, SessionId};
use crate::domain::outcome::{Launch, StartFailure};
use crate::domain::profile::Network;
use crate::domain::sandbox::Endpoint;
use crate::engine::bounded::Bounded;
use crate::pool::actor::Message;
use crate::pool::claims::Claim;
use crate::ports::clock::Timestamp;
use crate::ports::slot::{NotBound, Slot};
use crate::sandboxes::ask_within;

/// The time limit for the pool, which answers at once or not at all.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Launches a sandbox by claiming a slot. Returns `None` if there is no slot, or if it could not be bound. The slot
/// then does not block a new container of the chat.
pub async fn claim(
    world: &World,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
    cancelled: &CancellationToken,
) -> Option<Result<Launched, LaunchFailure>> {
    let (chat, profile) = (request.chat, request.profile.name.clone());
    let pool = world.addresses.pool(&profile)?;
    let slot = ask_within(&pool.actor()?, ANSWER_LIMIT, |slot| Message::Claim { chat, slot }).await.flatten()?;
    let mut handed_out = HandedOut { pool, slot: slot.clone(), bound: false };
    let container = slot.container.clone();
    let started = async {
        world.slots.take(slot.id, session).await.map_err(not_bound)?;
        let binding = bind(world, request, session, created_at, &slot).await?;
        let ready = wait_until_ready(world, &container, slot.address, &request.profile);
        let ready = cancelled.run_until_cancelled(ready);
        let claim = Arc::new(Claim::new(&slot, session, chat, &binding));
        world.claims.insert(Arc::clone(&claim));
        // The copy is written while the program starts.
        let remember = async { world.slots.remember(&claim).await.map_err(not_bound) };
        let (ready, copied) = tokio::join!(ready, remember);
        copied.map(|()| (ready.unwrap_or(Err(StartFailure::Deleted)), claim))
    };
    let (ready, claim) = match started.await {
        Ok(started) => started,
        Err(error) => {
            tracing::warn!(slot.id = %slot.id, container.id = %container, %error, "claimed slot not bound; removing it");
            // The pool keeps a slot that has a claim, so the claim is removed before the pool is notified.
            world.remove_session(session).await;
            drop(handed_out);
            return None;
        }
    };
    handed_out.bound = true;
    drop(handed_out);
    if ready.is_ok() {
        tokio::spawn(rename(world.engine.clone(), container.clone(), ContainerName::of(&world.instance, chat)));
    }
    let endpoint = match request.profile.network {
        Network::Blocked => None,
        Network::Named(_) => slot.address.map(|ip| Endpoint { ip, port: request.profile.port }),
    };
    let started_at = world.clock.now();
    Some(match ready {
        Ok(()) => Ok(Launched::Started { container, endpoint, started_at, launch: Launch::Warm, claim: Some(claim) }),
        Err(failure) => Err(LaunchFailure { failure, remains: Remains::Container(container) }),
    })
}

/// Binds the slot to the chat. Independent steps run concurrently.
async fn bind(
    world: &World,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
    slot: &Slot,
) -> Result<Binding, NotBound> {
    let is_current = async {
        let image = world.engine.image_id(&request.profile.image).await.map_err(not_bound)?;
        let same = image.as_deref() == Some(slot.image_id.as_str());
        if same { Ok(()) } else { Err(NotBound("the image was rebuilt meanwhile".to_owned())) }
    };
    let prepare = async {
        let directory = world.directories.prepare(request.chat, request.profile.user).await.map_err(not_bound)?;
        let binding = compose_binding(&world.instance, &world.mounts, request, directory, session, created_at);
        world.slots.bind(slot.id, session, &binding).await?;
        Ok(binding)
    };
    // Both steps run to their end, so that a removed slot is not changed any more.
    let (current, prepared) = tokio::join!(is_current, prepare);
    let binding = prepared?;
    current.map(|()| binding)
}

/// The delay before a rename. An engine writes to disk for it, and the answer of the create waits for the same disk.
const RENAME_DELAY: Duration = Duration::from_millis(50);

/// Renames a claimed container. A failed rename is retried with the next listing.
pub(crate) async fn rename(engine: Bounded, container: ContainerId, name: ContainerName) {
    tokio::time::sleep(RENAME_DELAY).await;
    if let Err(error) = engine.rename(&container, &name).await {
        tracing::debug!(
            container.id = %container, container.name = %name, %error,
            "claimed slot not renamed; retrying with the next listing"
        );
    }
}

fn not_bound(error: impl std::fmt::Display) -> NotBound {
    NotBound(error.to_string())
}

/// Reports the outcome of a claim to the pool, also if the claim is cancelled.
struct HandedOut {
    pool: Address<Message>,
    slot: Slot,
    bound: bool,
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        let Slot { id: slot, container, .. } = self.slot.clone();
        self.pool.cast(Message::Settled { slot, container, bound: self.bound });
    }
}
