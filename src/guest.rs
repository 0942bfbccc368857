//! The inside of sandboxes: each gets sandbox-init as its first process, and a socket to which that connects.
//!
//! ```text
//! <state.dir>/init/sandbox-init-<hash>   the program, mounted read-only as /.sandboxd/init
//! <state.dir>/sandboxes/<session>/
//!     secret                             by which init is recognised; not in the sandbox but in init's environment
//!     run/                               mounted read-only as /.sandboxd/run
//!         socket                         listened on by whichever process of the service runs
//! <state.dir>/slots/<slot>/              the same of a sandbox that is nobody's yet; see [`slots`]
//! <state.dir>/places/<slot>/             where its chat's directories will be, on some hosts; see [`propagation`]
//! ```
//!
//! What comes from a sandbox is untrusted: it is bounded, and names nothing on the host.

mod begin;
mod capabilities;
mod claim_file;
mod injection;
mod link;
mod mount_table;
mod program;
mod propagation;
mod slots;
mod source;
pub mod stream;
mod via_engine;

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use sandbox_init::wire::{Request, SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE};
use sandboxd_actors::domain::container::Mount;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{SessionId, SlotId};
use sandboxd_actors::pool::claims::Claims;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::guest::{GuestSetup, Guests, Init, NotBegun, Started};
use sandboxd_actors::ports::slot::LateBinding;
use tokio::runtime::Handle;

use crate::storage::file_system::{FileSystem, Own};
use link::Secret;
pub use link::{GuestLink, Unreachable};
use propagation::Places;
use stream::GuestStream;
pub use via_engine::{GuestViaEngine, GuestsViaEngine};

const PROGRAM_INSIDE: &str = "/.sandboxd/init";
const DIRECTORY_INSIDE: &str = "/.sandboxd/run";
const SOCKET: &str = "socket";

/// A way into one sandbox: its init, or what stands in for it.
#[async_trait]
pub trait Entrance: Send + Sync + 'static {
    /// Opens a conversation.
    async fn open_stream(&self, request: &Request) -> Result<GuestStream, Unreachable>;
}

/// Those of the sandboxes and slots that this service has made.
#[derive(Debug)]
pub struct GuestsOnDisk {
    program: HostPath,
    sandboxes: PathBuf,
    slots: PathBuf,
    places: Places,
    late_binding: Result<LateBinding, String>,
    claims: Arc<Claims>,
    file_system: FileSystem,
    /// For work that is done by a worker.
    myself: Weak<Self>,
    /// Of an earlier run, and not looked at since.
    inherited: Mutex<Vec<Occupant>>,
    /// Of an earlier run, and not listened to, as that failed.
    unreached: Mutex<HashSet<Occupant>>,
    /// Links and places of an earlier run that lead nowhere are removed.
    swept: AtomicBool,
    /// Which sockets are listened on; a sandbox's life is decided elsewhere.
    open: Mutex<HashMap<Occupant, Arc<GuestLink>>>,
}

/// Whose inside it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Occupant {
    Session(SessionId),
    /// Nobody's yet.
    Slot(SlotId),
}

impl GuestsOnDisk {
    /// Lays out the program, and listens for the sandboxes and slots of an earlier run.
    pub fn open(state: &Path, claims: Arc<Claims>, file_system: FileSystem) -> io::Result<Arc<Self>> {
        let program = program::lay_out(&state.join("init"))?;
        let (sandboxes, slots) = (state.join("sandboxes"), state.join("slots"));
        for directory in [&sandboxes, &slots] {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let places = Places::in_state(state)?;
        let sessions = directories_in(&sandboxes)?.filter_map(|name| Some(Occupant::Session(name.parse().ok()?)));
        let kept = directories_in(&slots)?.filter_map(|name| Some(Occupant::Slot(name.parse().ok()?)));
        let inherited: Vec<Occupant> = sessions.chain(kept).collect();
        let guests = Arc::new_cyclic(|myself| Self {
            program,
            sandboxes,
            slots,
            late_binding: late_binding(&places),
            places,
            claims,
            inherited: Mutex::new(inherited.clone()),
            unreached: Mutex::default(),
            swept: AtomicBool::new(false),
            open: Mutex::default(),
            file_system,
            myself: myself.clone(),
        });
        for tenant in inherited {
            if let Err(error) = guests.resume(tenant) {
                tracing::warn!(?tenant, %error, "the inside of a sandbox cannot be reached");
                guests.unreached.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant);
            }
        }
        Ok(guests)
    }

    pub fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    pub fn of(&self, session: SessionId) -> Option<Arc<GuestLink>> {
        let tenant = Occupant::Session(session);
        self.at(tenant).or_else(|| self.reach_again(tenant))
    }

