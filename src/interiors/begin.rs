//! The last look at a sandbox that its engine has started: whether the directory that is mounted in it is its volume.
//!
//! The engine looks the volume's path up by itself, after it was checked. So it is looked up again after the engine has
//! mounted it, without following any link, and the directory that is there now has to be the one in the sandbox: a mount
//! keeps its directory, so no other can have its number.

use rustix::io::Errno;
use sandbox_init::wire::{Event, Request};
use sandboxd_actors::interior::{NotBegun, Started};

use super::conversation::ConversationError;
use super::mount_table;
use super::slots::waits;
use super::stand_in::processes;
use super::{Entrance, Interior, InteriorsOnDisk};
use crate::file_system::Directory;

impl InteriorsOnDisk {
    /// Asks init, which runs before any program of the sandbox, and lets it start the program.
    pub(super) async fn begin_with_init(&self, started: Started<'_>) -> Result<(), NotBegun> {
        let interior = self.of(started.session).ok_or_else(|| NotBegun::Init("it is not known".to_owned()))?;
        let volume = self.volume(&started).await?;
        let (device, inode) = (volume.device, volume.inode);
        match told(&interior, &Request::Mounted { path: started.target.into(), device, inode }).await? {
            Ok(()) => {}
            Err(Errno::STALE) => return Err(changed()),
            Err(error) => return Err(NotBegun::Volume(format!("cannot be looked at in the sandbox: {error}"))),
        }
        match told(&interior, &Request::Begin {}).await? {
            // It did not wait, or has begun before this service was started.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            // An init of an earlier version does not know the request, and does not wait.
            Err(_) if !waits(&interior).await.unwrap_or(true) => Ok(()),
            Err(error) => Err(NotBegun::Init(error.to_string())),
        }
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

/// What init says to a request that it does or refuses.
async fn told(interior: &Interior, request: &Request) -> Result<Result<(), Errno>, NotBegun> {
    let failed = |error: &dyn std::fmt::Display| NotBegun::Init(error.to_string());
    let conversation = interior.converse(request).await.map_err(|error| failed(&error))?;
    match conversation.answer().await {
        Ok(Event::Done {}) => Ok(Ok(())),
        Ok(_) => Err(NotBegun::Init("it said something that makes no sense".to_owned())),
        Err(ConversationError::Failed(failure)) if failure.errno != 0 => {
            Ok(Err(Errno::from_raw_os_error(failure.errno)))
        }
        Err(error) => Err(failed(&error)),
    }
}
