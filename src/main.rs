//! `sandboxd`: loads the configuration, connects to the engine, and serves until a signal stops it.

use std::fs::DirBuilder;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandboxd::config::{Config, EngineHost};
use sandboxd::engine::docker::DockerEngine;
use sandboxd::engine::private::PrivateEngine;
use sandboxd::images::builder::registries;
use sandboxd::journal::SqliteJournal;
use sandboxd::service::drain::Drain;
use sandboxd::service::{Dependencies, Service, callers};
use sandboxd::{systemd, telemetry};
use sandboxd_actors::ports::engine::Engine;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs one sandbox for each AI chat on this host
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file [default: /etc/sandboxd/sandboxd.toml if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set aside an unusable journal, and build a new one from the labels of the containers
    #[arg(long)]
    rebuild_journal: bool,
    /// With --rebuild-journal: also set aside a healthy journal
    #[arg(long, requires = "rebuild_journal")]
    force: bool,
    /// Remove the slots of an earlier run and exit; refused while a service of the instance runs
    #[arg(long, conflicts_with = "rebuild_journal")]
    drain: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default)
    Serve,
    /// Check the configuration, with an error or warning for each problem
    CheckConfig {
        /// Print the effective configuration, without secrets
        #[arg(long)]
        print: bool,
    },
}

/// The request for a new journal.
#[derive(Debug, Clone, Copy)]
struct Rebuild {
    /// Whether to replace a healthy journal, too.
    force: bool,
}

/// The time limit for blocking threads of the runtime at the end, such as the packing of a build context.
const RUNTIME_SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::load(arguments.config.as_deref(), std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let rebuild = arguments.rebuild_journal.then_some(Rebuild { force: arguments.force });
    let outcome = match arguments.command.unwrap_or(Command::Serve) {
        Command::Serve if arguments.drain => drain(&config),
        Command::Serve => serve(&config, rebuild),
        Command::CheckConfig { print } => {
            if print {
                // A reader may close standard output early.
                let _ = writeln!(std::io::stdout(), "{config}");
            }
            for excluded in callers::excluded_callers(&config) {
                eprintln!("warning: {excluded}; {}", excluded.advice());
            }
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandboxd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: &Config, rebuild: Option<Rebuild>) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let outcome = runtime.block_on(serve_until_stopped(config, rebuild));
    // A hanging file system must not keep the service from ending.
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_LIMIT);
    outcome
}

async fn serve_until_stopped(config: &Config, rebuild: Option<Rebuild>) -> Result<(), Failure> {
    telemetry::start_logging(&config.log)?;
    if let Some(address) = config.metrics.listen {
        telemetry::serve_metrics(address)?;
    }
    raise_descriptor_limit();
    let stop = stop_on_signal()?;
    let listener = systemd::inherited_listener()?;
    let journal = open_journal(config, rebuild)?;
    let (engine, private) = find_engine(config).await?;
    let engine_sockets = engine.sockets();
    let engine = Arc::new(engine);
    let (engine_guest, images, condition) = (engine.clone(), engine.clone(), engine.clone());
    let dependencies = Dependencies { engine, engine_guest, images, condition, engine_sockets, journal, listener };
    let service = Service::start(config, dependencies).await?;
    tracing::info!(socket = %config.socket.path.display(), instance = config.instance.name, "serving");
    let outcome = service.run(stop).await;
    if let Some(private) = private {
        private.stop().await;
    }
    Ok(outcome?)
}

#[tokio::main]
async fn drain(config: &Config) -> Result<(), Failure> {
    telemetry::start_logging(&config.log)?;
    let (engine, private) = find_engine(config).await?;
    let outcome = async {
        // The instance lock comes before the journal, which a running service also locks: its error has the advice.
        let drain = Drain::begin(config, Arc::new(engine)).await?;
        Ok::<_, Failure>(drain.remove_slots(config, open_journal(config, None)?).await?)
    };
    let outcome = outcome.await;
    if let Some(private) = private {
        private.stop().await;
    }
    let removed = outcome?;
    println!("{removed} slots removed");
    Ok(())
}

/// Raises the soft limit of open files. Every sandbox needs two descriptors, and the default of a shell is low.
fn raise_descriptor_limit() {
    let limits = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }) {
        tracing::warn!(%error, current = limits.current, "cannot raise the limit of open files");
    }
}

/// Opens the journal of this instance. An unusable journal is never reset automatically, as that would lose sandboxes
/// and leases.
fn open_journal(config: &Config, rebuild: Option<Rebuild>) -> Result<SqliteJournal, Failure> {
    let directory = &config.state.dir;
    let unusable = |error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => {
                "; run as root, or set state.dir and the other directories to ones that you own"
            }
            _ => "",
        };
        format!("state.dir: {}: {error}{hint}", directory.display())
    };
    DirBuilder::new().recursive(true).mode(0o711).create(directory).map_err(unusable)?;
    let file = directory.join("journal.sqlite");
    let instance = config.instance.name.parse()?;
    if let Some(Rebuild { force }) = rebuild
        && let Some(aside) = SqliteJournal::set_aside(&file, &instance, force)?
    {
        tracing::warn!(aside = %aside.display(), "journal set aside; building a new one from container labels");
    }
    Ok(SqliteJournal::open(&file, &instance, config.events.keep)?)
}

/// Connects to the configured engine or, if it does not answer and `engine.private` is set, starts a private one.
async fn find_engine(config: &Config) -> Result<(DockerEngine, Option<PrivateEngine>), Failure> {
    let host = match &config.engine.host {
        EngineHost::Auto => "auto".to_owned(),
        EngineHost::Socket(path) => format!("unix://{}", path.display()),
    };
    let engine = DockerEngine::connect(&host)?.with_registries(registries(config));
    let limit = config.engine.timeouts.connect;
    if !config.engine.private || matches!(tokio::time::timeout(limit, engine.identify()).await, Ok(Ok(_))) {
        return Ok((engine, None));
    }
    let private = PrivateEngine::start(&config.state.dir.join("engine")).await?;
    tracing::info!(host = private.host(), "engine does not answer; private engine started");
    let engine = DockerEngine::connect(private.host())?.with_registries(registries(config));
    Ok((engine, Some(private)))
}

/// Returns a token that the first signal cancels. The shutdown has its own deadline; a second signal does not shorten
/// it.
fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    tokio::spawn({
        let stop = stop.clone();
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stop.cancel();
        }
    });
    Ok(stop)
}
