//! What the server counts.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit};

use crate::protocol::error::{Error, Kind};
use sandboxd_protocol::method::Method;

const CONNECTIONS: &str = "sandboxd_connections";
const REFUSED_CONNECTIONS: &str = "sandboxd_connections_refused_total";
const REQUESTS: &str = "sandboxd_requests_total";
const REQUEST_DURATION: &str = "sandboxd_request_duration_seconds";

/// A line that is no request has no method.
const NO_METHOD: &str = "none";

/// Handles that are looked up once: the fast path counts without asking the recorder. To be made once the recorder is
/// installed.
#[derive(Debug)]
pub(super) struct Measures {
    pub(super) connections: Gauge,
    methods: [MethodMeasures; Method::ALL.len()],
}

struct MethodMeasures {
    succeeded: Counter,
    duration: Histogram,
}

impl Measures {
    pub(super) fn new() -> Self {
        metrics::describe_gauge!(CONNECTIONS, "Connections that are open now");
        metrics::describe_counter!(REFUSED_CONNECTIONS, "Connections that were refused, by reason");
        metrics::describe_counter!(REQUESTS, "Requests that were answered, by method and result: ok or an error kind");
        metrics::describe_histogram!(REQUEST_DURATION, Unit::Seconds, "From a request's line to its answer, by method");
        for kind in [Kind::Unauthorized, Kind::TooManyConnections] {
            metrics::counter!(REFUSED_CONNECTIONS, "reason" => kind.as_str()).increment(0);
        }
        Self {
            connections: metrics::gauge!(CONNECTIONS),
            methods: Method::ALL.map(|method| MethodMeasures {
                succeeded: metrics::counter!(REQUESTS, "method" => method.name(), "result" => "ok"),
                duration: metrics::histogram!(REQUEST_DURATION, "method" => method.name()),
            }),
        }
    }

    pub(super) fn answered<T>(&self, method: Method, outcome: &Result<T, Error>, took: Duration) {
        let measures = &self.methods[method as usize];
        measures.duration.record(took.as_secs_f64());
        match outcome {
            Ok(_) => measures.succeeded.increment(1),
            Err(error) => failed(method.name(), error.data.kind),
        }
    }

    pub(super) fn no_request(&self, kind: Kind) {
        failed(NO_METHOD, kind);
    }

    pub(super) fn refused_connection(&self, kind: Kind) {
        metrics::counter!(REFUSED_CONNECTIONS, "reason" => kind.as_str()).increment(1);
    }
}

fn failed(method: &'static str, kind: Kind) {
    metrics::counter!(REQUESTS, "method" => method, "result" => kind.as_str()).increment(1);
}

impl std::fmt::Debug for MethodMeasures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MethodMeasures").finish_non_exhaustive()
    }
}
