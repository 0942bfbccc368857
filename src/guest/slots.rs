//! Slots on disk: free slots, claimed slots, and their binding.
//!
//! ```text
//! <state.dir>/slots/<slot>/          a free slot: the same files as a sandbox's directory, and
//!     place/                         empty, mounted where the chat's directories will be injected
//! <state.dir>/slots/<slot>           a claimed slot: a link to the session's directory
//! <state.dir>/sandboxes/<session>/
//!     claim                          a copy of its claim, in case the journal is lost
//! ```
//!
//! A slot is claimed with one rename, so it is claimed once. A claim holds the session's environment, as the engine's
//! own files do for a container that was created for its chat; only the service's user can read it. The journal decides
//! which chat a slot belongs to. The rename and the link are not flushed before a create is answered, and are restored
//! from the claim after a power failure.

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
use super::{Guest, GuestId, GuestLink, GuestsOnDisk, claim_file, directories_in, failed, injection};
use crate::guest::stream::GuestStreamError;

const PLACE: &str = "place";

/// The delay before the copy of a claim is flushed, because creates wait for the same disk.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

impl GuestsOnDisk {
    /// Returns the claims that have a copy beside a sandbox's socket.
    pub fn stored_claims(&self) -> Vec<Claim> {
        let sessions = directories_in(&self.sandboxes).into_iter().flatten();
        let read = |session: SessionId| match claim_file::read(&self.directory(session), session) {
            Ok(claim) => Some(claim),
            // Not every sandbox was a slot.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(session.id = %session, %error, "cannot read the copy of a claim");
                None
            }
        };
        sessions.filter_map(|name| name.parse().ok()).filter_map(read).collect()
    }

    /// Restores the rename or the link of claimed slots after a power failure. Neither is flushed before a create is
    /// answered.
    pub fn restore_slots(&self) {
        for claim in self.claims.all() {
            let (slot, directory) = (self.slot(claim.slot), self.directory(claim.session));
            let restored = match fs::symlink_metadata(&slot) {
                Ok(found) if found.is_dir() && !directory.exists() => {
                    let moved = self.claim_now(claim.slot, claim.session);
                    let claimed = GuestId::Slot(claim.slot);
                    let mut inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
                    for guest in inherited.iter_mut().filter(|guest| moved.is_ok() && **guest == claimed) {
                        *guest = GuestId::Session(claim.session);
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
                    let (session, slot) = (claim.session, claim.slot);
                    tracing::warn!(session.id = %session, slot.id = %slot, %error, "cannot restore a claimed slot");
                }
            }
        }
    }

    /// Returns the variables of the session that the engine does not know, because they were set at the bind.
    pub fn environment_of(&self, session: SessionId) -> BTreeMap<String, String> {
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        self.claims.of_session(session).map(|claim| claim.environment.iter().map(text).collect()).unwrap_or_default()
    }

    /// Removes the link and the mount points of the slot that became the session's container.
    pub(super) fn remove_slot_of(&self, session: SessionId) {
        if let Some(claim) = self.claims.remove(session) {
            let _ = fs::remove_file(self.slot(claim.slot));
            self.places.remove(claim.slot);
        }
    }

    /// Claims a slot with one rename, so that it is claimed once.
    fn claim_now(&self, slot: SlotId, session: SessionId) -> io::Result<()> {
        let (from, to) = (self.slot(slot), self.directory(session));
        fs::rename(&from, &to)?;
        let mut open = self.state();
        if let Some(link) = open.remove(&GuestId::Slot(slot)) {
            open.insert(GuestId::Session(session), link);
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
        let link = self.of(session).ok_or_else(no_link)?;
        let mut sources = Vec::with_capacity(mounts.len());
        for mount in mounts {
            let directory = self.file_system.open_source(mount.source.as_path()).await.map_err(not_bound)?;
            sources.push(Source { mount, directory });
        }
        match &self.late_binding {
            Ok(LateBinding::Injected) => {
                let process = link.process().await.map_err(not_bound)?;
                injection::mount_into(&self.file_system, process, sources).await.map_err(not_bound)?;
            }
            Ok(LateBinding::Propagated { .. }) => self.propagate(slot, &link, sources).await?,
            Err(why) => return Err(NotBound(why.clone())),
        }
        self.on_disk(move |this| this.places.detach(slot)).await.map_err(not_bound)?;
        expect_done(&link, &Request::Bind { environment }).await
    }

    /// Mounts the sources where the slot sees them, and checks with its init that they are visible.
    async fn propagate(&self, slot: SlotId, link: &GuestLink, sources: Vec<Source>) -> Result<(), NotBound> {
        let this = self.myself.upgrade().ok_or_else(no_link)?;
        let mount = mount_of(&sources);
        let fill = move || this.places.mount(slot, &sources).map(|()| sources);
        let sources = self.file_system.on_thread(&mount, fill).await.map_err(not_bound)?.map_err(not_bound)?;
        for source in &sources {
            check_visible(link, source).await?;
        }
        Ok(())
    }

    /// Checks that a mount on the host is visible in the slot, which cannot be known before there is a container.
    async fn probe_mounts(&self, slot: SlotId, link: &GuestLink, places: &[String]) -> Result<(), NotBound> {
        let empty = self.on_disk(|this| this.places.empty_directory().and_then(|path| host_path(&path)));
        let empty = empty.await.map_err(not_bound)?;
        let mut sources = Vec::with_capacity(places.len());
        for target in places {
            let directory = self.file_system.open_source(empty.as_path()).await.map_err(not_bound)?;
            sources.push(Source { mount: placeholder(&empty, target, false), directory });
        }
        let visible = match self.propagate(slot, link, sources).await {
            Ok(()) => check_user_ids(link, places).await,
            outcome => outcome
                .map_err(|error| NotBound(format!("mounts of the service do not propagate to the engine: {error}"))),
        };
        let targets = places.to_vec();
        self.on_disk(move |this| this.places.unmount(slot, &targets)).await.map_err(not_bound)?;
        visible
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
            let (mut setup, link) = this.create_directory(&path)?;
            this.state().insert(GuestId::Slot(slot), Arc::new(link));
            if let Ok(LateBinding::Propagated { .. }) = this.late_binding {
                let sources = this.places.prepare(slot, &places)?;
                for (source, target) in sources.iter().zip(&places) {
                    setup.mounts.push(placeholder(&host_path(source)?, target, true));
                }
            } else {
                let place = path.join(PLACE);
                DirBuilder::new().mode(0o755).create(&place)?;
                fs::set_permissions(&place, Permissions::from_mode(0o755))?;
                let place = host_path(&fs::canonicalize(place)?)?;
                setup.mounts.extend(places.iter().map(|target| placeholder(&place, target, false)));
            }
            setup.environment.push((WAIT_VARIABLE.to_owned(), "1".to_owned()));
            Ok(setup)
        });
        prepare.await.map_err(|error| failed(&path, error))
    }

    async fn wait(&self, slot: SlotId, places: &[String]) -> Result<(), NotBound> {
        let link = self.at(GuestId::Slot(slot)).ok_or_else(no_link)?;
        expect_done(&link, &Request::Waiting {}).await?;
        match &self.late_binding {
            Ok(LateBinding::Injected) => {
                let process = link.process().await.map_err(not_bound)?;
                injection::reach(process).map(drop).map_err(not_bound)
            }
            Ok(LateBinding::Propagated { .. }) => self.probe_mounts(slot, &link, places).await,
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
        self.on_disk(move |this| this.claim_now(slot, session)).await.map_err(|error| failed(&self.slot(slot), error))
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
                    tracing::warn!(%error, "cannot flush the copy of a claim to disk");
                }
                // A sandbox that was removed meanwhile needs no copy.
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
        let (slot, link) = (claim.slot, self.of(session).ok_or_else(no_link)?);
        if !waits(&*link).await? {
            // The container was not restarted: an earlier process of the service has bound it, and ended before it
            // recorded that.
            return self.on_disk(move |this| this.places.detach(slot)).await.map_err(not_bound);
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
        let gone = |guest: &GuestId| matches!(guest, GuestId::Slot(slot) if !slots.contains(slot));
        for guest in self.take_inherited(|guest| matches!(guest, GuestId::Slot(_))).into_iter().filter(gone) {
            if let GuestId::Slot(slot) = guest {
                Slots::clear(self, slot).await;
            }
        }
    }

    async fn clear(&self, slot: SlotId) {
        self.state().remove(&GuestId::Slot(slot));
        let removed = self.on_disk(move |this| {
            this.places.remove(slot);
            let path = this.slot(slot);
            // The session's directory is removed with the session.
            if fs::symlink_metadata(&path)?.is_symlink() { fs::remove_file(&path) } else { fs::remove_dir_all(&path) }
        });
        match removed.await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(slot.id = %slot, %error, "cannot remove the directory of a slot");
            }
            _ => {}
        }
    }
}

