//! Tests of logs and statistics with a real engine and real control groups.

use sandboxd::client::Client;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::gate::open_gate;

/// Prints at once, and again when it is told to end.
const TALKATIVE: &str = "
    [profiles.default]
    network = 'none'
    memory = '64MiB'
    pids = 32
    command = ['sh', '-c', 'echo out; echo err >&2; until [ -e /volume/go ]; do sleep 0.05; done; echo late; exit 3']
";

/// Output by stream; the order within each stream is kept.
#[derive(Debug, Default, PartialEq)]
struct Printed {
    stdout: String,
    stderr: String,
}

async fn logs(client: &Client, chat: &CreateParams, mut params: Value) -> (Printed, Value) {
    params["chat_id"] = json!(chat.chat_id());
    let mut stream = client.stream(Method::SandboxLogs, params).await.expect("sent");
    let mut printed = Printed::default();
    while let Some(notification) = stream.next().await {
        assert_eq!(notification.method, "sandbox.output");
        let params: Value = serde_json::from_str(notification.params.get()).expect("JSON");
        let text = params["text"].as_str().expect("text");
        if params["stream"] == "stdout" { printed.stdout += text } else { printed.stderr += text }
    }
    (printed, stream.end().await.expect("an answer"))
}

#[tokio::test]
async fn logs_are_there_while_a_sandbox_runs_and_after_it_has_failed() {
    let service = Daemon::start(TALKATIVE).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let client = service.connect().await;
    let early = Printed { stdout: "out\n".into(), stderr: "err\n".into() };
    eventually("both lines are kept", || async { (logs(&client, &chat, json!({})).await.0 == early).then_some(()) })
        .await;
    assert_eq!(logs(&client, &chat, json!({ "tail": 0 })).await.0, Printed::default());
    assert_eq!(logs(&client, &chat, json!({ "since": "2037-01-01T00:00:00Z" })).await.0, Printed::default());

    let (follower, followed) = (service.connect().await, chat.clone());
    let following = tokio::spawn(async move { logs(&follower, &followed, json!({ "follow": true })).await });
    eventually("it is held", || async {
        let sandbox = service.get(&chat).await.expect("it is there");
        (sandbox["held_by"][0]["kind"] == "logs").then_some(())
    })
    .await;
    open_gate(&chat);
    let (printed, answer) = following.await.expect("no panic");
    assert_eq!(printed, Printed { stdout: "out\nlate\n".into(), ..early });
    assert_eq!(answer["bytes"], 13);

    eventually("it has failed", || async {
        let sandbox = service.get(&chat).await.expect("it is there");
        (sandbox["status"] == "failed").then_some(())
    })
    .await;
    assert_eq!(logs(&client, &chat, json!({ "tail": 1 })).await.0.stdout, "late\n");
    assert_eq!(logs(&client, &chat, json!({ "follow": true })).await.0, printed);
}

#[tokio::test]
async fn stats_show_the_sandboxs_own_use() {
    let service = Daemon::start(TALKATIVE).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let chat_id = chat.chat_id();
    let stats = || async { service.call("sandbox.stats", json!({ "chat_id": chat_id })).await.expect("stats") };
    let idle = stats().await;
    assert_eq!((&idle["memory_limit_bytes"], &idle["pids_limit"]), (&json!(64 << 20), &json!(32)), "{idle}");
    assert!(idle["memory_bytes"].as_u64().is_some_and(|used| used > 0 && used < 64 << 20), "{idle}");
    assert!(idle["pids"].as_u64().is_some_and(|count| count >= 2), "its init and its program: {idle}");
    assert_eq!((&idle["received_bytes"], &idle["sent_bytes"]), (&json!(0), &json!(0)), "it has no network: {idle}");

    let busy = json!({ "chat_id": chat_id, "command": "while :; do :; done", "detach": true });
    service.call("sandbox.exec", busy).await.expect("started");
    let seconds = |stats: &Value| stats["cpu_seconds"].as_f64().expect("seconds");
    eventually("it shows", || async {
        let busy = stats().await;
        let percent = busy["cpu_percent"].as_f64().expect("a share");
        (percent > 5.0 && seconds(&busy) > seconds(&idle)).then_some(())
    })
    .await;
}
