//! Tests of every kind of input on the socket: framing, invalid requests, parameters and ids.

use crate::support::{Caller, INFO, Service, chat, is_usable, kind, request};
use sandboxd::server::Limits;
use sandboxd_actors::ports::engine::Operation;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

// ---- framing ----

#[tokio::test]
async fn a_request_may_arrive_byte_by_byte() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    for byte in INFO.as_bytes() {
        caller.send([*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(caller.answer().await["id"], 1);
}

#[tokio::test]
async fn half_a_request_waits_for_its_other_half() {
    let service = Service::start().await;
    let (mut caller, mut other) = (service.connect().await, service.connect().await);
    caller.send(&INFO[..20]).await;
    is_usable(&mut other).await;
    caller.send(&INFO[20..]).await;
    assert_eq!(caller.answer().await["id"], 1);
}

#[tokio::test]
async fn many_requests_in_one_packet_are_all_answered() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let packet: String = (0..500).map(|id| request(id, "system.info", &json!({}))).collect();
    caller.send(packet).await;
    let mut ids = Vec::new();
    for _ in 0..500 {
        ids.push(caller.answer().await["id"].as_u64().expect("a number"));
    }
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..500));
}

#[tokio::test]
async fn a_last_line_without_newline_is_answered() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    caller.send(INFO.trim_end()).await;
    caller.sink.shutdown().await.expect("half closed");
    assert_eq!(caller.answer().await["id"], 1);
    assert_eq!(caller.next().await, None);
}

#[tokio::test]
async fn blank_lines_and_carriage_returns_are_ignored() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let line = format!("\n \t\r\n\r\n{}\r\n\n", INFO.trim_end());
    assert_eq!(caller.ask(line).await["id"], 1);
    is_usable(&mut caller).await;
}

#[tokio::test]
async fn an_overlong_line_is_refused_and_the_connection_stays_usable() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    caller.send(vec![b'x'; 10 << 20]).await;
    caller.send("\n").await;
    let answer = caller.answer().await;
    assert_eq!(
        (kind(&answer), &answer["id"], &answer["error"]["data"]["details"]["limit"]),
        ("line_too_long", &Value::Null, &json!(1 << 20))
    );
    is_usable(&mut caller).await;
}

#[tokio::test]
async fn a_line_of_exactly_the_limit_is_accepted() {
    let service = Service::with_limits(Limits { max_line: 4096, ..Limits::default() }).await;
    let mut caller = service.connect().await;
    let pad = |length: usize| format!("{:length$}\n", INFO.trim_end());
    assert_eq!(caller.ask(pad(4096)).await["id"], 1);
    let refused = caller.ask(pad(4097)).await;
    assert_eq!((kind(&refused), &refused["id"]), ("line_too_long", &json!(1)), "its id can be read");
    is_usable(&mut caller).await;
}

// ---- invalid requests ----

#[tokio::test]
async fn invalid_json_is_a_parse_error_and_the_connection_stays_usable() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let deep = "[".repeat(100_000);
    for (line, id) in [
        (&b"\xff\xfe\n"[..], Value::Null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}\n", json!(1)),
        (b"{]\n", Value::Null),
        (b"GET / HTTP/1.1\n", Value::Null),
    ] {
        let answer = caller.ask(line).await;
        assert_eq!((kind(&answer), &answer["error"]["code"], &answer["id"]), ("parse_error", &json!(-32700), &id));
    }
    assert_eq!(kind(&caller.ask(format!("{deep}\n")).await), "parse_error");
    is_usable(&mut caller).await;
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_its_id_if_it_has_one() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    for (line, id) in [
        (r#"{"id":7,"method":"system.info"}"#, json!(7)),
        (r#"{"jsonrpc":"1.0","id":7,"method":"system.info"}"#, json!(7)),
        (r#"{"jsonrpc":"2.0","id":7}"#, json!(7)),
        (r#"{"jsonrpc":"2.0","id":7,"method":["system.info"]}"#, json!(7)),
        (r#"{"jsonrpc":"2.0","id":7,"method":"system.info","extra":1}"#, json!(7)),
        (r#"{"jsonrpc":"2.0","id":true,"method":"system.info"}"#, Value::Null),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"system.info"}"#, Value::Null),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"system.info"}"#, Value::Null),
        (r#""system.info""#, Value::Null),
        ("17", Value::Null),
    ] {
        let answer = caller.ask(format!("{line}\n")).await;
        assert_eq!((kind(&answer), &answer["error"]["code"]), ("invalid_request", &json!(-32600)), "{line}");
        assert_eq!(answer["id"], id, "{line}");
    }
    is_usable(&mut caller).await;
}

#[tokio::test]
async fn a_batch_is_refused_as_a_whole() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let answer = caller.ask(format!("[{0},{0}]\n", INFO.trim_end())).await;
    assert_eq!(kind(&answer), "invalid_request");
    assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains("batch")), "{answer}");
    is_usable(&mut caller).await;
}

#[tokio::test]
async fn an_unknown_method_is_refused_by_name() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let answer = caller.ask(request(3, "sandbox.destroy", &json!({}))).await;
    assert_eq!((kind(&answer), &answer["error"]["code"]), ("method_not_found", &json!(-32601)));
    assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains("sandbox.destroy")), "{answer}");
}

