//! The last check of a started sandbox: whether the mounted directory is its volume.
//!
//! The engine resolves the volume's path itself, after the service has checked it. So the service resolves the path
//! again after the engine has mounted it, without following links, and compares it with the directory in the sandbox. A
//! mount keeps its directory alive, so no other directory can have its inode number.

use rustix::io::Errno;
use sandbox_init::wire::{Event, Failure, Request};
use sandboxd_actors::ports::guest::{NotBegun, Started};

use super::mount_table;
use super::slots::waits;
use super::{Guest, GuestsOnDisk};
use crate::guest::stream::GuestStreamError;
use crate::guest::via_engine::processes;
use crate::storage::file_system::Directory;

impl GuestsOnDisk {
    /// Checks with init, which runs before any program of the sandbox, and lets it start the program.
    pub(super) async fn begin_with_init(&self, started: Started<'_>) -> Result<(), NotBegun> {
        let link =
            self.of(started.session).ok_or_else(|| NotBegun::Init("the service has no guest link to it".to_owned()))?;
        let volume = self.volume(&started).await?;
        let (device, inode) = (volume.device, volume.inode);
        match send(&*link, &Request::Mounted { path: started.target.into(), device, inode }).await? {
            Ok(()) => {}
            Err(failure) if failure.errno == Errno::STALE.raw_os_error() => return Err(changed()),
            Err(failure) => {
                return Err(NotBegun::Volume(format!("cannot be checked in the sandbox: {}", message_of(failure))));
            }
        }
        let_begin(&*link).await
    }

    /// Checks from the host, for a sandbox without init. A process cannot change the kernel's list of its mounts
    /// without a capability that sandboxes do not have.
    pub(super) async fn check_mounted(&self, started: Started<'_>) -> Result<(), NotBegun> {
        let volume = self.volume(&started).await?;
        let (container, target) = (started.container.to_string(), started.target.to_owned());
        let check = self.on_disk(move |_| {
            let Some(process) = processes::any_of(&container) else { return Ok(None) };
            let expected = mount_table::of_directory(&volume)?;
            Ok(Some(mount_table::of_process(process, &target)? == Some(expected)))
        });
        match check.await {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(changed()),
            // The sandbox has ended, which the next step finds, or its engine and its volume are on another host.
            Ok(None) => {
                tracing::debug!(container.id = %started.container, "mounts not visible; volume not checked");
                Ok(())
            }
            Err(error) => Err(NotBegun::Volume(format!("cannot be checked in the sandbox: {error}"))),
        }
    }

    async fn volume(&self, started: &Started<'_>) -> Result<Directory, NotBegun> {
        let opened = self.file_system.open_source(started.volume.as_path()).await;
        opened.map_err(|error| NotBegun::Volume(format!("can no longer be opened: {error}")))
    }
}

fn changed() -> NotBegun {
    NotBegun::Volume("another directory was at this path when the sandbox was started".to_owned())
}

/// Lets init start the program.
async fn let_begin(init: &dyn Guest) -> Result<(), NotBegun> {
    match send(init, &Request::Begin {}).await? {
        Ok(()) => Ok(()),
        // Init did not wait, or an earlier process of the service has let it begin.
        Err(failure) if failure.errno == Errno::EXIST.raw_os_error() => Ok(()),
        // An init of an earlier version does not know the request, which it reports without an error number, and does
        // not wait.
        Err(_) if !waits(init).await.unwrap_or(true) => Ok(()),
        Err(failure) => Err(NotBegun::Init(message_of(failure))),
    }
}

/// Sends a request, and returns whether init did it.
async fn send(init: &dyn Guest, request: &Request) -> Result<Result<(), Failure>, NotBegun> {
    let failed = |error: &dyn std::fmt::Display| NotBegun::Init(error.to_string());
    let stream = init.open_stream(request).await.map_err(|error| failed(&error))?;
    match stream.answer().await {
        Ok(Event::Done {}) => Ok(Ok(())),
        Ok(_) => Err(NotBegun::Init("it sent an invalid response".to_owned())),
        Err(GuestStreamError::Failed(failure)) => Ok(Err(failure)),
        Err(error) => Err(failed(&error)),
    }
}

fn message_of(failure: Failure) -> String {
    GuestStreamError::Failed(failure).to_string()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use sandbox_init::wire::{self, Kind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::super::Unreachable;
    use super::*;
    use crate::guest::stream::GuestStream;

    /// An init of an earlier version, which does not know `Begin`.
    struct Earlier {
        waits: bool,
    }

    fn failed(errno: i32, message: &str) -> Event {
        Event::Failed { failure: Failure { errno, message: message.into() } }
    }

    #[async_trait]
    impl Guest for Earlier {
        async fn open_stream(&self, request: &Request) -> Result<GuestStream, Unreachable> {
            let answer = match request {
                Request::Waiting {} if self.waits => Event::Done {},
                Request::Waiting {} => failed(Errno::EXIST.raw_os_error(), "File exists (os error 17)"),
                _ => failed(0, "malformed"),
            };
            let (ours, mut theirs) = UnixStream::pair()?;
            tokio::spawn(async move {
                let mut frame = Vec::new();
                wire::put_message(&mut frame, Kind::Event, &answer);
                theirs.write_all(&frame).await.expect("the other end is open");
                // Closing a socket with an unread request would discard the answer.
                theirs.read_to_end(&mut frame).await.expect("the other end is closed");
            });
            Ok(GuestStream::open(ours, request).await?)
        }
    }

    #[tokio::test]
    async fn an_init_of_an_earlier_version_that_does_not_wait_has_begun() {
        assert_eq!(let_begin(&Earlier { waits: false }).await, Ok(()));
    }

    #[tokio::test]
    async fn a_waiting_init_that_refuses_to_begin_has_not_begun() {
        let outcome = let_begin(&Earlier { waits: true }).await;
        assert_eq!(outcome, Err(NotBegun::Init("malformed".to_owned())));
    }
}
