//! The engines that carry the sandboxes: adapters of the core's [`Engine`](sandboxd_actors::ports::engine::Engine) port.

pub mod condition;
pub mod docker;
pub mod guest;
mod host_network;
pub mod private;

/// A short name for a long one. Stable across versions, unlike the standard library's: the next run must find what this one
/// left.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_next_version_finds_the_same_place() {
        assert_eq!(super::fnv1a(b"a"), 0xe40c_292c);
    }
}
