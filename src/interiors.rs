//! The inside of sandboxes: each gets sandbox-init as its first process, and a socket to which that connects.
//!
//! ```text
//! <state.dir>/init/sandbox-init-<hash>   the program, mounted read-only as /.sandboxd/init
//! <state.dir>/sandboxes/<session>/
//!     secret                             by which init is recognised; not in the sandbox but in init's environment
//!     run/                               mounted read-only as /.sandboxd/run
//!         socket                         listened on by whichever process of the service runs
//! ```
//!
//! What comes from a sandbox is untrusted: it is bounded, and names nothing on the host.

pub mod conversation;
mod interior;
mod program;
mod stand_in;

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sandbox_init::wire::{Request, SECRET_VARIABLE, SOCKET_VARIABLE};
use sandboxd_actors::container::Mount;
use sandboxd_actors::directories::DirectoryError;
use sandboxd_actors::host_path::HostPath;
use sandboxd_actors::ids::SessionId;
use sandboxd_actors::interior::{Furnishing, Interiors};

use conversation::Conversation;
use interior::Secret;
pub use interior::{Interior, Unreachable};
pub use stand_in::{StandIn, StandIns};

const PROGRAM_INSIDE: &str = "/.sandboxd/init";
const DIRECTORY_INSIDE: &str = "/.sandboxd/run";
const SOCKET: &str = "socket";

/// A way into one sandbox: its init, or what stands in for it.
#[async_trait]
pub trait Entrance: Send + Sync + 'static {
    /// Opens a conversation.
    async fn converse(&self, request: &Request) -> Result<Conversation, Unreachable>;
}

/// Those of the sandboxes that this service has made, by their session.
#[derive(Debug)]
pub struct InteriorsOnDisk {
    program: HostPath,
    sandboxes: PathBuf,
    /// Of an earlier run, and not looked at since.
    inherited: Mutex<Vec<SessionId>>,
    /// Which sockets are listened on; a sandbox's life is decided elsewhere.
    open: Mutex<HashMap<SessionId, Arc<Interior>>>,
}

impl InteriorsOnDisk {
    /// Lays out the program, and listens for the sandboxes of an earlier run.
    pub fn open(state: &Path) -> io::Result<Self> {
        let program = program::lay_out(&state.join("init"))?;
        let sandboxes = state.join("sandboxes");
        DirBuilder::new().recursive(true).mode(0o700).create(&sandboxes)?;
        let inherited = sessions(&sandboxes)?;
        let interiors = Self { program, sandboxes, inherited: Mutex::new(inherited.clone()), open: Mutex::default() };
        for session in inherited {
            if let Err(error) = interiors.resume(session) {
                tracing::warn!(session.id = %session, %error, "the inside of a sandbox cannot be reached");
            }
        }
        Ok(interiors)
    }

    pub fn of(&self, session: SessionId) -> Option<Arc<Interior>> {
        self.state().get(&session).cloned()
    }

    /// Clears away what an earlier run left of other sessions than these.
    pub fn retain(&self, sessions: &HashSet<SessionId>) {
        let inherited = std::mem::take(&mut *self.inherited.lock().unwrap_or_else(PoisonError::into_inner));
        for session in inherited.into_iter().filter(|session| !sessions.contains(session)) {
            self.clear(session);
        }
    }

    fn directory(&self, session: SessionId) -> PathBuf {
        self.sandboxes.join(session.to_string())
    }

    fn resume(&self, session: SessionId) -> io::Result<()> {
        let directory = self.directory(session);
        let secret = Secret::read(&directory.join("secret"))?;
        let interior = Interior::listen(&directory.join("run"), secret)?;
        self.state().insert(session, Arc::new(interior));
        Ok(())
    }

    fn prepare(&self, session: SessionId) -> io::Result<Furnishing> {
        let directory = self.directory(session);
        let run = directory.join("run");
        DirBuilder::new().mode(0o700).create(&directory)?;
        DirBuilder::new().mode(0o755).create(&run)?;
        // Whatever the mask is, the sandbox's user has to get in; nobody else reaches this directory.
        fs::set_permissions(&run, Permissions::from_mode(0o755))?;
        let secret = Secret::random()?;
        secret.write(&directory.join("secret"))?;
        let shown = secret.to_string();
        let interior = Interior::listen(&run, secret)?;
        self.state().insert(session, Arc::new(interior));

        let run = fs::canonicalize(run)?;
        let run = HostPath::from_canonical(&run).map_err(io::Error::other)?;
        let mount = |source, target: &str| Mount { source, target: target.to_owned(), read_only: true };
        Ok(Furnishing {
            entry_point: PROGRAM_INSIDE.to_owned(),
            mounts: vec![mount(self.program.clone(), PROGRAM_INSIDE), mount(run, DIRECTORY_INSIDE)],
            environment: vec![
                (SECRET_VARIABLE.to_owned(), shown),
                (SOCKET_VARIABLE.to_owned(), format!("{DIRECTORY_INSIDE}/{SOCKET}")),
            ],
        })
    }

    fn state(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Interior>>> {
        // No panic can leave the map half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sessions(directory: &Path) -> io::Result<Vec<SessionId>> {
    let session = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(fs::read_dir(directory)?.filter_map(session).collect())
}

#[async_trait]
impl Interiors for InteriorsOnDisk {
    async fn furnish(&self, session: SessionId) -> Result<Option<Furnishing>, DirectoryError> {
        let path = self.directory(session);
        self.prepare(session)
            .map(Some)
            .map_err(|error| DirectoryError { path: path.display().to_string(), message: error.to_string() })
    }

    fn clear(&self, session: SessionId) {
        self.state().remove(&session);
        match fs::remove_dir_all(self.directory(session)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(session.id = %session, %error, "the directory of an ended sandbox was not removed");
            }
            _ => {}
        }
    }
}
