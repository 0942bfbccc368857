//! Each check with each status.

use sandboxd_actors::ports::engine::EngineIdentity;

use super::super::check::Status;
use super::super::findings::Pool;
use super::*;
use crate::engine::condition::NetworkCondition;
use crate::server::entry::ExcludedCaller;

const ACCESS: SocketAccess = SocketAccess { uid: 0, gid: 900, mode: 0o660 };

const SILENT: &str = "the engine cannot be reached: none answers";

/// Returns a /24 network with this number of containers.
fn bridge(isolated: bool, containers: usize) -> NetworkCondition {
    let subnet = Some("10.1.2.0/24".parse().expect("a block"));
    NetworkCondition { isolated, bridge: Some("n".into()), subnet, containers }
}

/// Returns the findings of a healthy host.
fn healthy() -> Findings {
    let place = Place { writable: true, executable: true, total_bytes: 100 << 30, free_bytes: 50 << 30 };
    Findings {
        engine: Ok(EngineIdentity {
            kind: "docker".into(),
            version: "20.10.24".into(),
            api_version: "1.41".into(),
            host: "unix:///run/docker.sock".into(),
        }),
        condition: Ok(Condition { limits: Enforced { memory: true, cpus: true, pids: true }, live_restore: true }),
        instance: Instance { name: "default".into(), is_reconciled: true },
        networks: Ok(vec![Network { name: "sandboxd".into(), isolated: true, there: vec![bridge(true, 3)] }]),
        images: Ok(vec![ProfileImage { profile: "default".into(), image: "sandbox:1".into(), is_there: true }]),
        image_disk: Ok(Disk { total_bytes: 100 << 30, free_bytes: 50 << 30 }),
        watermark: 85.0,
        slots: Slots {
            late_binding: Ok(LateBinding::Injected),
            pools: vec![Pool { profile: "default".into(), is_wanted: true, problem: None }],
        },
        journal: Ok(()),
        state: Directory { key: "state.dir", path: "/state".into(), place: Ok(place) },
        chats: Directory { key: "chats.root", path: "/chats".into(), place: Ok(place) },
        volumes: vec![VolumeRoot { path: "/volumes".into(), is_there: true }],
        descriptors: Descriptors { limit: Some(65_536), connections: 1024, sandboxes: 100 },
        open_ports: Vec::new(),
        is_networked: true,
        callers: Callers {
            socket: "/run/s".into(),
            named: 1,
            access: Some(ACCESS),
            excluded: vec![],
            closed_directory: None,
        },
        user: User { uid: 0, gid: 0 },
    }
}

/// Applies a change to a healthy host and returns the only check that is not ok.
fn only(change: impl FnOnce(&mut Findings)) -> Check {
    let mut findings = healthy();
    change(&mut findings);
    let mut failing = judge(&findings).checks;
    failing.retain(|check| check.status != Status::Ok);
    assert_eq!(failing.len(), 1, "{failing:?}");
    failing.remove(0)
}

#[track_caller]
fn assert_is(check: &Check, status: Status, name: &str, message: &str, advice: &str) {
    assert_eq!((check.status, check.name.as_str()), (status, name), "{check:?}");
    assert!(check.message.contains(message), "{check:?}");
    assert!(check.advice.as_ref().is_some_and(|text| text.contains(advice)), "{check:?}");
}

#[test]
fn on_a_healthy_host_all_checks_are_ok_without_advice() {
    let checks = judge(&healthy());
    assert!(checks.checks.iter().all(|check| check.status == Status::Ok && check.advice.is_none()), "{checks:?}");
    assert!(checks.checks.iter().all(|check| !check.message.is_empty()), "{checks:?}");
    assert_eq!(checks.checks[0].message, "docker 20.10.24, API 1.41, answers at unix:///run/docker.sock");
}

#[test]
fn without_an_engine_its_facts_are_unknown() {
    let mut findings = healthy();
    let silent = || SILENT.to_owned();
    findings.engine = Err(silent());
    findings.condition = Err(silent());
    findings.networks = Err(silent());
    findings.images = Err(silent());
    findings.image_disk = Err(silent());
    let checks = judge(&findings).checks;
    assert_is(&checks[0], Status::Problem, "engine", SILENT, "engine.host");
    let unknown: Vec<_> = checks.iter().filter(|check| check.status == Status::Warning).collect();
    let names: Vec<_> = unknown.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names, ["network", "addresses", "images", "image_disk", "limits", "live_restore"]);
    assert!(unknown.iter().all(|check| check.message.starts_with("unknown: ")), "{unknown:?}");
}

