//! Tests of pools: sandboxes that are started before their chats exist.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bollard::query_parameters::{RemoveImageOptions, TagImageOptionsBuilder};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::containers::{Containers, id_of};
use crate::create_params::CreateParams;
use crate::daemon::{Daemon, call};
use crate::engine::{blocking, eventually, test_image};
use crate::installation::Installation;

const ONE: &str = "profiles.default = { network = 'none', pool = { size = 1 } }";

impl Daemon {
    pub(crate) async fn pool(&self) -> Value {
        self.call("pool.status", json!({})).await.expect("a status")["pools"][0].clone()
    }

    /// Waits until this many slots are free and none is in preparation.
    pub(crate) async fn until_free(&self, free: u64) -> Value {
        eventually("the slots are ready", || async {
            let pool = self.pool().await;
            assert_eq!(pool["unavailable"], Value::Null, "{pool}");
            (pool["free"] == free && pool["coming"] == 0).then_some(pool)
        })
        .await
    }

    /// Returns the output of a command, even if it fails.
    pub(crate) async fn output_of(&self, chat: &CreateParams, command: &str) -> String {
        let ended = self.exec(chat, command).await;
        let text = |stream: &str| ended[stream]["text"].as_str().unwrap_or_default().to_owned();
        text("stdout") + &text("stderr")
    }
}

/// Returns whether slots can be bound: only root can mount a chat's directories into a slot. The service reports this
/// to other users; see [`a_pool_that_cannot_be_filled_says_why_and_blocks_no_create`].
pub(crate) fn can_be_bound() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("slots can be bound only by root");
    }
    root
}

/// Returns the host's mounts that belong to this service.
pub(crate) fn mounts(service: &Daemon) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let own = service.path("").file_name().expect("a name").to_string_lossy().into_owned();
    table.lines().filter(|line| line.contains(&own)).map(String::from).collect()
}

