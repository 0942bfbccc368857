//! What to think of what was found, and what to do about it. Each function is one check; none of them looks at anything.

#[cfg(test)]
mod tests;

use sandboxd_actors::ports::images::Disk;
use sandboxd_actors::ports::slot::LateBinding;

use super::check::{Check, Checks};
use super::findings::{
    Callers, Descriptors, Directory, Findings, Found, Instance, Network, Place, ProfileImage, Slots, User, VolumeRoot,
};
use crate::engine::condition::{Condition, Enforced};
use crate::images::base::how_to_get;
use crate::server::entry::Entry;

/// The journal needs room to write even while something else fills the disk.
const LEAST_ROOM: u64 = 64 << 20;

/// What sandboxes may use up within minutes.
const LITTLE_ROOM: u64 = 1 << 30;

/// For the journal, the engine, logs, metrics, and repositories that are just being looked at.
const OWN_DESCRIPTORS: u64 = 64;

/// In each sandbox: its socket, and the connection to its init.
const DESCRIPTORS_PER_SANDBOX: u64 = 2;

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

/// Whatever only the engine could tell, and did not.
fn unknown(name: &str, why: &str) -> Check {
    Check::warning(name, format!("not known: {why}"), "ask again once the engine answers")
}

fn engine(findings: &Findings) -> Check {
    match &findings.engine {
        Ok(engine) => {
            let (kind, version, api, host) = (&engine.kind, &engine.version, &engine.api_version, &engine.host);
            Check::ok("engine", format!("{kind} {version}, API {api}, answers at {host}"))
        }
        Err(why) => Check::problem(
            "engine",
            why,
            "start the engine, and see that the service may open its socket; engine.host names another one, and \
             engine.private lets the service start its own",
        ),
    }
}

fn instance(instance: &Instance) -> Check {
    let Instance { name, is_settled } = instance;
    if *is_settled {
        return Check::ok("instance", format!("no other service is instance {name} of this engine"));
    }
    Check::warning(
        "instance",
        format!("instance {name} is not locked, for the engine has not answered since the service started"),
        "nothing, if the engine is about to answer: the service goes on by itself",
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
        Check::problem("network", message, "restart the service, which makes what it needs")
    } else if !several.is_empty() {
        let message = format!("there are several networks named {}", several.join(", "));
        Check::problem("network", message, "remove all but one; the engine takes the name for ambiguous")
    } else if !open.is_empty() {
        let message = format!("{} lets its sandboxes reach each other", open.join(", "));
        let advice = "remove the network while no sandbox is on it and restart the service, which makes it anew; or set \
                      engine.network_isolated = false if that is wanted";
        Check::warning("network", message, advice)
    } else {
        Check::ok("network", named(&|_| true).join(", "))
    }
}

/// Below this share of its capacity, in percent, a network is about to be full.
const FEW_ADDRESSES: u64 = 10;

/// How many more sandboxes the fullest network can take.
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
    let told: Vec<_> = all
        .iter()
        .map(|(name, (left, capacity, subnet))| {
            format!("{name} ({subnet}) has room for {left} of {capacity} sandboxes")
        })
        .collect();
    if told.is_empty() {
        return Check::ok("addresses", "no network says which addresses it has");
    }
    let message = told.join(", ");
    let advice = "a network keeps its addresses: name another one in engine.network, with its size in \
                  engine.network_subnet, or remove this one while no sandbox is on it and restart the service; a \
                  bridge has at most 1023 ports, whatever its size";
    if all.iter().any(|(_, (left, ..))| *left == 0) {
        Check::problem("addresses", message, advice)
    } else if all.iter().any(|(_, (left, capacity, _))| left * 100 < capacity * FEW_ADDRESSES) {
        Check::warning("addresses", message, advice)
    } else {
        Check::ok("addresses", message)
    }
}

fn images(images: &Found<Vec<ProfileImage>>) -> Check {
    let images = match images {
        Ok(images) => images,
        Err(why) => return unknown("images", why),
    };
    let missing: Vec<_> = images.iter().filter(|image| !image.is_there).collect();
    let Some(first) = missing.first() else {
        return Check::ok("images", format!("those of all {} profiles are on the engine", images.len()));
    };
    let list: Vec<_> = missing.iter().map(|image| format!("{} (profile {})", image.image, image.profile)).collect();
    let advice = how_to_get(&first.image);
    Check::problem("images", format!("not on the engine: {}", list.join(", ")), advice)
}

