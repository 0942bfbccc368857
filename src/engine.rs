//! Container engines: adapters of the core's [`Engine`](sandboxd_actors::ports::engine::Engine) port.

pub mod condition;
pub mod docker;
pub mod guest;
mod host_network;
pub mod private;

/// Returns a short hash of a long name. It is stable across versions, unlike the standard library's hash: the next run
/// must find the directories and interfaces of this run.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_is_stable_across_versions() {
        assert_eq!(super::fnv1a(b"a"), 0xe40c_292c);
    }
}
