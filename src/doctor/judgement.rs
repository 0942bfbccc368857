//! Turns findings into checks with advice. Each function is one check and pure.

#[cfg(test)]
mod tests;

use sandboxd_actors::ports::images::Disk;
use sandboxd_actors::ports::slot::LateBinding;

use super::check::{self, Check, Checks};
use super::findings::{
    Callers, Descriptors, Directory, Findings, Found, Instance, Network, Place, ProfileImage, Slots, User, VolumeRoot,
};
use crate::engine::condition::{Condition, Enforced};
use crate::images::base::how_to_get;
use crate::server::entry::SocketAccess;

/// The journal needs space to write even while other programs fill the disk.
const MIN_SPACE: u64 = 64 << 20;

/// The space that sandboxes can use up within minutes.
const LOW_SPACE: u64 = 1 << 30;

/// Descriptors for the journal, the engine, logs, metrics, and repositories that are being checked.
const OWN_DESCRIPTORS: u64 = 64;

/// Descriptors per sandbox: its socket, and the guest link.
const DESCRIPTORS_PER_SANDBOX: u64 = 2;

/// Returns all checks, always in the same order.
pub fn judge(findings: &Findings) -> Checks {
    let checks = vec![
        engine(findings),
        instance(&findings.instance),
        network(&findings.networks),
        addresses(&findings.networks),
        images(&findings.images),
        image_disk(&findings.image_disk, findings.watermark),
        limits(&findings.condition),
        live_restore(&findings.condition),
        warm_slots(&findings.slots),
        journal(&findings.journal),
        directory("state_dir", &findings.state),
        directory("chats_root", &findings.chats),
        volumes(&findings.volumes),
        open_files(findings.descriptors),
        host_services(findings),
        callers(&findings.callers),
        user(findings.user),
    ];
    Checks { checks }
}

/// Returns the check for a fact that the engine did not report.
fn unknown(name: &str, why: &str) -> Check {
    check::warning(name, format!("unknown: {why}"), "run the doctor again once the engine answers")
}

fn engine(findings: &Findings) -> Check {
    match &findings.engine {
        Ok(engine) => {
            let (kind, version, api, host) = (&engine.kind, &engine.version, &engine.api_version, &engine.host);
            check::ok("engine", format!("{kind} {version}, API {api}, answers at {host}"))
        }
        Err(why) => check::problem(
            "engine",
            why,
            "start the engine, and check that the service may open its socket; set engine.host to use another engine, or \
             engine.private to let the service start its own",
        ),
    }
}

fn instance(instance: &Instance) -> Check {
    let Instance { name, is_reconciled } = instance;
    if *is_reconciled {
        return check::ok("instance", format!("no other service is instance {name} of this engine"));
    }
    check::warning(
        "instance",
        format!("instance {name} is not locked, because the engine has not answered since the service started"),
        "start the engine; the service then continues by itself",
    )
}

fn network(networks: &Found<Vec<Network>>) -> Check {
    let networks = match networks {
        Ok(networks) => networks,
        Err(why) => return unknown("network", why),
    };
    let named = |wrong: &dyn Fn(&Network) -> bool| -> Vec<&str> {
        networks.iter().filter(|network| wrong(network)).map(|network| network.name.as_str()).collect()
    };
    let missing = named(&|network| network.there.is_empty());
    let several = named(&|network| network.there.len() > 1);
    let open = named(&|network| network.isolated && network.there.iter().any(|there| !there.isolated));
    if !missing.is_empty() {
        let message = format!("{} is gone, and sandboxes on it cannot start", missing.join(", "));
        check::problem("network", message, "restart the service, which creates its networks")
    } else if !several.is_empty() {
        let message = format!("there are several networks named {}", several.join(", "));
        check::problem("network", message, "remove all but one; the engine rejects an ambiguous name")
    } else if !open.is_empty() {
        let message = format!("{} lets its sandboxes reach each other", open.join(", "));
        let advice = "remove the network while no sandbox is on it and restart the service, which creates it again; or set \
                      engine.network_isolated = false if this is intended";
        check::warning("network", message, advice)
    } else {
        check::ok("network", named(&|_| true).join(", "))
    }
}

/// The share of free addresses, in percent, below which a network is nearly full.
const FEW_ADDRESSES: u64 = 10;

/// Checks how many more sandboxes each network can take.
fn addresses(networks: &Found<Vec<Network>>) -> Check {
    let networks = match networks {
        Ok(networks) => networks,
        Err(why) => return unknown("addresses", why),
    };
    let room = |network: &Network| {
        let there = network.there.first()?;
        let capacity = there.capacity()?;
        Some((capacity.saturating_sub(there.containers as u64), capacity, there.subnet?))
    };
    let all: Vec<_> = networks.iter().filter_map(|network| Some((network.name.as_str(), room(network)?))).collect();
    let messages: Vec<_> = all
        .iter()
        .map(|(name, (left, capacity, subnet))| {
            format!("{name} ({subnet}) has room for {left} of {capacity} sandboxes")
        })
        .collect();
    if messages.is_empty() {
        return check::ok("addresses", "no network reports its addresses");
    }
    let message = messages.join(", ");
    let advice = "a network cannot be resized: set engine.network to a new name and engine.network_subnet to its size, or \
                  remove the network while no sandbox is on it and restart the service; a bridge has at most 1023 \
                  ports, even with a larger subnet";
    if all.iter().any(|(_, (left, ..))| *left == 0) {
        check::problem("addresses", message, advice)
    } else if all.iter().any(|(_, (left, capacity, _))| left * 100 < capacity * FEW_ADDRESSES) {
        check::warning("addresses", message, advice)
    } else {
        check::ok("addresses", message)
    }
}