#[tokio::test]
async fn a_chat_gets_a_slot_with_all_that_a_container_of_its_own_would_have() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(
        "[profiles.default]
         command = ['sh', '-c', 'echo $AGENT_ID $TOKEN $KIND > /chat/started; pwd >> /chat/started; sleep infinity']
         env = { KIND = 'profile', TOKEN = 'none' }
         pool = { size = 1 }",
    )
    .await;
    service.until_free(1).await;
    let containers = service.containers().await;
    let slot = containers.only().await;

    let chat = service.new_chat().with("env", json!({ "TOKEN": "t0k3n" })).with("agent_id", "agent 7");
    std::fs::write(chat.volume().join("input"), "from the host").expect("written");
    let created = service.created(&chat).await;
    assert_eq!((&created["launch"], &created["outcome"]), (&json!("warm"), &json!("created")), "{created}");
    assert_eq!(id_of(&created), slot);
    eventually("it has its chat's name", || async {
        let name = containers.inspect(&slot).await.name.expect("a name");
        (name.trim_start_matches('/') == created["container_name"]).then_some(())
    })
    .await;
    let inspected = containers.inspect(&slot).await;
    let address = inspected.network_settings.and_then(|settings| settings.networks).expect("a network");
    assert_eq!(json!(address.values().next().expect("one").ip_address), created["endpoint"]["ip"]);

    let started = service.path("chats").join(chat.chat_id()).join("started");
    let started = eventually("its program has started", || async {
        std::fs::read_to_string(&started).ok().filter(|text| text.ends_with("/\n"))
    })
    .await;
    assert_eq!(started, "agent 7 t0k3n profile\n/\n");
    assert_eq!(mounts(&service), Vec::<String>::new(), "the host has no mounts");
    assert_eq!(service.output_of(&chat, "cat /volume/input; echo $AGENT_ID").await, "from the hostagent 7\n");
    service.output_of(&chat, "echo out > /volume/output").await;
    assert_eq!(std::fs::read_to_string(chat.volume().join("output")).expect("written"), "out\n");
    assert_eq!(
        service.output_of(&chat, "touch /dependencies/x; touch /.sandboxd/run/x").await.matches("ead-only").count(),
        2
    );
    assert!(!service.output_of(&chat, "env; cat /proc/*/environ").await.contains("SANDBOXD_INIT"));

    let as_another = json!({ "command": "echo $AGENT_ID $TOKEN $SANDBOXD_INIT_SECRET", "user": "1000" });
    let printed = service.ask_guest(&chat, "sandbox.exec", as_another).await;
    assert_eq!(printed["stdout"]["text"], "agent 7 t0k3n\n", "{printed}");

    assert_eq!(service.created(&chat).await["outcome"], "reused");
    service.delete(&chat).await.expect("deleted");
    service.until_free(1).await;
    assert_eq!(mounts(&service), Vec::<String>::new());
    let sandboxes = service.path("state/sandboxes");
    eventually("it is removed completely", || async {
        (std::fs::read_dir(&sandboxes).expect("there").count() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_slot_without_root_and_without_a_writable_root_becomes_a_chats_as_well() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(
        "[profiles.default]
         network = 'none'
         user = '1234:1234'
         read_only_root = true
         pool = { size = 1 }",
    )
    .await;
    service.until_free(1).await;
    let chat = service.new_chat();
    assert_eq!(service.created(&chat).await["launch"], "warm");
    assert_eq!(
        service.output_of(&chat, "id -u; echo x > /chat/mine && cat /chat/mine; touch /x").await.lines().count(),
        3
    );
    let mine = service.path("chats").join(chat.chat_id()).join("mine");
    assert_eq!(std::fs::read_to_string(mine).expect("written"), "x\n");
}

#[tokio::test]
async fn a_chat_without_a_volume_gets_a_slot_with_an_empty_place_for_one() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(ONE).await;
    service.until_free(1).await;
    let chat = service.new_chat().with("volume_host_path", Value::Null);
    let created = service.created(&chat).await;
    assert_eq!((&created["launch"], &created["volume_host_path"]), (&json!("warm"), &Value::Null), "{created}");
    assert_eq!(service.output_of(&chat, "ls -A /volume; echo kept > /chat/note; cat /chat/note").await, "kept\n");
    assert!(service.output_of(&chat, "touch /volume/x").await.contains("ead-only"));
}

#[tokio::test]
async fn an_empty_pool_is_no_error_and_is_filled_again() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(ONE).await;
    service.until_free(1).await;
    let chats = [(); 3].map(|()| service.new_chat());
    let mut launches = Vec::new();
    for chat in &chats {
        launches.push(service.created(chat).await["launch"].clone());
    }
    assert_eq!(launches[0], "warm");
    assert!(launches.contains(&json!("cold")), "{launches:?}");
    let pool = service.until_free(1).await;
    assert!(pool["claims"]["misses"].as_u64() >= Some(1), "{pool}");
    assert_eq!(service.containers().await.count().await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_claims_at_once_get_a_slot_each_and_every_chat_its_own_files() {
    if !can_be_bound() {
        return;
    }
    const CALLERS: usize = 16;
    const CLAIMS: usize = 200;
    let service = Daemon::start("profiles.default = { network = 'none', pool = { size = 8 } }").await;
    service.until_free(8).await;
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let client = service.connect().await;
        let chats: Vec<_> = (caller..CLAIMS).step_by(CALLERS).map(|_| service.new_chat()).collect();
        callers.push(tokio::spawn(async move {
            let mut got = Vec::new();
            for chat in chats {
                let own = chat.chat_id().to_owned();
                std::fs::write(chat.volume().join("own"), &own).expect("written");
                let params = chat.with("agent_id", own.as_str()).with("env", json!({ "OWN": own }));
                let created = call(&client, "sandbox.create", params).await.expect("created");
                let look = "echo $AGENT_ID $OWN $(cat /volume/own)";
                let looked = call(&client, "sandbox.exec", json!({ "chat_id": own, "command": look })).await;
                assert_eq!(looked.expect("looked")["stdout"]["text"], format!("{own} {own} {own}\n"));
                got.push((id_of(&created).to_owned(), created["launch"].clone()));
                call(&client, "sandbox.delete", json!({ "chat_id": own })).await.expect("deleted");
            }
            got
        }));
    }
    let (mut containers, mut launches) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    for caller in callers {
        for (container, launch) in caller.await.expect("no panic") {
            assert!(containers.insert(container), "one container for two chats");
            *launches.entry(launch.to_string()).or_default() += 1;
        }
    }
    assert_eq!(containers.len(), CLAIMS);
    assert!(launches["\"warm\""] >= 8, "{launches:?}");
    println!("{launches:?}");
    service.until_free(8).await;
    assert_eq!(service.containers().await.count().await, 8);
}

#[tokio::test]
async fn slots_outlive_the_service_and_are_handed_out_by_the_next_one() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start("profiles.default = { network = 'none', pool = { size = 2 } }").await;
    service.until_free(2).await;
    let claimed = service.new_chat();
    let before = service.created(&claimed).await;
    service.until_free(2).await;
    let all = service.containers().await.all().await.len();
    let service = service.kill().await.start().await;
    let pool = service.until_free(2).await;
    assert_eq!(pool["claims"]["hits"], 0, "{pool}");
    assert_eq!(service.containers().await.all().await.len(), all, "none is started for one that is there");

    let found = service.created(&claimed).await;
    assert_eq!((&found["outcome"], &found["session_id"]), (&json!("reused"), &before["session_id"]));
    assert_eq!(service.output_of(&claimed, "echo $AGENT_ID").await, "agent\n");
    let next = service.new_chat();
    assert_eq!(service.created(&next).await["launch"], "warm");
    assert_eq!(service.output_of(&next, "echo $AGENT_ID; touch /chat/x /volume/x").await, "agent\n");
}