/// Sends a request that init answers with `Done`.
async fn expect_done(link: &GuestLink, request: &Request) -> Result<(), NotBound> {
    let stream = link.open_stream(request).await.map_err(not_bound)?;
    match stream.answer().await.map_err(not_bound)? {
        Event::Done {} => Ok(()),
        _ => Err(invalid_response()),
    }
}

/// Returns whether init still waits to be bound.
pub(super) async fn waits(init: &dyn Guest) -> Result<bool, NotBound> {
    let stream = init.open_stream(&Request::Waiting {}).await.map_err(not_bound)?;
    match stream.answer().await {
        Ok(_) => Ok(true),
        Err(GuestStreamError::Failed(failure)) if failure.errno == Errno::EXIST.raw_os_error() => Ok(false),
        Err(error) => Err(not_bound(error)),
    }
}

/// Checks with init that the directory is at its target. Files of a missing mount would be written into the container's
/// own layer, and lost.
async fn check_visible(link: &GuestLink, Source { mount, directory }: &Source) -> Result<(), NotBound> {
    let Mount { source, target, .. } = mount;
    let (device, inode) = (directory.device, directory.inode);
    let mounted = Request::Mounted { path: target.as_str().into(), device, inode };
    expect_done(link, &mounted).await.map_err(|error| NotBound(format!("{source} is not mounted at {target}: {error}")))
}

