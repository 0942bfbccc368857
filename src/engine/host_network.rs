//! The IPv4 addresses in use on this host, and the blocks that are free for a network.

use std::collections::HashSet;
use std::io;
use std::net::Ipv4Addr;

use sandboxd_actors::domain::subnet::Subnet;

/// The kernel's list of routes and addresses of every routing table.
const ROUTES: &str = "/proc/net/fib_trie";

/// A network must not cover the address of a resolver behind the default route.
const RESOLVERS: &str = "/etc/resolv.conf";

/// A route with at most this prefix length is a default route, even if it is split in two halves.
const DEFAULT_ROUTE: u8 = 7;

/// The routes and addresses of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostNetwork {
    routes: Vec<Subnet>,
    addresses: HashSet<Ipv4Addr>,
}

impl HostNetwork {
    pub(super) fn read() -> io::Result<Self> {
        let mut host = Self::from_routes(&std::fs::read_to_string(ROUTES)?);
        host.routes.extend(resolvers(&std::fs::read_to_string(RESOLVERS).unwrap_or_default()));
        Ok(host)
    }

    /// Parses the kernel's list: a line `|-- 10.1.0.0` is followed by one line `/16 universe UNICAST` for each of its
    /// routes.
    pub(super) fn from_routes(trie: &str) -> Self {
        let mut host = HostNetwork::default();
        let mut current = None;
        for line in trie.lines().map(str::trim) {
            if let Some(address) = line.strip_prefix("|-- ") {
                current = address.parse::<Ipv4Addr>().ok();
            } else if let (Some(address), Some(route)) = (current, line.strip_prefix('/')) {
                let mut words = route.split_whitespace();
                let prefix = words.next().and_then(|prefix| prefix.parse().ok());
                let subnet = prefix.and_then(|prefix| Subnet::new(address, prefix).ok());
                host.routes.extend(subnet.filter(|subnet| subnet.prefix() > DEFAULT_ROUTE));
                if prefix == Some(32) && words.any(|word| word == "LOCAL") {
                    host.addresses.insert(address);
                }
            }
        }
        host
    }

    /// Returns whether the address belongs to an interface of this host.
    pub(super) fn has(&self, address: Ipv4Addr) -> bool {
        self.addresses.contains(&address)
    }

    /// Returns whether no route, address or resolver of this host lies in the block.
    pub(super) fn is_free(&self, block: Subnet) -> bool {
        !self.routes.iter().any(|route| route.overlaps(block))
    }

    /// Returns a block of private addresses that is neither in use on this host nor among `taken`. Docker's default
    /// blocks come first: networks around a host tend to keep them free.
    pub(super) fn free_block(&self, prefix: u8, taken: &[Subnet]) -> Option<Subnet> {
        let private = [([172, 16, 0, 0], 12), ([10, 0, 0, 0], 8), ([192, 168, 0, 0], 16)];
        private
            .into_iter()
            .filter_map(|(first, prefix)| Subnet::new(first.into(), prefix).ok())
            .flat_map(|range| range.parts(prefix))
            .find(|block| self.is_free(*block) && !taken.iter().any(|taken| taken.overlaps(*block)))
    }
}

/// Returns whether this host has an interface of this name. `/sys/class/net` may show another network namespace.
pub(super) fn has_interface(name: &str) -> bool {
    let interfaces = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    interfaces.lines().any(|line| line.split_once(':').is_some_and(|(interface, _)| interface.trim() == name))
}

fn resolvers(file: &str) -> impl Iterator<Item = Subnet> {
    let named = file.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok());
    named.filter_map(|address: Ipv4Addr| Subnet::new(address, 32).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
        /1 universe UNICAST
     +-- 10.144.0.0/16 2 0 2
        |-- 10.144.0.0
           /16 universe UNICAST
        |-- 10.144.255.1
           /32 host LOCAL
     |-- 172.16.0.0
        /15 link UNICAST
     |-- 172.18.7.255
        /32 link BROADCAST
Id 200:
  |-- 172.19.3.0
     /24 universe UNICAST
";

    fn subnet(text: &str) -> Subnet {
        text.parse().expect("a block")
    }

    #[test]
    fn routes_of_every_table_are_in_use_and_a_default_route_is_not() {
        let host = HostNetwork::from_routes(TRIE);
        for (block, is_free) in [
            ("10.144.0.0/16", false),
            ("10.144.7.0/24", false),
            ("10.0.0.0/8", false),
            ("10.145.0.0/16", true),
            ("172.17.0.0/16", false),
            ("172.18.0.0/16", false),
            ("172.19.0.0/16", false),
            ("172.20.0.0/16", true),
        ] {
            assert_eq!(host.is_free(subnet(block)), is_free, "{block}");
        }
        assert!(host.has(Ipv4Addr::new(10, 144, 255, 1)));
        assert!(!host.has(Ipv4Addr::new(172, 18, 7, 255)), "a broadcast address is no interface's own");
    }

    #[test]
    fn the_first_block_that_neither_side_uses_is_taken() {
        let host = HostNetwork::from_routes(TRIE);
        assert_eq!(host.free_block(16, &[]), Some(subnet("172.20.0.0/16")));
        assert_eq!(host.free_block(16, &[subnet("172.20.1.0/24")]), Some(subnet("172.21.0.0/16")));
        assert_eq!(host.free_block(16, &[subnet("172.16.0.0/12")]), Some(subnet("10.0.0.0/16")));
        let all = [subnet("172.16.0.0/12"), subnet("10.0.0.0/8"), subnet("192.168.0.0/16")];
        assert_eq!(host.free_block(16, &all), None);
    }

    #[test]
    fn a_resolver_stays_within_reach() {
        let found: Vec<_> =
            resolvers("# nameserver 10.9.9.9\nsearch x\nnameserver 10.0.0.2\nnameserver fd00::1\n").collect();
        assert_eq!(found, [subnet("10.0.0.2/32")]);
    }
}
