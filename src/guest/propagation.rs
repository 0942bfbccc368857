//! Brings directories of the host into a container that runs already, by mounts that propagate: for a service that may mount,
//! but not enter a container.
//!
//! ```text
//! <state.dir>/places/<slot>/     mounted on itself and shared, as long as the slot waits
//!     %2Fchat, …                 seen by the container, each where one of the chat's directories is to be
//! ```
//!
//! The name of each is its place in the container. A directory that is mounted there appears in the container. Once it is there, the two are separated and all of it is unmounted
//! out here, so that the host has no mount of a sandbox that is somebody's. The empty directories stay until the container
//! is gone: to remove one would unmount what the container has there.
//!
//! Nothing below `places` is ever removed but empty directories, one by one: should something be mounted there after all, it
//! is somebody's files.

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

/// Where mounts are tried out.
const TRIAL: &str = "trial";

#[derive(Debug)]
pub(super) struct Places {
    root: PathBuf,
}

impl Places {
    pub(super) fn in_state(state: &Path) -> io::Result<Self> {
        let root = state.join("places");
        DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        // As the kernel and the engine name it.
        Ok(Self { root: fs::canonicalize(root)? })
    }

    /// Why nothing that is mounted here can get into containers, as far as that is known before there is one.
    pub(super) fn are_possible(&self) -> Result<(), String> {
        if let Some(name) = capabilities::missing(&[capabilities::SYS_ADMIN]) {
            return Err(format!("to mount directories that a running sandbox sees, the service needs {name}"));
        }
        let trial = self.root.join(TRIAL);
        let tried = close(&trial).and_then(|()| self.make(&trial)).and_then(|()| share(&trial));
        tried.and_then(|()| close(&trial)).map_err(|error| format!("{} cannot be mounted: {error}", trial.display()))
    }

    /// New places for a slot, one for each of these in the container.
    pub(super) fn prepare(&self, slot: SlotId, targets: &[String]) -> io::Result<Vec<PathBuf>> {
        let path = self.of(slot);
        self.make(&path)?;
        let places: Vec<PathBuf> = targets.iter().map(|target| self.place(slot, target)).collect();
        places.iter().try_for_each(|place| self.make(place))?;
        share(&path)?;
        Ok(places)
    }

    /// Makes them ready for a container that is started again. Does nothing about a slot that has none.
    pub(super) fn open_again(&self, slot: SlotId) -> io::Result<()> {
        let path = self.of(slot);
        if !path.exists() {
            return Ok(());
        }
        withdraw(&path)?;
        share(&path)
    }

    /// Mounts each, with all that is mounted below it, at its place. A place without a mount stays empty.
    pub(super) fn fill(&self, slot: SlotId, sources: &[Source]) -> io::Result<()> {
        for Source { mount, directory } in sources {
            let place = self.place(slot, &mount.target);
            let named = |error: Errno| io::Error::other(format!("{}: {}", mount.source, io::Error::from(error)));
            // By its handle: another directory may be at its path by now.
            let held = format!("/proc/self/fd/{}", directory.handle.as_raw_fd());
            mount_bind_recursive(held, &place).map_err(named)?;
        }
        Ok(())
    }

    /// Takes back what was filled in, also out of the container.
    pub(super) fn empty(&self, slot: SlotId, targets: &[String]) -> io::Result<()> {
        let mut targets = targets.iter().rev();
        targets.try_for_each(|target| Ok(unmount(self.place(slot, target), UnmountFlags::DETACH)?))
    }

    /// Leaves what was filled in to the container, and to nobody else.
    pub(super) fn leave(&self, slot: SlotId) -> io::Result<()> {
        withdraw(&self.of(slot))
    }

    /// Nothing is left of the slot's places. Its container is gone, or will never be used.
    pub(super) fn clear(&self, slot: SlotId) {
        let path = self.of(slot);
        if let Err(error) = close(&path) {
            tracing::warn!(slot.id = %slot, path = %path.display(), %error, "the places of a slot were not removed");
        }
    }

