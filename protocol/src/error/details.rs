//! Words in the details of errors.

use crate::words::words;

words! {
    /// Why a sandbox could not be started: the `cause` of `sandbox_start_failed`.
    enum StartFailureCause {
        /// The first process ended before the sandbox was ready.
        Exited = "exited",
        /// A signal ended the first process.
        Killed = "killed",
        /// The sandbox reached its memory limit.
        OomKilled = "oom_killed",
        /// The directory of the chat cannot be prepared.
        Directory = "directory",
        /// The engine refused the container.
        Engine = "engine",
        /// A container that does not belong to this service has the name of the chat's container.
        NameTaken = "name_taken",
        /// The container got no address on its network.
        NoAddress = "no_address",
        /// The sandbox was restarted, and its directories could not be mounted again.
        NotBound = "not_bound",
        /// Another directory replaced `volume_host_path` during the start, or that cannot be ruled out. The container
        /// was removed.
        VolumeChanged = "volume_changed",
        /// The init could not be told to start the program.
        NotBegun = "not_begun",
        /// The profile waits for a health check that the image does not have.
        NoHealthCheck = "no_health_check",
        /// The sandbox was deleted while it was being created.
        Deleted = "deleted",
        /// The sandbox before it could not be removed.
        PredecessorRemains = "predecessor_remains",
        /// A defect of the service.
        Defect = "defect",
    }

    /// Limit that was reached: the `what` of `admission_denied`.
    enum LimitKey {
        /// Sandboxes of all chats together.
        Sandboxes = "sandboxes",
        /// Sandboxes of the profile.
        Profile = "profile",
        /// Sandboxes of the workspace.
        Workspace = "workspace",
        /// Sandboxes of the agent.
        Agent = "agent",
    }
}

impl StartFailureCause {
    /// Returns whether the same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        use StartFailureCause::{Deleted, NoAddress, NotBegun, NotBound, PredecessorRemains, VolumeChanged};
        matches!(self, Deleted | NoAddress | NotBegun | NotBound | PredecessorRemains | VolumeChanged)
    }
}
