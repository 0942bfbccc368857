//! The capabilities of Linux, to find a mistyped name before a sandbox needs it.

use super::section::Parsed;
use super::source::Raw;
use super::suggest;

/// The names from capabilities(7), without `CAP_`.
const KNOWN: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// Parses a capability and returns its name in upper case without `CAP_`. `ALL` is refused: it would undo the
/// hardening.
pub(super) fn capability(raw: &Raw) -> Parsed<String> {
    let name = raw.text().unwrap_or_default().to_ascii_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    if KNOWN.contains(&name) {
        return Ok(name.into());
    }
    let mut refusal = raw.refuse(r#"a capability such as "NET_BIND_SERVICE""#);
    if let Some(near) = suggest::nearest(name, KNOWN) {
        refusal.0.push_str(&format!(", did you mean {near:?}?"));
    }
    Err(refusal)
}
