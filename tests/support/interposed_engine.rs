//! A proxy in front of a real engine that can delay or drop requests, and records them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sandboxd::engine::docker::DockerEngine;
use sandboxd_actors::ports::engine::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::engine::engine_host;
use crate::installation::Installation;

/// The fault of requests whose first line contains the text. The proxy passes on all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// The proxy holds the request until the fault ends, and then passes it on.
    Silence(&'static str),
    /// The proxy closes the connection without an answer and does not pass the request on.
    BreakOff(&'static str),
}

pub(crate) struct InterposedEngine {
    socket: PathBuf,
    trouble: watch::Sender<Trouble>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// Returns an installation whose engine is behind such a proxy.
pub(crate) async fn interposed(settings: &str) -> (Installation, InterposedEngine) {
    let mut installation = Installation::new(settings);
    let engine = InterposedEngine::at(&installation.path("engine.sock")).await;
    installation.configure(&format!("engine.host = 'unix://{}'", engine.socket.display()));
    (installation, engine)
}

impl InterposedEngine {
    /// Serves a proxy to the tests' engine at this path. It runs on its own thread, so that it goes on while a test
    /// blocks on a process.
    pub(crate) async fn at(socket: &Path) -> Self {
        let real = real_engine().await;
        let listener = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
        listener.set_nonblocking(true).expect("not blocking");
        let (trouble, watched) = watch::channel(Trouble::None);
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve(listener, real, watched, seen));
        });
        Self { socket: socket.to_owned(), trouble, requests }
    }

    pub(crate) fn fall_silent(&self, on: &'static str) {
        self.trouble.send_replace(Trouble::Silence(on));
    }

    pub(crate) fn break_off(&self, on: &'static str) {
        self.trouble.send_replace(Trouble::BreakOff(on));
    }

    pub(crate) fn recover(&self) {
        self.trouble.send_replace(Trouble::None);
    }

    /// Returns the first lines of the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().expect("no panic"))
    }
}

/// Returns the socket of the tests' engine.
pub(crate) async fn real_engine() -> PathBuf {
    let engine = DockerEngine::connect(&engine_host()).expect("a valid host");
    let host = engine.identify().await.expect("an engine").host;
    host.strip_prefix("unix://").expect("a socket").into()
}

/// Serves until the proxy's handle is dropped.
async fn serve(
    listener: std::os::unix::net::UnixListener,
    real: PathBuf,
    mut trouble: watch::Receiver<Trouble>,
    requests: Arc<Mutex<Vec<String>>>,
) {
    let listener = UnixListener::from_std(listener).expect("a listener");
    let watched = trouble.clone();
    let accepting = async {
        loop {
            let (client, _) = listener.accept().await.expect("a connection");
            tokio::spawn(interpose(client, real.clone(), watched.clone(), Arc::clone(&requests)));
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = trouble.wait_for(|_| false) => {}
    }
}

/// Passes on one connection. The client makes one connection per request, so the first line is enough to decide.
async fn interpose(
    mut client: UnixStream,
    real: PathBuf,
    mut trouble: watch::Receiver<Trouble>,
    requests: Arc<Mutex<Vec<String>>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.contains(&b'\n') {
        if client.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    requests.lock().expect("no panic").push(line.clone());
    let concerned = |trouble: &Trouble| match trouble {
        Trouble::None => false,
        Trouble::Silence(part) | Trouble::BreakOff(part) => line.contains(part),
    };
    let silent = |trouble: &Trouble| matches!(trouble, Trouble::Silence(_)) && concerned(trouble);
    match trouble.wait_for(|trouble| !silent(trouble)).await {
        Ok(trouble) if concerned(&trouble) => return Ok(()),
        Ok(_) => {}
        Err(_) => return Ok(()),
    }
    let mut engine = UnixStream::connect(real).await?;
    engine.write_all(&head).await?;
    tokio::io::copy_bidirectional(&mut client, &mut engine).await.map(drop)
}
