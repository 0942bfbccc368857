//! The listening socket and its file, which is reachable only once its mode and group are set. The file of another
//! process is never replaced.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Connections that the kernel queues until the service accepts them.
const BACKLOG: u32 = 1024;

/// A listening socket, with its file if the service created it.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: UnixListener,
    file: Option<SocketFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// The group of the file, if given.
    pub gid: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another service listens on {path}; stop it or set a different socket.path")]
    Live { path: PathBuf },
    #[error("{path} exists and is not a socket; remove it or set a different socket.path")]
    NotASocket { path: PathBuf },
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl Listener {
    /// Creates the socket file and listens on it. Replaces the file of a dead service; fails if a process listens on it.
    pub async fn bind(options: &SocketOptions) -> Result<Self, BindError> {
        let SocketOptions { path, mode, gid } = options;
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| BindError::Io { action, path, source }
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(failed("create the directory", directory))?;
        let lock = lock(path)?;
        refuse_unless_stale(path).await?;

        // The file is created without permissions and under a temporary name, so that no caller can connect before the
        // group and the mode are set. The rename is atomic, so that callers always find a socket.
        let temporary = directory.join(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(&temporary);
        let socket = UnixSocket::new_stream().map_err(failed("create a socket for", path))?;
        rustix::fs::fchmod(&socket, Mode::empty()).map_err(|errno| failed("protect", path)(errno.into()))?;
        socket.bind(&temporary).map_err(failed("bind", &temporary))?;
        let prepared = std::os::unix::fs::chown(&temporary, None, *gid)
            .map_err(failed("set the group of", path))
            .and_then(|()| {
                std::fs::set_permissions(&temporary, PermissionsExt::from_mode(*mode))
                    .map_err(failed("set the mode of", path))
            })
            .and_then(|()| socket.listen(BACKLOG).map_err(failed("listen on", path)))
            .and_then(|socket| SocketFile::renamed(&temporary, path, lock).map(|file| (socket, file)));
        match prepared {
            Ok((socket, file)) => Ok(Self { socket, file: Some(file) }),
            Err(error) => {
                let _ = std::fs::remove_file(&temporary);
                Err(error)
            }
        }
    }

    /// Takes over a socket that another process, such as systemd, opened and will remove.
    pub fn from_std(socket: std::os::unix::net::UnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixListener::from_std(socket)?, file: None })
    }

    /// Returns the socket file, if this listener created it.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }
}

/// The socket file, removed on drop unless another file has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    /// Held while the listener exists.
    _lock: File,
}

impl SocketFile {
    fn renamed(temporary: &Path, path: &Path, lock: File) -> Result<Self, BindError> {
        let failed = |source| BindError::Io { action: "rename the new socket to", path: path.to_owned(), source };
        let identity = identity(temporary).map_err(failed)?;
        std::fs::rename(temporary, path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), identity, _lock: lock })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Locks the socket. Two services that start at the same time would both find a stale socket; the lock admits one. The
/// lock file is never removed: otherwise a third service could lock another file of the same name.
fn lock(socket: &Path) -> Result<File, BindError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = |source| BindError::Io { action: "lock", path: path.clone(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(BindError::Live { path: socket.to_owned() }),
        Err(errno) => Err(failed(errno.into())),
    }
}

async fn refuse_unless_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { action: "inspect", path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(()),
        Ok(_) => Err(BindError::Live { path: path.to_owned() }),
        // A process listens, but its backlog is full.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(BindError::Live { path: path.to_owned() }),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &tempfile::TempDir) -> SocketOptions {
        SocketOptions { path: directory.path().join("run/sandboxd.sock"), mode: 0o640, gid: None }
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    #[tokio::test]
    async fn the_socket_has_its_mode_and_is_removed_on_drop() {
        let directory = directory();
        let options = options(&directory);
        let listener = Listener::bind(&options).await.expect("bound");
        let mode = std::fs::metadata(&options.path).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        UnixStream::connect(&options.path).await.expect("reachable");
        drop(listener);
        assert!(!options.path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let directory = directory();
        let options = options(&directory);
        std::fs::create_dir(options.path.parent().expect("a parent")).expect("created");
        drop(std::os::unix::net::UnixListener::bind(&options.path).expect("bound"));
        assert!(options.path.exists());
        let _listener = Listener::bind(&options).await.expect("bound");
        UnixStream::connect(&options.path).await.expect("reachable");
    }

    #[tokio::test]
    async fn a_live_socket_of_any_process_is_refused() {
        let directory = directory();
        let options = options(&directory);
        let first = Listener::bind(&options).await.expect("bound");
        assert!(matches!(Listener::bind(&options).await, Err(BindError::Live { .. })));
        drop(first);

        let _foreign = std::os::unix::net::UnixListener::bind(&options.path).expect("bound");
        assert!(matches!(Listener::bind(&options).await, Err(BindError::Live { .. })));
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let directory = directory();
        let options = options(&directory);
        std::fs::create_dir(options.path.parent().expect("a parent")).expect("created");
        std::fs::write(&options.path, "precious").expect("written");
        assert!(matches!(Listener::bind(&options).await, Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read(&options.path).expect("readable"), b"precious");
    }

    #[tokio::test]
    async fn a_socket_that_replaced_the_first_is_not_removed() {
        let directory = directory();
        let options = options(&directory);
        let listener = Listener::bind(&options).await.expect("bound");
        std::fs::remove_file(&options.path).expect("removed");
        let _other = std::os::unix::net::UnixListener::bind(&options.path).expect("bound");
        drop(listener);
        assert!(options.path.exists());
    }
}
