//! The capabilities of this process.

use std::fs;

#[derive(Debug, Clone, Copy)]
pub(super) struct Capability {
    /// The bit in `/proc/self/status`.
    bit: u32,
    name: &'static str,
}

pub(super) const SYS_ADMIN: Capability = Capability { bit: 21, name: "CAP_SYS_ADMIN" };
pub(super) const SYS_CHROOT: Capability = Capability { bit: 18, name: "CAP_SYS_CHROOT" };
pub(super) const SYS_PTRACE: Capability = Capability { bit: 19, name: "CAP_SYS_PTRACE" };

/// Returns the name of the first capability that the process lacks.
pub(super) fn missing(needed: &[Capability]) -> Option<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective(&status);
    needed.iter().find(|capability| effective & (1 << capability.bit) == 0).map(|capability| capability.name)
}

/// Parses the effective capabilities. Zero if the text has none.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::effective;

    #[test]
    fn only_effective_capabilities_count() {
        let status =
            "Name:\tsandboxd\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000200000\nCapBnd:\t000001ffffffffff\n";
        assert_eq!(effective(status), 1 << 21);
        assert_eq!(effective("Name:\tsandboxd\n"), 0);
        assert_eq!(effective("CapEff:\tall of them\n"), 0);
    }
}
