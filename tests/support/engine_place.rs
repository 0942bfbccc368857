//! The directories, processes and mounts of an engine that a test starts. All of them are removed when the test ends,
//! even if it fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bollard::query_parameters::ImportImageOptions;
use futures_util::{StreamExt, TryStreamExt};
use rustix::process::{Pid, Signal, kill_process};
use sandboxd::engine::docker::DockerEngine;
use sandboxd_actors::ports::engine::Engine;

use crate::engine::{TestInstance, blocking, test_image};

/// The time from SIGKILL to the end of the last process.
const LONGEST_END: Duration = Duration::from_secs(10);

pub(crate) struct EnginePlace {
    /// The engine's persistent data.
    pub(crate) directory: tempfile::TempDir,
    /// The engine's runtime files. Their path is in the arguments of all its processes.
    pub(crate) runtime: PathBuf,
}

impl EnginePlace {
    pub(crate) fn processes(&self) -> Vec<(Pid, String)> {
        processes(&self.runtime)
    }

    pub(crate) fn mounts(&self) -> Vec<String> {
        let places = [&self.runtime, self.directory.path()].map(|path| path.to_str().expect("a plain path"));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| places.iter().any(|place| point.starts_with(place))).map(str::to_owned).collect()
    }
}

impl Drop for EnginePlace {
    fn drop(&mut self) {
        blocking(end_processes(self.runtime.clone()));
        for point in self.mounts().iter().rev() {
            let _ = Command::new("umount").args(["--lazy", point]).status();
        }
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

/// Returns the processes whose arguments contain the engine's runtime directory.
fn processes(runtime: &Path) -> Vec<(Pid, String)> {
    let mark = runtime.to_str().expect("a plain path");
    let process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let arguments = String::from_utf8_lossy(&fs::read(entry.path().join("cmdline")).ok()?).replace('\0', " ");
        arguments.contains(mark).then_some((pid, arguments))
    };
    fs::read_dir("/proc").expect("processes").flatten().filter_map(process).collect()
}

/// Kills all processes: a container's first process before its shim, which could not kill it afterwards.
async fn end_processes(runtime: PathBuf) {
    let deadline = Instant::now() + LONGEST_END;
    loop {
        let processes = processes(&runtime);
        if processes.is_empty() || Instant::now() > deadline {
            return;
        }
        let keepers = processes.iter().filter(|(_, arguments)| arguments.contains("containerd-shim"));
        for pid in keepers.flat_map(|(keeper, _)| children(*keeper)).chain(processes.iter().map(|(pid, _)| *pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect()
}

/// Copies the tests' image to the engine, which has no images and cannot pull any.
pub(crate) async fn copy_test_image(host: &str) {
    let image = test_image();
    let theirs = TestInstance::new().raw().await;
    let saved: Vec<_> = theirs.export_image(&image).try_collect().await.expect("saved");
    let ours = bollard::Docker::connect_with_host(host).expect("a valid host");
    let pieces = futures_util::stream::iter(saved);
    let mut loading = ours.import_image(ImportImageOptions::default(), bollard::body_stream(pieces), None);
    while let Some(step) = loading.next().await {
        step.expect("loaded");
    }
    let there = DockerEngine::connect(host).expect("a valid host").image_id(&image).await;
    assert!(matches!(there, Ok(Some(_))), "{there:?}");
}
