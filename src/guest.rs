//! Guests: each sandbox gets sandbox-init as its first process, and a socket that init connects to.
//!
//! ```text
//! <state.dir>/init/sandbox-init-<hash>   the program, mounted read-only as /.sandboxd/init
//! <state.dir>/sandboxes/<session>/
//!     secret                             identifies init; in the sandbox, only init's environment has it
//!     run/                               mounted read-only as /.sandboxd/run
//!         socket                         the running process of the service listens on it
//! <state.dir>/slots/<slot>/              the same for a slot without a chat; see [`slots`]
//! <state.dir>/places/<slot>/             mount points of the chat's directories, on some hosts; see [`propagation`]
//! ```
//!
//! Data from a sandbox is untrusted: it is limited in size, and names no resource of the host.

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

/// A guest: through its init, or via the engine.
#[async_trait]
pub trait Guest: Send + Sync + 'static {
    /// Opens a guest stream.
    async fn open_stream(&self, request: &Request) -> Result<GuestStream, Unreachable>;
}

/// The guests of the sandboxes and slots of this service, with their directories on disk.
#[derive(Debug)]
pub struct GuestsOnDisk {
    program: HostPath,
    sandboxes: PathBuf,
    slots: PathBuf,
    places: Places,
    late_binding: Result<LateBinding, String>,
    claims: Arc<Claims>,
    file_system: FileSystem,
    /// For work on another thread.
    myself: Weak<Self>,
    /// Guests of an earlier run that are not checked since.
    inherited: Mutex<Vec<GuestId>>,
    /// Guests of an earlier run whose socket could not be opened.
    unreached: Mutex<HashSet<GuestId>>,
    /// Whether dangling links and mount points of an earlier run are removed.
    swept: AtomicBool,
    /// The open guest links. The lifecycle of a sandbox is decided elsewhere.
    open: Mutex<HashMap<GuestId, Arc<GuestLink>>>,
}

/// The id of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum GuestId {
    Session(SessionId),
    /// A slot that no chat has claimed.
    Slot(SlotId),
}

impl GuestsOnDisk {
    /// Installs the program, and listens on the sockets of the sandboxes and slots of an earlier run.
    pub fn open(state: &Path, claims: Arc<Claims>, file_system: FileSystem) -> io::Result<Arc<Self>> {
        let program = program::install(&state.join("init"))?;
        let (sandboxes, slots) = (state.join("sandboxes"), state.join("slots"));
        for directory in [&sandboxes, &slots] {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let places = Places::in_state(state)?;
        let sessions = directories_in(&sandboxes)?.filter_map(|name| Some(GuestId::Session(name.parse().ok()?)));
        let unclaimed = directories_in(&slots)?.filter_map(|name| Some(GuestId::Slot(name.parse().ok()?)));
        let inherited: Vec<GuestId> = sessions.chain(unclaimed).collect();
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
        for guest in inherited {
            if let Err(error) = guests.listen(guest) {
                tracing::warn!(?guest, %error, "cannot listen on the guest socket; retrying when the guest is used");
                guests.unreached.lock().unwrap_or_else(PoisonError::into_inner).insert(guest);
            }
        }
        Ok(guests)
    }

    pub fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    pub fn of(&self, session: SessionId) -> Option<Arc<GuestLink>> {
        let guest = GuestId::Session(session);
        self.at(guest).or_else(|| self.retry_listen(guest))
    }

    /// Runs work in the state directory on a worker thread.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let this = self.myself.upgrade().ok_or_else(|| io::Error::other("the service is shutting down"))?;
        let runtime = Handle::current();
        let work = move || {
            // The service's runtime listens on the socket, not the worker's.
            let _runtime = runtime.enter();
            work(&this)
        };
        self.file_system.own(Own::State, work).await.map_err(io::Error::other)?
    }

    fn at(&self, guest: GuestId) -> Option<Arc<GuestLink>> {
        self.state().get(&guest).cloned()
    }

    /// Tries again to open the socket of a guest, which may have failed at start-up, such as on a full disk.
    fn retry_listen(&self, guest: GuestId) -> Option<Arc<GuestLink>> {
        let mut unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        if unreached.contains(&guest) && self.listen(guest).is_ok() {
            tracing::info!(?guest, "listening on the guest socket again");
            unreached.remove(&guest);
        }
        self.at(guest)
    }

    fn take_inherited(&self, which: impl Fn(&GuestId) -> bool) -> Vec<GuestId> {
        let mut inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        inherited.extract_if(.., |guest| which(guest)).collect()
    }

    fn directory(&self, session: SessionId) -> PathBuf {
        self.sandboxes.join(session.to_string())
    }

