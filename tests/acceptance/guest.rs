//! Tests of guests in real containers: users, mounts, processes, and hostile programs.

use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use serde_json::{Value, json};

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;

const OFFLINE: &str = "profiles.default.network = 'none'";

impl Daemon {
    pub(crate) async fn ask_guest(&self, chat: &CreateParams, method: &str, mut params: Value) -> Value {
        params["chat_id"] = json!(chat.chat_id());
        let answer = self.call(method, params).await;
        answer.unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    pub(crate) async fn exec(&self, chat: &CreateParams, command: impl Into<Value>) -> Value {
        self.ask_guest(chat, "sandbox.exec", json!({ "command": command.into() })).await
    }

    /// Returns the output of a command that must succeed.
    pub(crate) async fn printed(&self, chat: &CreateParams, line: &str) -> String {
        let ended = self.exec(chat, line).await;
        assert_eq!(ended["exit_code"], 0, "{line}: {ended}");
        ended["stdout"]["text"].as_str().expect("text").to_owned()
    }
}

pub(crate) async fn sandbox(settings: &str) -> (Daemon, CreateParams) {
    let service = Daemon::start(settings).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    (service, chat)
}

#[tokio::test]
async fn the_images_own_program_runs_unchanged_below_an_init_that_reaps() {
    let (service, chat) = sandbox(OFFLINE).await;
    let shown = service.printed(&chat, "cat /proc/1/cmdline | tr '\\0' ' '; echo; pidof sleep").await;
    let (init, program) = shown.split_once('\n').expect("two lines");
    assert_eq!(init, "/.sandboxd/init sleep infinity ");
    assert!(!program.trim().is_empty(), "the image's own program runs");
    // An orphan that exits is a child of init, which must reap it.
    service.printed(&chat, "(sh -c 'sleep 0.1 &') ; sleep 0.5").await;
    let zombies = service.printed(&chat, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l").await;
    assert_eq!(zombies.trim(), "0");
    // The guest cannot read init's secret.
    let environment = service.printed(&chat, "env; cat /proc/1/environ 2>&1 || true").await;
    assert!(!environment.contains("SANDBOXD_INIT_SECRET"), "{environment}");
    assert!(environment.contains("Permission denied"), "{environment}");
    // Init refuses to serve files of its own process.
    for path in ["/proc/1/environ", "/proc/self/mem", "/proc/thread-self/environ"] {
        let params = json!({ "chat_id": chat.chat_id(), "path": path });
        let failure = service.call("sandbox.read_file", params).await.expect_err("it is init's own");
        assert_eq!(failure.data.details["reason"], "permission_denied", "{path}: {failure:?}");
    }
}

#[tokio::test]
async fn an_unprivileged_user_on_a_read_only_root_works_as_itself() {
    let settings = "profiles.default = { network = 'none', user = '1234:2345', read_only_root = true }";
    let (service, chat) = sandbox(settings).await;
    assert_eq!(service.printed(&chat, "id -u; id -g; echo mine > /tmp/f; cat /tmp/f").await, "1234\n2345\nmine\n");
    service.ask_guest(&chat, "sandbox.write_file", json!({ "path": "/chat/made", "text": "mine" })).await;
    let written = service.path("chats").join(chat.chat_id()).join("made").metadata().expect("written");
    assert_eq!((written.uid(), written.gid()), (1234, 2345));
    let refused = json!({ "chat_id": chat.chat_id(), "path": "/etc/made", "text": "mine" });
    let failure = service.call("sandbox.write_file", refused).await.expect_err("it is read-only");
    assert_eq!(failure.data.details["reason"], "read_only", "{failure:?}");
}

#[tokio::test]
async fn commands_outlive_the_service_and_are_found_by_the_next_one() {
    for killed in [false, true] {
        let (service, chat) = sandbox(OFFLINE).await;
        let line = "echo early; while ! test -e /volume/go; do sleep 0.05; done; echo late; exit 5";
        let params = json!({ "command": line, "detach": true });
        let command = service.ask_guest(&chat, "sandbox.exec", params).await["command_id"].clone();
        let session = service.get(&chat).await.expect("a sandbox")["session_id"].clone();
        let installation = if killed { service.kill().await } else { service.stop().await };
        let service = installation.start().await;
        assert_eq!(service.get(&chat).await.expect("adopted")["session_id"], session);
        let listed = service.ask_guest(&chat, "sandbox.commands", json!({})).await["commands"].clone();
        assert_eq!((&listed[0]["command_id"], &listed[0]["running"]), (&command, &json!(true)), "{listed}");
        eventually("the command that runs on counts as activity", || async {
            let sandbox = service.get(&chat).await.expect("a sandbox");
            (sandbox["held_by"][0]["command_id"] == command).then_some(())
        })
        .await;
        std::fs::write(chat.volume().join("go"), "").expect("written");
        let ended = service.ask_guest(&chat, "sandbox.attach", json!({ "command_id": command })).await;
        assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(5), &json!("early\nlate\n")), "{ended}");
    }
}

