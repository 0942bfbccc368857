//! The guest through the engine: its exec, archive and stats calls.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerStatsResponse, ExecConfig};
use bollard::query_parameters::{
    DownloadFromContainerOptionsBuilder, ResizeExecOptionsBuilder, StatsOptionsBuilder, UploadToContainerOptionsBuilder,
};
use futures_util::{StreamExt, TryStreamExt};
use sandbox_init::wire::Usage;
use sandboxd_actors::domain::ids::ContainerId;

use super::{DockerEngine, errors};
use crate::engine::guest::{
    Archive, Command, CommandDefaults, EngineGuest, ExecStatus, Execution, GuestError, Output, Streams, Upload,
};

/// How long the engine may take to accept a call.
const LIMIT: Duration = Duration::from_secs(30);

#[async_trait]
impl EngineGuest for DockerEngine {
    async fn exec(&self, container: &ContainerId, command: Command) -> Result<Execution, GuestError> {
        let docker = self.docker().await?;
        let (terminal, detached) = (command.terminal, command.detached);
        let config = ExecConfig {
            attach_stdin: Some(command.input),
            attach_stdout: Some(!detached),
            attach_stderr: Some(!detached),
            tty: Some(terminal),
            env: Some(command.environment),
            cmd: Some(command.arguments),
            user: command.user,
            working_dir: command.directory,
            ..Default::default()
        };
        let id = within_limit(docker.create_exec(container.as_str(), config)).await?.id;
        let options = StartExecOptions { detach: detached, tty: terminal, output_capacity: Some(64 << 10) };
        let streams = match within_limit(docker.start_exec(&id, Some(options))).await? {
            StartExecResults::Detached => None,
            StartExecResults::Attached { output, input } => {
                let piece = |output: LogOutput| match output {
                    LogOutput::StdErr { message } => Output::Stderr(message),
                    other => Output::Stdout(other.into_bytes()),
                };
                Some(Streams { output: output.map_ok(piece).map_err(failure).boxed(), input })
            }
        };
        Ok(Execution { id, streams })
    }

    async fn inspect_exec(&self, execution: &str) -> Result<ExecStatus, GuestError> {
        let inspected = within_limit(self.docker().await?.inspect_exec(execution)).await?;
        let process = inspected.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let ended = inspected.exit_code.filter(|_| inspected.running != Some(true));
        Ok(ExecStatus { process, exit_code: ended.and_then(|code| i32::try_from(code).ok()) })
    }

    async fn resize(&self, execution: &str, rows: u16, columns: u16) -> Result<(), GuestError> {
        let size = ResizeExecOptionsBuilder::default().h(i32::from(rows)).w(i32::from(columns)).build();
        within_limit(self.docker().await?.resize_exec(execution, size)).await
    }

    /// Waits for the first part: the client sends its request when the stream is polled, so an error shows only then.
    async fn read_archive(&self, container: &ContainerId, path: &str) -> Result<Archive, GuestError> {
        let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let mut parts = self.docker().await?.download_from_container(container.as_str(), Some(options)).boxed();
        let first = within_limit(async { parts.try_next().await }).await?;
        Ok(futures_util::stream::iter(first.map(Ok)).chain(parts.map_err(failure)).boxed())
    }

    async fn write_archive(&self, container: &ContainerId, path: &str, archive: Upload) -> Result<(), GuestError> {
        // An archive entry must not replace a directory by a file.
        let options = UploadToContainerOptionsBuilder::default().path(path).no_overwrite_dir_non_dir("true").build();
        let docker = self.docker().await?;
        let body = bollard::body_try_stream(archive);
        docker.upload_to_container(container.as_str(), Some(options), body).await.map_err(failure)
    }

    async fn usage(&self, container: &ContainerId) -> Result<Usage, GuestError> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let mut stats = self.docker().await?.stats(container.as_str(), Some(options)).boxed();
        let stats = within_limit(async { stats.try_next().await }).await?;
        stats.map(usage).ok_or_else(|| GuestError::Engine("it returned no statistics".to_owned()))
    }

    async fn command_defaults(&self, container: &ContainerId) -> Result<CommandDefaults, GuestError> {
        let inspected = within_limit(self.docker().await?.inspect_container(container.as_str(), None)).await?;
        let config = inspected.config.unwrap_or_default();
        let directory = config.working_dir.filter(|directory| !directory.is_empty());
        let directory = directory.unwrap_or_else(|| "/".to_owned());
        Ok(CommandDefaults { directory, user: config.user.unwrap_or_default() })
    }
}

impl DockerEngine {
    async fn docker(&self) -> Result<&bollard::Docker, GuestError> {
        self.client().await.map_err(|error| GuestError::Engine(error.to_string()))
    }
}

async fn within_limit<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, GuestError> {
    match tokio::time::timeout(LIMIT, call).await {
        Ok(answer) => answer.map_err(failure),
        Err(_) => Err(GuestError::Engine(format!("it did not answer within {LIMIT:?}"))),
    }
}

fn failure(error: Error) -> GuestError {
    let message = errors::message(&error);
    let lower = message.to_lowercase();
    match error {
        Error::DockerResponseServerError { .. }
            if lower.contains("no such container") || lower.contains("is not running") =>
        {
            GuestError::Engine(message)
        }
        Error::DockerResponseServerError { status_code: 404, .. } => GuestError::NotFound,
        _ if lower.contains("read-only") => GuestError::ReadOnly,
        _ if lower.contains("not a directory") => GuestError::NotADirectory,
        Error::DockerResponseServerError { .. } => GuestError::Refused(message),
        _ => GuestError::Engine(message),
    }
}

fn usage(stats: ContainerStatsResponse) -> Usage {
    static START: OnceLock<Instant> = OnceLock::new();
    let at = START.get_or_init(Instant::now).elapsed().as_micros() as u64;
    let memory = stats.memory_stats.unwrap_or_default();
    let details = memory.stats.unwrap_or_default();
    // Page cache that the kernel reclaims on demand, by its names in cgroup v1 and v2.
    let reclaimable = details.get("total_inactive_file").or(details.get("inactive_file")).copied().unwrap_or(0);
    let processes = stats.pids_stats.unwrap_or_default();
    // A container without a network received zero bytes.
    let networks = stats.networks.unwrap_or_default();
    let written = stats.blkio_stats.and_then(|disks| disks.io_service_bytes_recursive).map(|entries| {
        let writes =
            entries.iter().filter(|entry| entry.op.as_deref().is_some_and(|op| op.eq_ignore_ascii_case("write")));
        writes.filter_map(|entry| entry.value).sum()
    });
    Usage {
        at,
        cpu: stats.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage).map(|nanos| nanos / 1000),
        memory: memory.usage.map(|usage| usage.saturating_sub(reclaimable)),
        memory_limit: memory.limit,
        processes: processes.current,
        process_limit: processes.limit.filter(|limit| *limit < u64::MAX / 2),
        received: Some(networks.values().filter_map(|network| network.rx_bytes).sum()),
        sent: Some(networks.values().filter_map(|network| network.tx_bytes).sum()),
        written,
    }
}
