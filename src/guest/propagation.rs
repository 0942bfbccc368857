//! Mounts directories of the host into a running container by mount propagation: for a service that may mount, but not
//! enter a container.
//!
//! ```text
//! <state.dir>/places/<slot>/     mounted on itself and shared, as long as the slot waits
//!     %2Fchat, …                 seen by the container, each at the target of one of the chat's directories
//! ```
//!
//! The name of each mount point is its target in the container. A directory that is mounted there appears in the
//! container. Then the propagation ends and everything is unmounted on the host, so that the host has no mount of a
//! claimed sandbox. The empty directories stay until the container is removed: removing one would unmount the
//! container's directory.
//!
//! Below `places`, only empty directories are ever removed, one by one: a directory that is still mounted there
//! contains a user's files.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount};
use sandboxd_actors::domain::ids::SlotId;

use super::capabilities;
use super::source::Source;

/// The name of the directory for a trial mount.
const TRIAL: &str = "trial";

#[derive(Debug)]
pub(super) struct Places {
    root: PathBuf,
}

impl Places {
    pub(super) fn in_state(state: &Path) -> io::Result<Self> {
        let root = state.join("places");
        DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        // The kernel and the engine use the canonical path.
        Ok(Self { root: fs::canonicalize(root)? })
    }

    /// Checks that the service can mount here. Returns the reason if it cannot, as far as that is known without a
    /// container.
    pub(super) fn are_possible(&self) -> Result<(), String> {
        if let Some(name) = capabilities::missing(&[capabilities::SYS_ADMIN]) {
            return Err(format!("to mount directories that a running sandbox sees, the service needs {name}"));
        }
        let trial = self.root.join(TRIAL);
        let tried = remove_mount_points(&trial).and_then(|()| self.make(&trial)).and_then(|()| share(&trial));
        tried
            .and_then(|()| remove_mount_points(&trial))
            .map_err(|error| format!("{} cannot be mounted: {error}", trial.display()))
    }

    /// Creates the mount points of a slot, one for each target in the container.
    pub(super) fn prepare(&self, slot: SlotId, targets: &[String]) -> io::Result<Vec<PathBuf>> {
        let path = self.of(slot);
        self.make(&path)?;
        let places: Vec<PathBuf> = targets.iter().map(|target| self.place(slot, target)).collect();
        places.iter().try_for_each(|place| self.make(place))?;
        share(&path)?;
        Ok(places)
    }

    /// Shares the mount points again for a container that is restarted. Ignores a slot without mount points.
    pub(super) fn open_again(&self, slot: SlotId) -> io::Result<()> {
        let path = self.of(slot);
        if !path.exists() {
            return Ok(());
        }
        unmount_all(&path)?;
        share(&path)
    }

    /// Mounts the sources, with their submounts, at their mount points. Mount points without a source stay empty.
    pub(super) fn mount(&self, slot: SlotId, sources: &[Source]) -> io::Result<()> {
        for Source { mount, directory } in sources {
            let place = self.place(slot, &mount.target);
            let named = |error: Errno| io::Error::other(format!("{}: {}", mount.source, io::Error::from(error)));
            // By its handle: another directory may be at the path by now.
            let held = format!("/proc/self/fd/{}", directory.handle.as_raw_fd());
            mount_bind_recursive(held, &place).map_err(named)?;
        }
        Ok(())
    }

    /// Unmounts the sources, also in the container.
    pub(super) fn unmount(&self, slot: SlotId, targets: &[String]) -> io::Result<()> {
        let mut targets = targets.iter().rev();
        targets.try_for_each(|target| Ok(unmount(self.place(slot, target), UnmountFlags::DETACH)?))
    }

    /// Unmounts the sources on the host only. The container keeps them.
    pub(super) fn detach(&self, slot: SlotId) -> io::Result<()> {
        unmount_all(&self.of(slot))
    }

    /// Removes the mount points of a slot whose container is removed or will never be used.
    pub(super) fn remove(&self, slot: SlotId) {
        let path = self.of(slot);
        if let Err(error) = remove_mount_points(&path) {
            tracing::warn!(slot.id = %slot, path = %path.display(), %error, "cannot remove the mount points of a slot");
        }
    }

    /// Returns the slots that have mount points.
    pub(super) fn slots(&self) -> io::Result<Vec<SlotId>> {
        Ok(super::directories_in(&self.root)?.filter_map(|name| name.parse().ok()).collect())
    }

    /// Returns an empty directory.
    pub(super) fn empty_directory(&self) -> io::Result<PathBuf> {
        let path = self.root.join("nothing");
        match self.make(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(path),
        }
    }

