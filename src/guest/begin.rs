//! The last look at a sandbox that its engine has started: whether the directory that is mounted in it is its volume.
//!
//! The engine looks the volume's path up by itself, after it was checked. So it is looked up again after the engine has
//! mounted it, without following any link, and the directory that is there now has to be the one in the sandbox: a mount
//! keeps its directory, so no other can have its number.

use rustix::io::Errno;
use sandbox_init::wire::{Event, Failure, Request};
use sandboxd_actors::ports::guest::{NotBegun, Started};

use super::mount_table;
use super::slots::waits;
use super::{Entrance, GuestsOnDisk};
use crate::guest::stream::GuestStreamError;
use crate::guest::via_engine::processes;
use crate::storage::file_system::Directory;

impl GuestsOnDisk {
    /// Asks init, which runs before any program of the sandbox, and lets it start the program.
    pub(super) async fn begin_with_init(&self, started: Started<'_>) -> Result<(), NotBegun> {
        let interior = self.of(started.session).ok_or_else(|| NotBegun::Init("it is not known".to_owned()))?;
        let volume = self.volume(&started).await?;
        let (device, inode) = (volume.device, volume.inode);
        match told(&*interior, &Request::Mounted { path: started.target.into(), device, inode }).await? {
            Ok(()) => {}
            Err(failure) if failure.errno == Errno::STALE.raw_os_error() => return Err(changed()),
            Err(failure) => {
                return Err(NotBegun::Volume(format!("cannot be looked at in the sandbox: {}", words(failure))));
            }
        }
        let_begin(&*interior).await
    }

    /// Looks from outside, where there is no init to ask. A process cannot change how the kernel lists its mounts without
    /// a capability that sandboxes do not have.
    pub(super) async fn check_mounted(&self, started: Started<'_>) -> Result<(), NotBegun> {
        let volume = self.volume(&started).await?;
        let (container, target) = (started.container.to_string(), started.target.to_owned());
        let look = self.on_disk(move |_| {
            let Some(process) = processes::any_of(&container) else { return Ok(None) };
            let meant = mount_table::of_directory(&volume)?;
            Ok(Some(mount_table::of_process(process, &target)? == Some(meant)))
        });
        match look.await {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(changed()),
            // It has ended, which is found next, or its engine is on another host, and so is its volume.
            Ok(None) => {
                tracing::debug!(container.id = %started.container, "the mounts of a sandbox cannot be seen from here");
                Ok(())
            }
            Err(error) => Err(NotBegun::Volume(format!("cannot be looked at in the sandbox: {error}"))),
        }
    }

    async fn volume(&self, started: &Started<'_>) -> Result<Directory, NotBegun> {
        let opened = self.file_system.open_source(started.volume.as_path()).await;
        opened.map_err(|error| NotBegun::Volume(format!("cannot be opened any more: {error}")))
    }
}

fn changed() -> NotBegun {
    NotBegun::Volume("another directory was at this path when the sandbox was started".to_owned())
}

/// Lets init start the program.
async fn let_begin(init: &dyn Entrance) -> Result<(), NotBegun> {
    match told(init, &Request::Begin {}).await? {
        Ok(()) => Ok(()),
        // It did not wait, or has begun before this service was started.
        Err(failure) if failure.errno == Errno::EXIST.raw_os_error() => Ok(()),
        // An init of an earlier version does not know the request, which it says without a number, and does not wait.
        Err(_) if !waits(init).await.unwrap_or(true) => Ok(()),
        Err(failure) => Err(NotBegun::Init(words(failure))),
    }
}

/// What init says to a request that it does or refuses.
async fn told(init: &dyn Entrance, request: &Request) -> Result<Result<(), Failure>, NotBegun> {
    let failed = |error: &dyn std::fmt::Display| NotBegun::Init(error.to_string());
    let conversation = init.open_stream(request).await.map_err(|error| failed(&error))?;
    match conversation.answer().await {
        Ok(Event::Done {}) => Ok(Ok(())),
        Ok(_) => Err(NotBegun::Init("it said something that makes no sense".to_owned())),
        Err(GuestStreamError::Failed(failure)) => Ok(Err(failure)),
        Err(error) => Err(failed(&error)),
    }
}

fn words(failure: Failure) -> String {
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

    /// An init of an earlier version, to which `Begin` is no request.
    struct Earlier {
        waits: bool,
    }

    fn failed(errno: i32, message: &str) -> Event {
        Event::Failed { failure: Failure { errno, message: message.into() } }
    }

    #[async_trait]
    impl Entrance for Earlier {
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
                // A socket that is closed with a request unread takes its answer back.
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
    async fn an_init_that_waits_and_cannot_be_told_to_begin_has_not_begun() {
        let told = let_begin(&Earlier { waits: true }).await;
        assert_eq!(told, Err(NotBegun::Init("malformed".to_owned())));
    }
}
