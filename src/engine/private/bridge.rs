//! The private engine's bridge and addresses: a block 10.N.0.0/16 that nothing else on this host uses.
//!
//! 10.N.0.0/24 is the bridge's own; the engine takes the networks it is asked for from 10.N.128.0/17.

use std::fs;
use std::path::Path;

use tokio::process::Command;

use super::PrivateEngineError;

pub(super) struct Bridge {
    pub(super) name: String,
    /// Where the engine's networks come from.
    pub(super) pool: String,
}

/// Makes the bridge, or finds it. `memory` keeps the block from one run to the next, for the engine's networks do too.
pub(super) async fn up(id: &str, memory: &Path) -> Result<Bridge, PrivateEngineError> {
    let name = name(id);
    let block = match fs::read_to_string(memory).ok().and_then(|text| text.trim().parse::<u8>().ok()) {
        Some(block) => block,
        None => {
            let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
            let block =
                free_block(&routes, id.bytes().fold(0, u8::wrapping_add)).ok_or(PrivateEngineError::NoAddresses)?;
            let failed = |error| PrivateEngineError::Place { path: memory.to_owned(), error };
            fs::write(memory, format!("{block}\n")).map_err(failed)?;
            block
        }
    };
    if ip(&["link", "show", "dev", &name]).await.is_err() {
        ip(&["link", "add", "name", &name, "type", "bridge"]).await?;
    }
    ip(&["addr", "replace", &format!("10.{block}.0.1/24"), "dev", &name]).await?;
    ip(&["link", "set", &name, "up"]).await?;
    Ok(Bridge { name, pool: format!("10.{block}.128.0/17") })
}

pub(super) async fn down(id: &str) {
    if let Err(error) = ip(&["link", "delete", &name(id)]).await {
        tracing::warn!(%error, "the private engine's bridge stays");
    }
}

/// An interface's name has at most 15 bytes.
fn name(id: &str) -> String {
    format!("sbxd-{id}")
}

async fn ip(arguments: &[&str]) -> Result<(), PrivateEngineError> {
    let output = Command::new(super::find("ip", "iproute2")?).args(arguments).output().await;
    let message = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(PrivateEngineError::Bridge { command: format!("ip {}", arguments.join(" ")), message })
}

/// N of a block that no route touches, from `first` on. `routes` is the kernel's table: addresses are hexadecimal, in the
/// host's byte order.
fn free_block(routes: &str, first: u8) -> Option<u8> {
    let address = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let taken: Vec<(u32, u32)> = routes
        .lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            Some((address(columns.get(1)?)?, address(columns.get(7)?)?))
        })
        // The default route is for whatever nothing else is for.
        .filter(|(_, mask)| *mask != 0)
        .collect();
    let is_free = |block: &u8| {
        let start = u32::from_be_bytes([10, *block, 0, 0]);
        taken.iter().all(|(destination, mask)| (destination ^ start) & mask & 0xffff_0000 != 0)
    };
    (0..=255).map(|step| first.wrapping_add(step)).find(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    fn routes(entries: &[([u8; 4], [u8; 4])]) -> String {
        let hex = |bytes: &[u8; 4]| format!("{:08X}", u32::from_le_bytes(*bytes));
        let line =
            |(to, mask): &([u8; 4], [u8; 4])| format!("eth0\t{}\t0\t1\t0\t0\t0\t{}\t0\t0\t0\n", hex(to), hex(mask));
        HEADER.to_owned() + &entries.iter().map(line).collect::<String>()
    }

    #[test]
    fn a_block_that_any_route_touches_is_not_free() {
        let table = routes(&[
            ([0, 0, 0, 0], [0, 0, 0, 0]),
            ([10, 7, 3, 0], [255, 255, 255, 0]),
            ([10, 8, 0, 0], [255, 254, 0, 0]),
            ([172, 17, 0, 0], [255, 255, 0, 0]),
        ]);
        assert_eq!(free_block(&table, 6), Some(6));
        assert_eq!(free_block(&table, 7), Some(10));
        assert_eq!(free_block(HEADER, 255), Some(255));
    }

    #[test]
    fn a_network_that_owns_all_of_ten_leaves_none() {
        assert_eq!(free_block(&routes(&[([10, 0, 0, 0], [255, 0, 0, 0])]), 0), None);
    }
}
