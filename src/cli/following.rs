//! Commands that run until they are interrupted.

use std::time::Duration;

use sandboxd_protocol::event::{Event, WatchParams, WatchResult};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification::{EventNotification, GapNotification, Notification as Kind};
use sandboxd_protocol::sandbox::Status;

use super::{parsed, print, print_notice};
use crate::client::{Client, ClientError, Notification};

/// Prints events until the reader closes standard output, the service ends, or Ctrl-C.
pub(super) async fn events(client: &Client, params: WatchParams, json: bool) -> Result<(), ClientError> {
    let mut stream = client.stream(Method::EventsWatch, params).await?;
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let notification = tokio::select! {
            notification = stream.next() => notification,
            _ = &mut interrupted => return Ok(()),
        };
        let Some(notification) = notification else { break };
        let line = if json { serde_json::to_string(&notification)? + "\n" } else { line(&notification)? };
        if !print(&line) {
            return Ok(());
        }
    }
    let end: WatchResult = stream.end().await?;
    print_notice(&format!("the service is shutting down; continue with --after {}", end.last_sequence));
    Ok(())
}

/// Keeps the connection, and with it the lease, until the lease ends or Ctrl-C.
pub(super) async fn hold_lease(client: &Client, length: Duration) -> Result<(), ClientError> {
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        () = tokio::time::sleep(length) => Ok(()),
        () = client.ended() => Err(ClientError::Disconnected),
    }
}

fn line(notification: &Notification) -> Result<String, ClientError> {
    Ok(match notification.kind() {
        Some(Kind::Event) => shown(parsed::<EventNotification>(&notification.params)?.event),
        Some(Kind::Gap) => {
            let GapNotification { after, resumes_at, .. } = parsed(&notification.params)?;
            format!("events after {after} and before {resumes_at} are lost\n")
        }
        _ => String::new(),
    })
}

fn shown(event: Event) -> String {
    let Event { sequence, at, chat_id, from, to, reason, message, .. } = event;
    let at = at.0.format("%Y-%m-%d %H:%M:%S%.3f UTC");
    let change = match (from, to) {
        (None, Some(to)) => to.to_string(),
        (from, to) => format!("{} -> {}", from.map_or("?", Status::as_str), to.map_or("gone", Status::as_str)),
    };
    let message = message.map(|message| format!(": {message}")).unwrap_or_default();
    format!("{sequence}  {at}  {chat_id}  {change} ({reason}){message}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shown_line(method: &str, params: &Value) -> String {
        let params = serde_json::value::to_raw_value(params).expect("JSON");
        line(&Notification { method: method.into(), params }).expect("understood")
    }

    #[test]
    fn an_event_is_one_line() {
        let mut event = json!({
            "sequence": 7, "at": "2026-01-31T09:30:00.000Z", "chat_id": "c", "session_id": "s", "agent_id": "a",
            "container_id": null, "from": null, "to": "creating", "reason": "requested", "message": null,
        });
        let shown = shown_line("events.event", &json!({ "id": 1, "event": event }));
        assert_eq!(shown, "7  2026-01-31 09:30:00.000 UTC  c  creating (requested)\n");
        (event["from"], event["to"], event["message"]) = (json!("running"), Value::Null, json!("by hand"));
        let shown = shown_line("events.event", &json!({ "id": 1, "event": event }));
        assert!(shown.ends_with("c  running -> gone (requested): by hand\n"), "{shown}");
    }

    #[test]
    fn a_gap_is_shown_and_the_start_is_not() {
        let gap = shown_line("events.gap", &json!({ "id": 1, "after": 3, "resumes_at": 10 }));
        assert_eq!(gap, "events after 3 and before 10 are lost\n");
        assert_eq!(shown_line("events.watching", &json!({ "id": 1, "after": 3 })), "");
    }
}
