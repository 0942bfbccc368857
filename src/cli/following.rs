//! Commands that run until they are interrupted.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;

use super::{print, print_notice};
use crate::client::{Client, ClientError, Notification};

/// Prints events until the reader closes standard output, the service ends, or Ctrl-C.
pub(super) async fn events(client: &Client, params: Value, json: bool) -> Result<(), ClientError> {
    let mut stream = client.stream("events.watch", params).await?;
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
    let end: End = stream.end().await?;
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

#[derive(Deserialize)]
struct End {
    last_sequence: u64,
}

#[derive(Deserialize)]
struct Event {
    sequence: u64,
    at: DateTime<Utc>,
    chat_id: String,
    from: Option<String>,
    to: Option<String>,
    reason: String,
    message: Option<String>,
}

fn line(notification: &Notification) -> Result<String, serde_json::Error> {
    #[derive(Deserialize)]
    struct Params {
        event: Option<Event>,
        after: Option<u64>,
        resumes_at: Option<u64>,
    }
    let Params { event, after, resumes_at } = serde_json::from_str(notification.params.get())?;
    Ok(match (event, after, resumes_at) {
        (Some(event), _, _) => shown(&event),
        (None, Some(after), Some(resumes_at)) => format!("events after {after} and before {resumes_at} are lost\n"),
        _ => String::new(),
    })
}

fn shown(event: &Event) -> String {
    let Event { sequence, at, chat_id, from, to, reason, message } = event;
    let at = at.format("%Y-%m-%d %H:%M:%S%.3f UTC");
    let change = match (from, to) {
        (None, Some(to)) => to.clone(),
        (from, to) => format!("{} -> {}", from.as_deref().unwrap_or("?"), to.as_deref().unwrap_or("gone")),
    };
    let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{sequence}  {at}  {chat_id}  {change} ({reason}){message}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
