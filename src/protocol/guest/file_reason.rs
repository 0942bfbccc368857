//! Mapping of the system's error numbers to reasons of file errors.

use rustix::io::Errno;

pub use sandboxd_protocol::file::FileReason;

/// Returns the reason for an error number.
pub fn file_reason(errno: i32) -> FileReason {
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
    // The number comes from a guest, and `Errno` panics on a number that the system cannot have.
    let known = KNOWN.into_iter().find(|(known, _)| known.raw_os_error() == errno);
    known.map_or(FileReason::Other, |(_, reason)| reason)
}
