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
use crate::reference::order::{Declaration, declaration};
use crate::sandbox::*;
use crate::snapshot::*;
use crate::system::*;

methods! {
    /// Returns the sandbox of a chat, and creates it if the chat has none.
    ///
    /// At most one sandbox exists for a chat: callers that ask at the same time get the same one. The request can be
    /// repeated safely. If the sandbox cannot be started, nothing of it is left.
    ///
    /// - The chat has no sandbox: the service creates one, and answers when it is ready.
    /// - The chat has a sandbox with the same `agent_id`, and with the same `volume_host_path`, `workspace_id`,
    ///   `profile` and `snapshot_id` where they are given: the service returns it, and resumes it if it is paused.
    ///   `env`, `git`, `ttl` and `idle_timeout` are not compared, and `sync` does not run again.
    /// - The chat has a sandbox that differs: `sandbox_conflict`.
    /// - The chat's sandbox is past its deadline, stopped or failed: the service removes it and creates a new one. With
    ///   `on_expire = "snapshot"`, the service saves a snapshot first; if that fails, the request fails.
    SandboxCreate = "sandbox.create" {
        params: CreateParams, result: CreatedSandbox, effect: Modify, listing: false,
        streams: [],
        errors: [
            SandboxConflict, SandboxStartFailed, EngineUnavailable, ImageNotFound, SnapshotNotFound, SnapshotFailed,
            ReadinessTimeout, JournalUnavailable, AdmissionDenied, Busy, PathUnavailable,
        ],
    }
    /// Returns the sandbox of a chat.
    ///
    /// Answers at once, also while the sandbox is being created or removed. Does not count as use.
    SandboxGet = "sandbox.get" {
        params: ChatParams, result: Sandbox, effect: ReadState, listing: false,
        streams: [], errors: [SandboxNotFound, EngineUnavailable, Busy],
    }
    /// Lists all sandboxes, page by page.
    ///
    /// A page has at most `limit` sandboxes, and fewer if they are unusually long. While `next` is not null, more may
    /// follow. A sandbox that is created or removed meanwhile may or may not be listed; every other sandbox is listed
    /// once.
    ///
    /// `limit` counts the sandboxes that are examined: with filters, a page may be short or empty although it has a
    /// `next`. `undescribed` ignores the filters. It names the chats for which the engine did not reply, or whose actor
    /// is being restarted.
    SandboxList = "sandbox.list" {
        params: ListParams, result: ListResult, effect: ReadState, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
    /// Postpones the absolute deadline of a chat's sandbox.
    ///
    /// The answer follows the journal commit, so an answered renewal survives a crash of the service. A renewal that
    /// the service receives before the deadline takes precedence over it. Counts as use.
    SandboxRenew = "sandbox.renew" {
        params: RenewParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, JournalUnavailable, EngineUnavailable, Busy],
    }
    /// Marks a chat's sandbox as used.
    ///
    /// The idle time starts anew. A paused sandbox is resumed first.
    SandboxTouch = "sandbox.touch" {
        params: ChatParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Pauses a chat's sandbox until it is used.
    ///
    /// The processes keep their memory, files and connections, and get no CPU time. A sandbox that is already paused is
    /// returned as it is. The answer follows the journal commit, and the sandbox stays paused over a restart of the
    /// service. The service also notices a pause or resume by others, such as `docker pause`.
    ///
    /// `sandbox.create`, `sandbox.touch`, `sandbox.resume`, a new lease and all work in the guest resume the sandbox
    /// first. If that fails, they answer `engine_unavailable`, and the sandbox stays paused. Reading its state,
    /// renewing it and releasing a lease leave it paused. A paused sandbox has no idle deadline; its absolute deadline
    /// stays.
    SandboxPause = "sandbox.pause" {
        params: ChatParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Resumes a chat's paused sandbox.
    ///
    /// The session and the processes stay the same. For a running sandbox, it is the same as `sandbox.touch`. Counts as
    /// use.
    SandboxResume = "sandbox.resume" {
        params: ChatParams, result: Sandbox, effect: Modify, listing: false,
        streams: [], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Leases a chat's sandbox, so that it neither expires nor counts as idle.
    ///
    /// All leases together extend the life of a sandbox to at most `leases.max` after its `expires_at`; a longer lease
    /// is cut short, as `lease_until` shows. A sandbox has at most `leases.max_per_sandbox` leases, and the last one to
    /// end counts.
    ///
    /// A lease ends with its duration, with `sandbox.release`, or with the sandbox. A lease that is not durable also
    /// ends with its connection and with the service. A durable lease is in the journal before it is answered.
    SandboxLease = "sandbox.lease" {
        params: LeaseParams, result: LeasedSandbox, effect: Modify, listing: false,
        streams: [],
        errors: [TooManyLeases, SandboxNotFound, SandboxNotRunning, JournalUnavailable, EngineUnavailable, Busy],
    }
    /// Releases a lease.
    ///
    /// Any connection may release a lease; a durable one also after a restart of the service. Counts as use: the idle
    /// time starts at the end of the lease.
    SandboxRelease = "sandbox.release" {
        params: ReleaseParams, result: Sandbox, effect: Modify, listing: false,
        streams: [],
        errors: [LeaseNotFound, SandboxNotFound, SandboxNotRunning, JournalUnavailable, EngineUnavailable, Busy],
    }
    /// Removes a chat's sandbox.
    ///
    /// The service asks the processes to end, kills the rest, removes the container, and then answers. A container that
    /// was removed externally counts as deleted. A delete during a create stops the create. The volume stays, and so do
    /// the snapshots. The chat's directory stays unless `purge` is given. The request can be repeated safely.
    ///
    /// With `snapshot`, the sandbox is removed only after the snapshot has been taken; if that fails, the sandbox
    /// stays: `snapshot_failed`. A sandbox that is still being created, has no container, or is already being removed
    /// is removed without a snapshot.
    ///
    /// With `purge`, the chat's directory is removed after the sandbox, also for a chat without a sandbox. A create
    /// that arrives meanwhile waits, and starts with a new directory. If the chat gets another sandbox before the
    /// removal, the directory stays: `purge_failed`.
    SandboxDelete = "sandbox.delete" {
        params: DeleteParams, result: DeleteResult, effect: Modify, listing: false,
        streams: [],
        errors: [SandboxDeleteFailed, SnapshotFailed, PurgeFailed, EngineUnavailable, JournalUnavailable, Busy],
    }
    /// Saves a chat's sandbox as a snapshot.
    ///
    /// `sandbox.create` can restore the snapshot, also for another chat. Environment, labels and secrets of the sandbox
    /// are not part of it.
    ///
    /// All processes are frozen while the snapshot is taken: a tenth of a second, or longer if much was written. No
    /// file in it is half written. A paused sandbox stays paused. A stopped or failed sandbox can be saved too; one
    /// without a container is `sandbox_not_running`. Deadlines and pauses wait for the snapshot. Counts as use.
    ///
    /// A chat keeps its newest `snapshots.keep` snapshots, each for at most `snapshots.max_age`.
    SandboxSnapshot = "sandbox.snapshot" {
        params: SnapshotParams, result: Snapshot, effect: Modify, listing: false,
        streams: [], errors: [SnapshotFailed, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Runs a command in a chat's sandbox.
    ///
    /// Answers when the command has ended, or, with `detach`, when it has started. A command that fails is no error:
    /// its exit code is part of the result. Commands run in every image; only a line for the shell needs `/bin/sh`.
    ///
    /// - A command ends by itself, at its `timeout`, with `sandbox.kill`, with its sandbox, or when its caller
    ///   disconnects, unless `on_disconnect` is `detach`.
    /// - A kill ends all processes that the command has started, also those in the background and those that left its
    ///   process group. A command that ends by itself leaves its background processes running.
    /// - A command outlives a restart of the service. A caller that waits for it gets `shutting_down` with its
    ///   `command_id`, and can attach to it after the restart.
    SandboxExec = "sandbox.exec" {
        params: ExecParams, result: ExecResult, effect: Modify, listing: false,
        streams: [Started, Output],
        errors: [
            CommandNotStarted, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases,
            EngineUnavailable, Busy, ShuttingDown,
        ],
    }
    /// Runs code in a chat's sandbox.
    ///
    /// The languages `python` and `sh` are always known; the profile may add others (`profiles.<name>.languages`), and
    /// code that runs before all code of a language. An unknown language is `invalid_params`; an interpreter that the
    /// image lacks is `command_not_started`.
    SandboxRunCode = "sandbox.run_code" {
        params: RunCodeParams, result: CommandResult, effect: Modify, listing: false,
        streams: [Started, Output],
        errors: [
            InvalidParams, CommandNotStarted, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning,
            TooManyLeases, EngineUnavailable, Busy, ShuttingDown,
        ],
    }
    /// Attaches to a detached command until it ends.
    ///
    /// Kept output comes first, then new output. While no caller is attached, the last mebibyte of output is kept, and
    /// so is the end of the command. A command stays attachable over a restart of the service. One caller is attached
    /// at a time: a new caller replaces the one before, which gets `guest_unreachable`. The end of a command is
    /// reported once.
    SandboxAttach = "sandbox.attach" {
        params: AttachParams, result: CommandResult, effect: Modify, listing: false,
        streams: [Started, Missed, Output],
        errors: [
            CommandNotFound, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases, EngineUnavailable,
            Busy, ShuttingDown,
        ],
    }
    /// Lists the commands in a chat's sandbox.
    ///
    /// Of the commands whose end was not reported, the last 64 are kept.
    SandboxCommands = "sandbox.commands" {
        params: ChatParams, result: CommandsResult, effect: ReadGuest, listing: true,
        streams: [], errors: [GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Kills a command, or sends it a signal.
    ///
    /// Without `signal`, the command and all processes that it has started are killed, also those that left its process
    /// group. With `signal`, the signal is sent to its process group.
    SandboxKill = "sandbox.kill" {
        params: KillParams, result: Empty, effect: Modify, listing: false,
        streams: [],
        errors: [CommandNotFound, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Sends bytes to a command, or to a file or tree that is being written.
    ///
    /// Any connection may send bytes to a command that a caller is attached to. The answer waits while the receiver
    /// takes no bytes; a caller that waits for each answer keeps the order and is never too fast. Bytes that a command
    /// does not read are lost.
    SandboxInput = "sandbox.input" {
        params: InputParams, result: Empty, effect: Modify, listing: false,
        streams: [], errors: [CommandNotFound],
    }
    /// Resizes the terminal of a command.
    ///
    /// Has no effect on a command without a terminal.
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
    ///
    /// The file is replaced in one step when all content has arrived. If the caller disconnects before that, nothing is
    /// written.
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
    /// Describes a file in a chat's sandbox.
    ///
    /// A symbolic link is not followed.
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
    ///
    /// Works like `mv`. A file in the way is replaced; a directory in the way only if it is empty. To another file
    /// system, the file is copied with its mode, its times and, as far as init may set it, its owner, and then removed;
    /// a move that fails changes nothing. Sockets, pipes and devices cannot be copied.
    SandboxMoveFile = "sandbox.move_file" {
        params: MoveFileParams, result: Empty, effect: Modify, listing: false,
        streams: [],
        errors: [FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, EngineUnavailable, Busy],
    }
    /// Reads a directory with its content, as a tar archive.
    ///
    /// The archive is ustar, with pax headers where names or numbers need them. It is sent in notifications, in base64.
    /// Its first entry is the directory itself, `./`, and all names begin with it, so the archive can be written to
    /// another directory.
    ///
    /// Symbolic links are not followed, except `path` itself. Each name of a file with several hard links is a file of
    /// its own. A file that changes meanwhile keeps the length that it had when it was opened.
    SandboxReadTree = "sandbox.read_tree" {
        params: PathParams, result: TreeResult, effect: ReadGuest, listing: false,
        streams: [Data],
        errors: [
            FileError, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases, EngineUnavailable, Busy,
            ShuttingDown,
        ],
    }
    /// Unpacks a tar archive into a directory in a chat's sandbox.
    ///
    /// The archive is ustar or pax, not compressed, of any size. It follows with `sandbox.input`, to the `command_id`
    /// of `sandbox.started`, until one with `end`. Entries are unpacked as they arrive. If one fails, the message names
    /// it; the entries before it stay, and a half-received file is dropped.
    ///
    /// Entries get the user of the sandbox, and the permissions and times of the archive, but never set-user-id. An
    /// existing file or link is replaced; an existing directory stays as it is. An entry with an absolute name, with
    /// `..`, or below a symbolic link is refused. A hard link must lead to an entry of the same archive. Devices and
    /// pipes are skipped.
    SandboxWriteTree = "sandbox.write_tree" {
        params: WriteTreeParams, result: TreeResult, effect: Modify, listing: false,
        streams: [Started],
        errors: [
            FileError, SyncFailed, GuestUnreachable, SandboxNotFound, SandboxNotRunning, TooManyLeases,
            EngineUnavailable, Busy, ShuttingDown,
        ],
    }
    /// Sends the output of a sandbox's own program.
    ///
    /// The output is sent in `sandbox.output` notifications without `command_id`. Output of `sandbox.exec` is not part
    /// of it. Works for a failed or stopped sandbox too, as long as it has a container; else `sandbox_not_running`.
    /// With `follow`, it continues until the sandbox ends or the caller disconnects, and holds the sandbox meanwhile.
    SandboxLogs = "sandbox.logs" {
        params: LogsParams, result: LogsResult, effect: ReadState, listing: false,
        streams: [Output], errors: [SandboxNotFound, SandboxNotRunning, EngineUnavailable, TooManyLeases, ShuttingDown],
    }
    /// Measures the resource usage of a sandbox.
    ///
    /// Init measures the guest; without init, the engine does. Does not count as use, so a monitor does not keep a
    /// sandbox alive. With `interval`, notifications follow until the sandbox ends or the caller disconnects.
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
    ///
    /// A snapshot from which an existing sandbox was restored stays: `snapshot_in_use`. Other snapshots of that sandbox
    /// do not need it. The request can be repeated safely.
    SnapshotDelete = "snapshot.delete" {
        params: SnapshotDeleteParams, result: SnapshotDeleteResult, effect: Modify, listing: false,
        streams: [], errors: [SnapshotInUse, EngineUnavailable],
    }
    /// Announces that a sandbox will be requested soon, so that a slot is prepared.
    ///
    /// For example when a user begins to type: the next matching `sandbox.create` gets the slot within milliseconds. A
    /// hint never fails. At most `profiles.<name>.pool.hints` hints are pending at a time.
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
    ///
    /// Free slots are removed at once, starting ones when they have started. The pool stays empty until `pool.fill` or
    /// a restart of the service. Until then hints are `unavailable`, and each sandbox is started on request. Sandboxes
    /// of chats stay, also those that were slots. The answer waits until no slot is left, for a minute at most; the
    /// rest is counted in `free`, `coming` and `removing`, and is removed later.
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
    ///
    /// Uses the credentials that are configured for the registry. Simultaneous requests for one image share one pull,
    /// which continues if a caller disconnects. A slow reader misses notifications.
    ImagePull = "image.pull" {
        params: ImagePullParams, result: ImageResult, effect: Modify, listing: false,
        streams: [Progress], errors: [ImagePullFailed, EngineUnavailable],
    }
    /// Builds an image from a host directory.
    ///
    /// Files that `.dockerignore` names are left out, and symbolic links are not followed. Builds beyond
    /// `images.max_builds` wait. A build continues if its caller disconnects. A slow reader misses notifications.
    ImageBuild = "image.build" {
        params: ImageBuildParams, result: ImageResult, effect: Modify, listing: false,
        streams: [Progress], errors: [ImageBuildFailed, EngineUnavailable, PathUnavailable],
    }
    /// Brings the image of a repository up to date now.
    ///
    /// Builds the image if the branch moved, or if the steps or the base of the repository changed. If that fails, the
    /// image before stays. `image_pull_failed` concerns the base. A slow reader misses notifications.
    ImageRefresh = "image.refresh" {
        params: ImageRefreshParams, result: ImageResult, effect: Modify, listing: false,
        streams: [Progress], errors: [RepositoryUnavailable, ImageBuildFailed, ImagePullFailed, EngineUnavailable],
    }
    /// Removes unused images and the build cache.
    ///
    /// Only images that the service made are removed, unless `images.gc.all` is set. Kept are images that a profile or
    /// a repository's `base` names, images of containers, the newest image of each configured repository, and
    /// snapshots.
    ImagePrune = "image.prune" {
        params: ImagePruneParams, result: ImagePruneResult, effect: Modify, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
    /// Watches the events of sandboxes until the caller closes its sending half.
    ///
    /// Each change of a sandbox is an event with a number, in the journal before it is sent. Each number is one more
    /// than the one before. The first number of a new journal is its time of creation in milliseconds since 1970, so
    /// numbers of two journals never coincide.
    ///
    /// - Events are sent oldest first, each once. Without `after`, the watch begins with changes from now on, which
    ///   includes requests that follow on the same connection.
    /// - To continue a watch, give the number of the last event as `after`.
    /// - The journal keeps the last `events.keep` events. If events are lost, because the watch begins before them, is
    ///   too slow, or names a number of another journal, `events.gap` says so.
    /// - A slow watcher delays no other caller.
    /// - The watch ends when the caller closes its sending half or disconnects, or when the service shuts down. It
    ///   counts as one request under way; a caller with other requests uses another connection.
    EventsWatch = "events.watch" {
        params: WatchParams, result: WatchResult, effect: ReadState, listing: false,
        streams: [Watching, Event, Gap], errors: [JournalUnavailable],
    }
    /// Reports whether the service and its engine are healthy.
    ///
    /// Asks the engine, within `engine.timeouts.connect`.
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
    ///
    /// Changes nothing. Asks the engine, within `engine.timeouts`.
    SystemDoctor = "system.doctor" {
        params: NoParams, result: DoctorResult, effect: ReadState, listing: true,
        streams: [], errors: [],
    }
    /// Reconciles the containers on the engine with the journal.
    ///
    /// The service also reconciles before it serves, every `reconciler.interval`, and when it may have missed events.
    /// While the engine does not reply, nothing is done.
    SystemReconcile = "system.reconcile" {
        params: ReconcileParams, result: ReconcileResult, effect: Modify, listing: true,
        streams: [], errors: [EngineUnavailable],
    }
}