    /// Does work in the state directory, on a worker.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let this = self.myself.upgrade().ok_or_else(|| io::Error::other("the service ends"))?;
        let runtime = Handle::current();
        let work = move || {
            // A socket is listened on by the service's runtime, not by the workers'.
            let _runtime = runtime.enter();
            work(&this)
        };
        self.file_system.own(Own::State, work).await.map_err(io::Error::other)?
    }

    fn at(&self, tenant: Occupant) -> Option<Arc<GuestLink>> {
        self.state().get(&tenant).cloned()
    }

    /// Tries again to reach a sandbox that could not be reached at the start, such as on a full disk.
    fn reach_again(&self, tenant: Occupant) -> Option<Arc<GuestLink>> {
        let mut unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        if unreached.contains(&tenant) && self.resume(tenant).is_ok() {
            tracing::info!(?tenant, "the inside of a sandbox can be reached again");
            unreached.remove(&tenant);
        }
        self.at(tenant)
    }

    fn take_inherited(&self, which: impl Fn(&Occupant) -> bool) -> Vec<Occupant> {
        let mut inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        inherited.extract_if(.., |tenant| which(tenant)).collect()
    }

    fn directory(&self, session: SessionId) -> PathBuf {
        self.sandboxes.join(session.to_string())
    }

    fn resume(&self, tenant: Occupant) -> io::Result<()> {
        let directory = match tenant {
            Occupant::Session(session) => self.directory(session),
            Occupant::Slot(slot) => self.slots.join(slot.to_string()),
        };
        let secret = Secret::read(&directory.join("secret"))?;
        let interior = GuestLink::listen(&directory.join("run"), secret)?;
        self.state().insert(tenant, Arc::new(interior));
        Ok(())
    }

    /// A new directory, with all that goes into a sandbox.
    fn lay_out(&self, directory: &Path) -> io::Result<(GuestSetup, GuestLink)> {
        let run = directory.join("run");
        DirBuilder::new().mode(0o700).create(directory)?;
        DirBuilder::new().mode(0o755).create(&run)?;
        // Whatever the mask is, the sandbox's user has to get in; nobody else reaches this directory.
        fs::set_permissions(&run, Permissions::from_mode(0o755))?;
        let secret = Secret::random()?;
        secret.write(&directory.join("secret"))?;
        let shown = secret.to_string();
        let interior = GuestLink::listen(&run, secret)?;

        let run = fs::canonicalize(run)?;
        let run = HostPath::from_canonical(&run).map_err(io::Error::other)?;
        let mount =
            |source, target: &str| Mount { source, target: target.to_owned(), read_only: true, propagated: false };
        let furnishing = GuestSetup {
            entry_point: PROGRAM_INSIDE.to_owned(),
            mounts: vec![mount(self.program.clone(), PROGRAM_INSIDE), mount(run, DIRECTORY_INSIDE)],
            environment: vec![
                (SECRET_VARIABLE.to_owned(), shown),
                (SOCKET_VARIABLE.to_owned(), format!("{DIRECTORY_INSIDE}/{SOCKET}")),
            ],
        };
        Ok((furnishing, interior))
    }

    fn state(&self) -> MutexGuard<'_, HashMap<Occupant, Arc<GuestLink>>> {
        // No panic can leave the map half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The better of the two ways that this host allows.
fn late_binding(places: &Places) -> Result<LateBinding, String> {
    let Err(why_not_injected) = injection::is_possible() else { return Ok(LateBinding::Injected) };
    match places.are_possible() {
        Ok(()) => Ok(LateBinding::Propagated { because: why_not_injected }),
        Err(why_not_propagated) => Err(format!("{why_not_injected}; {why_not_propagated}")),
    }
}

/// The names of the directories, and of nothing else.
fn directories_in(directory: &Path) -> io::Result<impl Iterator<Item = String>> {
    let entries = fs::read_dir(directory)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()))
}

fn failed(path: &Path, error: io::Error) -> DirectoryError {
    DirectoryError::of_io(path.display(), &error)
}

#[async_trait]
impl Guests for GuestsOnDisk {
    async fn prepare(&self, session: SessionId, waits: bool) -> Result<Option<GuestSetup>, DirectoryError> {
        let path = self.directory(session);
        let laid_out = self.on_disk(move |this| {
            let (mut furnishing, interior) = this.lay_out(&this.directory(session))?;
            if waits {
                furnishing.environment.push((WAIT_VARIABLE.to_owned(), "1".to_owned()));
            }
            this.state().insert(Occupant::Session(session), Arc::new(interior));
            Ok(furnishing)
        });
        laid_out.await.map(Some).map_err(|error| failed(&path, error))
    }

    async fn begin(&self, started: Started<'_>) -> Result<(), NotBegun> {
        match started.init {
            Init::Waits => self.begin_with_init(started).await,
            Init::Absent => self.check_mounted(started).await,
        }
    }

    async fn clear(&self, session: SessionId) {
        self.state().remove(&Occupant::Session(session));
        let cleared = self.on_disk(move |this| {
            this.forget_slot_of(session);
            fs::remove_dir_all(this.directory(session))
        });
        match cleared.await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(session.id = %session, %error, "the directory of an ended sandbox was not removed");
            }
            _ => {}
        }
    }

    fn has_inherited(&self) -> bool {
        if !self.swept.load(Ordering::Acquire) {
            return true;
        }
        let inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        inherited.iter().any(|tenant| matches!(tenant, Occupant::Session(_)))
    }

    async fn retain(&self, known: &HashSet<SessionId>) {
        let gone = |tenant: &Occupant| matches!(tenant, Occupant::Session(session) if !known.contains(session));
        for tenant in self.take_inherited(gone) {
            if let Occupant::Session(session) = tenant {
                tracing::info!(session.id = %session, "removing the directory of an ended sandbox");
                Guests::clear(self, session).await;
            }
        }
        if self.swept.swap(true, Ordering::AcqRel) {
            return;
        }
        // Of slots of an earlier run that were theirs, or never became anybody's, a link is left.
        let swept = self.on_disk(|this| {
            let links = fs::read_dir(&this.slots)?.flatten().map(|entry| entry.path());
            for link in links.filter(|path| !path.exists()) {
                let _ = fs::remove_file(link);
            }
            for slot in this.places.slots()? {
                if !this.slots.join(slot.to_string()).exists() {
                    this.places.clear(slot);
                }
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "links and places of slots that are gone were not removed");
        }
    }
}