// ---- parameters ----

#[tokio::test]
async fn every_parameter_of_the_wrong_type_is_named() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    let valid = json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": service.volume, "profile": "default",
        "env": { "A": "1" }, "ttl": 60, "idle_timeout": 60 });
    let values = [json!(true), json!(-1), json!("\u{0}"), json!([]), json!({ "x": 1 }), json!(1e300)];
    for field in valid.as_object().expect("an object").keys() {
        for value in &values {
            let mut params = valid.clone();
            params[field] = value.clone();
            let answer = caller.ask(request(1, "sandbox.create", &params)).await;
            assert_eq!((kind(&answer), &answer["error"]["code"]), ("invalid_params", &json!(-32602)), "{params}");
            let named = answer["error"]["data"]["details"]["field"].as_str().expect("a field");
            assert!(named == field || named.starts_with(&format!("{field}.")), "{named}: {params}");
        }
    }
    for (method, params, field) in [
        ("sandbox.get", json!({ "chat_id": 1 }), "chat_id"),
        ("sandbox.delete", json!({ "chat_id": "x" }), "chat_id"),
        ("sandbox.list", json!({ "limit": "1" }), "limit"),
        ("sandbox.list", json!({ "limit": 0 }), "limit"),
        ("sandbox.list", json!({ "after": 5 }), "after"),
    ] {
        let answer = caller.ask(request(1, method, &params)).await;
        assert_eq!(kind(&answer), "invalid_params", "{method} {params}");
        assert_eq!(answer["error"]["data"]["details"]["field"], field, "{method} {params}");
    }
    assert_eq!(service.engine.calls(Operation::Create), 0);
}

#[tokio::test]
async fn missing_and_unknown_parameters_are_named() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let valid = json!({ "chat_id": chat(), "agent_id": "a" });
    for field in valid.as_object().expect("an object").keys() {
        let mut params = valid.clone();
        params.as_object_mut().expect("an object").remove(field);
        let answer = caller.ask(request(1, "sandbox.create", &params)).await;
        assert_eq!((kind(&answer), &answer["error"]["data"]["details"]["field"]), ("invalid_params", &json!(field)));
    }
    for unknown in ["snapshot_id", "git", "sync", "Chat_id", ""] {
        let mut params = valid.clone();
        params[unknown] = json!("x");
        let answer = caller.ask(request(1, "sandbox.create", &params)).await;
        assert_eq!(kind(&answer), "invalid_params", "{unknown:?}");
        assert_eq!(answer["error"]["data"]["details"]["field"], unknown, "{answer}");
    }
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"method":"sandbox.get"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"sandbox.get","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"sandbox.get","params":["67e55044-10b1-426f-9247-bb680e5fe0c8"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"sandbox.get","params":"x"}"#,
    ] {
        assert_eq!(kind(&caller.ask(format!("{line}\n")).await), "invalid_params", "{line}");
    }
}

