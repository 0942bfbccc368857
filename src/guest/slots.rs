//! Slots on disk: which there are, which were taken, and what became of them.
//!
//! ```text
//! <state.dir>/slots/<slot>/          a slot that is free: the same as a sandbox's directory, and
//!     place/                         empty, mounted where the chat's directories will be injected
//! <state.dir>/slots/<slot>           taken: a link to the session's directory
//! <state.dir>/sandboxes/<session>/
//!     claim                          a copy of its claim, for the case that the journal is lost
//! ```
//!
//! Taking a slot is one rename, so it is taken once. A claim holds the session's environment, as the engine's own files do
//! for a container that was made for its chat; only the service's user reads it. The journal decides whose a slot is: the
//! rename and the link are not flushed before a create is answered, and are made again from the claim after a power failure.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Event, Request, WAIT_VARIABLE};
use sandboxd_actors::domain::container::{Binding, Mount};
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{SessionId, SlotId};
use sandboxd_actors::pool::claims::Claim;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::guest::GuestSetup;
use sandboxd_actors::ports::slot::{LateBinding, NotBound, Slots};

use super::injection::MountError;
use super::source::{Source, mount_of};
use super::{Entrance, GuestLink, GuestsOnDisk, Occupant, claim_file, directories_in, failed, injection};
use crate::guest::stream::GuestStreamError;

const PLACE: &str = "place";

/// The copy of a claim is flushed so much later than it is written: creates wait for the same disk.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

impl GuestsOnDisk {
    /// Returns the claims whose copies lie beside the sandboxes' sockets.
    pub fn stored_claims(&self) -> Vec<Claim> {
        let sessions = directories_in(&self.sandboxes).into_iter().flatten();
        let read = |session: SessionId| match claim_file::read(&self.directory(session), session) {
            Ok(claim) => Some(claim),
            // Not every sandbox was a slot.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(session.id = %session, %error, "the copy of a claim cannot be read");
                None
            }
        };
        sessions.filter_map(|name| name.parse().ok()).filter_map(read).collect()
    }

    /// Makes claimed slots their sessions' again where a power failure has taken back the rename or the link, neither of
    /// which is flushed before a create is answered.
    pub fn restore_slots(&self) {
        for claim in self.claims.all() {
            let (slot, directory) = (self.slot(claim.slot), self.directory(claim.session));
            let restored = match fs::symlink_metadata(&slot) {
                Ok(found) if found.is_dir() && !directory.exists() => {
                    let moved = self.take_now(claim.slot, claim.session);
                    let of_slot = Occupant::Slot(claim.slot);
                    let mut inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
                    for tenant in inherited.iter_mut().filter(|tenant| moved.is_ok() && **tenant == of_slot) {
                        *tenant = Occupant::Session(claim.session);
                    }
                    moved
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && directory.exists() => {
                    symlink(&directory, &slot)
                }
                _ => continue,
            };
            match restored {
                Ok(()) => tracing::info!(session.id = %claim.session, slot.id = %claim.slot, "restored a claimed slot"),
                Err(error) => {
                    tracing::warn!(session.id = %claim.session, slot.id = %claim.slot, %error, "a claimed slot is not restored");
                }
            }
        }
    }

    /// What the session's container was bound with and its engine does not know of.
    pub fn environment_of(&self, session: SessionId) -> BTreeMap<String, String> {
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        self.claims.of_session(session).map(|claim| claim.environment.iter().map(text).collect()).unwrap_or_default()
    }

    /// Removes what is left of the slot that the session's container was once.
    pub(super) fn forget_slot_of(&self, session: SessionId) {
        if let Some(claim) = self.claims.remove(session) {
            let _ = fs::remove_file(self.slot(claim.slot));
            self.places.clear(claim.slot);
        }
    }

    /// One rename, so that a slot is taken once.
    fn take_now(&self, slot: SlotId, session: SessionId) -> io::Result<()> {
        let (from, to) = (self.slot(slot), self.directory(session));
        fs::rename(&from, &to)?;
        let mut open = self.state();
        if let Some(interior) = open.remove(&Occupant::Slot(slot)) {
            open.insert(Occupant::Session(session), interior);
        }
        drop(open);
        symlink(&to, &from)
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
        let mut sources = Vec::with_capacity(mounts.len());
        for mount in mounts {
            let directory = self.file_system.open_source(mount.source.as_path()).await.map_err(not_bound)?;
            sources.push(Source { mount, directory });
        }
        match &self.late_binding {
            Ok(LateBinding::Injected) => {
                let process = interior.process().await.map_err(not_bound)?;
                injection::mount_into(&self.file_system, process, sources).await.map_err(not_bound)?;
            }
            Ok(LateBinding::Propagated { .. }) => self.propagate(slot, &interior, sources).await?,
            Err(why) => return Err(NotBound(why.clone())),
        }
        self.on_disk(move |this| this.places.leave(slot)).await.map_err(not_bound)?;
        done(&interior, &Request::Bind { environment }).await
    }

    /// Mounts each where the slot sees it, and asks the slot's init whether it does.
    async fn propagate(&self, slot: SlotId, interior: &GuestLink, sources: Vec<Source>) -> Result<(), NotBound> {
        let this = self.myself.upgrade().ok_or_else(unknown)?;
        let mount = mount_of(&sources);
        let fill = move || this.places.fill(slot, &sources).map(|()| sources);
        let sources = self.file_system.on_thread(&mount, fill).await.map_err(not_bound)?.map_err(not_bound)?;
        for source in &sources {
            seen(interior, source).await?;
        }
        Ok(())
    }

    /// Whether what is mounted out here is seen in there: nobody can tell before there is a container.
    async fn try_out(&self, slot: SlotId, interior: &GuestLink, places: &[String]) -> Result<(), NotBound> {
        let nothing = self.on_disk(|this| this.places.nothing().and_then(|path| host_path(&path)));
        let nothing = nothing.await.map_err(not_bound)?;
        let mut sources = Vec::with_capacity(places.len());
        for target in places {
            let directory = self.file_system.open_source(nothing.as_path()).await.map_err(not_bound)?;
            sources.push(Source { mount: kept(&nothing, target, false), directory });
        }
        let seen = match self.propagate(slot, interior, sources).await {
            Ok(()) => has_our_users(interior, places).await,
            unseen => {
                unseen.map_err(|error| NotBound(format!("the engine does not see what the service mounts: {error}")))
            }
        };
        let targets = places.to_vec();
        self.on_disk(move |this| this.places.empty(slot, &targets)).await.map_err(not_bound)?;
        seen
    }
}

