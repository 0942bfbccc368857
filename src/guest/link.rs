//! The guest link: init connects to the sandbox's socket, and is passed a socket for each guest stream.

use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_peercred};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;
use sandbox_init::codec::decode;
use sandbox_init::wire::{self, HEADER, Hello, Kind, Request, SECRET_LENGTH, VERSION};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::{Guest, SOCKET};
use crate::guest::stream::GuestStream;

/// The time limit of a client for its hello.
const HELLO_LIMIT: Duration = Duration::from_secs(1);

/// The most clients that have not sent a hello. Any process of the sandbox can connect, and only init has the secret.
const MAX_PENDING: usize = 16;

/// The time limit of a request for init to connect, such as after a restart of the service.
const LINK_LIMIT: Duration = Duration::from_secs(5);

/// The buffer of a guest stream's socket, in the direction of init. Init chooses the buffer of the other direction,
/// because it counts against the sandbox's memory.
const SEND_BUFFER: usize = 64 << 10;

/// The most streams of files and trees of one sandbox. Further ones wait in order.
const FILE_STREAMS: usize = 1024;

/// The time limit of a stream for others to end.
const STREAM_LIMIT: Duration = Duration::from_secs(10);

/// Why a guest stream could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Init did not answer.
    #[error("the sandbox's init cannot be reached: {0}")]
    Silent(String),
    #[error("{FILE_STREAMS} file streams are open in the sandbox, and none ended within {STREAM_LIMIT:?}; retry later")]
    Busy,
}

impl From<io::Error> for Unreachable {
    fn from(error: io::Error) -> Self {
        Unreachable::Silent(error.to_string())
    }
}

#[derive(Debug)]
pub struct GuestLink {
    link: watch::Receiver<Option<Arc<UnixStream>>>,
    file_streams: Arc<Semaphore>,
    _listening: AbortOnDropHandle<()>,
}

impl GuestLink {
    pub(super) fn listen(directory: &Path, secret: Secret) -> io::Result<Self> {
        let listener = bind(directory)?;
        let (link, linked) = watch::channel(None);
        let reader = tokio::spawn(accept_init(listener, secret, link));
        let file_streams = Arc::new(Semaphore::new(FILE_STREAMS));
        Ok(Self { link: linked, file_streams, _listening: AbortOnDropHandle::new(reader) })
    }

    /// Returns the process id of init, as the kernel reports it.
    pub(super) async fn process(&self) -> Result<Pid, Unreachable> {
        let mut link = self.link.clone();
        let timed_out = |_| Unreachable::Silent(format!("it did not connect within {LINK_LIMIT:?}"));
        let linked = tokio::time::timeout(LINK_LIMIT, link.wait_for(Option::is_some)).await.map_err(timed_out)?;
        let linked = linked.map_err(|_| Unreachable::Silent("the guest link is closed".into()))?.clone();
        let linked = linked.ok_or_else(|| Unreachable::Silent("the guest link is closed".into()))?;
        Ok(socket_peercred(&*linked).map_err(io::Error::from)?.pid)
    }

    async fn file_stream(&self) -> Result<OwnedSemaphorePermit, Unreachable> {
        let permit = tokio::time::timeout(STREAM_LIMIT, Arc::clone(&self.file_streams).acquire_owned()).await;
        permit.map_err(|_| Unreachable::Busy)?.map_err(|_| Unreachable::Busy)
    }

    async fn open_stream_eventually(&self, request: &Request) -> Result<GuestStream, Unreachable> {
        let mut link = self.link.clone();
        loop {
            let linked = link
                .wait_for(Option::is_some)
                .await
                .map_err(|_| Unreachable::Silent("the guest link is closed".into()))?
                .clone();
            let Some(linked) = linked else { continue };
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            for half in [&ours, &theirs] {
                set_socket_send_buffer_size(half, SEND_BUFFER).map_err(io::Error::from)?;
            }
            ours.set_nonblocking(true)?;
            let stream = GuestStream::open(UnixStream::from_std(ours)?, request).await?;
            match pass_socket(&linked, theirs.into()).await {
                Ok(()) => return Ok(stream),
                // The connection has just closed. The task that watches it clears the link.
                Err(_) => {
                    let is_replaced =
                        |now: &Option<Arc<UnixStream>>| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &linked));
                    link.wait_for(is_replaced)
                        .await
                        .map_err(|_| Unreachable::Silent("the guest link is closed".into()))?;
                }
            }
        }
    }
}

