//! The agreement with systemd: say when the service is ready, show that it makes progress, take over its socket. Without
//! systemd, all of it does nothing.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use listenfd::ListenFd;
use sandboxd_actors::sandboxes::Sandboxes;
use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How much longer a start may take, each time that is asked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The listening socket that systemd holds for the service, if it was started for one. It outlives a restart of the
/// service: callers wait instead of being refused.
pub fn inherited_listener() -> io::Result<Option<UnixListener>> {
    let listener = ListenFd::from_env().take_unix_listener(0)?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}

/// Says that the service is ready once it is: what was promised is there again. Until then it serves, with nothing to
/// serve from, and asks not to be given up for an engine that takes its time.
pub async fn report_ready(reconciled: CancellationToken) {
    while !reconciled.is_cancelled() {
        let more_time = u32::try_from(PATIENCE.as_micros()).unwrap_or(u32::MAX);
        tell(&[NotifyState::ExtendTimeoutUsec(more_time), NotifyState::Status("waiting for the engine")]);
        let _ = tokio::time::timeout(PATIENCE / 3, reconciled.cancelled()).await;
    }
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing what is under way")]);
}

/// How long the watchdog waits before it has the service started anew, if there is one.
pub fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

pub fn feed_watchdog() {
    tell(&[NotifyState::Watchdog]);
}

/// Feeds the watchdog as long as root, reaper and journal get on with their work: at least twice within `limit`. If one
/// of them is stuck, it starves, and the service is started anew.
pub async fn watch_progress(sandboxes: Sandboxes, limit: Duration, feed: impl Fn() + Send) -> Infallible {
    // A look may take as long as the pause between two.
    let pause = limit / 4;
    let mut looks = tokio::time::interval(pause.max(Duration::from_millis(1)));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        match sandboxes.stuck(pause).await.as_slice() {
            [] => feed(),
            stuck => tracing::error!(?stuck, waited = ?pause, "no progress; the watchdog is not fed"),
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd was not told");
    }
}
