//! Integration with systemd: readiness, watchdog and socket activation. Without systemd, these functions have no
//! effect.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use listenfd::ListenFd;
use sandboxd_actors::sandboxes::Sandboxes;
use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// The time by which each request extends the start timeout.
const START_EXTENSION: Duration = Duration::from_secs(60);

/// Returns the listening socket that systemd holds for the service, if any. The socket outlives a restart of the
/// service: callers wait instead of being refused.
pub fn inherited_listener() -> io::Result<Option<UnixListener>> {
    let listener = ListenFd::from_env().take_unix_listener(0)?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}

/// Reports readiness once the start-up is complete. Until then, it extends the start timeout, because the engine may be
/// slow to answer.
pub async fn report_ready(reconciled: CancellationToken) {
    while !reconciled.is_cancelled() {
        let more_time = u32::try_from(START_EXTENSION.as_micros()).unwrap_or(u32::MAX);
        notify(&[NotifyState::ExtendTimeoutUsec(more_time), NotifyState::Status("waiting for the engine")]);
        let _ = tokio::time::timeout(START_EXTENSION / 3, reconciled.cancelled()).await;
    }
    notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

pub fn report_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("finishing open requests")]);
}

/// Returns the time after which the watchdog restarts the service, if there is a watchdog.
pub fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

pub fn feed_watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// Feeds the watchdog while root, reaper and journal make progress, at least twice within `limit`. If one of them is
/// stuck, the watchdog restarts the service.
pub async fn watch_progress(sandboxes: Sandboxes, limit: Duration, feed: impl Fn() + Send) -> Infallible {
    // A check may take as long as the interval between two checks.
    let interval = limit / 4;
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match sandboxes.stuck(interval).await.as_slice() {
            [] => feed(),
            stuck => tracing::error!(?stuck, waited = ?interval, "no progress; the watchdog is not fed"),
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