    fn of(&self, slot: SlotId) -> PathBuf {
        self.root.join(slot.to_string())
    }

    fn place(&self, slot: SlotId, target: &str) -> PathBuf {
        self.of(slot).join(target.replace('%', "%25").replace('/', "%2F"))
    }

    fn make(&self, directory: &Path) -> io::Result<()> {
        DirBuilder::new().create(directory)?;
        // The sandbox's user must see it, independent of the umask.
        fs::set_permissions(directory, Permissions::from_mode(0o755))
    }
}

/// Shares the directory: later mounts below it propagate to every bind mount of it.
fn share(directory: &Path) -> io::Result<()> {
    mount_bind(directory, directory)?;
    // Leaves the peer group of the parent mount, so that the mounts do not propagate to the rest of the host.
    mount_change(directory, MountPropagationFlags::PRIVATE)?;
    Ok(mount_change(directory, MountPropagationFlags::SHARED)?)
}

/// Unmounts the directory with its submounts, on the host only.
fn unmount_all(directory: &Path) -> io::Result<()> {
    loop {
        match mount_change(directory, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC) {
            Ok(()) => unmount(directory, UnmountFlags::DETACH)?,
            // The directory is not a mount, or does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn remove_mount_points(directory: &Path) -> io::Result<()> {
    unmount_all(directory)?;
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for place in entries {
        fs::remove_dir(place?.path())?;
    }
    fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::file_system::FileSystem;
    use sandboxd_actors::domain::container::Mount;
    use sandboxd_actors::domain::host_path::HostPath;

    async fn source(directory: &Path, target: &str) -> Source {
        let path = HostPath::from_canonical(directory).unwrap();
        let mount = Mount { source: path, target: target.into(), read_only: false, propagated: false };
        let file_system = FileSystem::new(Path::new("/none"), directory).unwrap();
        Source { mount, directory: file_system.open_source(directory).await.unwrap() }
    }

    #[tokio::test]
    async fn mounts_left_by_a_crash_are_unmounted_and_never_deleted() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::in_state(state.path()).unwrap();
        if let Err(why) = places.are_possible() {
            eprintln!("skipped: cannot mount here: {why}");
            return;
        }
        let chat = fs::canonicalize(state.path()).unwrap().join("chat");
        fs::create_dir(&chat).unwrap();
        fs::write(chat.join("history"), "years of it").unwrap();
        let slot = SlotId::random();
        let kept = places.prepare(slot, &["/chat".to_owned(), "/a/volume".to_owned()]).unwrap();
        let sources = [source(&chat, "/chat").await, source(&chat, "/a/volume").await];
        places.mount(slot, &sources).unwrap();
        // Twice, as if the next process of the service had tried again.
        places.mount(slot, &sources[..1]).unwrap();
        assert_eq!(fs::read_to_string(kept[0].join("history")).unwrap(), "years of it");

        let next = Places::in_state(state.path()).unwrap();
        assert_eq!(next.slots().unwrap(), [slot]);
        next.remove(slot);
        assert_eq!(next.slots().unwrap(), []);
        assert_eq!(fs::read_to_string(chat.join("history")).unwrap(), "years of it");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let left: Vec<_> = table.lines().filter(|line| line.contains(&slot.to_string())).collect();
        assert_eq!(left, Vec::<&str>::new());
        next.remove(slot);
    }

    #[tokio::test]
    async fn a_directory_is_mounted_at_its_own_mount_point() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::in_state(state.path()).unwrap();
        if let Err(why) = places.are_possible() {
            eprintln!("skipped: cannot mount here: {why}");
            return;
        }
        let slot = SlotId::random();
        let kept = places.prepare(slot, &["/a/volume".to_owned(), "/chat".to_owned()]).unwrap();
        let chat = fs::canonicalize(state.path()).unwrap().join("chat");
        fs::create_dir_all(chat.join("mine")).unwrap();
        places.mount(slot, &[source(&chat, "/chat").await]).unwrap();
        let filled: Vec<_> = kept.iter().map(|place| place.join("mine").exists()).collect();
        assert_eq!(filled, [false, true]);
        places.remove(slot);
    }

    #[test]
    fn a_directory_with_files_is_not_removed() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::in_state(state.path()).unwrap();
        let slot = SlotId::random();
        let file = places.of(slot).join("0").join("file");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "a user's").unwrap();
        places.remove(slot);
        assert_eq!(fs::read_to_string(&file).unwrap(), "a user's");
    }
}