#[async_trait]
impl Slots for GuestsOnDisk {
    fn late_binding(&self) -> Result<LateBinding, String> {
        self.late_binding.clone()
    }

    async fn prepare(&self, slot: SlotId, places: &[String]) -> Result<GuestSetup, DirectoryError> {
        let (path, places) = (self.slot(slot), places.to_vec());
        let prepare = self.on_disk(move |this| {
            let path = this.slot(slot);
            let (mut furnishing, interior) = this.lay_out(&path)?;
            this.state().insert(Occupant::Slot(slot), Arc::new(interior));
            if let Ok(LateBinding::Propagated { .. }) = this.late_binding {
                let sources = this.places.prepare(slot, &places)?;
                for (source, target) in sources.iter().zip(&places) {
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
        });
        prepare.await.map_err(|error| failed(&path, error))
    }

    async fn wait(&self, slot: SlotId, places: &[String]) -> Result<(), NotBound> {
        let interior = self.at(Occupant::Slot(slot)).ok_or_else(unknown)?;
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

    async fn is_free(&self, slot: SlotId) -> Result<bool, DirectoryError> {
        match self.on_disk(move |this| fs::symlink_metadata(this.slot(slot))).await {
            Ok(entry) => Ok(entry.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(&self.slot(slot), error)),
        }
    }

    async fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError> {
        self.on_disk(move |this| this.take_now(slot, session)).await.map_err(|error| failed(&self.slot(slot), error))
    }

    async fn bind(&self, slot: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound> {
        let environment = binding.environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        self.bind_with(slot, session, binding.mounts.clone(), environment).await
    }

    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError> {
        let (directory, claim) = (self.directory(claim.session), claim.clone());
        let session = claim.session;
        let written = self.on_disk(move |this| claim_file::write(&this.directory(session), &claim)).await;
        written.map_err(|error| failed(&directory, error))?;
        let this = self.myself.upgrade();
        tokio::spawn(async move {
            tokio::time::sleep(FLUSH_DELAY).await;
            let Some(this) = this else { return };
            match this.on_disk(move |_| claim_file::flush(&directory)).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, "the copy of a claim is not flushed to disk");
                }
                // A sandbox that was removed meanwhile needs none.
                _ => {}
            }
        });
        Ok(())
    }

    async fn open_again(&self, session: SessionId) -> Result<(), NotBound> {
        let Some(slot) = self.claims.of_session(session).map(|claim| claim.slot) else { return Ok(()) };
        self.on_disk(move |this| this.places.open_again(slot)).await.map_err(not_bound)
    }

    async fn bind_again(&self, session: SessionId) -> Result<(), NotBound> {
        let Some(claim) = self.claims.of_session(session) else { return Ok(()) };
        let (slot, interior) = (claim.slot, self.of(session).ok_or_else(unknown)?);
        if !waits(&*interior).await? {
            // It was not started anew: a service that ended meanwhile had bound it already, and did not get to say so.
            return self.on_disk(move |this| this.places.leave(slot)).await.map_err(not_bound);
        }
        let mount = |(target, source): (&String, &HostPath)| Mount {
            source: source.clone(),
            target: target.clone(),
            read_only: false,
            propagated: false,
        };
        let mounts = claim.mounts.iter().map(mount).collect();
        let environment = claim.environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        self.bind_with(claim.slot, session, mounts, environment).await
    }

    async fn retain(&self, slots: &HashSet<SlotId>) {
        let gone = |tenant: &Occupant| matches!(tenant, Occupant::Slot(slot) if !slots.contains(slot));
        for tenant in self.take_inherited(|tenant| matches!(tenant, Occupant::Slot(_))).into_iter().filter(gone) {
            if let Occupant::Slot(slot) = tenant {
                Slots::clear(self, slot).await;
            }
        }
    }

    async fn clear(&self, slot: SlotId) {
        self.state().remove(&Occupant::Slot(slot));
        let cleared = self.on_disk(move |this| {
            this.places.clear(slot);
            let path = this.slot(slot);
            // The session's directory is cleared with the session.
            if fs::symlink_metadata(&path)?.is_symlink() { fs::remove_file(&path) } else { fs::remove_dir_all(&path) }
        });
        match cleared.await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(slot.id = %slot, %error, "the directory of a slot was not removed");
            }
            _ => {}
        }
    }
}

