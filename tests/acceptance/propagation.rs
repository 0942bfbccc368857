//! Tests of slots on hosts where the service may mount but not enter a sandbox, and on hosts where it may do neither.

use serde_json::{Value, json};

use crate::containers::id_of;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;
use crate::pool::{can_be_bound, mounts};

/// Slots exist only for a hint, so that none is left at the end.
const HINTED: &str = "[profiles.default]
    network = 'none'
    restart = 'on-failure'
    command = ['sh', '-c', 'echo $AGENT_ID >> /chat/starts; sleep infinity']
    pool = { size = 0, hints = 1 }";

impl Installation {
    /// Starts the service through this command prefix.
    async fn start_by(self, words: &[&str]) -> Daemon {
        let sandboxd = self.sandboxd();
        let mut command = self.command(words[0]);
        command.args(&words[1..]).arg(sandboxd.get_program()).args(sandboxd.get_args());
        command.stdout(std::process::Stdio::null()).stderr(self.open_log());
        self.run(command).await
    }
}

const WITHOUT_ENTERING: [&str; 3] = ["setpriv", "--bounding-set", "-sys_chroot,-sys_ptrace"];

#[tokio::test]
async fn where_a_sandbox_cannot_be_entered_its_chats_directories_are_propagated_to_it() {
    if !can_be_bound() {
        return;
    }
    let service = Installation::new(HINTED).start_by(&WITHOUT_ENTERING).await;
    let pool = service.pool().await;
    assert_eq!(pool["late_binding"], "propagated", "{pool}");
    assert!(pool["late_binding_because"].as_str().is_some_and(|why| why.contains("CAP_SYS_")), "{pool}");
    let chat = service.new_chat();
    std::fs::write(chat.volume().join("input"), "from the host").expect("written");
    service.call("sandbox.hint", json!({ "chat_id": chat.chat_id(), "ttl": 60 })).await.expect("taken");
    service.until_free(1).await;

    let created = service.created(&chat).await;
    assert_eq!(created["launch"], "warm", "{created}");
    assert_eq!(service.output_of(&chat, "cat /volume/input; echo out > /volume/output").await, "from the host");
    assert_eq!(std::fs::read_to_string(chat.volume().join("output")).expect("written"), "out\n");
    assert_eq!(mounts(&service), Vec::<String>::new(), "no mount is left on the host");

    let starts = service.path("chats").join(chat.chat_id()).join("starts");
    service.containers().await.kill(id_of(&created)).await;
    eventually("it was started and bound again", || async {
        std::fs::read_to_string(&starts).ok().filter(|text| text == "agent\nagent\n")
    })
    .await;
    eventually("it runs again", || async {
        (service.get(&chat).await.expect("known")["status"] == "running").then_some(())
    })
    .await;
    assert_eq!(mounts(&service), Vec::<String>::new());

    // The next service may enter sandboxes again.
    let service = service.stop().await.start().await;
    assert_eq!(service.output_of(&chat, "cat /volume/input").await, "from the host");
    service.delete(&chat).await.expect("deleted");
    let places = service.path("state").join("places");
    eventually("no place is left", || async { places_in(&places).is_empty().then_some(()) }).await;
    assert_eq!(std::fs::read_to_string(&starts).expect("kept"), "agent\nagent\n");
}

#[tokio::test]
async fn without_a_volume_the_chats_directory_is_propagated_to_its_own_place() {
    if !can_be_bound() {
        return;
    }
    // The volume's path sorts before the chat's path.
    let settings = "mounts = { chat = '/work', volume = '/data' }
        [profiles.default]
        network = 'none'
        pool = { size = 1 }";
    let service = Installation::new(settings).start_by(&WITHOUT_ENTERING).await;
    service.until_free(1).await;
    let chat = service.new_chat().with("volume_host_path", Value::Null);
    let created = service.created(&chat).await;
    assert_eq!(created["launch"], "warm", "{created}");
    assert_eq!(service.output_of(&chat, "ls -A /data; echo kept > /work/note; cat /work/note").await, "kept\n");
    let note = service.path("chats").join(chat.chat_id()).join("note");
    assert_eq!(std::fs::read_to_string(note).expect("written"), "kept\n");
}

fn places_in(directory: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).expect("there").flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "nothing").collect()
}

#[tokio::test]
async fn a_slot_that_waits_is_kept_over_a_restart_and_unmounted_when_it_is_not_wanted() {
    if !can_be_bound() {
        return;
    }
    let service = Installation::new(HINTED).start_by(&WITHOUT_ENTERING).await;
    let hint = json!({ "ttl": 60 });
    service.call("sandbox.hint", &hint).await.expect("taken");
    service.until_free(1).await;
    let containers = service.containers().await;
    let slot = containers.only().await;
    assert_eq!(mounts(&service).len(), 1, "only its own mounts");

    let mut installation = service.kill().await;
    installation.configure("profiles.default.pool.size = 1");
    let service = installation.start_by(&WITHOUT_ENTERING).await;
    service.until_free(1).await;
    assert_eq!(containers.only().await, slot);
    let mut installation = service.stop().await;
    installation.configure("profiles.default.pool.size = 0");
    let service = installation.start_by(&WITHOUT_ENTERING).await;
    containers.none_is_left().await;
    eventually("its places are gone", || async {
        (mounts(&service).is_empty() && places_in(&service.path("state").join("places")).is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_service_that_may_not_mount_says_so_and_creates_cold() {
    if !can_be_bound() {
        return;
    }
    let without = ["setpriv", "--bounding-set", "-sys_admin"];
    let service = Installation::new(HINTED).start_by(&without).await;
    let pool = service.pool().await;
    assert_eq!(pool["late_binding"], Value::Null);
    assert_eq!(pool["unavailable"].as_str().map(|why| why.matches("CAP_SYS_ADMIN").count()), Some(2), "{pool}");
    assert_eq!(service.created(&service.new_chat()).await["launch"], "cold");
}

#[tokio::test]
async fn mounts_that_the_engine_does_not_see_are_found_out_before_a_chat_relies_on_them() {
    if !can_be_bound() {
        return;
    }
    // A service manager may give the service a mount namespace of its own.
    let apart = ["unshare", "--mount", "setpriv", "--bounding-set", "-sys_chroot,-sys_ptrace"];
    let service = Installation::new(HINTED).start_by(&apart).await;
    service.call("sandbox.hint", json!({ "ttl": 60 })).await.expect("taken");
    let pool = eventually("it says why there is no slot", || async {
        let pool = service.pool().await;
        pool["last_error"].is_string().then_some(pool)
    })
    .await;
    assert_eq!(pool["free"], 0, "{pool}");
    let created = service.created(&service.new_chat()).await;
    assert_eq!(created["launch"], "cold", "{created}");
}
