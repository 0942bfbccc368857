//! The table of errors.

use crate::words::words;

/// Defines the table of errors: the variant, the kind on the wire, the code, whether the error is retryable unless the
/// answer says otherwise, and the details.
macro_rules! error_kinds {
    ($(
        $(#[doc = $description:literal])+
        $variant:ident = $kind:literal, $code:literal, retryable: $retryable:literal
            $(, $detail:ident: $of_detail:literal)*;
    )+) => {
        words! {
            /// Kind of an error. Each kind has one code.
            enum ErrorKind {
                $($(#[doc = $description])+ $variant = $kind,)+
            }
        }

        impl ErrorKind {
            /// Returns the JSON-RPC code of the kind.
            pub const fn code(self) -> i32 {
                match self {
                    $(ErrorKind::$variant => $code,)+
                }
            }

            /// Returns whether an error of the kind is retryable unless the answer says otherwise.
            pub const fn is_retryable(self) -> bool {
                match self {
                    $(ErrorKind::$variant => $retryable,)+
                }
            }

            /// Returns the meaning of the kind.
            pub fn description(self) -> &'static str {
                match self {
                    $(ErrorKind::$variant => concat!($($description),+).trim(),)+
                }
            }

            /// Returns the names and meanings of the details that an error of the kind may have.
            pub const fn details(self) -> &'static [(&'static str, &'static str)] {
                match self {
                    $(ErrorKind::$variant => &[$((stringify!($detail), $of_detail)),*],)+
                }
            }
        }
    };
}

error_kinds! {
    /// The line is not UTF-8 or not JSON.
    ParseError = "parse_error", -32700, retryable: false;
    /// The line is JSON, but not a request.
    InvalidRequest = "invalid_request", -32600, retryable: false;
    /// The method does not exist.
    MethodNotFound = "method_not_found", -32601, retryable: false;
    /// A parameter is missing, unknown, of the wrong type, or not acceptable.
    InvalidParams = "invalid_params", -32602, retryable: false,
        field: "path of the parameter, such as `env.LANG`; absent if the parameters are not an object";
    /// A defect of the service. The effect of the request is unknown. Retryable if the chat did not answer in time.
    Internal = "internal", -32603, retryable: false,
        chat_id: "UUID of the chat";
    /// The chat has no sandbox. The message states how the last one ended, such as "it expired 2 s ago (ttl 4h)", as
    /// far as the service remembers.
    SandboxNotFound = "sandbox_not_found", -32001, retryable: false,
        chat_id: "UUID of the chat",
        session_id: "last session; only if its end is remembered",
        reason: "why the last session ended; only if its end is remembered",
        ended_at: "when the last session ended; only if its end is remembered";
    /// The chat has a sandbox that differs from the requested one.
    SandboxConflict = "sandbox_conflict", -32002, retryable: false,
        chat_id: "UUID of the chat",
        session_id: "session of the sandbox",
        fields: "parameters that differ";
    /// The sandbox could not be started, and nothing of it is left. Whether it is retryable depends on the cause.
    SandboxStartFailed = "sandbox_start_failed", -32003, retryable: false,
        chat_id: "UUID of the chat",
        cause: "cause for programs, a `StartFailureCause`",
        reason: "cause for people",
        exit_code: "exit code of the first process, or null; if it ended",
        signal: "signal that ended the first process, or null; if it ended",
        oom_killed: "whether the memory limit was reached; if the first process ended",
        memory_limit_bytes: "memory limit, or null; if the first process ended",
        log_tail: "last lines of output; if the first process ended",
        container_name: "name that is taken; for `name_taken`",
        container_id: "container that has the name; for `name_taken`",
        field: "`volume_host_path`; for `volume_changed`";
    /// The sandbox is not removed yet; the service continues to try.
    SandboxDeleteFailed = "sandbox_delete_failed", -32004, retryable: true,
        chat_id: "UUID of the chat",
        reason: "cause for people",
        owed: "true: the service continues the removal";
    /// The chat's sandbox does not run, so the request does not apply to it.
    SandboxNotRunning = "sandbox_not_running", -32005, retryable: false,
        chat_id: "UUID of the chat",
        status: "status of the sandbox";
    /// The sandbox does not have this lease, or no longer has it.
    LeaseNotFound = "lease_not_found", -32006, retryable: false,
        chat_id: "UUID of the chat",
        lease_id: "the lease";
    /// The sandbox has the maximum number of leases.
    TooManyLeases = "too_many_leases", -32007, retryable: true,
        chat_id: "UUID of the chat",
        limit: "maximum number of leases";
    /// The snapshot does not exist.
    SnapshotNotFound = "snapshot_not_found", -32008, retryable: false,
        snapshot_id: "the snapshot";
    /// No snapshot could be taken; the sandbox is unchanged.
    SnapshotFailed = "snapshot_failed", -32009, retryable: true,
        chat_id: "UUID of the chat",
        reason: "cause for people";
    /// A sandbox that was restored from the snapshot still exists.
    SnapshotInUse = "snapshot_in_use", -32014, retryable: true,
        snapshot_id: "the snapshot";
    /// The sandbox is removed, but not the chat's directory: it cannot be removed, or the chat has a sandbox again.
    PurgeFailed = "purge_failed", -32016, retryable: true,
        chat_id: "UUID of the chat",
        reason: "cause for people";
    /// The journal, or the directory of a new sandbox, cannot be written or read. The request had no effect; a sandbox
    /// that was to be deleted stays until the journal can be written.
    JournalUnavailable = "journal_unavailable", -32013, retryable: true,
        chat_id: "UUID of the chat",
        reason: "cause for people",
        owed: "true: the service continues the removal";
    /// The guest does not reply, most likely because the sandbox is about to end. Not retryable if the request needs an
    /// init and the sandbox has none.
    GuestUnreachable = "guest_unreachable", -32040, retryable: true,
        chat_id: "UUID of the chat";
    /// The program or the working directory of the command does not exist or cannot be used.
    CommandNotStarted = "command_not_started", -32041, retryable: false,
        chat_id: "UUID of the chat",
        errno: "the system's error number";
    /// The sandbox does not have this command, no longer has it, or no caller is attached to it.
    CommandNotFound = "command_not_found", -32042, retryable: false,
        chat_id: "UUID of the chat",
        command_id: "the command";
    /// The file cannot be read, written or changed.
    FileError = "file_error", -32043, retryable: false,
        path: "path of the file",
        reason: "cause for programs, a `FileReason`";
    /// The request waited for a sync, which failed. The request had no effect.
    SyncFailed = "sync_failed", -32044, retryable: false,
        chat_id: "UUID of the chat";
    /// The registry refused the image, perhaps for lack of credentials.
    ImagePullFailed = "image_pull_failed", -32050, retryable: false,
        image: "name of the image",
        registry: "host of the registry",
        reason: "cause for people";
    /// A step of the build failed, or the build could not begin.
    ImageBuildFailed = "image_build_failed", -32051, retryable: false,
        image: "tag of the image",
        step: "instruction that failed, or null before the first",
        reason: "cause for people",
        log_tail: "last lines of output";
    /// The repository cannot be read.
    RepositoryUnavailable = "repository_unavailable", -32052, retryable: true,
        repository: "name of the repository",
        reason: "cause for people";
    /// The engine is not reachable or does not reply. Nothing was decided.
    EngineUnavailable = "engine_unavailable", -32010, retryable: true,
        chat_id: "UUID of the chat",
        reason: "cause for people",
        owed: "true: the service continues a removal";
    /// The image of the profile is not on the engine.
    ImageNotFound = "image_not_found", -32011, retryable: false,
        chat_id: "UUID of the chat",
        image: "name of the image";
    /// The sandbox started, was not ready in time, and was removed.
    ReadinessTimeout = "readiness_timeout", -32012, retryable: true,
        chat_id: "UUID of the chat",
        timeout: "seconds that the sandbox had",
        last: "finding of the last check",
        log_tail: "last lines of output";
    /// The maximum number of sandboxes is reached: of the service, the profile, the workspace or the agent.
    AdmissionDenied = "admission_denied", -32023, retryable: true,
        chat_id: "UUID of the chat",
        what: "limit that was reached, a `LimitKey`",
        limit: "maximum number of sandboxes",
        retry_after: "seconds until the next sandbox ends, as far as is known";
    /// The chat cannot be served now, or the engine was busy for longer than `engine.queue_timeout`.
    Busy = "busy", -32020, retryable: true,
        chat_id: "UUID of the chat",
        retry_after: "seconds to wait before the next attempt";
    /// The caller may not use the service, or not this method.
    Unauthorized = "unauthorized", -32021, retryable: false;
    /// The service is shutting down.
    ShuttingDown = "shutting_down", -32022, retryable: true,
        command_id: "command that continues";
    /// The line is longer than `max_line`.
    LineTooLong = "line_too_long", -32030, retryable: false,
        limit: "most bytes in a line";
    /// The service has `max_connections` connections.
    TooManyConnections = "too_many_connections", -32031, retryable: true,
        limit: "most connections at a time";
    /// The file system of a path on the host does not reply. The request had no effect.
    PathUnavailable = "path_unavailable", -32015, retryable: true,
        field: "parameter with the path";
}

impl ErrorKind {
    /// Returns whether an answer may say otherwise than [`is_retryable`](ErrorKind::is_retryable).
    pub const fn has_exceptions(self) -> bool {
        matches!(self, ErrorKind::Internal | ErrorKind::SandboxStartFailed | ErrorKind::GuestUnreachable)
    }
}
