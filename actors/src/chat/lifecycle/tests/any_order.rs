//! Checks the guarantees of the lifecycle under requests, answers and failures in any order.

mod world;

use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use world::World;

/// One step of a test. An impossible step is skipped.
#[derive(Debug, Clone, Copy)]
enum Step {
    Create {
        other_agent: bool,
    },
    Get,
    Delete,
    /// With a snapshot first.
    DeleteWithSnapshot,
    Snapshot,
    Renew(Duration),
    Touch,
    Pause,
    Lease {
        duration: Duration,
        durable: bool,
    },
    /// A command starts or continues.
    Work(Duration),
    Release {
        nth: usize,
    },
    Wait(Duration),
    /// The reaper reports a deadline: in time, or too early.
    Due {
        early: bool,
    },
    ClockSteps(i64),
    /// After a clock step, or without reason.
    FlushRequested,
    /// The launch under way creates its container, or starts it.
    LaunchProgresses,
    LaunchEnds(LaunchEnd),
    TearDownEnds(End),
    StopEnds(End),
    SwitchEnds(End),
    CommitEnds(End),
    DiscoveryEnds {
        answered: bool,
    },
    CheckEnds {
        answered: bool,
    },
    TimerRings {
        oldest: bool,
    },
    RestartComes,
    /// An abandoned create call creates its container after all.
    StragglerActs,
    StragglerEnds,
    ContainerDies,
    ContainerVanishes,
    /// Another client of the engine pauses or resumes the container.
    ContainerIsSwitched,
    /// The engine reports an event, with or without a change.
    EngineEvent,
    /// A listing arrives that may be outdated.
    Listed {
        up_to_date: bool,
    },
    DiskWrites {
        writes: usize,
    },
    DiskIsFull,
    WriteTimesOut,
    /// An answer of an earlier generation arrives again.
    OldAnswerComes {
        nth: usize,
    },
    ActorCrashes,
    ServiceIsKilled {
        listed: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaunchEnd {
    Succeeds,
    Fails,
    /// The call was executed, but its answer is lost.
    IsLost,
    /// The create call is still under way.
    IsGivenUp,
    /// A live, previously unknown sandbox holds the name.
    Finds {
        other_agent: bool,
    },
}

/// How an engine call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeds,
    Fails,
    SucceedsWithoutAnswer,
}

/// The state at the start of the chat's actor, and the settings of its profile.
#[derive(Debug, Clone, Copy)]
struct Beginning {
    container: Option<ContainerState>,
    record: Option<Status>,
    known: Known,
    on_expire: OnExpire,
    restart: Restart,
}

#[derive(Debug, Clone, Copy)]
enum Known {
    /// The chat has no container.
    Absent,
    /// The chat must discover its container.
    Unknown,
    Listed,
}

fn beginnings() -> impl Strategy<Value = Beginning> {
    let state = prop_oneof![
        4 => Just(ContainerState::Running),
        1 => Just(ContainerState::Paused),
        1 => Just(ContainerState::Created),
        1 => Just(ended()),
    ];
    let status = prop::sample::select(&Status::ALL[..]);
    let known = prop_oneof![4 => Just(Known::Absent), 2 => Just(Known::Unknown), 2 => Just(Known::Listed)];
    let on_expire = prop::sample::select(vec![OnExpire::Delete, OnExpire::Stop, OnExpire::Pause, OnExpire::Snapshot]);
    let restart = prop::sample::select(vec![Restart::Never, Restart::OnFailure]);
    (prop::option::of(state), prop::option::of(status), known, on_expire, restart).prop_map(
        |(container, record, known, on_expire, restart)| {
            let absent = matches!(known, Known::Absent);
            let (container, record) = if absent { (None, None) } else { (container, record) };
            Beginning { container, record, known, on_expire, restart }
        },
    )
}

fn callers() -> impl Strategy<Value = Step> {
    let durations = [10, 400, 10_000].map(Duration::from_secs).to_vec();
    let lease = (prop::sample::select(durations.clone()), any::<bool>());
    prop_oneof![
        6 => prop::bool::weighted(0.2).prop_map(|other_agent| Step::Create { other_agent }),
        1 => Just(Step::Get),
        2 => Just(Step::Delete),
        2 => Just(Step::DeleteWithSnapshot),
        2 => Just(Step::Snapshot),
        2 => prop::sample::select(durations.clone()).prop_map(Step::Renew),
        1 => Just(Step::Touch),
        2 => Just(Step::Pause),
        2 => lease.prop_map(|(duration, durable)| Step::Lease { duration, durable }),
        2 => prop::sample::select(durations).prop_map(Step::Work),
        1 => (0usize..4).prop_map(|nth| Step::Release { nth }),
    ]
}

fn engine() -> impl Strategy<Value = Step> {
    let launch_end = prop_oneof![
        8 => Just(LaunchEnd::Succeeds),
        2 => Just(LaunchEnd::Fails),
        1 => Just(LaunchEnd::IsLost),
        1 => Just(LaunchEnd::IsGivenUp),
        1 => prop::bool::weighted(0.3).prop_map(|other_agent| LaunchEnd::Finds { other_agent }),
    ];
    let end = || prop_oneof![5 => Just(End::Succeeds), 2 => Just(End::Fails), 1 => Just(End::SucceedsWithoutAnswer)];
    prop_oneof![
        4 => Just(Step::LaunchProgresses),
        6 => launch_end.prop_map(Step::LaunchEnds),
        5 => end().prop_map(Step::TearDownEnds),
        2 => end().prop_map(Step::StopEnds),
        4 => end().prop_map(Step::SwitchEnds),
        4 => end().prop_map(Step::CommitEnds),
        2 => prop::bool::weighted(0.7).prop_map(|answered| Step::DiscoveryEnds { answered }),
        3 => prop::bool::weighted(0.8).prop_map(|answered| Step::CheckEnds { answered }),
        1 => Just(Step::StragglerActs),
        1 => Just(Step::StragglerEnds),
        2 => Just(Step::ContainerDies),
        1 => Just(Step::ContainerVanishes),
        1 => Just(Step::ContainerIsSwitched),
        2 => Just(Step::EngineEvent),
        1 => any::<bool>().prop_map(|up_to_date| Step::Listed { up_to_date }),
        2 => (0usize..20).prop_map(|nth| Step::OldAnswerComes { nth }),
    ]
}

fn time() -> impl Strategy<Value = Step> {
    let waits = [1, 1_000, 2_001, 6_000, 100_000, 300_000].map(Duration::from_millis);
    prop_oneof![
        4 => prop::sample::select(waits.to_vec()).prop_map(Step::Wait),
        4 => prop::bool::weighted(0.2).prop_map(|early| Step::Due { early }),
        3 => any::<bool>().prop_map(|oldest| Step::TimerRings { oldest }),
        3 => Just(Step::RestartComes),
        1 => prop::sample::select(vec![-3600, -10, 10, 3600]).prop_map(Step::ClockSteps),
        1 => Just(Step::FlushRequested),
    ]
}

fn journal() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..4).prop_map(|writes| Step::DiskWrites { writes }),
        1 => Just(Step::DiskIsFull),
        1 => Just(Step::WriteTimesOut),
    ]
}

fn crashes() -> impl Strategy<Value = Step> {
    prop_oneof![Just(Step::ActorCrashes), any::<bool>().prop_map(|listed| Step::ServiceIsKilled { listed })]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![30 => callers(), 50 => engine(), 20 => time(), 25 => journal(), 4 => crashes()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn the_guarantees_hold_in_any_order(
        beginning in beginnings(),
        steps in prop::collection::vec(steps(), 1..80),
        settles_first: bool,
    ) {
        let mut world = World::beginning(beginning);
        for step in steps {
            world.take(step);
        }
        if settles_first {
            world.settle();
            world.assert_all_answered();
            world.assert_agreement();
        }
        world.take(Step::Delete);
        world.settle();
        world.assert_all_answered();
        world.assert_all_removed();
    }
}
