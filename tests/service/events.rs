//! Tests of watching events: from a cursor on, without loss or repetition, and without cost to other callers.

use crate::support::{Caller, PATIENCE, Service, chat, is_usable, kind, request};
use sandboxd::server::Limits;
use sandboxd_actors::domain::ids::{ChatId, SessionId};
use sandboxd_actors::domain::sandbox::{Reason, Status};
use sandboxd_actors::journal::{Change, Draft};
use sandboxd_actors::ports::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const WATCH: u64 = 7;

/// Returns a watcher and the number of the event after which it begins.
async fn watch(service: &Service, params: Value) -> (Caller, u64) {
    let mut watcher = service.connect().await;
    let begun = watcher.ask(request(WATCH, "events.watch", &params)).await;
    assert_eq!((&begun["method"], &begun["params"]["id"]), (&json!("events.watching"), &json!(WATCH)), "{begun}");
    (watcher, begun["params"]["after"].as_u64().expect("a number"))
}

async fn event(watcher: &mut Caller) -> Value {
    let message = watcher.answer().await;
    assert_eq!((&message["method"], &message["params"]["id"]), (&json!("events.event"), &json!(WATCH)), "{message}");
    message["params"]["event"].clone()
}

async fn gap(watcher: &mut Caller) -> (u64, u64) {
    let message = watcher.answer().await;
    assert_eq!((&message["method"], &message["params"]["id"]), (&json!("events.gap"), &json!(WATCH)), "{message}");
    let number = |name: &str| message["params"][name].as_u64().expect("a number");
    (number("after"), number("resumes_at"))
}

fn sequence(event: &Value) -> u64 {
    event["sequence"].as_u64().expect("a number")
}

/// Appends `count` events. All are on disk when this returns.
async fn append_events(service: &Service, chat: ChatId, count: u64) {
    let change = Change {
        at: SystemClock.now(),
        chat,
        session: SessionId::random(),
        agent: "agent".parse().expect("an agent"),
        container: None,
        from: Some(Status::Creating),
        to: Some(Status::Running),
        reason: Reason::Ready,
        message: None,
    };
    let mut left = count;
    while left > 0 {
        let some = left.min(500);
        let drafts = (0..some).map(|_| Draft::Event(Box::new(change.clone()))).collect();
        service.sandboxes.journal().write(drafts).await.expect("written");
        left -= some;
    }
}

fn some_chat() -> ChatId {
    chat().parse().expect("a UUID")
}

#[tokio::test]
async fn a_watch_sees_later_changes_of_its_own_connection() {
    let service = Service::start().await;
    let (chat, other) = (chat(), chat());
    let mut caller = service.connect().await;
    service.connect().await.ask(service.create(1, &other)).await;
    let mut lines = request(WATCH, "events.watch", &json!({ "chat_id": chat }));
    lines += &service.create(2, &chat);
    lines += &service.create(3, &other);
    caller.send(lines).await;
    let mut changes = Vec::new();
    while changes.len() < 2 {
        let message = caller.answer().await;
        if message["method"] == "events.event" {
            let event = &message["params"]["event"];
            assert_eq!(event["chat_id"], json!(chat), "{event}");
            changes.push((event["from"].clone(), event["to"].clone()));
        }
    }
    assert_eq!(changes, [(Value::Null, json!("creating")), (json!("creating"), json!("running"))]);
}

#[tokio::test]
async fn from_a_cursor_on_no_event_is_lost_or_repeated() {
    let service = Service::start().await;
    let chat = some_chat();
    append_events(&service, chat, 700).await;
    let appending = async {
        for _ in 0..100 {
            append_events(&service, chat, 20).await;
        }
    };
    let watching = async {
        let (mut watcher, begun) = watch(&service, json!({ "after": 300 })).await;
        assert_eq!(begun, 300);
        for expected in 301..=2700 {
            assert_eq!(sequence(&event(&mut watcher).await), expected);
        }
        watcher
    };
    let ((), mut watcher) = tokio::join!(appending, watching);
    assert!(watcher.is_silent());
    watcher.sink.shutdown().await.expect("half closed");
    let end = watcher.answer().await;
    assert_eq!((&end["id"], &end["result"]), (&json!(WATCH), &json!({ "last_sequence": 2700 })));
    assert_eq!(watcher.next().await, None);
}

