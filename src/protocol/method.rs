//! What can be called.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    SandboxCreate,
    SandboxGet,
    SandboxList,
    SandboxRenew,
    SandboxTouch,
    SandboxPause,
    SandboxResume,
    SandboxLease,
    SandboxRelease,
    SandboxDelete,
    SandboxSnapshot,
    SandboxExec,
    SandboxRunCode,
    SandboxAttach,
    SandboxCommands,
    SandboxKill,
    SandboxInput,
    SandboxResize,
    SandboxReadFile,
    SandboxWriteFile,
    SandboxListFiles,
    SandboxStatFile,
    SandboxMakeDirectory,
    SandboxRemoveFile,
    SandboxMoveFile,
    SandboxReadTree,
    SandboxWriteTree,
    SandboxLogs,
    SandboxStats,
    SnapshotList,
    SnapshotDelete,
    SandboxHint,
    PoolStatus,
    PoolDrain,
    PoolFill,
    ImageList,
    ImagePull,
    ImageBuild,
    ImageRefresh,
    ImagePrune,
    EventsWatch,
    SystemHealth,
    SystemInfo,
    SystemDoctor,
    SystemReconcile,
}

/// What a call does to the state of sandboxes, and so which role may make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It changes something. Only for the full role.
    Changes,
    /// It asks the guest, and changes nothing there. For the full role it is use of the sandbox, and so resumes a paused one.
    /// For the read-only role it is no use: it holds no lease, and a paused sandbox is refused.
    AsksGuest,
    /// It tells of what the service or the engine knows. It is no use of a sandbox, resumes none and holds none. Only
    /// logs that the full role follows count as use.
    Looks,
}

impl Method {
    pub const ALL: [Method; 45] = [
        Method::SandboxCreate,
        Method::SandboxGet,
        Method::SandboxList,
        Method::SandboxRenew,
        Method::SandboxTouch,
        Method::SandboxPause,
        Method::SandboxResume,
        Method::SandboxLease,
        Method::SandboxRelease,
        Method::SandboxDelete,
        Method::SandboxSnapshot,
        Method::SandboxExec,
        Method::SandboxRunCode,
        Method::SandboxAttach,
        Method::SandboxCommands,
        Method::SandboxKill,
        Method::SandboxInput,
        Method::SandboxResize,
        Method::SandboxReadFile,
        Method::SandboxWriteFile,
        Method::SandboxListFiles,
        Method::SandboxStatFile,
        Method::SandboxMakeDirectory,
        Method::SandboxRemoveFile,
        Method::SandboxMoveFile,
        Method::SandboxReadTree,
        Method::SandboxWriteTree,
        Method::SandboxLogs,
        Method::SandboxStats,
        Method::SnapshotList,
        Method::SnapshotDelete,
        Method::SandboxHint,
        Method::PoolStatus,
        Method::PoolDrain,
        Method::PoolFill,
        Method::ImageList,
        Method::ImagePull,
        Method::ImageBuild,
        Method::ImageRefresh,
        Method::ImagePrune,
        Method::EventsWatch,
        Method::SystemHealth,
        Method::SystemInfo,
        Method::SystemDoctor,
        Method::SystemReconcile,
    ];