    /// The slots that have places.
    pub(super) fn slots(&self) -> io::Result<Vec<SlotId>> {
        Ok(super::directories_in(&self.root)?.filter_map(|name| name.parse().ok()).collect())
    }

    /// A directory with nothing in it.
    pub(super) fn nothing(&self) -> io::Result<PathBuf> {
        let nothing = self.root.join("nothing");
        match self.make(&nothing) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(nothing),
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
        // Whatever the mask is: the sandbox's user sees it.
        fs::set_permissions(directory, Permissions::from_mode(0o755))
    }
}

/// From now on, whoever mounts the directory gets what is mounted below it.
fn share(directory: &Path) -> io::Result<()> {
    mount_bind(directory, directory)?;
    // Not in the group of the mount that it lies on, where half the host might hear of it.
    mount_change(directory, MountPropagationFlags::PRIVATE)?;
    Ok(mount_change(directory, MountPropagationFlags::SHARED)?)
}

/// Unmounts it with all that is mounted below it, out here and nowhere else.
fn withdraw(directory: &Path) -> io::Result<()> {
    loop {
        match mount_change(directory, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC) {
            Ok(()) => unmount(directory, UnmountFlags::DETACH)?,
            // It is no mount, or not any more, or not there at all.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn close(directory: &Path) -> io::Result<()> {
    withdraw(directory)?;
    let numbered = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for place in numbered {
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
    async fn what_a_crash_left_mounted_is_unmounted_and_never_deleted() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::in_state(state.path()).unwrap();
        if let Err(why) = places.are_possible() {
            eprintln!("nothing can be mounted here: {why}");
            return;
        }
        let chat = fs::canonicalize(state.path()).unwrap().join("chat");
        fs::create_dir(&chat).unwrap();
        fs::write(chat.join("history"), "years of it").unwrap();
        let slot = SlotId::random();
        let kept = places.prepare(slot, &["/chat".to_owned(), "/a/volume".to_owned()]).unwrap();
        let sources = [source(&chat, "/chat").await, source(&chat, "/a/volume").await];
        places.fill(slot, &sources).unwrap();
        // Twice, as if the next service had tried again.
        places.fill(slot, &sources[..1]).unwrap();
        assert_eq!(fs::read_to_string(kept[0].join("history")).unwrap(), "years of it");

        let next = Places::in_state(state.path()).unwrap();
        assert_eq!(next.slots().unwrap(), [slot]);
        next.clear(slot);
        assert_eq!(next.slots().unwrap(), []);
        assert_eq!(fs::read_to_string(chat.join("history")).unwrap(), "years of it");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let left: Vec<_> = table.lines().filter(|line| line.contains(&slot.to_string())).collect();
        assert_eq!(left, Vec::<&str>::new());
        next.clear(slot);
    }

    #[tokio::test]
    async fn a_directory_is_mounted_at_its_own_place_whichever_others_stay_empty() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::in_state(state.path()).unwrap();
        if let Err(why) = places.are_possible() {
            eprintln!("nothing can be mounted here: {why}");
            return;
        }
        let slot = SlotId::random();
        let kept = places.prepare(slot, &["/a/volume".to_owned(), "/chat".to_owned()]).unwrap();
        let chat = fs::canonicalize(state.path()).unwrap().join("chat");
        fs::create_dir_all(chat.join("mine")).unwrap();
        places.fill(slot, &[source(&chat, "/chat").await]).unwrap();
        let filled: Vec<_> = kept.iter().map(|place| place.join("mine").exists()).collect();
        assert_eq!(filled, [false, true]);
        places.clear(slot);
    }

    #[test]
    fn what_is_no_empty_directory_stays() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::in_state(state.path()).unwrap();
        let slot = SlotId::random();
        let file = places.of(slot).join("0").join("file");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "somebody's").unwrap();
        places.clear(slot);
        assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");
    }
}
