//! Guests via the engine, for sandboxes without init, and for requests that init has not the rights for. This process
//! serves the same guest streams, and uses the engine's API.
//!
//! The other end of a stream need not know the difference. A request that the engine cannot serve fails, with `ENOSYS`
//! where no engine can serve it. A failure of the engine is `ENOTCONN`, as if init had ended.

mod commands;
mod exec;
mod files;
mod frames;
mod names;
pub(super) mod processes;
mod spool;
mod trees;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use rustix::io::Errno;
use sandbox_init::wire::{CommandFacts, Event, Failure, Request};
use sandboxd_actors::domain::ids::{ContainerId, SessionId};
use tokio::net::UnixStream;

use super::{Guest, Unreachable};
use crate::engine::guest::{EngineGuest, GuestError};
use crate::guest::stream::GuestStream;
use crate::storage::file_system::FileSystem;
use commands::Commands;
use frames::{Frames, Writer};
use spool::Spools;

/// All guests via the engine, with the commands that run through them.
pub struct GuestsViaEngine {
    engine: Arc<dyn EngineGuest>,
    commands: Arc<Commands>,
    spools: Spools,
}

impl std::fmt::Debug for GuestsViaEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestsViaEngine").field("commands", &self.commands).finish_non_exhaustive()
    }
}

impl GuestsViaEngine {
    /// `directory`: the place of unnamed files for content that is too long for memory.
    pub fn new(engine: Arc<dyn EngineGuest>, directory: PathBuf, file_system: FileSystem) -> Self {
        Self { engine, commands: Arc::default(), spools: Spools { directory, file_system } }
    }

    /// Returns the guest of a session. `user`: the user of its commands, if not the container's own. `environment`: the
    /// sandbox's variables that the engine does not know.
    pub fn of(
        &self,
        session: SessionId,
        container: ContainerId,
        user: Option<String>,
        environment: BTreeMap<String, String>,
    ) -> GuestViaEngine {
        let Self { engine, commands, spools } = self;
        let (engine, commands, spools) = (engine.clone(), commands.clone(), spools.clone());
        GuestViaEngine { engine, commands, spools, session, container, user, environment }
    }

    /// Returns the commands of one sandbox that were started via the engine.
    pub fn commands(&self, session: SessionId) -> Vec<CommandFacts> {
        self.commands.of(session)
    }

    /// Returns whether this command was started via the engine.
    pub fn has(&self, session: SessionId, command: u64) -> bool {
        self.commands.get(session, command).is_some()
    }
}

/// The guest of one sandbox, via the engine.
#[derive(Clone)]
pub struct GuestViaEngine {
    engine: Arc<dyn EngineGuest>,
    commands: Arc<Commands>,
    spools: Spools,
    session: SessionId,
    container: ContainerId,
    user: Option<String>,
    environment: BTreeMap<String, String>,
}

impl std::fmt::Debug for GuestViaEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestViaEngine")
            .field("session", &self.session)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Guest for GuestViaEngine {
    async fn open_stream(&self, request: &Request) -> Result<GuestStream, Unreachable> {
        let (ours, theirs) = UnixStream::pair()?;
        let stream = GuestStream::open(ours, request).await?;
        tokio::spawn(self.clone().serve(theirs));
        Ok(stream)
    }
}

impl GuestViaEngine {
    async fn serve(self, socket: UnixStream) {
        let Frames { mut reader, mut writer } = Frames::new(socket);
        let Some(request) = reader.request().await else { return };
        let outcome = match request {
            Request::Run { command } => self.run(command, reader, &mut writer).await,
            Request::Commands {} => {
                let commands = self.commands.of(self.session);
                writer.event(&Event::Commands { commands }).await;
                Ok(())
            }
            Request::Kill { id } => self.answer(&mut writer, self.kill(id).await).await,
            Request::Signal { id, signal } => self.answer(&mut writer, self.signal(id, signal).await).await,
            Request::Await { id } => {
                let ended = self.wait_end_of(id).await;
                self.answer(&mut writer, ended).await
            }
            Request::Attach { .. } => Err(unsupported("cannot attach to a command that the engine runs")),
            Request::Usage {} => match self.engine.usage(&self.container).await {
                Ok(usage) => {
                    writer.event(&Event::Usage { usage }).await;
                    Ok(())
                }
                Err(error) => Err(error.into()),
            },
            Request::ReadTree { path } => self.read_tree(&path, &mut writer).await,
            Request::WriteTree { path, parents } => self.write_tree(&path, parents, reader, &mut writer).await,
            Request::Write { path, mode, parents } => {
                let written = self.write(&path, mode, parents, reader).await;
                self.answer(&mut writer, written).await
            }
            file => self.file(file, &mut writer).await,
        };
        if let Err(failure) = outcome {
            writer.event(&Event::Failed { failure }).await;
        }
    }

    async fn answer(&self, writer: &mut Writer, outcome: Result<(), Failure>) -> Result<(), Failure> {
        outcome?;
        writer.event(&Event::Done {}).await;
        Ok(())
    }
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        let errno = match error {
            GuestError::NotFound => Errno::NOENT.raw_os_error(),
            GuestError::ReadOnly => Errno::ROFS.raw_os_error(),
            GuestError::NotADirectory => Errno::NOTDIR.raw_os_error(),
            GuestError::Refused(_) => 0,
            GuestError::Engine(_) => Errno::NOTCONN.raw_os_error(),
        };
        Failure { errno, message: error.to_string().into() }
    }
}

fn failed(errno: Errno, message: impl Into<String>) -> Failure {
    Failure { errno: errno.raw_os_error(), message: message.into().into() }
}

fn unsupported(message: impl Into<String>) -> Failure {
    failed(Errno::NOSYS, message)
}

/// Returns a failure without an error number of the system.
fn other(message: impl ToString) -> Failure {
    Failure { errno: 0, message: message.to_string().into() }
}
