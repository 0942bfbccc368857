//! Blocks of IPv4 addresses, and the address ranges of networks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A block of addresses, such as `10.1.0.0/16`. Its address has no bits beyond the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subnet {
    first: u32,
    prefix: u8,
}

/// The addresses of a new network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressRange {
    /// The engine chooses a block from its own pools, which also set its size.
    EngineChoice,
    /// The service chooses a block of this prefix length that neither the host nor the engine uses.
    Free {
        prefix: u8,
    },
    Exactly(Subnet),
}

/// The prefix lengths that a network of sandboxes may have.
pub const PREFIXES: std::ops::RangeInclusive<u8> = 12..=28;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a block of IPv4 addresses such as 10.1.0.0/16")]
pub struct InvalidSubnet;

impl Subnet {
    pub fn new(first: Ipv4Addr, prefix: u8) -> Result<Self, InvalidSubnet> {
        let subnet = Subnet { first: first.to_bits(), prefix };
        (prefix <= 32 && subnet.first & !subnet.mask() == 0).then_some(subnet).ok_or(InvalidSubnet)
    }

    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Returns the number of addresses, including those of the network and of the broadcast.
    pub fn size(self) -> u64 {
        1 << (32 - self.prefix)
    }

    /// Returns the first address after the network's own, which is the gateway's by convention.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first.saturating_add(1))
    }

    pub fn overlaps(self, other: Self) -> bool {
        (self.first ^ other.first) & self.mask() & other.mask() == 0
    }

    /// Returns the blocks of `prefix` within this one, in order; none if they would be larger.
    pub fn parts(self, prefix: u8) -> impl Iterator<Item = Subnet> {
        let count = if (self.prefix..=32).contains(&prefix) { 1_u64 << (prefix - self.prefix) } else { 0 };
        (0..count).map(move |part| Subnet { first: self.first + ((part << (32 - prefix)) as u32), prefix })
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.first), self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = InvalidSubnet;

    fn from_str(text: &str) -> Result<Self, InvalidSubnet> {
        let (first, prefix) = text.split_once('/').ok_or(InvalidSubnet)?;
        let parsed = first.parse().ok().zip(prefix.parse().ok());
        parsed.map_or(Err(InvalidSubnet), |(first, prefix)| Subnet::new(first, prefix))
    }
}

/// Writes `engine`, `/16`, or `10.1.0.0/16`.
impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressRange::EngineChoice => f.write_str("engine"),
            AddressRange::Free { prefix } => write!(f, "/{prefix}"),
            AddressRange::Exactly(subnet) => subnet.fmt(f),
        }
    }
}

impl FromStr for AddressRange {
    type Err = InvalidSubnet;

    fn from_str(text: &str) -> Result<Self, InvalidSubnet> {
        let range = match text.strip_prefix('/') {
            _ if text == "engine" => return Ok(AddressRange::EngineChoice),
            Some(prefix) => AddressRange::Free { prefix: prefix.parse().map_err(|_| InvalidSubnet)? },
            None => AddressRange::Exactly(text.parse()?),
        };
        range.prefix().is_some_and(|prefix| PREFIXES.contains(&prefix)).then_some(range).ok_or(InvalidSubnet)
    }
}

impl AddressRange {
    /// Returns the prefix length, unless the engine chooses it.
    pub fn prefix(self) -> Option<u8> {
        match self {
            AddressRange::EngineChoice => None,
            AddressRange::Free { prefix } => Some(prefix),
            AddressRange::Exactly(subnet) => Some(subnet.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn blocks_overlap_if_one_contains_the_other() {
        for (one, other, overlap) in [
            ("10.1.0.0/16", "10.1.2.0/24", true),
            ("10.1.0.0/16", "10.2.0.0/16", false),
            ("10.0.0.0/8", "10.255.0.0/16", true),
            ("10.1.2.3/32", "10.1.2.3/32", true),
            ("0.0.0.0/0", "192.168.0.0/16", true),
        ] {
            let (one, other) = (subnet(one), subnet(other));
            assert_eq!((one.overlaps(other), other.overlaps(one)), (overlap, overlap), "{one} {other}");
        }
    }

    #[test]
    fn a_block_has_parts_of_any_longer_prefix() {
        let parts: Vec<_> = subnet("10.1.0.0/16").parts(18).map(|part| part.to_string()).collect();
        assert_eq!(parts, ["10.1.0.0/18", "10.1.64.0/18", "10.1.128.0/18", "10.1.192.0/18"]);
        assert_eq!(subnet("10.1.0.0/16").parts(16).collect::<Vec<_>>(), [subnet("10.1.0.0/16")]);
        assert_eq!(subnet("10.1.0.0/16").parts(15).count(), 0);
        assert_eq!(subnet("255.255.255.0/24").parts(32).last(), Some(subnet("255.255.255.255/32")));
    }

    #[test]
    fn a_range_is_written_as_it_is_read() {
        for text in ["engine", "/16", "/28", "10.1.0.0/16", "192.168.4.0/22"] {
            assert_eq!(text.parse::<AddressRange>().map(|range| range.to_string()), Ok(text.to_owned()));
        }
        for wrong in
            ["", "/", "16", "/11", "/29", "/016x", "10.1.0.1/16", "10.1.0.0", "10.0.0.0/8", "fd00::/64", "auto"]
        {
            assert_eq!(wrong.parse::<AddressRange>(), Err(InvalidSubnet), "{wrong:?}");
        }
    }
}