#[test]
fn an_instance_that_is_not_locked_yet_is_a_warning() {
    let check = only(|findings| findings.instance.is_reconciled = false);
    assert_is(&check, Status::Warning, "instance", "not locked", "by itself");
}

#[test]
fn a_network_is_there_once_and_closed_where_that_is_wanted() {
    let with = |there: Vec<NetworkCondition>| {
        only(|findings| findings.networks = Ok(vec![Network { name: "n".into(), isolated: true, there }]))
    };
    assert_is(&with(vec![]), Status::Problem, "network", "n is gone", "restart the service");
    assert_is(&with(vec![bridge(true, 0); 2]), Status::Problem, "network", "several", "remove all but one");
    assert_is(&with(vec![bridge(false, 0)]), Status::Warning, "network", "reach each other", "network_isolated");
    let open = [Network { name: "n".into(), isolated: false, there: vec![bridge(false, 0)] }];
    assert_eq!(network(&Ok(open.to_vec())).status, Status::Ok);
}

#[test]
fn a_network_that_is_nearly_full_is_a_warning() {
    let with =
        |containers| Ok(vec![Network { name: "n".into(), isolated: true, there: vec![bridge(true, containers)] }]);
    assert_eq!(addresses(&with(227)).status, Status::Ok);
    assert_eq!(addresses(&with(227)).message, "n (10.1.2.0/24) has room for 26 of 253 sandboxes");
    let few = only(|findings| findings.networks = with(228));
    assert_is(&few, Status::Warning, "addresses", "25 of 253", "engine.network_subnet");
    let none = only(|findings| findings.networks = with(253));
    assert_is(&none, Status::Problem, "addresses", "room for 0", "engine.network");
}

#[test]
fn a_large_network_takes_as_many_as_its_bridge_has_ports() {
    let subnet = Some("10.1.0.0/16".parse().expect("a block"));
    assert_eq!(NetworkCondition { subnet, ..bridge(true, 0) }.capacity(), Some(1023));
}

#[test]
fn every_missing_image_is_named_with_its_profile() {
    let check = only(|findings| {
        let image =
            |profile: &str, is_there| ProfileImage { profile: profile.into(), image: format!("{profile}:1"), is_there };
        findings.images = Ok(vec![image("a", true), image("b", false), image("c", false)]);
    });
    assert_is(&check, Status::Problem, "images", "b:1 (profile b), c:1 (profile c)", "sandboxctl image pull b:1");
}

#[test]
fn an_engines_disk_is_too_full_from_the_watermark_on() {
    let full = |free: u64| Ok(Disk { total_bytes: 100 << 30, free_bytes: free << 30 });
    assert_eq!(image_disk(&full(16), 85.0).status, Status::Ok);
    let check = only(|findings| findings.image_disk = full(15));
    assert_is(&check, Status::Warning, "image_disk", "85 % full, 15.0 GiB are free", "image prune --dry-run");
}

#[test]
fn a_limit_that_is_not_enforced_is_a_problem_and_no_live_restore_is_not() {
    let with = |limits, live_restore| only(|findings| findings.condition = Ok(Condition { limits, live_restore }));
    let all = Enforced { memory: true, cpus: true, pids: true };
    assert_is(&with(Enforced { cpus: false, ..all }, true), Status::Problem, "limits", "limits of cpus:", "cgroup");
    assert_is(&with(all, false), Status::Warning, "live_restore", "ends every sandbox", "daemon.json");
}