#[async_trait]
impl Guest for GuestLink {
    async fn open_stream(&self, request: &Request) -> Result<GuestStream, Unreachable> {
        let permit = match opens_file_stream(request) {
            true => Some(self.file_stream().await?),
            false => None,
        };
        let timed_out = |_| Unreachable::Silent(format!("it did not connect within {LINK_LIMIT:?}"));
        let stream =
            tokio::time::timeout(LINK_LIMIT, self.open_stream_eventually(request)).await.map_err(timed_out)??;
        Ok(stream.with_permit(permit))
    }
}

/// Returns whether a request opens a stream that lasts as long as its caller takes to read or write.
fn opens_file_stream(request: &Request) -> bool {
    use Request::*;
    matches!(request, Read { .. } | ReadDirectory { .. } | Write { .. } | ReadTree { .. } | WriteTree { .. })
}

async fn pass_socket(link: &UnixStream, socket: OwnedFd) -> io::Result<()> {
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        let descriptors = [socket.as_fd()];
        attached.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(link, &[IoSlice::new(&[1])], &mut attached, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    };
    link.async_io(Interest::WRITABLE, send).await
}

/// Binds the socket through a descriptor: the path of a socket is limited to 107 bytes, and `state.dir` may be longer.
fn bind(directory: &Path) -> io::Result<UnixListener> {
    let handle = fs::File::open(directory)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", handle.as_raw_fd());
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Accepts connections that send the secret. The last one counts, because init reconnects when a connection breaks.
async fn accept_init(listener: UnixListener, secret: Secret, link: watch::Sender<Option<Arc<UnixStream>>>) {
    let mut pending = JoinSet::new();
    let mut current = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if pending.len() < MAX_PENDING => match accepted {
                Ok((stream, _)) => {
                    let secret = secret.clone();
                    pending.spawn(async move { tokio::time::timeout(HELLO_LIMIT, authenticate(stream, &secret)).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the guest socket");
                    tokio::time::sleep(HELLO_LIMIT).await;
                }
            },
            Some(authenticated) = pending.join_next() => {
                if let Ok(Ok(Some(stream))) = authenticated {
                    let stream = Arc::new(stream);
                    current.abort_all();
                    current.spawn(wait_closed(Arc::clone(&stream)));
                    link.send_replace(Some(stream));
                }
            }
            Some(ended) = current.join_next() => {
                // A replaced connection was aborted, unless it had just ended by itself.
                if let Ok(ended) = ended {
                    link.send_if_modified(|now| now.take_if(|now| Arc::ptr_eq(now, &ended)).is_some());
                }
            }
        }
    }
}

/// Returns the connection if its hello has the secret.
async fn authenticate(mut stream: UnixStream, secret: &Secret) -> Option<UnixStream> {
    let mut start = [0; HEADER];
    stream.read_exact(&mut start).await.ok()?;
    let (kind, length) = wire::header(start).ok()?;
    let mut payload = [0; 1 + SECRET_LENGTH];
    if kind != Kind::Hello || length != payload.len() {
        return None;
    }
    stream.read_exact(&mut payload).await.ok()?;
    let hello: Hello = decode(&payload).ok()?;
    let known = hello.secret.iter().zip(secret.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0;
    (known && hello.version == VERSION).then_some(stream)
}

/// Returns the connection when it has closed. Init sends no data on it.
async fn wait_closed(stream: Arc<UnixStream>) -> Arc<UnixStream> {
    let mut ignored = [0; 64];
    loop {
        if stream.readable().await.is_err() {
            return stream;
        }
        match stream.try_read(&mut ignored) {
            Ok(0) => return stream,
            Ok(_) => tokio::task::consume_budget().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return stream,
        }
    }
}

/// The secret that authenticates init.
#[derive(Clone)]
pub(super) struct Secret([u8; SECRET_LENGTH]);

impl Secret {
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; SECRET_LENGTH];
        fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| io::Error::other(format!("the secret does not have {SECRET_LENGTH} bytes")))
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&self.0)
    }
}

/// The form in init's environment: hexadecimal.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
