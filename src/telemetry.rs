//! Logs, in text or JSON, and metrics for Prometheus.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use sandboxd_actors::domain::outcome::LimitKind;
use sandboxd_actors::domain::sandbox::{Reason, Status};
use sandboxd_actors::root::Child;
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{Log, LogFormat};
use crate::storage::file_system::LANES;

/// Overrides `log.filter` for one run, such as `SANDBOXD_LOG=debug`.
pub const LOG_VARIABLE: &str = "SANDBOXD_LOG";

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("{LOG_VARIABLE}: {0}")]
    Filter(#[from] ParseError),
    #[error("metrics.listen: {address}: {source}")]
    Metrics { address: SocketAddr, source: BuildError },
}

/// Buckets from half a millisecond, for a fast engine call, to a minute, for a start that timed out.
const DURATION_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Starts logging to standard error, where a service manager collects the lines.
pub fn start_logging(log: &Log) -> Result<(), TelemetryError> {
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(filter) => EnvFilter::try_new(filter)?,
        Err(_) => EnvFilter::try_new(&log.filter)?,
    };
    // At debug, bollard logs whole requests with the environment of sandboxes. No filter may enable that.
    let no_bodies = filter_fn(|metadata| !metadata.target().starts_with("bollard") || *metadata.level() <= Level::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match log.format {
        LogFormat::Human => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter.and(no_bodies))).init();
    Ok(())
}

/// Serves metrics on `address`. Must be called within a runtime.
pub fn serve_metrics(address: SocketAddr) -> Result<(), TelemetryError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &DURATION_BUCKETS)
        .and_then(|builder| builder.with_http_listener(address).install())
        .map_err(|source| TelemetryError::Metrics { address, source })?;
    describe();
    Ok(())
}

/// Describes each metric, except those of the server and the image builder. Counters of failures start at zero, so that
/// their first increase is visible.
fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
    describe_gauge!("sandboxd_build_info", "Always 1; the label has the version");
    gauge!("sandboxd_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    describe_gauge!("sandboxd_sandboxes", "Sandboxes, by status");
    describe_counter!("sandboxd_create_total", "Answered create requests, by outcome");
    describe_histogram!("sandboxd_create_duration_seconds", Unit::Seconds, "Duration of create requests, by outcome");
    describe_counter!("sandboxd_delete_total", "Answered delete requests, by result");
    describe_counter!("sandboxd_transitions_total", "Status changes of sandboxes, by new status and reason");
    describe_counter!("sandboxd_expiries_total", "Expired sandboxes, by reason");
    describe_counter!("sandboxd_snapshots_total", "Attempts to save a snapshot, by outcome");
    describe_counter!("sandboxd_snapshots_removed_total", "Removed snapshots, by reason");
    describe_gauge!("sandboxd_owed_tear_downs", "Failed removals that are still owed");
    describe_counter!("sandboxd_owed_tear_down_retries_total", "Retries of failed removals");
    describe_counter!("sandboxd_actor_restarts_total", "Restarts of failed actors, by actor");
    describe_counter!("sandboxd_chat_restarts_total", "Restarts of failed chat actors");
    describe_counter!("sandboxd_reconcile_actions_total", "Actions of the reconciler, by reason");
    describe_counter!("sandboxd_reconcile_passes_total", "Passes of the reconciler, by trigger and result");
    describe_histogram!("sandboxd_reconcile_duration_seconds", Unit::Seconds, "Duration of reconciler passes");
    describe_gauge!("sandboxd_deadlines", "Chats with a deadline");
    describe_histogram!("sandboxd_reaper_pass_duration_seconds", Unit::Seconds, "Duration of reaper passes");
    describe_histogram!(
        "sandboxd_journal_commit_duration_seconds",
        Unit::Seconds,
        "Duration of journal commits, with their sync to disk"
    );
    describe_histogram!("sandboxd_journal_batch_writes", "Writes per journal commit");
    describe_counter!("sandboxd_journal_failures_total", "Failed journal commits and refused writes, by kind of error");
    describe_counter!("sandboxd_journal_events_total", "Events written to the journal");
    describe_histogram!(
        "sandboxd_engine_operation_duration_seconds",
        Unit::Seconds,
        "Duration of engine calls, by operation and kind of error"
    );
    describe_counter!("sandboxd_engine_errors_total", "Failed engine calls, by operation and kind of error");
    describe_counter!("sandboxd_engine_events_total", "Engine events about containers, by kind");
    describe_gauge!("sandboxd_engine_stream_connected", "Whether the engine event stream is connected");
    describe_counter!("sandboxd_engine_stream_reconnects_total", "Reconnects of the engine event stream");
    describe_gauge!("sandboxd_pool_slots", "Slots, by profile and state");
    describe_counter!("sandboxd_pool_claims_total", "Claims of slots, by profile and result");
    describe_counter!("sandboxd_pool_slots_started_total", "Started slots, by profile and result");
    describe_counter!("sandboxd_pool_slots_retired_total", "Slots removed without use, by profile and reason");
    describe_counter!("sandboxd_hints_total", "Hints, by profile and outcome");
    describe_counter!("sandboxd_admission_denied_total", "Create requests denied by a limit, by limit");
    describe_gauge!(
        "sandboxd_file_system_stuck_calls",
        "File system calls past their deadline that have not returned, by lane"
    );
    describe_counter!(
        "sandboxd_file_system_refused_total",
        "File system calls refused because earlier calls are stuck, by lane"
    );
    start_at_zero();
}

fn start_at_zero() {
    use metrics::{counter, gauge};
    for name in [
        "sandboxd_owed_tear_down_retries_total",
        "sandboxd_chat_restarts_total",
        "sandboxd_engine_stream_reconnects_total",
        "sandboxd_journal_events_total",
    ] {
        counter!(name).increment(0);
    }
    for child in Child::ALL {
        counter!("sandboxd_actor_restarts_total", "actor" => child.as_str()).increment(0);
    }
    counter!("sandboxd_actor_restarts_total", "actor" => "pool").increment(0);
    for limit in LimitKind::ALL {
        counter!("sandboxd_admission_denied_total", "what" => limit.as_str()).increment(0);
    }
    for reason in [Reason::Expired, Reason::Idle] {
        counter!("sandboxd_expiries_total", "reason" => reason.as_str()).increment(0);
    }
    for error in ["full", "io"] {
        counter!("sandboxd_journal_failures_total", "error" => error).increment(0);
    }
    for status in Status::ALL {
        gauge!("sandboxd_sandboxes", "status" => status.as_str()).set(0);
    }
    for lane in LANES {
        gauge!("sandboxd_file_system_stuck_calls", "lane" => lane).set(0);
        counter!("sandboxd_file_system_refused_total", "lane" => lane).increment(0);
    }
    gauge!("sandboxd_owed_tear_downs").set(0);
    gauge!("sandboxd_engine_stream_connected").set(0);
}