    pub fn from_name(name: &str) -> Option<Method> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Method::SandboxCreate => "sandbox.create",
            Method::SandboxGet => "sandbox.get",
            Method::SandboxList => "sandbox.list",
            Method::SandboxRenew => "sandbox.renew",
            Method::SandboxTouch => "sandbox.touch",
            Method::SandboxPause => "sandbox.pause",
            Method::SandboxResume => "sandbox.resume",
            Method::SandboxLease => "sandbox.lease",
            Method::SandboxRelease => "sandbox.release",
            Method::SandboxDelete => "sandbox.delete",
            Method::SandboxSnapshot => "sandbox.snapshot",
            Method::SandboxExec => "sandbox.exec",
            Method::SandboxRunCode => "sandbox.run_code",
            Method::SandboxAttach => "sandbox.attach",
            Method::SandboxCommands => "sandbox.commands",
            Method::SandboxKill => "sandbox.kill",
            Method::SandboxInput => "sandbox.input",
            Method::SandboxResize => "sandbox.resize",
            Method::SandboxReadFile => "sandbox.read_file",
            Method::SandboxWriteFile => "sandbox.write_file",
            Method::SandboxListFiles => "sandbox.list_files",
            Method::SandboxStatFile => "sandbox.stat_file",
            Method::SandboxMakeDirectory => "sandbox.make_directory",
            Method::SandboxRemoveFile => "sandbox.remove_file",
            Method::SandboxMoveFile => "sandbox.move_file",
            Method::SandboxReadTree => "sandbox.read_tree",
            Method::SandboxWriteTree => "sandbox.write_tree",
            Method::SandboxLogs => "sandbox.logs",
            Method::SandboxStats => "sandbox.stats",
            Method::SnapshotList => "snapshot.list",
            Method::SnapshotDelete => "snapshot.delete",
            Method::SandboxHint => "sandbox.hint",
            Method::PoolStatus => "pool.status",
            Method::PoolDrain => "pool.drain",
            Method::PoolFill => "pool.fill",
            Method::ImageList => "image.list",
            Method::ImagePull => "image.pull",
            Method::ImageBuild => "image.build",
            Method::ImageRefresh => "image.refresh",
            Method::ImagePrune => "image.prune",
            Method::EventsWatch => "events.watch",
            Method::SystemHealth => "system.health",
            Method::SystemInfo => "system.info",
            Method::SystemDoctor => "system.doctor",
            Method::SystemReconcile => "system.reconcile",
        }
    }

    /// Whether the answer tells of many things, and so may be some hundred kilobytes long.
    pub fn is_listing(self) -> bool {
        matches!(
            self,
            Method::SandboxList
                | Method::SandboxCommands
                | Method::SandboxListFiles
                | Method::SnapshotList
                | Method::PoolStatus
                | Method::ImageList
                | Method::ImagePrune
                | Method::SystemDoctor
                | Method::SystemReconcile
        )
    }

    /// Whether a caller with the read-only role may call it.
    pub fn only_reads(self) -> bool {
        self.effect() != Effect::Changes
    }

    pub fn effect(self) -> Effect {
        match self {
            Method::SandboxCreate
            | Method::SandboxRenew
            | Method::SandboxTouch
            | Method::SandboxPause
            | Method::SandboxResume
            | Method::SandboxLease
            | Method::SandboxRelease
            | Method::SandboxDelete
            | Method::SandboxSnapshot
            | Method::SnapshotDelete
            | Method::SandboxExec
            | Method::SandboxRunCode
            | Method::SandboxAttach
            | Method::SandboxKill
            | Method::SandboxInput
            | Method::SandboxResize
            | Method::SandboxWriteFile
            | Method::SandboxMakeDirectory
            | Method::SandboxRemoveFile
            | Method::SandboxMoveFile
            | Method::SandboxWriteTree
            | Method::SandboxHint
            | Method::PoolDrain
            | Method::PoolFill
            | Method::ImagePull
            | Method::ImageBuild
            | Method::ImageRefresh
            | Method::ImagePrune
            | Method::SystemReconcile => Effect::Changes,
            Method::SandboxCommands
            | Method::SandboxReadFile
            | Method::SandboxListFiles
            | Method::SandboxStatFile
            | Method::SandboxReadTree => Effect::AsksGuest,
            Method::SandboxGet
            | Method::SandboxList
            | Method::SandboxLogs
            | Method::SandboxStats
            | Method::SnapshotList
            | Method::PoolStatus
            | Method::ImageList
            | Method::EventsWatch
            | Method::SystemHealth
            | Method::SystemInfo
            | Method::SystemDoctor => Effect::Looks,
        }
    }
}