#[test]
fn slots_matter_only_to_a_host_that_wants_some() {
    let impossible = || Err("the service needs CAP_SYS_ADMIN".to_owned());
    let check = only(|findings| findings.slots.late_binding = impossible());
    assert_is(&check, Status::Warning, "warm_slots", "CAP_SYS_ADMIN", "docs/operations.md");
    let check = only(|findings| findings.slots.pools[0].problem = Some("no image".into()));
    assert_is(&check, Status::Warning, "warm_slots", "profile default: no image", "sandboxctl pools");
    let because = "the service needs CAP_SYS_PTRACE".to_owned();
    let check = warm_slots(&Slots { late_binding: Ok(LateBinding::Propagated { because }), ..healthy().slots });
    assert_eq!(check.status, Status::Ok);
    assert!(check.message.contains("CAP_SYS_PTRACE"), "{check:?}");
    let unwanted = |late_binding| {
        let pool = Pool { profile: "default".into(), is_wanted: false, problem: Some("none".into()) };
        warm_slots(&Slots { late_binding, pools: vec![pool] })
    };
    assert_eq!([unwanted(impossible()).status, unwanted(Ok(LateBinding::Injected)).status], [Status::Ok; 2]);
}

#[test]
fn a_journal_that_cannot_be_written_is_a_problem() {
    let check = only(|findings| findings.journal = Err("no room left".into()));
    assert_is(&check, Status::Problem, "journal", "no room left", "disk of state.dir");
}

#[test]
fn a_directory_is_there_writable_executable_and_has_room() {
    let with = |change: &dyn Fn(&mut Place)| only(|findings| change(findings.state.place.as_mut().expect("a place")));
    let gone = only(|findings| findings.chats.place = Err("No such file or directory".into()));
    assert_is(&gone, Status::Problem, "chats_root", "/chats: No such file", "chats.root");
    assert_is(
        &with(&|at| at.writable = false),
        Status::Problem,
        "state_dir",
        "cannot write to /state",
        "ReadWritePaths",
    );
    assert_is(&with(&|at| at.executable = false), Status::Problem, "state_dir", "noexec", "state.dir");
    assert_is(
        &with(&|at| at.free_bytes = 1 << 29),
        Status::Warning,
        "state_dir",
        "512.0 MiB of 100.0 GiB",
        "free space",
    );
    assert_is(&with(&|at| at.free_bytes = 1 << 20), Status::Problem, "state_dir", "1.0 MiB of", "free space now");
}

#[test]
fn without_a_place_for_volumes_sandboxes_are_created_without_one() {
    let none = volumes(&[]);
    assert_eq!(none.status, Status::Ok);
    assert!(none.message.contains("no volume is accepted"), "{none:?}");
    let gone = only(|findings| findings.volumes[0].is_there = false);
    assert_is(&gone, Status::Problem, "volumes", "/volumes is not a directory", "volumes.roots");
}

#[test]
fn open_files_have_to_last_for_all_connections_and_sandboxes() {
    let with = |limit| Descriptors { limit, connections: 1024, sandboxes: 100 };
    assert_eq!([open_files(with(None)).status, open_files(with(Some(1288))).status], [Status::Ok; 2]);
    let check = only(|findings| findings.descriptors = with(Some(1287)));
    assert_is(&check, Status::Warning, "open_files", "at most 1287, but 1024 connections", "LimitNOFILE");
}

#[test]
fn allowed_callers_that_cannot_open_the_socket_are_a_warning() {
    let excluded =
        ExcludedCaller { key: "socket.allow_users", name: "ann".into(), access: SocketAccess { gid: 0, ..ACCESS } };
    let check = only(|findings| findings.callers.excluded = vec![excluded.clone()]);
    assert_is(&check, Status::Warning, "callers", "ann cannot open the socket", "usermod -aG sandboxd ann");
    let closed = only(|findings| findings.callers.closed_directory = Some("/run".into()));
    assert_is(&closed, Status::Warning, "callers", "not every user may enter /run", "chmod o+x /run");
    let alone = Callers { named: 0, closed_directory: Some("/run".into()), ..healthy().callers };
    assert_eq!(callers(&alone).status, Status::Ok, "root enters every directory");
}

#[test]
fn sandboxes_with_a_network_can_connect_to_ports_of_the_host() {
    let open = |ports: &[u16]| only(|findings| findings.open_ports = ports.to_vec());
    assert_is(&open(&[22, 5432]), Status::Warning, "host_services", "forbids it: 22, 5432", "interface (n)");
    let many: Vec<u16> = (1..=14).collect();
    assert!(open(&many).message.ends_with("11, 12, 2 more"), "{:?}", open(&many));
    let blocked = Findings { open_ports: vec![22], is_networked: false, ..healthy() };
    assert_eq!(host_services(&blocked).status, Status::Ok);
}
