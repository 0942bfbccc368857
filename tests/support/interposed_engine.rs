//! A real engine with somebody in between, who can let it fall silent or break off, and who counts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sandboxd::engine::docker::DockerEngine;
use sandboxd_actors::ports::engine::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::engine::engine_host;
use crate::installation::Installation;

/// What becomes of a request whose first line contains this. All others are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Nothing is answered until the trouble has ended; then the engine does what it was asked.
    Silence(&'static str),
    /// The connection is closed without an answer, and the engine never hears of it.
    BreakOff(&'static str),
}

pub(crate) struct InterposedEngine {
    socket: PathBuf,
    trouble: watch::Sender<Trouble>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A service that has such an engine.
pub(crate) async fn interposed(settings: &str) -> (Installation, InterposedEngine) {
    let mut installation = Installation::new(settings);
    let engine = InterposedEngine::at(&installation.path("engine.sock")).await;
    installation.configure(&format!("engine.host = 'unix://{}'", engine.socket.display()));
    (installation, engine)
}

impl InterposedEngine {
    /// In front of the tests' engine, at this path. Served from a thread of its own, so that it goes on while a test
    /// waits for a process to end.
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

    /// The first lines of the requests since the last time.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().expect("no panic"))
    }
}

/// The socket of the engine that the tests use.
pub(crate) async fn real_engine() -> PathBuf {
    let engine = DockerEngine::connect(&engine_host()).expect("a valid host");
    let host = engine.identify().await.expect("an engine").host;
    host.strip_prefix("unix://").expect("a socket").into()
}

/// Until nobody can cause trouble any more.
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

/// The client makes one connection for each request, so the first line is all there is to look at.
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