#[tokio::test]
async fn a_warm_sandbox_is_adopted_when_the_journal_is_lost() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(ONE).await;
    service.until_free(1).await;
    let chat = service.new_chat();
    let before = service.created(&chat).await;
    let installation = service.stop().await;
    for file in std::fs::read_dir(installation.path("state")).expect("there").flatten() {
        if file.file_name().to_string_lossy().starts_with("journal") {
            std::fs::remove_file(file.path()).expect("removed");
        }
    }
    let service = installation.start().await;
    let found = service.created(&chat).await;
    assert_eq!((&found["outcome"], &found["session_id"]), (&json!("reused"), &before["session_id"]));
    assert!(
        found["expires_at"].as_str() > before["expires_at"].as_str(),
        "its time to live counts from when it is found"
    );
}

#[tokio::test]
async fn a_slot_that_died_or_was_removed_is_not_handed_out() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(ONE).await;
    let containers = service.containers().await;
    for meddle in [true, false] {
        service.until_free(1).await;
        let slot = containers.only().await;
        if meddle {
            containers.kill(&slot).await;
        } else {
            containers.remove(&slot).await;
        }
        eventually("another one is there", || async {
            let all = containers.all().await;
            (all.len() == 1 && all[0].id.as_ref() != Some(&slot)).then_some(())
        })
        .await;
    }
    service.until_free(1).await;
    assert_eq!(service.created(&service.new_chat()).await["launch"], "warm");
}

#[tokio::test]
async fn a_sandbox_that_was_a_slot_is_watched_like_any_other() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(ONE).await;
    service.until_free(1).await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    service.containers().await.kill(id_of(&created)).await;
    eventually("its end is seen", || async {
        let sandbox = service.get(&chat).await.expect("known");
        (sandbox["status"] == "failed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_was_a_slot_has_its_directories_and_environment_after_a_restart_too() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(
        "[profiles.default]
         network = 'none'
         restart = 'on-failure'
         command = ['sh', '-c', 'echo $AGENT_ID >> /chat/starts; sleep infinity']
         pool = { size = 1 }",
    )
    .await;
    service.until_free(1).await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    assert_eq!(created["launch"], "warm");
    service.containers().await.kill(id_of(&created)).await;
    let starts = service.path("chats").join(chat.chat_id()).join("starts");
    eventually("it was started again", || async {
        std::fs::read_to_string(&starts).ok().filter(|text| text == "agent\nagent\n")
    })
    .await;
    eventually("it runs again", || async {
        (service.get(&chat).await.expect("known")["status"] == "running").then_some(())
    })
    .await;
    assert_eq!(service.output_of(&chat, "echo $AGENT_ID; touch /volume/x").await, "agent\n");

    // The next service continues the restart from the interrupted step.
    service.containers().await.kill(id_of(&created)).await;
    eventually("it is being started again", || async {
        let status = service.get(&chat).await.expect("known")["status"].clone();
        let started = std::fs::read_to_string(&starts).is_ok_and(|text| text.lines().count() == 3);
        (started || status == "creating").then_some(())
    })
    .await;
    let service = service.kill().await.start().await;
    eventually("it runs again", || async {
        (service.get(&chat).await.expect("known")["status"] == "running").then_some(())
    })
    .await;
    assert_eq!(service.output_of(&chat, "echo $AGENT_ID; cat /chat/starts").await, "agent\n".repeat(4));
}

#[tokio::test]
async fn a_warm_sandbox_that_a_power_failure_stopped_is_not_taken_for_a_slot() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start(
        "[profiles.default]
         network = 'none'
         restart = 'on-failure'
         command = ['sh', '-c', 'echo $AGENT_ID >> /chat/starts; sleep infinity']
         pool = { size = 1 }",
    )
    .await;
    service.until_free(1).await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    assert_eq!(created["launch"], "warm");
    let installation = service.kill().await;
    // The state after a power failure before the flush: the directory is still the slot's, and the claim's copy is
    // missing.
    let state = installation.path("state");
    let session = state.join("sandboxes").join(created["session_id"].as_str().expect("an id"));
    std::fs::remove_file(session.join("claim")).expect("a copy");
    let links = std::fs::read_dir(state.join("slots")).expect("slots").map(|entry| entry.expect("an entry").path());
    let link = links.into_iter().find(|path| std::fs::read_link(path).is_ok_and(|target| target == session));
    let link = link.expect("a link");
    std::fs::remove_file(&link).expect("removed");
    std::fs::rename(&session, &link).expect("moved back");
    installation.containers().await.kill(id_of(&created)).await;

    let service = installation.start().await;
    let again = eventually("it runs again", || async {
        Some(service.get(&chat).await.expect("known")).filter(|sandbox| sandbox["status"] == "running")
    })
    .await;
    assert_eq!((&again["session_id"], id_of(&again)), (&created["session_id"], id_of(&created)));
    assert_eq!(service.output_of(&chat, "echo $AGENT_ID; cat /chat/starts").await, "agent\n".repeat(3));
}

