//! Slots on disk: which there are, which were taken, and what became of them.
//!
//! ```text
//! <state.dir>/slots/<slot>/          a slot that is free: the same as a sandbox's directory, and
//!     place/                         empty, mounted where the chat's directories will be injected
//! <state.dir>/slots/<slot>           taken: a link to the session's directory
//! <state.dir>/sandboxes/<session>/
//!     claim                          what the slot was bound with, once it is the session's
//! ```
//!
//! Taking a slot is one rename, so it is taken once. A claim holds the session's environment, as the engine's own files do
//! for a container that was made for its chat; only the service's user reads it. None of this needs to be flushed to disk:
//! what a power failure takes back, it takes together with the container.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Event, Request, WAIT_VARIABLE};
use sandboxd_actors::container::{Binding, Mount};
use sandboxd_actors::directories::DirectoryError;
use sandboxd_actors::host_path::HostPath;
use sandboxd_actors::ids::{ChatId, ContainerId, SessionId, SlotId};
use sandboxd_actors::interior::Furnishing;
use sandboxd_actors::labels;
use sandboxd_actors::slot::{LateBinding, NotBound, Slot, Slots};
use serde::{Deserialize, Serialize};

use super::conversation::ConversationError;
use super::injection::MountError;
use super::{Entrance, Interior, InteriorsOnDisk, Tenant, failed, injection};

const CLAIM: &str = "claim";
const PLACE: &str = "place";

/// What a slot was bound with.
#[derive(Serialize, Deserialize)]
struct Claim {
    /// The name of its link.
    slot: String,
    container: String,
    labels: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    /// The host's path, by where it is mounted.
    mounts: BTreeMap<String, String>,
}

impl InteriorsOnDisk {
    /// The labels of the session that has the slot, if one has.
    pub fn labels_of(&self, slot: SlotId) -> Option<BTreeMap<String, String>> {
        Some(read(&self.slot(slot).join(CLAIM)).ok()?.labels)
    }

    /// The container that was a slot once and is this chat's now. Reads all claims: not for a request's path.
    pub fn container_of(&self, chat: ChatId) -> Option<ContainerId> {
        let (claims, chat) = (fs::read_dir(&self.sandboxes).ok()?.flatten(), chat.to_string());
        let mut claims = claims.filter_map(|entry| read(&entry.path().join(CLAIM)).ok());
        let claim = claims.find(|claim| claim.labels.get(labels::CHAT_ID) == Some(&chat))?;
        Some(ContainerId::new(claim.container))
    }

    /// What the session's container was bound with and its engine does not know of.
    pub fn environment_of(&self, session: SessionId) -> BTreeMap<String, String> {
        read(&self.directory(session).join(CLAIM)).map(|claim| claim.environment).unwrap_or_default()
    }

    /// Removes what is left of the slot that the session's container was once.
    pub(super) fn forget_slot_of(&self, session: SessionId) {
        if let Some(slot) = read(&self.directory(session).join(CLAIM)).ok().and_then(|claim| claim.slot.parse().ok()) {
            let _ = fs::remove_file(self.slot(slot));
            self.places.clear(slot);
        }
    }

    /// What the session's container was bound with, if it was a slot once.
    fn claim(&self, session: SessionId) -> Result<Option<(SlotId, Claim)>, NotBound> {
        let claim = match read(&self.directory(session).join(CLAIM)) {
            Ok(claim) => claim,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(not_bound(error)),
        };
        Ok(Some((claim.slot.parse().map_err(not_bound)?, claim)))
    }

    fn slot(&self, slot: SlotId) -> PathBuf {
        self.slots.join(slot.to_string())
    }

    async fn bind_with(
        &self,
        slot: SlotId,
        session: SessionId,
        mounts: Vec<Mount>,
        environment: Vec<(Bytes, Bytes)>,
    ) -> Result<(), NotBound> {
        let interior = self.of(session).ok_or_else(unknown)?;
        match &self.late_binding {
            Ok(LateBinding::Injected) => {
                let process = interior.process().await.map_err(not_bound)?;
                injection::mount_into(process, mounts).await.map_err(not_bound)?;
            }
            Ok(LateBinding::Propagated { .. }) => {
                self.places.fill(slot, &mounts).map_err(not_bound)?;
                seen(&interior, &mounts).await?;
            }
            Err(why) => return Err(NotBound(why.clone())),
        }
        self.places.leave(slot).map_err(not_bound)?;
        done(&interior, &Request::Bind { environment }).await
    }