fn images(images: &Found<Vec<ProfileImage>>) -> Check {
    let images = match images {
        Ok(images) => images,
        Err(why) => return unknown("images", why),
    };
    let missing: Vec<_> = images.iter().filter(|image| !image.is_there).collect();
    let Some(first) = missing.first() else {
        return check::ok("images", format!("the images of all {} profiles are on the engine", images.len()));
    };
    let list: Vec<_> = missing.iter().map(|image| format!("{} (profile {})", image.image, image.profile)).collect();
    let advice = how_to_get(&first.image);
    check::problem("images", format!("not on the engine: {}", list.join(", ")), advice)
}

fn image_disk(disk: &Found<Disk>, watermark: f64) -> Check {
    let disk = match disk {
        Ok(disk) => disk,
        Err(why) => return unknown("image_disk", why),
    };
    let (used, free) = (disk.used_percent(), bytes(disk.free_bytes));
    let message = format!("the engine's disk is {used:.0} % full, {free} are free");
    if used < watermark {
        return check::ok("image_disk", message);
    }
    let advice = format!(
        "sandboxctl image prune --dry-run lists removable images; above {watermark:.0} % (images.gc.high_watermark) the \
         service removes images that it has built and that are not needed"
    );
    check::warning("image_disk", message, advice)
}

fn limits(condition: &Found<Condition>) -> Check {
    let Enforced { memory, cpus, pids } = match condition {
        Ok(condition) => condition.limits,
        Err(why) => return unknown("limits", why),
    };
    let missing: Vec<_> = [("memory", memory), ("cpus", cpus), ("pids", pids)]
        .into_iter()
        .filter_map(|(name, enforced)| (!enforced).then_some(name))
        .collect();
    if missing.is_empty() {
        return check::ok("limits", "the engine enforces the limits of memory, cpus and pids");
    }
    let message =
        format!("the engine cannot enforce the limits of {}: one sandbox can use up the host", missing.join(", "));
    let advice = "enable these cgroup controllers for the engine; a rootless engine needs them delegated, and some \
                  kernels need cgroup_enable=memory at boot";
    check::problem("limits", message, advice)
}

fn live_restore(condition: &Found<Condition>) -> Check {
    match condition {
        Err(why) => unknown("live_restore", why),
        Ok(condition) if condition.live_restore => {
            check::ok("live_restore", "sandboxes survive a restart of the engine")
        }
        Ok(_) => check::warning(
            "live_restore",
            "a restart or an upgrade of the engine ends every sandbox",
            "set \"live-restore\": true in the engine's daemon.json and reload the engine, which ends no sandbox",
        ),
    }
}

fn warm_slots(slots: &Slots) -> Check {
    let is_wanted = slots.pools.iter().any(|pool| pool.is_wanted);
    match &slots.late_binding {
        Err(why) if is_wanted => check::warning(
            "warm_slots",
            format!("no sandbox can be started ahead: {why}"),
            "see \"Sandboxes started ahead\" in docs/operations.md for the requirements, or set the pools' size to 0",
        ),
        Err(why) => check::ok("warm_slots", format!("not possible ({why}), and no profile has a pool")),
        Ok(way) => {
            let way = binding_method(way);
            let problems = slots.pools.iter().filter(|pool| pool.is_wanted);
            let problems: Vec<_> = problems
                .filter_map(|pool| Some(format!("profile {}: {}", pool.profile, pool.problem.as_ref()?)))
                .collect();
            match (problems.is_empty(), is_wanted) {
                (false, _) => check::warning(
                    "warm_slots",
                    problems.join("; "),
                    "sandboxctl pools shows the state; until a retry succeeds, sandboxes are started on request",
                ),
                (true, true) => check::ok("warm_slots", format!("a chat's directories are {way}")),
                (true, false) => check::ok(
                    "warm_slots",
                    format!("possible (a chat's directories are {way}), but no profile has a pool"),
                ),
            }
        }
    }
}

fn binding_method(way: &LateBinding) -> String {
    match way {
        LateBinding::Injected => "mounted into the container's namespace".to_owned(),
        LateBinding::Propagated { because } => format!("mounted by propagation ({because})"),
    }
}

fn journal(journal: &Found<()>) -> Check {
    match journal {
        Ok(()) => check::ok("journal", "readable and writable"),
        Err(why) => check::problem(
            "journal",
            why,
            "check the disk of state.dir; the service continues by itself once the journal can be written",
        ),
    }
}

