//! Tests of accepted and refused parameters.

use super::*;
use sandboxd_protocol::error::ErrorKind;
use serde_json::{Value, json};

const CHAT: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

fn create(changes: Value) -> Result<Call, Error> {
    let mut params = json!({ "chat_id": CHAT, "agent_id": "a", "volume_host_path": "/v" });
    for (name, value) in changes.as_object().expect("an object") {
        params[name] = value.clone();
    }
    Call::parse(Method::SandboxCreate, Some(&params.to_string()))
}

fn named_field(result: Result<Call, Error>) -> String {
    let error = result.expect_err("refused");
    assert_eq!(error.data.kind, ErrorKind::InvalidParams);
    error.data.details["field"].as_str().expect("a field").to_owned()
}

#[test]
fn a_complete_create_is_parsed() {
    let given = json!({
        "workspace_id": "{8F14E45F-CEEA-467F-9A36-DCC2B7C0F3A1}", "profile": "py", "env": { "A": "1" }, "ttl": 0.5,
        "idle_timeout": 60,
    });
    let call = create(given);
    let Ok(Call::Create(create)) = call else { panic!("{call:?}") };
    assert_eq!(create.chat.to_string(), CHAT);
    assert_eq!(create.workspace.expect("given").to_string(), "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1");
    assert_eq!(create.volume.as_deref(), Some("/v"));
    assert_eq!(create.environment.iter().collect::<Vec<_>>(), [("A", "1")]);
    assert_eq!((create.ttl, create.idle_timeout), (Some(Duration::from_millis(500)), Some(Duration::from_secs(60))));
}

#[test]
fn null_is_the_same_as_absent() {
    let nulls = json!({ "workspace_id": null, "profile": null, "env": null, "ttl": null, "idle_timeout": null });
    assert_eq!(create(nulls), create(json!({})));
    assert_eq!(named_field(create(json!({ "agent_id": null }))), "agent_id");
}

#[test]
fn every_wrong_field_is_named() {
    for (changes, field) in [
        (json!({ "chat_id": "x" }), "chat_id"),
        (json!({ "chat_id": 1 }), "chat_id"),
        (json!({ "agent_id": " " }), "agent_id"),
        (json!({ "agent_id": ["a"] }), "agent_id"),
        (json!({ "workspace_id": "mine" }), "workspace_id"),
        (json!({ "workspace_id": 7 }), "workspace_id"),
        (json!({ "volume_host_path": {} }), "volume_host_path"),
        (json!({ "profile": "No Such" }), "profile"),
        (json!({ "profile": true }), "profile"),
        (json!({ "env": ["A=1"] }), "env"),
        (json!({ "env": { "A": 1 } }), "env.A"),
        (json!({ "env": { "A=B": "1" } }), "env"),
        (json!({ "env": { "AGENT_ID": "1" } }), "env"),
        (json!({ "ttl": "5m" }), "ttl"),
        (json!({ "ttl": 0 }), "ttl"),
        (json!({ "ttl": -1 }), "ttl"),
        (json!({ "ttl": 1e-12 }), "ttl"),
        (json!({ "ttl": 1e300 }), "ttl"),
        (json!({ "idle_timeout": 31_536_001 }), "idle_timeout"),
        (json!({ "snapshot_id": "s" }), "snapshot_id"),
        (json!({ "ttll": 5 }), "ttll"),
    ] {
        assert_eq!(named_field(create(changes.clone())), field, "{changes}");
    }
}

#[test]
fn a_number_beyond_all_numbers_is_refused() {
    let params = format!(r#"{{"chat_id":"{CHAT}","agent_id":"a","volume_host_path":"/v","ttl":1e400}}"#);
    assert_eq!(named_field(Call::parse(Method::SandboxCreate, Some(&params))), "ttl");
}

#[test]
fn parameters_are_given_by_name() {
    let by_position = format!(r#"["{CHAT}"]"#);
    for params in [by_position.as_str(), "[]", "1", r#""x""#] {
        let error = Call::parse(Method::SandboxGet, Some(params)).expect_err(params);
        assert_eq!(error.message, "params must be an object");
    }
}

#[test]
fn methods_without_parameters_take_none() {
    assert_eq!(Call::parse(Method::SystemInfo, None), Ok(Call::Info));
    assert_eq!(Call::parse(Method::SystemHealth, Some("{}")), Ok(Call::Health));
    assert_eq!(named_field(Call::parse(Method::SystemInfo, Some(r#"{"x":1}"#))), "x");
}

#[test]
fn leases_and_watches_have_defaults_and_wrong_fields_are_named() {
    let parse = |method, params: Value| Call::parse(method, Some(&params.to_string()));
    let chat = CHAT.parse().expect("a UUID");
    let duration = Duration::from_secs(5);
    assert_eq!(
        parse(Method::SandboxLease, json!({ "chat_id": CHAT, "duration": 5 })),
        Ok(Call::Lease { chat, duration, durable: false })
    );
    let from_now_on = Watch { after: None, chat: None };
    assert_eq!(parse(Method::EventsWatch, json!({})), Ok(Call::Watch(from_now_on)));
    assert_eq!(parse(Method::SystemReconcile, json!({})), Ok(Call::Reconcile { dry_run: false }));
    for (method, params, field) in [
        (Method::SandboxRenew, json!({ "chat_id": CHAT }), "ttl"),
        (Method::SandboxLease, json!({ "chat_id": CHAT, "duration": 0 }), "duration"),
        (Method::SandboxLease, json!({ "chat_id": CHAT, "duration": 5, "durable": 1 }), "durable"),
        (Method::SandboxRelease, json!({ "chat_id": CHAT, "lease_id": "x" }), "lease_id"),
        (Method::EventsWatch, json!({ "after": -1 }), "after"),
        (Method::EventsWatch, json!({ "after": u64::MAX }), "after"),
        (Method::EventsWatch, json!({ "chat_id": "x" }), "chat_id"),
        (Method::SystemReconcile, json!({ "dry_run": "yes" }), "dry_run"),
    ] {
        assert_eq!(named_field(parse(method, params.clone())), field, "{params}");
    }
}

#[test]
fn a_page_has_its_bounds() {
    let list = |params: Value| Call::parse(Method::SandboxList, Some(&params.to_string()));
    assert_eq!(list(json!({})), Ok(Call::List { after: None, limit: DEFAULT_PAGE, filter: Filter::default() }));
    let after = Some(CHAT.parse().expect("a UUID"));
    let last = Call::List { after, limit: MAX_PAGE, filter: Filter::default() };
    assert_eq!(list(json!({ "limit": 1000, "after": CHAT })), Ok(last));
    for limit in [json!(0), json!(1001), json!(-1), json!(1.5), json!("1"), json!(u64::MAX)] {
        assert_eq!(named_field(list(json!({ "limit": limit }))), "limit");
    }
    assert_eq!(named_field(list(json!({ "after": "x" }))), "after");
    let wrong = [("profile", ""), ("agent_id", " "), ("workspace_id", "x"), ("status", "asleep")];
    for (field, value) in wrong {
        assert_eq!(named_field(list(json!({ field: value }))), field);
    }
}