/// An image name that can be moved to another image. The name is removed on drop, the images stay.
struct ImageName {
    containers: Containers,
    name: String,
}

impl ImageName {
    async fn of(image: &str, containers: Containers) -> Self {
        let name = Self { containers, name: format!("sandboxd-pool-{}", Uuid::new_v4().simple()) };
        name.give_to(image).await;
        name
    }

    async fn give_to(&self, image: &str) {
        let options = TagImageOptionsBuilder::default().repo(&self.name).tag("test").build();
        self.containers.docker.tag_image(image, Some(options)).await.expect("tagged");
    }

    fn reference(&self) -> String {
        format!("{}:test", self.name)
    }
}

impl Drop for ImageName {
    fn drop(&mut self) {
        let (docker, name) = (self.containers.docker.clone(), self.reference());
        blocking(async move { drop(docker.remove_image(&name, None::<RemoveImageOptions>, None).await) });
    }
}

#[tokio::test]
async fn a_slot_of_an_image_that_was_rebuilt_is_not_handed_out() {
    if !can_be_bound() {
        return;
    }
    let mut installation = Installation::new("");
    let name = ImageName::of(&test_image(), installation.containers().await).await;
    installation.configure(&format!(
        "profiles.default = {{ image = '{}', network = 'none', command = ['sleep', 'infinity'], pool = {{ size = 2 }} }}",
        name.reference()
    ));
    let service = installation.start().await;
    let before = service.until_free(2).await;
    name.give_to("sandboxd-healthcheck:test").await;
    // Before the pool has noticed the new image, and while it adopts it.
    let current = service.containers().await.docker.inspect_image(&name.reference()).await.expect("there").id;
    for _ in 0..4 {
        let created = service.created(&service.new_chat()).await;
        let container = service.containers().await.inspect(id_of(&created)).await;
        assert_eq!(container.image, current, "{created}");
    }
    let after = eventually("the pool has taken the image over", || async {
        let pool = service.pool().await;
        (pool["image_id"] != before["image_id"] && pool["free"] == 2).then_some(pool)
    })
    .await;
    assert_eq!(json!(current), after["image_id"]);
    assert_eq!(service.created(&service.new_chat()).await["launch"], "warm");
}

#[tokio::test]
async fn slots_are_replaced_at_their_age_and_when_their_profile_changes() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start("profiles.default = { network = 'none', pool = { size = 1, max_age = '3s' } }").await;
    service.until_free(1).await;
    let containers = service.containers().await;
    let first = containers.all().await[0].id.clone();
    eventually("it was replaced", || async {
        containers.all().await.iter().all(|container| container.id != first).then_some(())
    })
    .await;
    let mut installation = service.stop().await;
    installation.configure("profiles.default = { pids = 99, pool = { size = 1, max_age = '1h' } }");
    let service = installation.start().await;
    service.until_free(1).await;
    let slot = eventually("one is left", || async {
        let all = containers.all().await;
        (all.len() == 1).then(|| all[0].id.clone())
    })
    .await;
    let limit = containers.inspect(&slot.expect("an id")).await.host_config.and_then(|host| host.pids_limit);
    assert_eq!(limit, Some(99));

    let mut installation = service.stop().await;
    installation.configure("profiles.default.pool.size = 0");
    let service = installation.start().await;
    containers.none_is_left().await;
    assert_eq!(service.pool().await["target"], 0);
}