#[tokio::test]
async fn a_profile_or_volume_this_host_does_not_have_is_refused() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let mut params = json!({ "chat_id": chat(), "agent_id": "a", "volume_host_path": "/etc" });
    let answer = caller.ask(request(1, "sandbox.create", &params)).await;
    assert_eq!(answer["error"]["data"]["details"]["field"], "volume_host_path", "{answer}");
    params["volume_host_path"] = json!(service.volume);
    params["profile"] = json!("none");
    let answer = caller.ask(request(1, "sandbox.create", &params)).await;
    assert_eq!(answer["error"]["data"]["details"]["field"], "profile", "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("default, other")), "{answer}");
}

#[tokio::test]
async fn a_reuse_does_not_look_up_the_volume_that_its_sandbox_has() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    let params = json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": service.volume });
    let created = caller.ask(request(1, "sandbox.create", &params)).await;
    std::fs::remove_dir(&service.volume).expect("removed");
    let reused = caller.ask(request(2, "sandbox.create", &params)).await;
    assert_eq!(reused["result"]["session_id"], created["result"]["session_id"], "{reused}");
    let spelled = json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": format!("{}/.", service.volume) });
    let refused = caller.ask(request(3, "sandbox.create", &spelled)).await;
    assert_eq!(refused["error"]["data"]["details"]["field"], "volume_host_path", "{refused}");
}

#[tokio::test]
async fn nesting_without_end_and_numbers_without_measure_do_no_harm() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    for value in ["[".repeat(100_000) + &"]".repeat(100_000), r#"{"a":"#.repeat(100_000) + "1" + &"}".repeat(100_000)] {
        for field in ["chat_id", "env", "ttl", "unknown"] {
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"sandbox.create","params":{{"{field}":{value}}}}}"#);
            assert_eq!(kind(&caller.ask(line + "\n").await), "invalid_params", "{field}");
        }
    }
    for number in ["1e999", "-1e999", "123456789012345678901234567890", "0.0", "-0"] {
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"sandbox.create","params":{{"ttl":{number}}}}}"#);
        assert_eq!(kind(&raw_answer(&mut caller, &line).await), "invalid_params", "{number}");
    }
    is_usable(&mut caller).await;
}

/// Returns the answer to a raw line, for ids that this test's JSON library cannot hold.
async fn raw_answer(caller: &mut Caller, line: &str) -> Value {
    caller.send(format!("{line}\n")).await;
    let answer = caller.line().await.expect("an answer");
    let id = line.split_once("\"id\":").and_then(|(_, rest)| rest.split_once(',')).expect("an id").0;
    assert!(answer.contains(&format!("\"id\":{id},")), "{answer}");
    serde_json::from_str(&answer.replace(&format!("\"id\":{id},"), "")).expect("JSON")
}

// ---- ids ----

#[tokio::test]
async fn ids_in_use_twice_are_answered_twice() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let (first, second) = (chat(), chat());
    let gate = service.engine.hold_next(Operation::Create);
    caller.send(service.create(5, &first)).await;
    service.engine.reached(Operation::Create, 1).await;
    assert_eq!(caller.ask(service.create(5, &second)).await["result"]["chat_id"], json!(second));
    gate.open();
    let late = caller.answer().await;
    assert_eq!((&late["id"], &late["result"]["chat_id"]), (&json!(5), &json!(first)));
}

#[tokio::test]
async fn a_request_without_id_is_carried_out_and_not_answered() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    let mut notification: Value = serde_json::from_str(&service.create(0, &chat)).expect("JSON");
    notification.as_object_mut().expect("an object").remove("id");
    caller.send(format!("{notification}\n")).await;
    caller.send("{\"jsonrpc\":\"2.0\",\"method\":\"no.such\"}\n").await;
    service.engine.reached(Operation::Create, 1).await;
    let answer = caller.ask(service.create(9, &chat)).await;
    assert_eq!(
        (&answer["id"], &answer["result"]["chat_id"]),
        (&json!(9), &json!(chat)),
        "the first line that comes back"
    );
}

#[tokio::test]
async fn an_id_of_null_is_answered() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let answer = caller.ask("{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"system.info\"}\n").await;
    assert_eq!((&answer["id"], &answer["result"]["protocol"]), (&Value::Null, &json!(1)));
}