fn directory(name: &str, directory: &Directory) -> Check {
    let (key, path) = (directory.key, directory.path.display());
    let place = match &directory.place {
        Ok(place) => place,
        Err(why) => {
            let advice = format!("create it, writable for the service, or name another directory in {key}");
            return check::problem(name, format!("{path}: {why}"), advice);
        }
    };
    let Place { writable, executable, total_bytes, free_bytes } = *place;
    let room = format!("{path} has {} of {} free", bytes(free_bytes), bytes(total_bytes));
    if !writable {
        let advice =
            "check its owner and mode, whether it is mounted read-only, and ReadWritePaths= in the service's unit";
        check::problem(name, format!("the service cannot write to {path}"), advice)
    } else if !executable {
        let advice = format!("mount its file system without noexec, or name another directory in {key}");
        check::problem(name, format!("{path} is on a file system that does not allow programs to run (noexec)"), advice)
    } else if free_bytes < MIN_SPACE {
        check::problem(name, room, "free space now, before the journal can no longer be written")
    } else if free_bytes < LOW_SPACE {
        check::warning(name, room, "free space; sandboxctl snapshots and sandboxctl images show the largest users")
    } else {
        check::ok(name, room)
    }
}

fn volumes(roots: &[VolumeRoot]) -> Check {
    if roots.is_empty() {
        let message = "volumes.roots is empty: no volume is accepted, and sandboxes have only the chat's directory";
        return check::ok("volumes", message);
    }
    match roots.iter().find(|root| !root.is_there) {
        Some(gone) => {
            let advice = "mount or create it, or remove it from volumes.roots";
            check::problem("volumes", format!("{} is not a directory", gone.path.display()), advice)
        }
        None => {
            let roots: Vec<_> = roots.iter().map(|root| root.path.display().to_string()).collect();
            check::ok("volumes", format!("below {}", roots.join(", ")))
        }
    }
}

fn open_files(descriptors: Descriptors) -> Check {
    let Descriptors { limit, connections, sandboxes } = descriptors;
    let needed = OWN_DESCRIPTORS + connections + DESCRIPTORS_PER_SANDBOX * sandboxes;
    let needs = format!("{connections} connections (socket.max_connections) and {sandboxes} sandboxes take {needed}");
    match limit {
        None => check::ok("open_files", format!("no limit; {needs}")),
        Some(limit) if limit >= needed => check::ok("open_files", format!("at most {limit}; {needs}")),
        Some(limit) => {
            let advice = "raise it (LimitNOFILE= in the service's unit), or lower socket.max_connections";
            check::warning("open_files", format!("at most {limit}, but {needs}"), advice)
        }
    }
}

/// The number of ports in the message.
const NAMED_PORTS: usize = 12;

/// Sandboxes reach the host at the bridge's address, and only the host's own firewall can block that.
fn host_services(findings: &Findings) -> Check {
    let ports = &findings.open_ports;
    if !findings.is_networked {
        return check::ok("host_services", "no profile gives its sandboxes a network");
    }
    if ports.is_empty() {
        return check::ok("host_services", "this host listens only on loopback");
    }
    let mut named: Vec<_> = ports.iter().take(NAMED_PORTS).map(u16::to_string).collect();
    if ports.len() > NAMED_PORTS {
        named.push(format!("{} more", ports.len() - NAMED_PORTS));
    }
    let bridges = findings.networks.iter().flatten().flat_map(|network| &network.there);
    let bridges: Vec<_> = bridges.filter_map(|there| there.bridge.as_deref()).collect();
    check::warning(
        "host_services",
        format!("sandboxes can connect to ports of this host unless its firewall forbids it: {}", named.join(", ")),
        format!(
            "see \"The host's own services\" in docs/security.md for the firewall rule that blocks sandboxes, by \
             their interface ({}); this check does not see firewall rules",
            bridges.join(", ")
        ),
    )
}

/// Checks that the allowed callers can open the socket. Their permissions are not checked.
fn callers(callers: &Callers) -> Check {
    let Callers { socket, named, access, excluded, closed_directory } = callers;
    let socket = socket.display();
    if let Some(first) = excluded.first() {
        let messages: Vec<_> = excluded.iter().map(ToString::to_string).collect();
        return check::warning("callers", messages.join("; "), first.advice());
    }
    match (closed_directory, access) {
        (Some(directory), _) if *named > 0 => {
            let directory = directory.display();
            let message = format!("not every user may enter {directory}, so some cannot open {socket}");
            check::warning("callers", message, format!("chmod o+x {directory}"))
        }
        (_, Some(SocketAccess { gid, mode, .. })) => check::ok(
            "callers",
            format!("{socket} belongs to group {gid} and has mode {mode:04o}; {named} users and groups are configured"),
        ),
        (_, None) => check::ok("callers", format!("{named} users and groups are configured")),
    }
}

fn user(user: User) -> Check {
    let User { uid, gid } = user;
    check::ok("user", format!("the service runs as user {uid}, group {gid}"))
}

/// Formats a number of bytes with its unit.
fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "bytes"));
    if unit == 1 { format!("{bytes} {name}") } else { format!("{:.1} {name}", bytes as f64 / unit as f64) }
}
