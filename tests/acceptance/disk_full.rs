//! Tests of a full disk below the service's state: the service reports it, acknowledges no change, removes no sandbox,
//! and recovers once there is space. The disk is a small file system in memory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;

/// A small file system in memory. It is unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        std::fs::create_dir_all(at).expect("a directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m,nr_inodes=512", "small"]).arg(at).status();
        assert!(mounted.expect("mount can be run").success());
        Self(at.to_owned())
    }

    /// Leaves space neither for data nor for files.
    fn fill(&self) {
        std::fs::create_dir(self.filler()).expect("a directory");
        let file = |number: usize| std::fs::File::create(self.filler().join(number.to_string()));
        let mut bytes = file(0).expect("a file");
        while bytes.write_all(&[0; 4096]).is_ok() {}
        let files = (1..).map_while(|number| file(number).ok()).count();
        assert!(files > 0, "room for files was left");
    }

    fn free(&self) {
        std::fs::remove_dir_all(self.filler()).expect("removed");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

impl Daemon {
    async fn health(&self) -> Value {
        self.call("system.health", json!({})).await.expect("an answer")
    }

    async fn until_healthy(&self, status: &str) -> Value {
        eventually(status, || async { Some(self.health().await).filter(|health| health["status"] == status) }).await
    }

    async fn assert_usable(&self, chat: &CreateParams) {
        let ran = self.call("sandbox.exec", json!({ "chat_id": chat.chat_id(), "command": "echo here" })).await;
        assert_eq!(ran.expect("run")["stdout"]["text"], "here\n");
    }

    /// Returns whether init runs the commands: a guest via engine reports no signals.
    async fn reaches_init(&self, chat: &CreateParams) -> bool {
        let killed = json!({ "chat_id": chat.chat_id(), "command": "kill -9 $$" });
        self.call("sandbox.exec", killed).await.expect("run")["signal"] == 9
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_loses_no_sandbox_and_the_service_recovers() {
    let installation = Installation::new("profiles.default.network = 'none'");
    let disk = SmallDisk::mount(&installation.path("state"));
    let service = installation.start().await;
    assert_eq!(service.health().await["status"], "ok");
    let chats = [service.new_chat(), service.new_chat()];
    for chat in &chats {
        service.created(chat).await;
    }

    disk.fill();
    let health = service.until_healthy("degraded").await;
    let why = health["state"]["error"].as_str().expect("why");
    assert!(health["state"]["writable"] == false && why.contains("full"), "{health}");

    let refused = service.refused(&service.new_chat()).await;
    assert!(refused.data.kind.as_str() == "journal_unavailable" && refused.data.retryable, "{refused:?}");
    let refused = service.delete(&chats[0]).await.expect_err("not on disk");
    assert!(refused.data.kind.as_str() == "journal_unavailable" && refused.data.retryable, "{refused:?}");
    assert_eq!(service.containers().await.count().await, 2, "no container of a sandbox is removed");
    service.assert_usable(&chats[1]).await;

    // A start that was killed between the removal of the old sockets and the creation of new ones. The disk has filled
    // up since.
    let installation = service.kill().await;
    disk.free();
    let sandboxes = std::fs::read_dir(installation.path("state/sandboxes")).expect("a directory");
    for sandbox in sandboxes.flatten() {
        std::fs::remove_file(sandbox.path().join("run/socket")).expect("removed");
    }
    disk.fill();
    let service = installation.start().await;
    for chat in &chats {
        assert_eq!(service.get(chat).await.expect("found")["status"], "running");
        assert!(!service.reaches_init(chat).await, "there was no room for its socket");
        service.assert_usable(chat).await;
    }
    disk.free();
    for chat in &chats {
        assert!(service.reaches_init(chat).await);
        service.assert_usable(chat).await;
    }
    service.until_healthy("ok").await;

    disk.fill();
    service.delete(&chats[0]).await.expect_err("not on disk");
    service.until_healthy("degraded").await;
    disk.free();
    service.until_healthy("ok").await;
    service.delete(&chats[0]).await.expect("deleted");
    assert_eq!(service.containers().await.count().await, 1);
    service.created(&service.new_chat()).await;
    service.stop().await;
    drop(disk);
}