#[tokio::test]
async fn a_hint_prepares_a_sandbox_and_is_counted_as_hit_or_wasted() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start("profiles.default = { network = 'none', pool = { size = 0, hints = 1 } }").await;
    let chat = service.new_chat();
    let hint = |ttl: f64| json!({ "chat_id": chat.chat_id(), "ttl": ttl });
    let hinted = service.call("sandbox.hint", hint(60.0)).await.expect("taken");
    assert_eq!((&hinted["outcome"], &hinted["profile"]), (&json!("preparing"), &json!("default")));
    let refused = service.call("sandbox.hint", json!({})).await.expect("an answer");
    assert_eq!(refused["outcome"], "over_budget", "{refused}");
    service.until_free(1).await;
    assert_eq!(service.created(&chat).await["launch"], "warm");
    assert_eq!(service.pool().await["hinted"]["hits"], 1);

    assert_eq!(service.call("sandbox.hint", hint(1.0)).await.expect("taken")["outcome"], "preparing");
    let pool = eventually("its time is over", || async {
        let pool = service.pool().await;
        (pool["hinted"]["wasted"] == 1 && pool["coming"] == 0 && pool["free"] == 0).then_some(pool)
    })
    .await;
    assert_eq!(pool["target"], 0);
    let containers = service.containers().await;
    eventually("the prepared slot is removed", || async { (containers.count().await == 1).then_some(()) }).await;
}

#[tokio::test]
async fn a_pool_that_cannot_be_filled_says_why_and_blocks_no_create() {
    let service = Daemon::start("profiles.default = { network = 'none', init = false, pool = { size = 1 } }").await;
    let pool = service.pool().await;
    assert!(pool["unavailable"].as_str().is_some_and(|why| why.contains("init = false")), "{pool}");
    assert_eq!(service.created(&service.new_chat()).await["launch"], "cold");

    let service = Daemon::start("profiles.default = { image = 'sandboxd-missing:test', pool = { size = 1 } }").await;
    let pool = eventually("it says why", || async {
        let pool = service.pool().await;
        pool["last_error"].is_string().then_some(pool)
    })
    .await;
    assert!(pool["last_error"].as_str().is_some_and(|why| why.contains("sandboxd-missing:test")), "{pool}");
    assert!(pool["retry_at"].is_string());
    tokio::time::timeout(Duration::from_secs(20), service.refused(&service.new_chat())).await.expect("answered");
}

/// Returns the number of this service's free slots on the engine, and whether the chat's container exists.
async fn on_the_engine(installation: &Installation, kept: &str) -> (usize, bool) {
    let all = installation.containers().await.all().await;
    let is_kept = |container: &bollard::models::ContainerSummary| container.id.as_deref() == Some(kept);
    (all.iter().filter(|container| !is_kept(container)).count(), all.iter().any(is_kept))
}

#[tokio::test]
async fn slots_go_by_a_drain_with_or_without_the_service_and_chats_keep_theirs() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start("profiles.default = { network = 'none', ttl = '1h', pool = { size = 2 } }").await;
    service.until_free(2).await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    assert_eq!(created["launch"], "warm", "{created}");
    let kept = id_of(&created).to_owned();
    service.until_free(2).await;

    let refused = service.sandboxd_output(&["--drain"]).await;
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && printed.contains("sandboxctl pools drain"), "{printed}");
    assert_eq!(on_the_engine(&service, &kept).await, (2, true), "the service is asked, not overruled");

    let drained = service.sandboxctl(&["pools", "drain"]).await;
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert!(String::from_utf8_lossy(&drained.stdout).contains("drained"));
    assert_eq!(on_the_engine(&service, &kept).await, (0, true));
    let filled = service.sandboxctl(&["pools", "fill"]).await;
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    service.until_free(2).await;

    // Slots outlive the service, so that the next run has them at once.
    let installation = service.stop().await;
    assert_eq!(on_the_engine(&installation, &kept).await, (2, true));
    let drained = installation.sandboxd_output(&["--drain"]).await;
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert_eq!(String::from_utf8_lossy(&drained.stdout), "2 slots removed\n");
    assert_eq!(on_the_engine(&installation, &kept).await, (0, true));
    let free: Vec<_> = std::fs::read_dir(installation.path("state/slots"))
        .expect("a directory")
        .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())))
        .collect();
    assert_eq!(free.len(), 0, "{free:?}");
    assert!(installation.sandboxd_output(&["--drain"]).await.stdout.starts_with(b"0 slots"));

    let service = installation.start().await;
    assert_eq!(service.created(&chat).await["outcome"], "reused");
    assert_eq!(service.output_of(&chat, "echo still here").await, "still here\n");
}