#[tokio::test]
async fn a_sandbox_that_ends_ends_its_processes_and_leaves_no_files_on_the_host() {
    let (service, chat) = sandbox(OFFLINE).await;
    let sandboxes = service.path("state").join("sandboxes");
    assert_eq!(std::fs::read_dir(&sandboxes).expect("a directory").count(), 1);
    let client = service.connect().await;
    let running = tokio::spawn({
        let params = json!({ "chat_id": chat.chat_id(), "command": "sleep 1000" });
        async move { crate::daemon::call(&client, "sandbox.exec", params).await }
    });
    eventually("it runs", || async {
        let listed = service.ask_guest(&chat, "sandbox.commands", json!({})).await;
        (!listed["commands"].as_array().expect("a list").is_empty()).then_some(())
    })
    .await;
    service.delete(&chat).await.expect("deleted");
    let failure = running.await.expect("no panic").expect_err("it did not end by itself");
    assert_eq!(failure.data.kind.as_str(), "guest_unreachable", "{failure:?}");
    eventually("no files are left", || async {
        (std::fs::read_dir(&sandboxes).expect("a directory").count() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_that_the_kernel_kills_for_want_of_memory_says_so() {
    let (service, chat) = sandbox("profiles.default = { network = 'none', memory = '32MiB' }").await;
    // The kernel kills the first command itself, and a child of the second one's shell.
    let direct = service.exec(&chat, json!(["tail", "/dev/zero"])).await;
    assert_eq!((&direct["oom_killed"], &direct["signal"]), (&json!(true), &json!(9)), "{direct}");
    let below = service.exec(&chat, "tail /dev/zero; exit $?").await;
    assert_eq!((&below["oom_killed"], &below["exit_code"]), (&json!(true), &json!(137)), "{below}");
    let other = service.exec(&chat, "kill -9 $$").await;
    assert_eq!((&other["oom_killed"], &other["signal"]), (&json!(false), &json!(9)), "{other}");
    assert_eq!(service.get(&chat).await.expect("a sandbox")["status"], "running");
    let shown = service.sandboxctl(&["exec", chat.chat_id(), "--", "tail", "/dev/zero"]).await;
    assert!(String::from_utf8_lossy(&shown.stderr).contains("ran out of memory"), "{shown:?}");
    assert_eq!(shown.status.code(), Some(137));
}

#[tokio::test]
async fn a_sandbox_that_is_removed_past_the_service_says_so() {
    let (service, chat) = sandbox(OFFLINE).await;
    let container = service.containers().await.only().await;
    service.containers().await.remove(&container).await;
    let failed = eventually("it has failed", || async {
        service.get(&chat).await.ok().filter(|sandbox| sandbox["status"] == "failed")
    })
    .await;
    assert_eq!(failed["reason"], "vanished", "{failed}");
    let message = failed["message"].as_str().expect("a message");
    assert!(message.contains("removed past the service"), "{failed}");
}

#[tokio::test]
async fn a_path_never_leads_out_of_the_sandbox() {
    let (service, chat) = sandbox(OFFLINE).await;
    let secret = service.path("secret");
    std::fs::write(&secret, "the host's").expect("written");
    // The host and the guest share this directory; on the host, the link leads to a file of the host.
    symlink(&secret, chat.volume().join("link")).expect("a link");
    let read = json!({ "chat_id": chat.chat_id(), "path": "/volume/link" });
    let failure = service.call("sandbox.read_file", read).await.expect_err("it leads nowhere");
    assert_eq!(failure.data.details["reason"], "not_found", "{failure:?}");
    service.ask_guest(&chat, "sandbox.write_file", json!({ "path": "/volume/link", "text": "the sandbox's" })).await;
    let climbing = format!("/volume/{}{}", "../".repeat(40), secret.display());
    let failure = service.call("sandbox.read_file", json!({ "chat_id": chat.chat_id(), "path": climbing })).await;
    assert_eq!(failure.expect_err("it is not there").data.details["reason"], "not_found");
    assert_eq!(std::fs::read_to_string(&secret).expect("a file"), "the host's");
}

#[tokio::test]
async fn a_hostile_guest_disturbs_no_other_sandbox() {
    let mut installation = Installation::new(OFFLINE);
    installation.configure("profiles.default = { pids = 64, memory = '64MiB', tmpfs = { '/full' = '1MiB' } }");
    let service = installation.start().await;
    let (hostile, peaceful) = (service.new_chat(), service.new_chat());
    service.created(&hostile).await;
    service.created(&peaceful).await;
    for attack in [
        // Floods the socket with garbage.
        "for i in $(seq 40); do (head -c 100000 /dev/urandom | nc local:/.sandboxd/run/socket >/dev/null 2>&1 &) ; done",
        // Fills its disk.
        "cat /dev/zero > /full/f 2>/dev/null; true",
        // Kills init.
        "kill -9 1; kill -STOP 1; sleep 0.2",
        // Writes to the service's files.
        "echo x > /.sandboxd/run/socket; rm -rf /.sandboxd/run; ln -s / /.sandboxd/run/x; mv /.sandboxd/init /x; true",
        // Uses up its processes.
        "for i in $(seq 10000); do sleep 1000 & done 2>/dev/null; true",
    ] {
        let params = json!({ "chat_id": hostile.chat_id(), "command": attack, "timeout": 5 });
        // Only the other sandboxes matter here.
        let _ =
            tokio::time::timeout(Duration::from_secs(20), service.call("sandbox.exec", params)).await.expect("in time");
        assert_eq!(service.printed(&peaceful, "echo undisturbed").await, "undisturbed\n", "{attack}");
        assert_eq!(service.get(&peaceful).await.expect("a sandbox")["status"], "running");
    }
    // Requests that need no new process still work.
    let listed = service.ask_guest(&hostile, "sandbox.list_files", json!({ "path": "/full" })).await;
    assert_eq!(listed["files"][0]["name"], "f", "{listed}");
    service.delete(&hostile).await.expect("deleted");
    assert_eq!(service.printed(&peaceful, "echo undisturbed").await, "undisturbed\n");
}

#[tokio::test]
async fn a_move_goes_into_directories_and_across_mounts_like_mv() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let tree = "mkdir -p /volume/tree/sub /chat/into && echo one > /volume/tree/sub/file && chmod 640 /volume/tree/sub/file \
                && ln -s /etc/passwd /volume/tree/link && echo two > /tmp/note";
    service.printed(&chat, tree).await;
    let moved = |from: &str, to: &str| json!({ "from": from, "to": to });
    // Each directory is a mount of its own.
    for (from, to) in [("/volume/tree", "/chat/into"), ("/tmp/note", "/volume/renamed"), ("/volume/renamed", "/chat")] {
        service.ask_guest(&chat, "sandbox.move_file", moved(from, to)).await;
    }
    let told = "cat /chat/into/tree/sub/file /chat/renamed; stat -c %a /chat/into/tree/sub/file; \
                readlink /chat/into/tree/link; ls -A /volume /tmp";
    let told = service.printed(&chat, told).await;
    assert!(told.starts_with("one\ntwo\n640\n/etc/passwd\n"), "{told}");
    assert!(!told.contains("tree\n") && !told.contains("note\n"), "{told}");
    assert!(std::fs::read_dir(chat.volume()).expect("there").next().is_none(), "it is removed completely");

    service.printed(&chat, "mkfifo /volume/pipe").await;
    let params = json!({ "chat_id": chat.chat_id(), "from": "/volume/pipe", "to": "/chat" });
    let failure = service.call("sandbox.move_file", params).await.expect_err("it cannot be copied");
    assert!(failure.message.contains("another file system"), "{failure:?}");
    assert_eq!(
        service.printed(&chat, "ls -A /chat; test -p /volume/pipe && echo there").await,
        "into\nrenamed\nthere\n"
    );
}
