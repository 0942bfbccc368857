//! The entries of the table of methods.

use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use super::{Effect, check, methods};
use crate::command::*;
use crate::empty::{Empty, NoParams};
use crate::error::{Error, ErrorKind};
use crate::event::{WatchParams, WatchResult};
use crate::file::*;
use crate::guest::{LogsParams, LogsResult, Stats, StatsParams};
use crate::image::*;
use crate::notification::Notification;
use crate::parse::params;
use crate::pool::{PoolParams, PoolsResult};
use crate::sandbox::*;
use crate::snapshot::*;
use crate::system::*;

methods! {
    /// Returns the sandbox of a chat, and creates it if the chat has none.
    SandboxCreate = "sandbox.create" {
        params: CreateParams, result: CreatedSandbox, effect: Modify, listing: false,
        streams: [],
        errors: [
            SandboxConflict, SandboxStartFailed, EngineUnavailable, ImageNotFound, SnapshotNotFound, SnapshotFailed,
            ReadinessTimeout, JournalUnavailable, AdmissionDenied, Busy, PathUnavailable,
        ],
    }
    /// Returns the sandbox of a chat.
    SandboxGet = "sandbox.get" {
        params: ChatParams, result: Sandbox, effect: ReadState, listing: false,
        streams: [], errors: [SandboxNotFound, EngineUnavailable, Busy],
    }
    /// Lists all sandboxes, page by page.
    SandboxList = "sandbox.list" {
        params: ListParams, result: ListResult, effect: ReadState, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
    /// Postpones the absolute deadline of a chat's sandbox.
    SandboxRenew = "sandbox.renew" {
        params: RenewParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, JournalUnavailable, EngineUnavailable, Busy],
    }
    /// Marks a chat's sandbox as used.
    SandboxTouch = "sandbox.touch" {
        params: ChatParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Pauses a chat's sandbox until it is used.
    SandboxPause = "sandbox.pause" {
        params: ChatParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Resumes a chat's paused sandbox.
    SandboxResume = "sandbox.resume" {
        params: ChatParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Leases a chat's sandbox, so that it neither expires nor counts as idle.
    SandboxLease = "sandbox.lease" {
        params: LeaseParams, result: LeasedSandbox, effect: Modify, listing: false,
        streams: [],
        errors: [TooManyLeases, SandboxNotFound, SandboxNotRunning, JournalUnavailable, EngineUnavailable, Busy],
    }
    /// Releases a lease.
    SandboxRelease = "sandbox.release" {
        params: ReleaseParams, result: Sandbox, effect: Modify, listing: false,
        streams: [],
        errors: [LeaseNotFound, SandboxNotFound, SandboxNotRunning, JournalUnavailable, EngineUnavailable, Busy],
    }
    /// Removes a chat's sandbox.
    SandboxDelete = "sandbox.delete" {
        params: DeleteParams, result: DeleteResult, effect: Modify, listing: false,
        streams: [],
        errors: [SandboxDeleteFailed, SnapshotFailed, PurgeFailed, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Saves a chat's sandbox as a snapshot.
    SandboxSnapshot = "sandbox.snapshot" {
        params: SnapshotParams, result: Snapshot, effect: Modify, listing: false,
        streams: [], errors: [SnapshotFailed, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Runs a command in a chat's sandbox.
    SandboxExec = "sandbox.exec" {
        params: ExecParams, result: ExecResult, effect: Modify, listing: false,
        streams: [Started, Output],
        errors: [
            CommandNotStarted, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases,
            EngineUnavailable, Busy, ShuttingDown,
        ],
    }
    /// Runs code in a chat's sandbox.
    SandboxRunCode = "sandbox.run_code" {
        params: RunCodeParams, result: CommandResult, effect: Modify, listing: false,
        streams: [Started, Output],
        errors: [
            InvalidParams, CommandNotStarted, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning,
            TooManyLeases, EngineUnavailable, Busy, ShuttingDown,
        ],
    }
    /// Attaches to a detached command until it ends.
    SandboxAttach = "sandbox.attach" {
        params: AttachParams, result: CommandResult, effect: Modify, listing: false,
        streams: [Started, Missed, Output],
        errors: [
            CommandNotFound, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases, EngineUnavailable,
            Busy, ShuttingDown,
        ],
    }
    /// Lists the commands in a chat's sandbox.
    SandboxCommands = "sandbox.commands" {
        params: ChatParams, result: CommandsResult, effect: ReadGuest, listing: true,
        streams: [], errors: [GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Kills a command, or sends it a signal.
    SandboxKill = "sandbox.kill" {
        params: KillParams, result: Empty, effect: Modify, listing: false,
        streams: [],
        errors: [CommandNotFound, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Sends bytes to a command, or to a file or tree that is being written.
    SandboxInput = "sandbox.input" {
        params: InputParams, result: Empty, effect: Modify, listing: false,
        streams: [], errors: [CommandNotFound],
    }
    /// Resizes the terminal of a command.
    SandboxResize = "sandbox.resize" {
        params: ResizeParams, result: Empty, effect: Modify, listing: false,
        streams: [], errors: [CommandNotFound],
    }
    /// Reads a file in a chat's sandbox.
    SandboxReadFile = "sandbox.read_file" {
        params: ReadFileParams, result: ReadFileResult, effect: ReadGuest, listing: false,
        streams: [Data],
        errors: [FileError, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Writes a file in a chat's sandbox.
    SandboxWriteFile = "sandbox.write_file" {
        params: WriteFileParams, result: Empty, effect: Modify, listing: false,
        streams: [Started],
        errors: [
            FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy,
            ShuttingDown,
        ],
    }
    /// Lists a directory in a chat's sandbox.
    SandboxListFiles = "sandbox.list_files" {
        params: PathParams, result: ListFilesResult, effect: ReadGuest, listing: true,
        streams: [], errors: [FileError, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Describes a file in a chat's sandbox. A symbolic link is not followed.
    SandboxStatFile = "sandbox.stat_file" {
        params: PathParams, result: File, effect: ReadGuest, listing: false,
        streams: [], errors: [FileError, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Makes a directory in a chat's sandbox.
    SandboxMakeDirectory = "sandbox.make_directory" {
        params: MakeDirectoryParams, result: Empty, effect: Modify, listing: false,
        streams: [],
        errors: [FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Removes a file or directory in a chat's sandbox.
    SandboxRemoveFile = "sandbox.remove_file" {
        params: RemoveFileParams, result: Empty, effect: Modify, listing: false,
        streams: [],
        errors: [FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Moves or renames a file or directory in a chat's sandbox.
    SandboxMoveFile = "sandbox.move_file" {
        params: MoveFileParams, result: Empty, effect: Modify, listing: false,
        streams: [],
        errors: [FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Reads a directory with its content, as a tar archive.
    SandboxReadTree = "sandbox.read_tree" {
        params: PathParams, result: TreeResult, effect: ReadGuest, listing: false,
        streams: [Data],
        errors: [
            FileError, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases, EngineUnavailable, Busy,
            ShuttingDown,
        ],
    }
    /// Unpacks a tar archive into a directory in a chat's sandbox.
    SandboxWriteTree = "sandbox.write_tree" {
        params: WriteTreeParams, result: TreeResult, effect: Modify, listing: false,
        streams: [Started],
        errors: [
            FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases,
            EngineUnavailable, Busy, ShuttingDown,
        ],
    }
    /// Sends the output of a sandbox's own program.
    SandboxLogs = "sandbox.logs" {
        params: LogsParams, result: LogsResult, effect: ReadState, listing: false,
        streams: [Output], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, TooManyLeases, ShuttingDown],
    }
    /// Measures the resource usage of a sandbox.
    SandboxStats = "sandbox.stats" {
        params: StatsParams, result: Stats, effect: ReadState, listing: false,
        streams: [Stats],
        errors: [GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, ShuttingDown],
    }
    /// Lists snapshots, page by page.
    SnapshotList = "snapshot.list" {
        params: SnapshotListParams, result: SnapshotListResult, effect: ReadState, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
    /// Removes a snapshot.
    SnapshotDelete = "snapshot.delete" {
        params: SnapshotDeleteParams, result: SnapshotDeleteResult, effect: Modify, listing: false,
        streams: [], errors: [SnapshotInUse, EngineUnavailable],
    }
    /// Announces that a sandbox will be requested soon, so that a slot is prepared.
    SandboxHint = "sandbox.hint" {
        params: HintParams, result: HintResult, effect: Modify, listing: false,
        streams: [], errors: [],
    }
    /// Describes the pool of each profile.
    PoolStatus = "pool.status" {
        params: NoParams, result: PoolsResult, effect: ReadState, listing: true,
        streams: [], errors: [],
    }
    /// Removes the slots of pools and keeps the pools empty.
    PoolDrain = "pool.drain" {
        params: PoolParams, result: PoolsResult, effect: Modify, listing: false,
        streams: [], errors: [],
    }
    /// Lets drained pools maintain slots again.
    PoolFill = "pool.fill" {
        params: PoolParams, result: PoolsResult, effect: Modify, listing: false,
        streams: [], errors: [],
    }
    /// Lists the images on the engine and the state of the repository images.
    ImageList = "image.list" {
        params: NoParams, result: ImageListResult, effect: ReadState, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
    /// Pulls an image from its registry.
    ImagePull = "image.pull" {
        params: ImagePullParams, result: ImageResult, effect: Modify, listing: false,
        streams: [Progress], errors: [ImagePullFailed, EngineUnavailable],
    }
    /// Builds an image from a host directory.
    ImageBuild = "image.build" {
        params: ImageBuildParams, result: ImageResult, effect: Modify, listing: false,
        streams: [Progress], errors: [ImageBuildFailed, EngineUnavailable, PathUnavailable],
    }
    /// Brings the image of a repository up to date now.
    ImageRefresh = "image.refresh" {
        params: ImageRefreshParams, result: ImageResult, effect: Modify, listing: false,
        streams: [Progress], errors: [RepositoryUnavailable, ImageBuildFailed, ImagePullFailed, EngineUnavailable],
    }
    /// Removes unused images and the build cache.
    ImagePrune = "image.prune" {
        params: ImagePruneParams, result: ImagePruneResult, effect: Modify, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
    /// Watches the events of sandboxes until the caller closes its sending half.
    EventsWatch = "events.watch" {
        params: WatchParams, result: WatchResult, effect: ReadState, listing: false,
        streams: [Watching, Event, Gap], errors: [JournalUnavailable],
    }
    /// Reports whether the service and its engine are healthy.
    SystemHealth = "system.health" {
        params: NoParams, result: HealthResult, effect: ReadState, listing: false,
        streams: [], errors: [],
    }
    /// Describes the service: version, engine, profiles and limits.
    SystemInfo = "system.info" {
        params: NoParams, result: InfoResult, effect: ReadState, listing: false,
        streams: [], errors: [],
    }
    /// Checks the host and recommends actions.
    SystemDoctor = "system.doctor" {
        params: NoParams, result: DoctorResult, effect: ReadState, listing: true,
        streams: [], errors: [],
    }
    /// Reconciles the containers on the engine with the journal.
    SystemReconcile = "system.reconcile" {
        params: ReconcileParams, result: ReconcileResult, effect: Modify, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
}