    /// Whether what is mounted out here is seen in there: nobody can tell before there is a container.
    async fn try_out(&self, slot: SlotId, interior: &Interior, places: &[String]) -> Result<(), NotBound> {
        let nothing = self.places.nothing().and_then(|path| host_path(&path)).map_err(not_bound)?;
        let mounts: Vec<Mount> = places.iter().map(|target| kept(&nothing, target, false)).collect();
        self.places.fill(slot, &mounts).map_err(not_bound)?;
        let seen = match seen(interior, &mounts).await {
            Ok(()) => has_our_users(interior, &nothing, &mounts).await,
            unseen => {
                unseen.map_err(|error| NotBound(format!("the engine does not see what the service mounts: {error}")))
            }
        };
        self.places.empty(slot, mounts.len()).map_err(not_bound)?;
        seen
    }
}

#[async_trait]
impl Slots for InteriorsOnDisk {
    fn late_binding(&self) -> Result<LateBinding, String> {
        self.late_binding.clone()
    }

    async fn furnish(&self, slot: SlotId, places: &[String]) -> Result<Furnishing, DirectoryError> {
        let path = self.slot(slot);
        let furnish = || {
            let (mut furnishing, interior) = self.lay_out(&path)?;
            self.state().insert(Tenant::Slot(slot), Arc::new(interior));
            if let Ok(LateBinding::Propagated { .. }) = self.late_binding {
                let sources = self.places.furnish(slot, places.len())?;
                for (source, target) in sources.iter().zip(places) {
                    furnishing.mounts.push(kept(&host_path(source)?, target, true));
                }
            } else {
                let place = path.join(PLACE);
                DirBuilder::new().mode(0o755).create(&place)?;
                fs::set_permissions(&place, Permissions::from_mode(0o755))?;
                let place = host_path(&fs::canonicalize(place)?)?;
                furnishing.mounts.extend(places.iter().map(|target| kept(&place, target, false)));
            }
            furnishing.environment.push((WAIT_VARIABLE.to_owned(), "1".to_owned()));
            Ok(furnishing)
        };
        furnish().map_err(|error| failed(&path, error))
    }

    async fn wait(&self, slot: SlotId, places: &[String]) -> Result<(), NotBound> {
        let interior = self.at(Tenant::Slot(slot)).ok_or_else(unknown)?;
        done(&interior, &Request::Waiting {}).await?;
        match &self.late_binding {
            Ok(LateBinding::Injected) => {
                let process = interior.process().await.map_err(not_bound)?;
                injection::reach(process).map(drop).map_err(not_bound)
            }
            Ok(LateBinding::Propagated { .. }) => self.try_out(slot, &interior, places).await,
            Err(why) => Err(NotBound(why.clone())),
        }
    }

    fn is_free(&self, slot: SlotId) -> bool {
        fs::symlink_metadata(self.slot(slot)).is_ok_and(|entry| entry.is_dir())
    }

    fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError> {
        let (from, to) = (self.slot(slot), self.directory(session));
        fs::rename(&from, &to).map_err(|error| failed(&from, error))?;
        let mut open = self.state();
        if let Some(interior) = open.remove(&Tenant::Slot(slot)) {
            open.insert(Tenant::Session(session), interior);
        }
        drop(open);
        symlink(&to, &from).map_err(|error| failed(&from, error))
    }

