//! Why something could not be done with a file, for programs.

use rustix::io::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileReason {
    NotFound,
    PermissionDenied,
    ReadOnly,
    Exists,
    IsADirectory,
    NotADirectory,
    NotEmpty,
    NoSpace,
    Other,
}

impl FileReason {
    pub const ALL: [FileReason; 9] = [
        FileReason::NotFound,
        FileReason::PermissionDenied,
        FileReason::ReadOnly,
        FileReason::Exists,
        FileReason::IsADirectory,
        FileReason::NotADirectory,
        FileReason::NotEmpty,
        FileReason::NoSpace,
        FileReason::Other,
    ];

    /// The system's number for it.
    pub fn of(errno: i32) -> Self {
        const KNOWN: [(Errno, FileReason); 10] = [
            (Errno::NOENT, FileReason::NotFound),
            (Errno::ACCESS, FileReason::PermissionDenied),
            (Errno::PERM, FileReason::PermissionDenied),
            (Errno::ROFS, FileReason::ReadOnly),
            (Errno::EXIST, FileReason::Exists),
            (Errno::ISDIR, FileReason::IsADirectory),
            (Errno::NOTDIR, FileReason::NotADirectory),
            (Errno::NOTEMPTY, FileReason::NotEmpty),
            (Errno::NOSPC, FileReason::NoSpace),
            (Errno::DQUOT, FileReason::NoSpace),
        ];
        // The number comes from a sandbox, so it may be none of the system's.
        let known = KNOWN.into_iter().find(|(known, _)| known.raw_os_error() == errno);
        known.map_or(FileReason::Other, |(_, reason)| reason)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            FileReason::NotFound => "not_found",
            FileReason::PermissionDenied => "permission_denied",
            FileReason::ReadOnly => "read_only",
            FileReason::Exists => "exists",
            FileReason::IsADirectory => "is_a_directory",
            FileReason::NotADirectory => "not_a_directory",
            FileReason::NotEmpty => "not_empty",
            FileReason::NoSpace => "no_space",
            FileReason::Other => "other",
        }
    }
}
