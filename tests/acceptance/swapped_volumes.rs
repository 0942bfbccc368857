//! Tests of a volume whose path is swapped for another directory during a create: no sandbox gets the other directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::daemon::Daemon;
use crate::installation::link;
use crate::pool::can_be_bound;

const CREATES: usize = 30;

/// Exchanges two paths repeatedly, until it is dropped.
struct Swapping {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapping {
    fn begin(one: PathBuf, other: PathBuf) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stopped);
        let swap = move || {
            while !until.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("exchanged");
                std::thread::park_timeout(Duration::from_millis(2));
            }
        };
        Self { stopped, thread: Some(std::thread::spawn(swap)) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join).expect("once").expect("no panic");
    }
}

/// Creates sandboxes on a volume that is meanwhile swapped for a link to a directory outside the roots.
async fn only_the_volume_is_mounted(service: &Daemon, ready: impl AsyncFn()) {
    let (roots, outside) = (service.path("volumes"), service.path("outside"));
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("marker"), "outside").expect("written");
    link(&roots.join("link"), &outside);
    let volume = service.volume("swapped");
    std::fs::write(volume.join("marker"), "inside").expect("written");

    let swapping = Swapping::begin(volume.clone(), roots.join("link"));
    for _ in 0..CREATES {
        ready().await;
        let chat = service.new_chat().with("volume_host_path", volume.to_str().expect("UTF-8"));
        match service.create(&chat).await {
            Ok(sandbox) => {
                assert_eq!(service.output_of(&chat, "cat /volume/marker").await, "inside", "{sandbox}");
                service.delete(&chat).await.expect("deleted");
            }
            Err(failure) => assert_eq!(failure.data.details["field"], "volume_host_path", "{failure:?}"),
        }
    }
    drop(swapping);
    if volume.is_symlink() {
        renameat_with(CWD, &volume, CWD, roots.join("link"), RenameFlags::EXCHANGE).expect("exchanged");
    }
    // By chance, all creates may have been refused. The path is the volume's again, so this create must succeed.
    ready().await;
    let chat = service.new_chat().with("volume_host_path", volume.to_str().expect("UTF-8"));
    let created = service.create(&chat).await;
    assert!(created.is_ok(), "{created:?} {:?}", std::fs::symlink_metadata(&volume));
    assert_eq!(service.output_of(&chat, "cat /volume/marker").await, "inside");
    service.delete(&chat).await.expect("deleted");
}

#[tokio::test]
async fn a_swapped_volume_is_never_mounted_into_a_new_container() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    only_the_volume_is_mounted(&service, async || ()).await;
    service.containers().await.none_is_left().await;
}

#[tokio::test]
async fn a_swapped_volume_is_never_mounted_into_a_slot() {
    if !can_be_bound() {
        return;
    }
    let service = Daemon::start("profiles.default = { network = 'none', pool = { size = 1 } }").await;
    let ready = async || drop(service.until_free(1).await);
    only_the_volume_is_mounted(&service, ready).await;
}

#[tokio::test]
async fn a_swapped_volume_is_never_left_in_a_container_without_an_init() {
    let service = Daemon::start("profiles.default = { network = 'none', init = false }").await;
    only_the_volume_is_mounted(&service, async || ()).await;
    service.containers().await.none_is_left().await;
}

#[tokio::test]
async fn a_volume_that_was_swapped_is_not_mounted_by_a_restart() {
    let service = Daemon::start(
        "[profiles.default]
         network = 'none'
         restart = 'on-failure'
         command = ['sh', '-c', 'cat /volume/marker >> /chat/seen; sleep infinity']",
    )
    .await;
    let outside = service.path("outside");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("marker"), "outside").expect("written");
    let chat = service.new_chat();
    std::fs::write(chat.volume().join("marker"), "inside").expect("written");
    let created = service.created(&chat).await;
    let seen = service.path("chats").join(chat.chat_id()).join("seen");
    crate::engine::eventually("its program has begun", || async {
        std::fs::read_to_string(&seen).ok().filter(|seen| seen == "inside")
    })
    .await;

    let aside = service.path("volumes/aside");
    std::fs::rename(chat.volume(), &aside).expect("renamed");
    link(&chat.volume(), &outside);
    let container = created["container_id"].as_str().expect("an id").to_owned();
    service.containers().await.kill(&container).await;
    crate::engine::eventually("the restart is refused", || async {
        let sandbox = service.get(&chat).await.ok()?;
        sandbox.to_string().contains("volume_host_path: ").then_some(())
    })
    .await;
    assert!(!service.containers().await.is_running(&container).await);
    assert_eq!(std::fs::read_to_string(&seen).expect("read"), "inside");

    std::fs::remove_file(chat.volume()).expect("removed");
    std::fs::rename(&aside, chat.volume()).expect("renamed");
    crate::engine::eventually("it runs again", || async {
        let sandbox = service.get(&chat).await.ok()?;
        (sandbox["status"] == "running").then_some(())
    })
    .await;
    assert_eq!(service.output_of(&chat, "cat /chat/seen").await, "insideinside");
}
