//! The sandbox-init binary: embedded in the service, and installed where it can be mounted into sandboxes.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use sandboxd_actors::domain::host_path::HostPath;

static PROGRAM: &[u8] = include_bytes!(env!("SANDBOX_INIT"));

/// Installs the binary. Each version has its own name, because sandboxes of an earlier version still have theirs
/// mounted.
pub(super) fn install(directory: &Path) -> io::Result<HostPath> {
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let path = directory.join(format!("sandbox-init-{:016x}", fingerprint(PROGRAM)));
    if !fs::read(&path).is_ok_and(|there| there == PROGRAM) {
        let draft = path.with_extension("draft");
        let _ = fs::remove_file(&draft);
        OpenOptions::new().write(true).create_new(true).mode(0o755).open(&draft)?.write_all(PROGRAM)?;
        fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::rename(&draft, &path)?;
    }
    HostPath::from_canonical(&fs::canonicalize(path)?).map_err(io::Error::other)
}

/// Returns the FNV-1a hash. It only names versions; the bytes themselves are compared.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
