//! Tests of running code in a sandbox, over the real socket and with the real init.

use crate::support::{Caller, Service, chat, kind, request};
use serde_json::{Value, json};

struct Chat {
    caller: Caller,
    chat: String,
    _service: Service,
}

impl Chat {
    async fn new() -> Self {
        Self::with_profile("default").await
    }

    async fn with_profile(profile: &str) -> Self {
        let service = Service::start().await;
        let (mut caller, chat) = (service.connect().await, chat());
        let params =
            json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": service.volume, "profile": profile });
        let created = caller.ask(request(1, "sandbox.create", &params)).await;
        assert_eq!(created["result"]["status"], "running", "{created}");
        Self { caller, chat, _service: service }
    }

    fn line(&self, mut params: Value) -> String {
        params["chat_id"] = json!(self.chat);
        request(7, "sandbox.run_code", &params)
    }

    async fn ask(&mut self, params: Value) -> Value {
        let line = self.line(params);
        self.caller.ask(line).await
    }

    async fn run(&mut self, params: Value) -> Value {
        let answer = self.ask(params).await;
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }
}

#[tokio::test]
async fn code_answers_as_a_command_does() {
    let mut chat = Chat::new().await;
    let params = json!({ "language": "sh", "code": "pwd\necho $A\ncat\nexit 3", "cwd": "/usr", "env": { "A": "b" }, "stdin": "in" });
    let ended = chat.run(params).await;
    assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(3), &json!("/usr\nb\nin")), "{ended}");
    let ended = chat.run(json!({ "language": "sh", "code": "sleep 1000", "timeout": 0.2 })).await;
    assert_eq!(ended["timed_out"], true, "{ended}");
    let ended = chat.run(json!({ "language": "sh", "code": "echo 123456", "max_output": 3 })).await;
    assert_eq!((&ended["stdout"]["text"], &ended["stdout"]["truncated"]), (&json!("123"), &json!(true)));
}

#[tokio::test]
async fn code_is_streamed_as_a_command_is() {
    let mut chat = Chat::new().await;
    let line = chat.line(json!({ "language": "sh", "code": "echo one", "stream": true }));
    chat.caller.send(line).await;
    let started = chat.caller.answer().await;
    assert_eq!(started["method"], "sandbox.started");
    let printed = chat.caller.answer().await;
    assert_eq!((&printed["method"], &printed["params"]["text"]), (&json!("sandbox.output"), &json!("one\n")));
    assert_eq!(printed["params"]["command_id"], started["params"]["command_id"]);
    assert_eq!(chat.caller.answer().await["result"]["exit_code"], 0);
}

#[tokio::test]
async fn a_configured_language_has_its_preamble_and_its_limits() {
    let mut chat = Chat::with_profile("other").await;
    let ended = chat.run(json!({ "language": "piped-sh", "code": "echo $greeting" })).await;
    assert_eq!(ended["stdout"]["text"], "hello\n", "{ended}");
    let long = format!("echo {}; echo {} >/dev/null", "x".repeat(100), "y".repeat(200_000));
    let ended = chat.run(json!({ "language": "piped-sh", "code": long })).await;
    assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(0), &json!("x".repeat(32))));
    let ended = chat.run(json!({ "language": "piped-sh", "code": "sleep 1000" })).await;
    assert_eq!(ended["timed_out"], true, "{ended}");
}

#[tokio::test]
async fn languages_are_those_of_the_profile() {
    for (profile, known) in [("default", "python, sh"), ("other", "piped-sh, python, sh")] {
        let mut chat = Chat::with_profile(profile).await;
        let unknown = chat.ask(json!({ "language": "cobol", "code": "" })).await;
        assert_eq!(kind(&unknown), "invalid_params");
        assert_eq!(unknown["error"]["data"]["details"]["field"], "language");
        let expected = format!("language: there is no language \"cobol\"; there are {known}");
        assert_eq!(unknown["error"]["message"], expected);
        assert_eq!(chat.run(json!({ "language": "sh", "code": "echo a" })).await["stdout"]["text"], "a\n");
    }
}

#[tokio::test]
async fn an_invalid_request_names_the_field() {
    let mut chat = Chat::with_profile("other").await;
    for (params, field) in [
        (json!({}), "code"),
        (json!({ "code": 1 }), "code"),
        (json!({ "code": "a\u{0}b" }), "code"),
        (json!({ "code": "x".repeat(200_000) }), "code"),
        (json!({ "code": "", "language": 1 }), "language"),
        (json!({ "code": "", "language": "piped-sh", "stdin": "x" }), "stdin"),
        (json!({ "code": "", "timeout": -1 }), "timeout"),
        (json!({ "code": "", "env": { "": "" } }), "env"),
        (json!({ "code": "", "detach": true }), "detach"),
    ] {
        let answer = chat.ask(params).await;
        assert_eq!(kind(&answer), "invalid_params", "{answer}");
        assert_eq!(answer["error"]["data"]["details"]["field"], field, "{answer}");
    }
}

#[tokio::test]
async fn code_is_python_by_default() {
    let mut chat = Chat::new().await;
    let answer = chat.ask(json!({ "code": "print(6 * 7)" })).await;
    // Python may be missing on this machine; either answer shows that the service looked for it.
    match answer.get("result") {
        Some(ended) => assert_eq!(ended["stdout"]["text"], "42\n", "{answer}"),
        None => {
            assert_eq!(kind(&answer), "command_not_started");
            assert!(answer["error"]["message"].as_str().expect("a message").contains("python3"), "{answer}");
        }
    }
}
