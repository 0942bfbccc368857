//! Tests of the notifications to systemd: ready, progress, stopping.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::engine::eventually;
use crate::installation::Installation;
use crate::interposed_engine::interposed;

const SMALL: &str = "profiles.default.network = 'none'";

/// The receiver of systemd's notifications.
struct Manager {
    socket: UnixDatagram,
    received: Vec<String>,
}

impl Manager {
    fn of(installation: Installation) -> (Installation, Self) {
        let path = installation.path("notify.sock");
        let manager = Self::at(&path);
        (installation.with_variable("NOTIFY_SOCKET", path.to_str().expect("UTF-8")), manager)
    }

    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_nonblocking(true).expect("not blocking");
        Self { socket, received: Vec::new() }
    }

    /// Returns all lines so far.
    fn received(&mut self) -> &[String] {
        let mut datagram = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut datagram) {
            let text = String::from_utf8_lossy(&datagram[..length]);
            self.received.extend(text.lines().map(ToOwned::to_owned));
        }
        &self.received
    }

    fn has_received(&mut self, line: &str) -> bool {
        self.received().iter().any(|received| received == line)
    }

    async fn until_received(&mut self, line: &str) {
        eventually(line, || std::future::ready(self.has_received(line).then_some(()))).await;
    }

    fn count(&mut self, line: &str) -> usize {
        self.received().iter().filter(|received| *received == line).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_only_after_reconciliation_and_says_when_it_stops() {
    let (installation, engine) = interposed(SMALL).await;
    let (installation, mut manager) = Manager::of(installation);
    engine.fall_silent("/containers/json");
    let starting = tokio::spawn(installation.start());
    eventually("the engine is asked for its containers", || async {
        engine.take_requests().iter().any(|request| request.contains("/containers/json")).then_some(())
    })
    .await;
    assert!(!manager.has_received("READY=1"), "{:?}", manager.received);
    engine.recover();
    let service = starting.await.expect("it starts");
    manager.until_received("READY=1").await;
    manager.until_received("STATUS=serving").await;

    assert!(!manager.has_received("STOPPING=1"), "{:?}", manager.received);
    service.signal(Signal::TERM);
    manager.until_received("STOPPING=1").await;
    service.stop().await;
    assert_eq!(manager.count("READY=1"), 1, "{:?}", manager.received);
    assert_eq!(manager.count("WATCHDOG=1"), 0, "the watchdog is off");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_it_serves_and_asks_for_time_but_is_not_ready() {
    let (installation, engine) = interposed(&format!("engine.timeouts.list = '200ms'\n{SMALL}")).await;
    let (installation, mut manager) = Manager::of(installation);
    engine.break_off("/containers/json");
    let service = installation.start().await;
    let refused = service.call("sandbox.list", json!({})).await.expect_err("the engine is unavailable");
    assert_eq!(refused.data.kind.as_str(), "engine_unavailable");
    manager.until_received("STATUS=waiting for the engine").await;
    assert!(manager.received().iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")), "{:?}", manager.received);
    assert!(!manager.has_received("READY=1"), "{:?}", manager.received);
    engine.recover();
    manager.until_received("READY=1").await;
    assert!(service.list().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_service_feeds_the_watchdog_twice_within_its_limit() {
    const LIMIT: Duration = Duration::from_secs(4);
    let (installation, mut manager) = Manager::of(Installation::new(SMALL));
    let limit = LIMIT.as_micros().to_string();
    let service = installation.with_variable("WATCHDOG_USEC", &limit).start().await;
    manager.until_received("READY=1").await;
    let mut last = (manager.count("WATCHDOG=1"), Instant::now());
    for _ in 0..4 {
        eventually("the watchdog is fed", || std::future::ready((manager.count("WATCHDOG=1") > last.0).then_some(())))
            .await;
        assert!(last.1.elapsed() <= LIMIT / 2, "{:?}", last.1.elapsed());
        last = (manager.count("WATCHDOG=1"), Instant::now());
    }
    service.stop().await;
}