fn image_disk(disk: &Found<Disk>, watermark: f64) -> Check {
    let disk = match disk {
        Ok(disk) => disk,
        Err(why) => return unknown("image_disk", why),
    };
    let (used, free) = (disk.used_percent(), bytes(disk.free_bytes));
    let message = format!("the engine's disk is {used:.0} % full, {free} are free");
    if used < watermark {
        return Check::ok("image_disk", message);
    }
    let advice = format!(
        "sandboxctl image prune --dry-run says what could go; above {watermark:.0} % (images.gc.high_watermark) the \
         service removes by itself what it has built and nobody needs"
    );
    Check::warning("image_disk", message, advice)
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
        return Check::ok("limits", "the engine holds sandboxes to memory, cpus and pids");
    }
    let message =
        format!("the engine cannot hold sandboxes to {}: one can take it from all others", missing.join(", "));
    let advice = "give the engine these cgroup controllers; a rootless one needs them delegated, and some kernels need \
                  cgroup_enable=memory at boot";
    Check::problem("limits", message, advice)
}

fn live_restore(condition: &Found<Condition>) -> Check {
    match condition {
        Err(why) => unknown("live_restore", why),
        Ok(condition) if condition.live_restore => {
            Check::ok("live_restore", "sandboxes outlive a restart of the engine")
        }
        Ok(_) => Check::warning(
            "live_restore",
            "a restart or an upgrade of the engine ends every sandbox",
            "set \"live-restore\": true in the engine's daemon.json and reload the engine, which ends nothing",
        ),
    }
}

fn warm_slots(slots: &Slots) -> Check {
    let is_wanted = slots.pools.iter().any(|pool| pool.is_wanted);
    match &slots.late_binding {
        Err(why) if is_wanted => Check::warning(
            "warm_slots",
            format!("every sandbox is started when it is asked for: {why}"),
            "see \"Sandboxes started ahead\" in docs/operations.md for what it takes, or set the pools' size to 0",
        ),
        Err(why) => Check::ok("warm_slots", format!("not possible ({why}), and no profile asks for any")),
        Ok(way) => {
            let way = described(way);
            let troubles = slots.pools.iter().filter(|pool| pool.is_wanted);
            let troubles: Vec<_> = troubles
                .filter_map(|pool| Some(format!("profile {}: {}", pool.profile, pool.trouble.as_ref()?)))
                .collect();
            match (troubles.is_empty(), is_wanted) {
                (false, _) => Check::warning(
                    "warm_slots",
                    troubles.join("; "),
                    "sandboxctl pools shows when it is tried again; sandboxes are started when they are asked for until then",
                ),
                (true, true) => Check::ok("warm_slots", format!("a chat's directories are {way}")),
                (true, false) => Check::ok(
                    "warm_slots",
                    format!("possible (a chat's directories are {way}), and no profile asks for any"),
                ),
            }
        }
    }
}

fn described(way: &LateBinding) -> String {
    match way {
        LateBinding::Injected => "mounted into the container's namespace".to_owned(),
        LateBinding::Propagated { because } => format!("mounted where the container sees them ({because})"),
    }
}

fn journal(journal: &Found<()>) -> Check {
    match journal {
        Ok(()) => Check::ok("journal", "is written and read"),
        Err(why) => Check::problem(
            "journal",
            why,
            "see to the disk of state.dir; the service goes on by itself once the journal can be written",
        ),
    }
}

fn directory(name: &str, directory: &Directory) -> Check {
    let (key, path) = (directory.key, directory.path.display());
    let place = match &directory.place {
        Ok(place) => place,
        Err(why) => {
            let advice = format!("make it, writable for the service, or name another one in {key}");
            return Check::problem(name, format!("{path}: {why}"), advice);
        }
    };
    let Place { writable, executable, total_bytes, free_bytes } = *place;
    let room = format!("{path} has {} of {} free", bytes(free_bytes), bytes(total_bytes));
    if !writable {
        let advice =
            "see its owner and mode, whether it is mounted read-only, and ReadWritePaths= in the service's unit";
        Check::problem(name, format!("the service cannot write to {path}"), advice)
    } else if !executable {
        let advice = format!("mount its file system without noexec, or name another directory in {key}");
        Check::problem(name, format!("{path} is on a file system from which nothing can be started (noexec)"), advice)
    } else if free_bytes < LEAST_ROOM {
        Check::problem(name, room, "make room now: what is promised can soon not be written down")
    } else if free_bytes < LITTLE_ROOM {
        Check::warning(name, room, "make room; sandboxctl snapshots and sandboxctl images show what takes it up")
    } else {
        Check::ok(name, room)
    }
}