/// Waits for init to say that it did what it was asked to do.
async fn done(interior: &GuestLink, request: &Request) -> Result<(), NotBound> {
    let conversation = interior.open_stream(request).await.map_err(not_bound)?;
    match conversation.answer().await.map_err(not_bound)? {
        Event::Done {} => Ok(()),
        _ => Err(senseless()),
    }
}

/// Whether init is yet to be bound.
pub(super) async fn waits(init: &dyn Entrance) -> Result<bool, NotBound> {
    let conversation = init.open_stream(&Request::Waiting {}).await.map_err(not_bound)?;
    match conversation.answer().await {
        Ok(_) => Ok(true),
        Err(GuestStreamError::Failed(failure)) if failure.errno == Errno::EXIST.raw_os_error() => Ok(false),
        Err(error) => Err(not_bound(error)),
    }
}

/// Asks init whether the directory is where it should be. What is not there would be written into the container's own layer, and lost.
async fn seen(interior: &GuestLink, Source { mount, directory }: &Source) -> Result<(), NotBound> {
    let Mount { source, target, .. } = mount;
    let (device, inode) = (directory.device, directory.inode);
    let mounted = Request::Mounted { path: target.as_str().into(), device, inode };
    done(interior, &mounted).await.map_err(|error| NotBound(format!("{source} is not at {target}: {error}")))
}

/// Users of the sandbox's own would own nothing of what the host has.
async fn has_our_users(interior: &GuestLink, places: &[String]) -> Result<(), NotBound> {
    // Of all that this service makes.
    let ours = rustix::process::geteuid().as_raw();
    for target in places {
        let facts = interior.open_stream(&Request::Facts { path: target.as_str().into() }).await.map_err(not_bound)?;
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