#[tokio::test]
async fn a_cursor_of_zero_yields_all_kept_events() {
    let service = Service::start().await;
    service.journal.keep_events(10);
    append_events(&service, some_chat(), 30).await;
    let (mut watcher, begun) = watch(&service, json!({ "after": 0 })).await;
    assert_eq!(begun, 20);
    assert_eq!(sequence(&event(&mut watcher).await), 21);
}

#[tokio::test]
async fn pruned_events_and_another_journal_are_announced_as_a_gap() {
    let service = Service::start().await;
    service.journal.keep_events(10);
    append_events(&service, some_chat(), 30).await;
    let (mut late, _) = watch(&service, json!({ "after": 5 })).await;
    assert_eq!(gap(&mut late).await, (5, 21));
    assert_eq!(sequence(&event(&mut late).await), 21);
    let (mut foreign_watcher, _) = watch(&service, json!({ "after": 1000 })).await;
    assert_eq!(gap(&mut foreign_watcher).await, (1000, 21));
    assert_eq!(sequence(&event(&mut foreign_watcher).await), 21);
    let (mut current, _) = watch(&service, json!({ "after": 30 })).await;
    append_events(&service, some_chat(), 1).await;
    assert_eq!(sequence(&event(&mut current).await), 31);
}

/// More events than sockets and buffers hold for one watcher.
const MANY: u64 = 6000;

fn patient() -> Limits {
    Limits { write_stall: 4 * PATIENCE, ..Limits::default() }
}

#[tokio::test]
async fn a_slow_watcher_stalls_no_other_and_misses_no_event() {
    let service = Service::with_limits(patient()).await;
    let (mut slow, begun) = watch(&service, json!({})).await;
    let (mut quick, _) = watch(&service, json!({})).await;
    let reading = async {
        for expected in begun + 1..=begun + MANY {
            assert_eq!(sequence(&event(&mut quick).await), expected);
        }
    };
    tokio::join!(append_events(&service, some_chat(), MANY), reading);
    is_usable(&mut service.connect().await).await;
    for expected in begun + 1..=begun + MANY {
        assert_eq!(sequence(&event(&mut slow).await), expected);
    }
}

#[tokio::test]
async fn a_watcher_that_falls_behind_the_kept_events_gets_a_gap() {
    let service = Service::with_limits(patient()).await;
    service.journal.keep_events(100);
    let (mut slow, begun) = watch(&service, json!({})).await;
    append_events(&service, some_chat(), MANY).await;
    let mut last = begun;
    let (mut gaps, mut seen) = (0, 0);
    while last < begun + MANY {
        let message = slow.answer().await;
        let params = &message["params"];
        if message["method"] == "events.gap" {
            assert_eq!(params["after"], json!(last));
            last = params["resumes_at"].as_u64().expect("a number") - 1;
            gaps += 1;
        } else {
            assert_eq!(sequence(&params["event"]), last + 1, "a gap that was not announced");
            last += 1;
            seen += 1;
        }
    }
    assert!(gaps > 0 && seen < MANY, "{gaps} gaps, {seen} events");
}

#[tokio::test]
async fn a_shutdown_ends_a_watch_with_its_cursor() {
    let service = Service::start().await;
    append_events(&service, some_chat(), 3).await;
    let (mut watcher, _) = watch(&service, json!({ "after": 2 })).await;
    assert_eq!(sequence(&event(&mut watcher).await), 3);
    service.shutdown.cancel();
    assert_eq!(watcher.answer().await["result"]["last_sequence"], 3);
    assert_eq!(watcher.next().await, None);
    tokio::time::timeout(PATIENCE, service.serving).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn a_watch_without_an_id_is_no_watch() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    caller.send("{\"jsonrpc\":\"2.0\",\"method\":\"events.watch\",\"params\":{\"after\":0}}\n").await;
    is_usable(&mut caller).await;
    let refused = caller.ask(request(1, "events.watch", &json!({ "after": u64::MAX }))).await;
    assert_eq!((kind(&refused), &refused["error"]["data"]["details"]["field"]), ("invalid_params", &json!("after")));
}
