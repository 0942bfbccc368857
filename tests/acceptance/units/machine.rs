//! A machine with a systemd and an engine of its own. It has this host's programs and files, and its writes stay in
//! memory, so the machine leaves no files behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use futures_util::TryStreamExt;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use crate::engine::{TestInstance, eventually, test_image};
use crate::installation::output;

pub(super) struct Machine {
    name: String,
    /// The process that holds the machine's namespaces.
    keeper: Child,
    /// The pid of the machine's first process on the host; 0 until it exists.
    init: u32,
    _directory: TempDir,
}

impl Machine {
    /// Boots a machine with the units, the programs, this configuration and the tests' image. Returns once the service
    /// can be started.
    pub(super) async fn boot(config: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        prepare(directory.path(), config).await;
        let name = format!("sandboxd-machine-{}", Uuid::new_v4().simple());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/machine.sh");
        let keeper = Command::new(script).arg(&name).arg(directory.path()).stdin(Stdio::null()).spawn().expect("bash");
        let mut machine = Self { name, keeper, init: 0, _directory: directory };
        machine.init = eventually("systemd runs", || {
            let ended = machine.keeper.try_wait().expect("a child");
            assert!(ended.is_none(), "systemd, docker.io and iptables are needed, and the right to mount: {ended:?}");
            let init = init_below(machine.keeper.id());
            async move { init }
        })
        .await;
        eventually("it is up", || async {
            let state = machine.output("systemctl is-system-running").await;
            matches!(state.trim(), "running" | "degraded").then_some(())
        })
        .await;
        machine.run("systemd-sysusers sandboxd.conf").await;
        machine.run("systemctl start docker && docker load --quiet --input /image.tar").await;
        machine
    }

    /// Runs a script that must succeed, and returns its output.
    pub(super) async fn run(&self, script: &str) -> String {
        let Output { status, stdout, stderr } = output(self.command(script)).await;
        let log = if status.success() { Vec::new() } else { output(self.command("journalctl -n 50")).await.stdout };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(status.success(), "{script}: {status}: {}{}\n{}", text(&stdout), text(&stderr), text(&log));
        text(&stdout)
    }

    /// Returns the output of a script that may fail.
    pub(super) async fn output(&self, script: &str) -> String {
        String::from_utf8_lossy(&output(self.command(script)).await.stdout).into_owned()
    }

    /// Returns the path on the host of one of the machine's files.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.init.to_string()).join("root").join(path.trim_start_matches('/'))
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "--", "sh", "-c", script]).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        // The processes end a moment later. Only then can the control groups be removed, leaves first.
        let name = &self.name;
        let remove = format!(
            "for try in $(seq 100); do
                 groups=$(find /sys/fs/cgroup -depth -type d -path '*/{name}*')
                 [ -n \"$groups\" ] || exit 0
                 rmdir $groups 2>/dev/null || sleep 0.1
             done
             exit 1"
        );
        let removed = Command::new("sh").args(["-c", &remove]).status();
        if !std::thread::panicking() {
            assert!(removed.is_ok_and(|status| status.success()), "control groups are left: {name}");
        }
    }
}

/// Prepares the machine's own files.
async fn prepare(directory: &Path, config: &str) {
    let (files, programs) = (directory.join("files"), directory.join("programs"));
    for place in ["etc/sandboxd", "etc/systemd/system", "etc/sysusers.d", "srv/volumes/v"] {
        std::fs::create_dir_all(files.join(place)).expect("a directory");
    }
    std::fs::create_dir(&programs).expect("a directory");
    std::fs::write(files.join("etc/sysusers.d/sandboxd.conf"), super::files::unit("sandboxd.sysusers.conf"))
        .expect("written");
    std::fs::write(files.join("etc/sandboxd/sandboxd.toml"), config).expect("written");
    for unit in super::files::UNITS {
        std::fs::write(files.join("etc/systemd/system").join(unit), super::files::unit(unit)).expect("written");
    }
    for (program, built) in
        [("sandboxd", env!("CARGO_BIN_EXE_sandboxd")), ("sandboxctl", env!("CARGO_BIN_EXE_sandboxctl"))]
    {
        std::os::unix::fs::symlink(built, programs.join(program)).expect("a link");
    }
    let engine = TestInstance::new().raw().await;
    let mut image = tokio::fs::File::create(files.join("image.tar")).await.expect("a file");
    let mut parts = std::pin::pin!(engine.export_image(&test_image()));
    while let Some(part) = parts.try_next().await.expect("the tests' image") {
        image.write_all(&part).await.expect("written");
    }
    image.flush().await.expect("written");
}

/// Returns the first process of the keeper's namespace, once it is systemd.
fn init_below(keeper: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    let init = children.split_whitespace().next()?.parse().ok()?;
    let command = std::fs::read_to_string(format!("/proc/{init}/comm")).ok()?;
    (command.trim() == "systemd").then_some(init)
}
