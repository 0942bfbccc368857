//! What can be called.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    SandboxCreate,
    SandboxGet,
    SandboxList,
    SandboxRenew,
    SandboxTouch,
    SandboxLease,
    SandboxRelease,
    SandboxDelete,
    EventsWatch,
    SystemHealth,
    SystemInfo,
    SystemReconcile,
}

impl Method {
    pub const ALL: [Method; 12] = [
        Method::SandboxCreate,
        Method::SandboxGet,
        Method::SandboxList,
        Method::SandboxRenew,
        Method::SandboxTouch,
        Method::SandboxLease,
        Method::SandboxRelease,
        Method::SandboxDelete,
        Method::EventsWatch,
        Method::SystemHealth,
        Method::SystemInfo,
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
            Method::SandboxLease => "sandbox.lease",
            Method::SandboxRelease => "sandbox.release",
            Method::SandboxDelete => "sandbox.delete",
            Method::EventsWatch => "events.watch",
            Method::SystemHealth => "system.health",
            Method::SystemInfo => "system.info",
            Method::SystemReconcile => "system.reconcile",
        }
    }

    /// Whether a caller with the read-only role may call it.
    pub fn only_reads(self) -> bool {
        match self {
            Method::SandboxCreate
            | Method::SandboxRenew
            | Method::SandboxTouch
            | Method::SandboxLease
            | Method::SandboxRelease
            | Method::SandboxDelete
            | Method::SystemReconcile => false,
            Method::SandboxGet
            | Method::SandboxList
            | Method::EventsWatch
            | Method::SystemHealth
            | Method::SystemInfo => true,
        }
    }
}
