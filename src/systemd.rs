//! The agreement with systemd: say when the service is ready, show that it makes progress, take over its socket. Without
//! systemd, all of it does nothing.

use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use listenfd::ListenFd;
use sandboxd_actors::sandboxes::Sandboxes;
use sd_notify::NotifyState;

/// The listening socket that systemd holds for the service, if it was started for one. It outlives a restart of the
/// service: callers wait instead of being refused.
pub fn inherited_listener() -> io::Result<Option<UnixListener>> {
    let listener = ListenFd::from_env().take_unix_listener(0)?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}

/// Requests are served, and what was promised is there again.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing what is under way")]);
}

/// Feeds the watchdog as long as root, reaper and journal get on with their work. If one of them is stuck, it starves,
/// and the service is started anew.
pub async fn feed_watchdog(sandboxes: Sandboxes) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let pause = limit / 3;
    loop {
        match tokio::time::timeout(pause, sandboxes.progress()).await {
            Ok(true) => tell(&[NotifyState::Watchdog]),
            Ok(false) => tracing::error!("root, reaper or journal has ended; the watchdog is not fed"),
            Err(_) => tracing::error!(waited = ?pause, "root, reaper or journal is stuck; the watchdog is not fed"),
        }
        tokio::time::sleep(pause.max(Duration::from_millis(10))).await;
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd was not told");
    }
}