fn volumes(roots: &[VolumeRoot]) -> Check {
    if roots.is_empty() {
        let message = "volumes.roots is empty: no volume is accepted, and sandboxes have only their chat's directory";
        return Check::ok("volumes", message);
    }
    match roots.iter().find(|root| !root.is_there) {
        Some(gone) => {
            let advice = "mount or make it, or take it out of volumes.roots";
            Check::problem("volumes", format!("{} is no directory any more", gone.path.display()), advice)
        }
        None => {
            let roots: Vec<_> = roots.iter().map(|root| root.path.display().to_string()).collect();
            Check::ok("volumes", format!("below {}", roots.join(", ")))
        }
    }
}

fn open_files(descriptors: Descriptors) -> Check {
    let Descriptors { limit, connections, sandboxes } = descriptors;
    let needed = OWN_DESCRIPTORS + connections + DESCRIPTORS_PER_SANDBOX * sandboxes;
    let needs = format!("{connections} connections (socket.max_connections) and {sandboxes} sandboxes take {needed}");
    match limit {
        None => Check::ok("open_files", format!("no limit; {needs}")),
        Some(limit) if limit >= needed => Check::ok("open_files", format!("at most {limit}; {needs}")),
        Some(limit) => {
            let advice = "raise it (LimitNOFILE= in the service's unit), or lower socket.max_connections";
            Check::warning("open_files", format!("at most {limit}, but {needs}"), advice)
        }
    }
}

/// As many ports are named.
const NAMED_PORTS: usize = 12;

/// A bridge's address is the host's, and the host's own firewall alone can close it to those on the bridge.
fn host_services(findings: &Findings) -> Check {
    let ports = &findings.open_ports;
    if !findings.is_networked {
        return Check::ok("host_services", "no profile gives its sandboxes a network");
    }
    if ports.is_empty() {
        return Check::ok("host_services", "this host listens on loopback alone");
    }
    let mut named: Vec<_> = ports.iter().take(NAMED_PORTS).map(u16::to_string).collect();
    if ports.len() > NAMED_PORTS {
        named.push(format!("{} more", ports.len() - NAMED_PORTS));
    }
    let bridges = findings.networks.iter().flatten().flat_map(|network| &network.there);
    let bridges: Vec<_> = bridges.filter_map(|there| there.bridge.as_deref()).collect();
    Check::warning(
        "host_services",
        format!("sandboxes reach what listens on this host unless its firewall forbids it: ports {}", named.join(", ")),
        format!(
            "see \"The host's own services\" in docs/security.md for the rule that keeps sandboxes out, by their interface ({}); \
             this check does not see firewall rules",
            bridges.join(", ")
        ),
    )
}

/// Whether the socket lets those in who may call. What a caller may do is another question.
fn callers(callers: &Callers) -> Check {
    let Callers { socket, named, entry, kept_out, barred } = callers;
    let socket = socket.display();
    if let Some(first) = kept_out.first() {
        let told: Vec<_> = kept_out.iter().map(ToString::to_string).collect();
        return Check::warning("callers", told.join("; "), first.advice());
    }
    match (barred, entry) {
        (Some(directory), _) if *named > 0 => {
            let directory = directory.display();
            let message = format!("not every user may enter {directory}, and so not open {socket}");
            Check::warning("callers", message, format!("chmod o+x {directory}"))
        }
        (_, Some(Entry { gid, mode, .. })) => Check::ok(
            "callers",
            format!("{socket} belongs to group {gid} and has mode {mode:04o}; {named} users and groups are named"),
        ),
        (_, None) => Check::ok("callers", format!("{named} users and groups are named")),
    }
}

fn user(user: User) -> Check {
    let User { uid, gid } = user;
    Check::ok("user", format!("the service runs as user {uid}, group {gid}"))
}

/// As people say it.
fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "bytes"));
    if unit == 1 { format!("{bytes} {name}") } else { format!("{:.1} {name}", bytes as f64 / unit as f64) }
}
