//! The metrics of the server.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit};

use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::method::Method;

const CONNECTIONS: &str = "sandboxd_connections";
const REFUSED_CONNECTIONS: &str = "sandboxd_connections_refused_total";
const REQUESTS: &str = "sandboxd_requests_total";
const REQUEST_DURATION: &str = "sandboxd_request_duration_seconds";

/// The method label of a line that is no request.
const NO_METHOD: &str = "none";

/// The handles of the metrics, looked up once: the fast path does not call the recorder. Must be created after the
/// recorder is installed.
#[derive(Debug)]
pub(super) struct ServerMetrics {
    pub(super) connections: Gauge,
    methods: [MethodMetrics; Method::ALL.len()],
}

struct MethodMetrics {
    succeeded: Counter,
    duration: Histogram,
}

impl ServerMetrics {
    pub(super) fn new() -> Self {
        metrics::describe_gauge!(CONNECTIONS, "Open connections");
        metrics::describe_counter!(REFUSED_CONNECTIONS, "Refused connections, by reason");
        metrics::describe_counter!(REQUESTS, "Answered requests, by method and result: ok or an error kind");
        metrics::describe_histogram!(REQUEST_DURATION, Unit::Seconds, "Time from a request to its answer, by method");
        for kind in [ErrorKind::Unauthorized, ErrorKind::TooManyConnections] {
            metrics::counter!(REFUSED_CONNECTIONS, "reason" => kind.as_str()).increment(0);
        }
        Self {
            connections: metrics::gauge!(CONNECTIONS),
            methods: Method::ALL.map(|method| MethodMetrics {
                succeeded: metrics::counter!(REQUESTS, "method" => method.name(), "result" => "ok"),
                duration: metrics::histogram!(REQUEST_DURATION, "method" => method.name()),
            }),
        }
    }

    pub(super) fn answered<T>(&self, method: Method, outcome: &Result<T, Error>, took: Duration) {
        let metrics = &self.methods[method as usize];
        metrics.duration.record(took.as_secs_f64());
        match outcome {
            Ok(_) => metrics.succeeded.increment(1),
            Err(error) => failed(method.name(), error.data.kind),
        }
    }

    pub(super) fn no_request(&self, kind: ErrorKind) {
        failed(NO_METHOD, kind);
    }

    pub(super) fn refused_connection(&self, kind: ErrorKind) {
        metrics::counter!(REFUSED_CONNECTIONS, "reason" => kind.as_str()).increment(1);
    }
}

fn failed(method: &'static str, kind: ErrorKind) {
    metrics::counter!(REQUESTS, "method" => method, "result" => kind.as_str()).increment(1);
}

impl std::fmt::Debug for MethodMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MethodMeasures").finish_non_exhaustive()
    }
}
