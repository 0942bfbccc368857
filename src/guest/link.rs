//! One sandbox's socket: init connects to it, and is then handed a socket for each conversation.

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

use super::{Entrance, SOCKET};
use crate::guest::stream::GuestStream;

/// How long whoever connects may take to say who it is.
const HELLO_LIMIT: Duration = Duration::from_secs(1);

/// How many may be about to. Anything in the sandbox can connect, and only init has something to say.
const STRANGERS: usize = 16;

/// How long a request waits for an init that is not there, such as after a restart of the service.
const LINK_LIMIT: Duration = Duration::from_secs(5);

/// Buffers of a guest stream's socket, in the direction of init. Init chooses its own for the other direction: they count
/// against the sandbox's memory.
const SEND_BUFFER: usize = 64 << 10;

/// How many streams of files and trees one sandbox may have at a time. Further ones wait, in the order they came.
const FILE_STREAMS: usize = 1024;

/// How long a stream waits for others to end.
const STREAM_LIMIT: Duration = Duration::from_secs(10);

/// Why a guest stream could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Init did not answer.
    #[error("the sandbox's init cannot be reached: {0}")]
    Silent(String),
    #[error("the sandbox has {FILE_STREAMS} open streams of files, and none has ended within {STREAM_LIMIT:?}")]
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
        let reader = tokio::spawn(welcome(listener, secret, link));
        let file_streams = Arc::new(Semaphore::new(FILE_STREAMS));
        Ok(Self { link: linked, file_streams, _listening: AbortOnDropHandle::new(reader) })
    }

    /// Init itself, as this service sees it, which the kernel says and nobody else.
    pub(super) async fn process(&self) -> Result<Pid, Unreachable> {
        let mut link = self.link.clone();
        let silent = |_| Unreachable::Silent(format!("it did not connect within {LINK_LIMIT:?}"));
        let linked = tokio::time::timeout(LINK_LIMIT, link.wait_for(Option::is_some)).await.map_err(silent)?;
        let linked = linked.map_err(|_| Unreachable::Silent("it is gone".into()))?.clone();
        let linked = linked.ok_or_else(|| Unreachable::Silent("it is gone".into()))?;
        Ok(socket_peercred(&*linked).map_err(io::Error::from)?.pid)
    }

    async fn file_stream(&self) -> Result<OwnedSemaphorePermit, Unreachable> {
        let place = tokio::time::timeout(STREAM_LIMIT, Arc::clone(&self.file_streams).acquire_owned()).await;
        place.map_err(|_| Unreachable::Busy)?.map_err(|_| Unreachable::Busy)
    }

    async fn open_stream_eventually(&self, request: &Request) -> Result<GuestStream, Unreachable> {
        let mut link = self.link.clone();
        loop {
            let linked =
                link.wait_for(Option::is_some).await.map_err(|_| Unreachable::Silent("it is gone".into()))?.clone();
            let Some(linked) = linked else { continue };
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            for half in [&ours, &theirs] {
                set_socket_send_buffer_size(half, SEND_BUFFER).map_err(io::Error::from)?;
            }
            ours.set_nonblocking(true)?;
            let conversation = GuestStream::open(UnixStream::from_std(ours)?, request).await?;
            match hand_over(&linked, theirs.into()).await {
                Ok(()) => return Ok(conversation),
                // It has just gone; whoever watches it will say so.
                Err(_) => {
                    let same =
                        |now: &Option<Arc<UnixStream>>| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &linked));
                    link.wait_for(same).await.map_err(|_| Unreachable::Silent("it is gone".into()))?;
                }
            }
        }
    }
}

#[async_trait]
impl Entrance for GuestLink {
    async fn open_stream(&self, request: &Request) -> Result<GuestStream, Unreachable> {
        let place = match opens_file_stream(request) {
            true => Some(self.file_stream().await?),
            false => None,
        };
        let silent = |_| Unreachable::Silent(format!("it did not connect within {LINK_LIMIT:?}"));
        let conversation =
            tokio::time::timeout(LINK_LIMIT, self.open_stream_eventually(request)).await.map_err(silent)??;
        Ok(conversation.holding(place))
    }
}

/// Whether a request opens a stream that lasts as long as its caller takes to read or write it.
fn opens_file_stream(request: &Request) -> bool {
    use Request::*;
    matches!(request, Read { .. } | ReadDirectory { .. } | Write { .. } | ReadTree { .. } | WriteTree { .. })
}

async fn hand_over(link: &UnixStream, socket: OwnedFd) -> io::Result<()> {
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

/// The path of a socket may be at most 107 bytes long, and `state.dir` may be anywhere.
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

/// Lets in whoever knows the secret. The last one counts, for init connects again when a connection breaks.
async fn welcome(listener: UnixListener, secret: Secret, link: watch::Sender<Option<Arc<UnixStream>>>) {
    let mut strangers = JoinSet::new();
    let mut current = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if strangers.len() < STRANGERS => match accepted {
                Ok((stream, _)) => {
                    let secret = secret.clone();
                    strangers.spawn(async move { tokio::time::timeout(HELLO_LIMIT, recognise(stream, &secret)).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a sandbox's init");
                    tokio::time::sleep(HELLO_LIMIT).await;
                }
            },
            Some(met) = strangers.join_next() => {
                if let Ok(Ok(Some(stream))) = met {
                    let stream = Arc::new(stream);
                    current.abort_all();
                    current.spawn(watch_over(Arc::clone(&stream)));
                    link.send_replace(Some(stream));
                }
            }
            Some(ended) = current.join_next() => {
                // One that was replaced was aborted, unless it had just ended by itself.
                if let Ok(ended) = ended {
                    link.send_if_modified(|now| now.take_if(|now| Arc::ptr_eq(now, &ended)).is_some());
                }
            }
        }
    }
}

/// The connection, if it is init's.
async fn recognise(mut stream: UnixStream, secret: &Secret) -> Option<UnixStream> {
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

/// Gives the connection back when it has ended. Init has nothing to say on it.
async fn watch_over(stream: Arc<UnixStream>) -> Arc<UnixStream> {
    let mut nothing = [0; 64];
    loop {
        if stream.readable().await.is_err() {
            return stream;
        }
        match stream.try_read(&mut nothing) {
            Ok(0) => return stream,
            Ok(_) => tokio::task::consume_budget().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return stream,
        }
    }
}

/// What only init and the service know.
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
        bytes.try_into().map(Self).map_err(|_| io::Error::other("the secret has another length"))
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&self.0)
    }
}

/// As init is told it, in hexadecimal.
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