/// Checks that user ids in the sandbox are those of the host. Otherwise the host's files would have no owner there.
async fn check_user_ids(link: &GuestLink, places: &[String]) -> Result<(), NotBound> {
    // The owner of all directories of this service.
    let ours = rustix::process::geteuid().as_raw();
    for target in places {
        let facts = link.open_stream(&Request::Facts { path: target.as_str().into() }).await.map_err(not_bound)?;
        match facts.answer().await.map_err(not_bound)? {
            Event::Facts { facts } if facts.user == ours => {}
            Event::Facts { .. } => return Err(not_bound(MountError::OtherUsers)),
            _ => return Err(invalid_response()),
        }
    }
    Ok(())
}

fn invalid_response() -> NotBound {
    NotBound("its init sent an invalid response".to_owned())
}

/// Returns a read-only mount at the target of a later mount: no file can be written there before.
fn placeholder(source: &HostPath, target: &str, propagated: bool) -> Mount {
    Mount { source: source.clone(), target: target.to_owned(), read_only: true, propagated }
}

fn host_path(path: &Path) -> io::Result<HostPath> {
    HostPath::from_canonical(path).map_err(io::Error::other)
}

fn no_link() -> NotBound {
    NotBound("the service has no guest link to its init".to_owned())
}

fn not_bound(error: impl std::fmt::Display) -> NotBound {
    NotBound(error.to_string())
}
