//! Probes the readiness of a sandbox's main program over the network.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use sandboxd_actors::ports::probe::{NotReady, Probe};
use tokio::net::TcpStream;

/// A probe over HTTP or TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkProbe;

#[async_trait]
impl Probe for NetworkProbe {
    async fn http(&self, address: SocketAddr, path: &str) -> Result<(), NotReady> {
        let status = get(address, path).await?;
        if status == StatusCode::OK {
            Ok(())
        } else {
            Err(NotReady::Refused(format!("GET {path} on {address} answered {}", status.as_u16())))
        }
    }

    async fn tcp(&self, address: SocketAddr) -> Result<(), NotReady> {
        connect(address).await.map(drop)
    }
}

/// A closed port refuses at once, and most programs listen shortly after their start. So each probe makes several
/// attempts, with a delay that is below the resolution of the runtime's timer.
const MAX_REFUSALS: usize = 8;
const RETRY_DELAY: Duration = Duration::from_micros(250);

async fn connect(address: SocketAddr) -> Result<TcpStream, NotReady> {
    let mut refusals = 0;
    loop {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && refusals < MAX_REFUSALS => {
                refusals += 1;
                let _ = tokio::task::spawn_blocking(sleep_briefly).await;
            }
            Err(error) => {
                let why = format!("cannot connect to {address}: {error}");
                return Err(if is_sandbox_error(&error) { NotReady::Refused(why) } else { NotReady::NotProbed(why) });
            }
        }
    }
}

/// Returns whether the error comes from the sandbox. Others, such as too many open files, come from this host.
fn is_sandbox_error(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | HostUnreachable | TimedOut)
}

#[expect(clippy::disallowed_methods, reason = "runs on a blocking thread")]
fn sleep_briefly() {
    std::thread::sleep(RETRY_DELAY);
}

/// Returns the status of a response. The body is never read, because it may be endless.
async fn get(address: SocketAddr, path: &str) -> Result<StatusCode, NotReady> {
    let failed = |error: hyper::Error| NotReady::Refused(format!("GET {path} on {address}: {error}"));
    let request = Request::get(path)
        .header(HOST, address.to_string())
        .header(USER_AGENT, "sandboxd")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| NotReady::NotProbed(format!("invalid request for {path}: {error}")))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(connect(address).await?)).await.map_err(failed)?;
    let response = sender.send_request(request);
    tokio::pin!(response, connection);
    // The connection is driven here, so that it ends with the probe.
    tokio::select! {
        biased;
        answer = &mut response => answer.map(|answer| answer.status()).map_err(failed),
        ended = &mut connection => match ended {
            // The peer may close the connection after its answer.
            Ok(()) => response.await.map(|answer| answer.status()).map_err(failed),
            Err(error) => Err(failed(error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers one connection with these bytes, and then closes it or, with `hold`, keeps it open.
    async fn answering(answer: &'static [u8], hold: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /health?full=1 HTTP/1.1\r\n"));
            stream.write_all(answer).await.unwrap();
            if hold {
                std::future::pending::<()>().await;
            }
        });
        address
    }

    async fn probed(answer: &'static [u8], hold: bool) -> Result<(), NotReady> {
        NetworkProbe.http(answering(answer, hold).await, "/health?full=1").await
    }

    #[tokio::test]
    async fn only_status_200_is_ready() {
        assert_eq!(probed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", false).await, Ok(()));
        assert_eq!(probed(b"HTTP/1.0 200 OK\r\n\r\n", false).await, Ok(()));
        let unavailable = probed(b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n", false).await.unwrap_err();
        assert!(unavailable.to_string().ends_with("answered 503"), "{unavailable}");
        assert!(probed(b"HTTP/1.1 204 No Content\r\n\r\n", false).await.is_err());
        assert!(probed(b"HTTP/1.1 301 Moved\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", false).await.is_err());
    }

    #[tokio::test]
    async fn an_endless_body_is_not_waited_for() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\nbegun";
        let ready = tokio::time::timeout(Duration::from_secs(10), probed(answer, true)).await;
        assert_eq!(ready, Ok(Ok(())));
    }

    #[tokio::test]
    async fn an_answer_other_than_http_is_not_ready() {
        assert!(probed(b"SSH-2.0-OpenSSH\r\n\r\n", true).await.is_err());
        assert!(probed(b"", false).await.is_err());
    }

    #[tokio::test]
    async fn a_program_that_listens_shortly_after_is_found_by_the_same_probe() {
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let mut listener = None;
        // Binds after the first refusal, which happens when the probe is first polled.
        let listen = async { listener = Some(TcpListener::bind(address).await.unwrap()) };
        let (ready, ()) = tokio::join!(NetworkProbe.tcp(address), listen);
        assert_eq!(ready, Ok(()));
        assert!(listener.is_some());
    }

    #[tokio::test]
    async fn a_port_is_ready_once_it_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(NetworkProbe.tcp(address).await, Ok(()));
        drop(listener);
        let refused = NetworkProbe.tcp(address).await.unwrap_err();
        assert!(refused.to_string().contains(&address.to_string()), "{refused}");
    }

    #[test]
    fn an_error_of_this_host_is_not_an_error_of_the_sandbox() {
        for (error, of_sandbox) in [(Errno::CONNREFUSED, true), (Errno::HOSTUNREACH, true), (Errno::MFILE, false)] {
            assert_eq!(is_sandbox_error(&error.into()), of_sandbox, "{error}");
        }
    }
}
