//! A hash that stays the same across restarts and versions of the compiler.

/// FNV-1a, 64 bit: stable, unlike the standard library's hasher, and no secret depends on it.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