    fn listen(&self, guest: GuestId) -> io::Result<()> {
        let directory = match guest {
            GuestId::Session(session) => self.directory(session),
            GuestId::Slot(slot) => self.slots.join(slot.to_string()),
        };
        let secret = Secret::read(&directory.join("secret"))?;
        let link = GuestLink::listen(&directory.join("run"), secret)?;
        self.state().insert(guest, Arc::new(link));
        Ok(())
    }

    /// Creates the directory of a guest, with its secret and its socket.
    fn create_directory(&self, directory: &Path) -> io::Result<(GuestSetup, GuestLink)> {
        let run = directory.join("run");
        DirBuilder::new().mode(0o700).create(directory)?;
        DirBuilder::new().mode(0o755).create(&run)?;
        // The sandbox's user must have access, independent of the umask. No other user of the host reaches this
        // directory.
        fs::set_permissions(&run, Permissions::from_mode(0o755))?;
        let secret = Secret::random()?;
        secret.write(&directory.join("secret"))?;
        let shown = secret.to_string();
        let link = GuestLink::listen(&run, secret)?;

        let run = fs::canonicalize(run)?;
        let run = HostPath::from_canonical(&run).map_err(io::Error::other)?;
        let mount =
            |source, target: &str| Mount { source, target: target.to_owned(), read_only: true, propagated: false };
        let setup = GuestSetup {
            entry_point: PROGRAM_INSIDE.to_owned(),
            mounts: vec![mount(self.program.clone(), PROGRAM_INSIDE), mount(run, DIRECTORY_INSIDE)],
            environment: vec![
                (SECRET_VARIABLE.to_owned(), shown),
                (SOCKET_VARIABLE.to_owned(), format!("{DIRECTORY_INSIDE}/{SOCKET}")),
            ],
        };
        Ok((setup, link))
    }

    fn state(&self) -> MutexGuard<'_, HashMap<GuestId, Arc<GuestLink>>> {
        // No panic can leave the map inconsistent.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the better of the two ways to bind that this host allows.
fn late_binding(places: &Places) -> Result<LateBinding, String> {
    let Err(why_not_injected) = injection::is_possible() else { return Ok(LateBinding::Injected) };
    match places.are_possible() {
        Ok(()) => Ok(LateBinding::Propagated { because: why_not_injected }),
        Err(why_not_propagated) => Err(format!("{why_not_injected}; {why_not_propagated}")),
    }
}

/// Returns the names of the subdirectories.
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
        let prepared = self.on_disk(move |this| {
            let (mut setup, link) = this.create_directory(&this.directory(session))?;
            if waits {
                setup.environment.push((WAIT_VARIABLE.to_owned(), "1".to_owned()));
            }
            this.state().insert(GuestId::Session(session), Arc::new(link));
            Ok(setup)
        });
        prepared.await.map(Some).map_err(|error| failed(&path, error))
    }

    async fn begin(&self, started: Started<'_>) -> Result<(), NotBegun> {
        match started.init {
            Init::Waits => self.begin_with_init(started).await,
            Init::Absent => self.check_mounted(started).await,
        }
    }

    async fn clear(&self, session: SessionId) {
        self.state().remove(&GuestId::Session(session));
        let removed = self.on_disk(move |this| {
            this.remove_slot_of(session);
            fs::remove_dir_all(this.directory(session))
        });
        match removed.await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(session.id = %session, %error, "cannot remove the directory of an ended sandbox");
            }
            _ => {}
        }
    }

    fn has_inherited(&self) -> bool {
        if !self.swept.load(Ordering::Acquire) {
            return true;
        }
        let inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        inherited.iter().any(|guest| matches!(guest, GuestId::Session(_)))
    }

    async fn retain(&self, known: &HashSet<SessionId>) {
        let gone = |guest: &GuestId| matches!(guest, GuestId::Session(session) if !known.contains(session));
        for guest in self.take_inherited(gone) {
            if let GuestId::Session(session) = guest {
                tracing::info!(session.id = %session, "removing the directory of an ended sandbox");
                Guests::clear(self, session).await;
            }
        }
        if self.swept.swap(true, Ordering::AcqRel) {
            return;
        }
        // A slot of an earlier run that was claimed or removed may leave a link.
        let swept = self.on_disk(|this| {
            let links = fs::read_dir(&this.slots)?.flatten().map(|entry| entry.path());
            for link in links.filter(|path| !path.exists()) {
                let _ = fs::remove_file(link);
            }
            for slot in this.places.slots()? {
                if !this.slots.join(slot.to_string()).exists() {
                    this.places.remove(slot);
                }
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "cannot remove links and mount points of ended slots");
        }
    }
}
