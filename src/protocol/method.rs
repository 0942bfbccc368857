//! What can be called.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    SandboxCreate,
    SandboxGet,
    SandboxList,
    SandboxDelete,
    SystemHealth,
    SystemInfo,
}

impl Method {
    pub const ALL: [Method; 6] = [
        Method::SandboxCreate,
        Method::SandboxGet,
        Method::SandboxList,
        Method::SandboxDelete,
        Method::SystemHealth,
        Method::SystemInfo,
    ];

    pub fn from_name(name: &str) -> Option<Method> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Method::SandboxCreate => "sandbox.create",
            Method::SandboxGet => "sandbox.get",
            Method::SandboxList => "sandbox.list",
            Method::SandboxDelete => "sandbox.delete",
            Method::SystemHealth => "system.health",
            Method::SystemInfo => "system.info",
        }
    }

    /// Whether a caller with the read-only role may call it.
    pub fn only_reads(self) -> bool {
        match self {
            Method::SandboxCreate | Method::SandboxDelete => false,
            Method::SandboxGet | Method::SandboxList | Method::SystemHealth | Method::SystemInfo => true,
        }
    }
}