    async fn bind(&self, slot: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound> {
        let environment = binding.environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        self.bind_with(slot, session, binding.mounts.clone(), environment).await
    }

    fn remember(&self, slot: &Slot, session: SessionId, binding: &Binding) -> Result<(), DirectoryError> {
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let claim = Claim {
            slot: slot.id.to_string(),
            container: slot.container.to_string(),
            labels: binding.labels.clone(),
            environment: binding.environment.iter().map(text).collect(),
            mounts: binding.mounts.iter().map(|mount| (mount.target.clone(), mount.source.to_string())).collect(),
        };
        let path = self.directory(session).join(CLAIM);
        write(&path, &claim).map_err(|error| failed(&path, error))
    }

    fn open_again(&self, session: SessionId) -> Result<(), NotBound> {
        let Some((slot, _)) = self.claim(session)? else { return Ok(()) };
        self.places.open_again(slot).map_err(not_bound)
    }

    async fn bind_again(&self, session: SessionId) -> Result<(), NotBound> {
        let Some((slot, claim)) = self.claim(session)? else { return Ok(()) };
        let interior = self.of(session).ok_or_else(unknown)?;
        if !waits(&interior).await? {
            // It was not started anew: a service that ended meanwhile had bound it already, and did not get to say so.
            return self.places.leave(slot).map_err(not_bound);
        }
        let mount = |(target, source): (String, String)| {
            let source = HostPath::from_canonical(Path::new(&source)).map_err(not_bound)?;
            Ok(Mount { source, target, read_only: false, propagated: false })
        };
        let mounts = claim.mounts.into_iter().map(mount).collect::<Result<_, NotBound>>()?;
        let bytes = |text: String| Bytes(text.into_bytes());
        let environment = claim.environment.into_iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
        self.bind_with(slot, session, mounts, environment).await
    }

    fn retain(&self, slots: &HashSet<SlotId>) {
        let gone = |tenant: &Tenant| matches!(tenant, Tenant::Slot(slot) if !slots.contains(slot));
        for tenant in self.take_inherited(|tenant| matches!(tenant, Tenant::Slot(_))).into_iter().filter(gone) {
            if let Tenant::Slot(slot) = tenant {
                self.clear(slot);
            }
        }
    }

    fn clear(&self, slot: SlotId) {
        self.state().remove(&Tenant::Slot(slot));
        self.places.clear(slot);
        let path = self.slot(slot);
        let cleared = match fs::symlink_metadata(&path) {
            // The session's directory is cleared with the session.
            Ok(entry) if entry.is_symlink() => fs::remove_file(&path),
            Ok(_) => fs::remove_dir_all(&path),
            Err(error) => Err(error),
        };
        match cleared {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(slot.id = %slot, %error, "the directory of a slot was not removed");
            }
            _ => {}
        }
    }
}

fn read(path: &Path) -> io::Result<Claim> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
}

/// There as a whole, or not at all.
fn write(path: &Path, claim: &Claim) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let text = serde_json::to_vec(claim).map_err(io::Error::other)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?.write_all(&text)?;
    fs::rename(draft, path)
}

/// Waits for init to say that it did what it was asked to do.
async fn done(interior: &Interior, request: &Request) -> Result<(), NotBound> {
    let conversation = interior.converse(request).await.map_err(not_bound)?;
    match conversation.answer().await.map_err(not_bound)? {
        Event::Done {} => Ok(()),
        _ => Err(senseless()),
    }
}

/// Whether init is yet to be bound.
async fn waits(interior: &Interior) -> Result<bool, NotBound> {
    let conversation = interior.converse(&Request::Waiting {}).await.map_err(not_bound)?;
    match conversation.answer().await {
        Ok(_) => Ok(true),
        Err(ConversationError::Failed(failure)) if failure.errno == Errno::EXIST.raw_os_error() => Ok(false),
        Err(error) => Err(not_bound(error)),
    }
}

/// Asks init whether each is where it should be. What is not there would be written into the container's own layer, and lost.
async fn seen(interior: &Interior, mounts: &[Mount]) -> Result<(), NotBound> {
    for Mount { source, target, .. } in mounts {
        let meant = fs::metadata(source.as_str()).map_err(not_bound)?;
        let mounted = Request::Mounted { path: target.as_str().into(), device: meant.dev(), inode: meant.ino() };
        done(interior, &mounted).await.map_err(|error| NotBound(format!("{source} is not at {target}: {error}")))?;
    }
    Ok(())
}

/// Users of the sandbox's own would own nothing of what the host has.
async fn has_our_users(interior: &Interior, source: &HostPath, mounts: &[Mount]) -> Result<(), NotBound> {
    let ours = fs::metadata(source.as_str()).map_err(not_bound)?.uid();
    for Mount { target, .. } in mounts {
        let facts = interior.converse(&Request::Facts { path: target.as_str().into() }).await.map_err(not_bound)?;
        match facts.answer().await.map_err(not_bound)? {
            Event::Facts { facts } if facts.user == ours => {}
            Event::Facts { .. } => return Err(not_bound(MountError::OtherUsers)),
            _ => return Err(senseless()),
        }
    }
    Ok(())
}

fn senseless() -> NotBound {
    NotBound("its init said something that makes no sense".to_owned())
}

/// A place for what is mounted later: nothing can be written there before.
fn kept(source: &HostPath, target: &str, propagated: bool) -> Mount {
    Mount { source: source.clone(), target: target.to_owned(), read_only: true, propagated }
}

fn host_path(path: &Path) -> io::Result<HostPath> {
    HostPath::from_canonical(path).map_err(io::Error::other)
}

fn unknown() -> NotBound {
    NotBound("its init is not known".to_owned())
}

fn not_bound(error: impl std::fmt::Display) -> NotBound {
    NotBound(error.to_string())
}
