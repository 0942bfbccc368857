//! The parts of a service that outlive its runs: configuration, directories, and containers on a real engine. All of
//! them are removed when the test ends, even if it fails.

use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use toml::{Table, Value};

use crate::containers::Containers;
use crate::create_params::CreateParams;
use crate::engine::{TestInstance, engine_host, test_image};
use crate::network::SharedNetwork;

pub(crate) struct Installation {
    instance: TestInstance,
    settings: Table,
    environment: Vec<(String, String)>,
    /// Dropped after the instance: the network can only be removed after its containers. `None` on a private engine,
    /// where the service creates the network.
    _network: Option<SharedNetwork>,
}

impl Installation {
    /// Creates an installation. `settings` are TOML and override the harness's own. A profile without an image gets the
    /// tests' image.
    pub(crate) fn new(settings: &str) -> Self {
        Self::of(TestInstance::new(), Some(SharedNetwork::join()), settings)
    }

    /// Creates an installation on another engine than that of the tests.
    pub(crate) fn on(host: &str, settings: &str) -> Self {
        let mut installation = Self::of(TestInstance::on(host), None, settings);
        installation.configure(&format!("engine.host = '{host}'"));
        installation
    }

    fn of(instance: TestInstance, network: Option<SharedNetwork>, settings: &str) -> Self {
        let path = |name: &str| Value::from(instance.path(name).display().to_string());
        std::fs::create_dir(instance.path("volumes")).expect("a directory");
        let mut base = table(&format!(
            "instance.name = '{}'
             engine.host = 'auto'
             engine.network = '{}'
             metrics.listen = 'off'
             log.format = 'json'
             shutdown.grace = '5s'
             # Those that expire are left for the next create to find.
             reaper.tick = '1h'
             [profiles.default]",
            instance.name,
            SharedNetwork::name(),
        ));
        for (section, key, file) in [
            ("socket", "path", "sandboxd.sock"),
            ("state", "dir", "state"),
            ("chats", "root", "chats"),
            ("mounts", "dependencies_source", "dependencies"),
            ("mounts", "lambda_tools_source", "lambda-tools"),
        ] {
            sub_table(&mut base, section).insert(key.into(), path(file));
        }
        sub_table(&mut base, "volumes").insert("roots".into(), vec![path("volumes")].into());
        let mut installation = Self { instance, settings: base, environment: Vec::new(), _network: network };
        installation.configure(settings);
        installation
    }

    /// Changes the configuration for the next run.
    pub(crate) fn configure(&mut self, settings: &str) {
        merge(&mut self.settings, table(settings));
        for (_, profile) in sub_table(&mut self.settings, "profiles") {
            let profile = profile.as_table_mut().expect("a profile");
            profile.entry("image").or_insert_with(|| test_image().into());
            profile.entry("memory").or_insert_with(|| "64MiB".into());
        }
        std::fs::write(self.config_file(), self.settings.to_string()).expect("written");
    }

    /// Sets a variable of the service's environment, which otherwise has only the variables that locate the engine.
    pub(crate) fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without_variable(mut self, name: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn name(&self) -> &str {
        self.instance.name.as_str()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.instance.path(name).canonicalize().unwrap_or_else(|_| self.instance.path(name))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.instance.path("sandboxd.sock")
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.instance.path("sandboxd.toml")
    }

    /// Returns the log of all runs so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub(crate) async fn containers(&self) -> Containers {
        Containers::of(self.instance.raw().await, self.name())
    }

    /// Creates a volume that a caller may name and every guest user may write to.
    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        let path = self.path("volumes").join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("its mode");
        path
    }

    /// Returns the parameters of a new chat with a volume of its own.
    pub(crate) fn new_chat(&self) -> CreateParams {
        let chat = uuid::Uuid::new_v4().to_string();
        CreateParams::new(&chat, "agent", &self.volume(&chat))
    }

    /// Returns a command of one of this project's programs, in the service's environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().stdin(Stdio::null());
        let kept = ["PATH", "TMPDIR", "TEST_RUN"];
        command.envs(kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // Under "auto", the service locates the engine as the tests do.
        if engine_host() != "auto" {
            command.env("DOCKER_HOST", engine_host());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the command of the service.
    pub(crate) fn sandboxd(&self) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_sandboxd"));
        command.arg("--config").arg(self.config_file());
        command.stdout(Stdio::null()).stderr(self.open_log());
        command
    }

    /// Returns the command of the service with a listening socket as descriptor 3. A shell acts as systemd: only the
    /// process itself can put its pid into `LISTEN_PID`.
    pub(crate) fn activated(&self, listener: &UnixListener) -> Command {
        const HAND_OVER: &str = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&0 </dev/null"#;
        let sandboxd = self.sandboxd();
        let mut command = self.command("sh");
        command.args(["-c", HAND_OVER, "sh"]).arg(sandboxd.get_program()).args(sandboxd.get_args());
        let listener = listener.try_clone().expect("a descriptor");
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(self.open_log());
        command
    }

    /// Runs the service with these arguments until it exits by itself.
    pub(crate) async fn sandboxd_output(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_sandboxd"));
        command.arg("--config").arg(self.config_file()).args(arguments);
        output(command).await
    }

    pub(crate) async fn sandboxctl(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_sandboxctl"));
        command.arg("--socket").arg(self.socket()).args(arguments);
        output(command).await
    }

    pub(crate) fn open_log(&self) -> File {
        File::options().create(true).append(true).open(self.log_file()).expect("a log")
    }

    fn log_file(&self) -> PathBuf {
        self.instance.path("sandboxd.log")
    }
}

/// The number of log lines that a failed test prints.
const SHOWN_LOG_LINES: usize = 40;

impl Drop for Installation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("the service's log:\n{}", lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n"));
        }
    }
}

pub(crate) async fn output(command: Command) -> Output {
    let running = tokio::process::Command::from(command).kill_on_drop(true).output();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), running).await;
    ended.expect("it ends by itself").expect("it can be run")
}

/// Creates a symbolic link at a free path.
pub(crate) fn link(at: &Path, target: &Path) {
    std::os::unix::fs::symlink(target, at).expect("a link");
}

fn table(text: &str) -> Table {
    text.parse().unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn sub_table<'a>(table: &'a mut Table, name: &str) -> &'a mut Table {
    table.entry(name).or_insert_with(|| Table::new().into()).as_table_mut().expect("a section")
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}
