//! A repository behind a password, over HTTP. On every request, it searches the arguments and environments of all
//! processes for the password.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Default)]
struct Seen {
    opened: bool,
    asked_without: bool,
    processes: Vec<String>,
}

struct Access {
    root: PathBuf,
    key: String,
    secret: String,
    seen: Mutex<Seen>,
}

pub(super) struct Guarded {
    access: Arc<Access>,
    port: u16,
    serving: JoinHandle<()>,
}

impl Guarded {
    pub(super) async fn serve(root: &Path, user: &str, password: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let key = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        let access = Access { root: root.to_owned(), key, secret: password.to_owned(), seen: Mutex::default() };
        let access = Arc::new(access);
        let serving = tokio::spawn({
            let access = Arc::clone(&access);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(Arc::clone(&access), stream));
                }
            }
        });
        Self { access, port, serving }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/app.git", self.port)
    }

    pub(super) fn was_opened(&self) -> bool {
        self.access.seen.lock().expect("no panic").opened
    }

    pub(super) fn was_asked_without(&self) -> bool {
        self.access.seen.lock().expect("no panic").asked_without
    }

    pub(super) fn seen_in(&self) -> Vec<String> {
        self.access.seen.lock().expect("no panic").processes.clone()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(access: Arc<Access>, mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (status, body) = access.check(&head);
    let length = body.len();
    let headers = format!(
        "HTTP/1.1 {status}\r\nWWW-Authenticate: Basic realm=\"git\"\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(headers.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}

impl Access {
    fn check(&self, head: &str) -> (&'static str, Vec<u8>) {
        let mut seen = self.seen.lock().expect("no panic");
        seen.processes.extend(processes_with(&self.secret));
        if !head.contains(&format!("Authorization: Basic {}", self.key)) {
            seen.asked_without = true;
            return ("401 Unauthorized", Vec::new());
        }
        seen.opened = true;
        let path = head.split(' ').nth(1).and_then(|path| path.split('?').next()).unwrap_or_default();
        let (name, path) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        // The other repositories are in the same directory.
        let repository = if name == "app.git" { self.root.clone() } else { self.root.with_file_name(name) };
        match std::fs::read(repository.join(path)) {
            Ok(content) => ("200 OK", content),
            Err(_) => ("404 Not Found", Vec::new()),
        }
    }
}

fn processes_with(secret: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").expect("processes").flatten() {
        for part in ["cmdline", "environ"] {
            let text = std::fs::read(process.path().join(part)).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains(secret) {
                found.push(format!("{}/{part}", process.path().display()));
            }
        }
    }
    found
}
