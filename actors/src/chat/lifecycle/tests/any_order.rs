//! Whatever is asked, in whatever order engine and journal answer and fail: the promises of the lifecycle hold.

mod world;

use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use world::World;

/// One thing that happens. What cannot happen at the moment does not.
#[derive(Debug, Clone, Copy)]
enum Step {
    Create {
        other_agent: bool,
    },
    Get,
    Delete,
    /// With a snapshot first.
    DeleteKeeping,
    Snapshot,
    Renew(Duration),
    Touch,
    Pause,
    Lease {
        duration: Duration,
        durable: bool,
    },
    /// A command is started, or goes on.
    Work(Duration),
    Release {
        nth: usize,
    },
    Wait(Duration),
    /// The reaper tells of a deadline: when it has come, or once more for no reason.
    Due {
        early: bool,
    },
    ClockSteps(i64),
    /// After the clock has stepped, or for no reason.
    AskedToWriteDown,
    /// The launch under way gets as far as a container, or as far as a started one.
    LaunchProgresses,
    LaunchEnds(LaunchEnd),
    TearDownEnds(End),
    StopEnds(End),
    SwitchEnds(End),
    CommitEnds(End),
    LookEnds {
        answered: bool,
    },
    CheckEnds {
        answered: bool,
    },
    TimerRings {
        oldest: bool,
    },
    RestartComes,
    /// A creation that was given up makes its container after all.
    StragglerActs,
    StragglerEnds,
    ContainerDies,
    ContainerVanishes,
    /// Somebody pauses it, or lets it go on, past the service.
    ContainerIsSwitched,
    /// The engine tells of an event, true or not.
    Stirs,
    /// A listing is told of that may be older than what is known.
    Listed {
        up_to_date: bool,
    },
    DiskWrites {
        writes: usize,
    },
    DiskIsFull,
    WriteTimesOut,
    /// An answer to what an earlier generation asked for comes once more.
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
    /// It was carried out as far as it got, and nobody can tell.
    IsLost,
    /// The creation is still under way.
    IsGivenUp,
    /// The name is held by a live sandbox that nobody here knew of.
    Finds {
        other_agent: bool,
    },
}

/// How a call to the engine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeds,
    Fails,
    SucceedsUnheard,
}

/// What there is when the chat's actor starts, and what its profile says.
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
    /// That there is nothing.
    Nothing,
    /// The chat has to look.
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
    let known = prop_oneof![4 => Just(Known::Nothing), 2 => Just(Known::Unknown), 2 => Just(Known::Listed)];
    let on_expire = prop::sample::select(vec![OnExpire::Delete, OnExpire::Stop, OnExpire::Pause, OnExpire::Snapshot]);
    let restart = prop::sample::select(vec![Restart::Never, Restart::OnFailure]);
    (prop::option::of(state), prop::option::of(status), known, on_expire, restart).prop_map(
        |(container, record, known, on_expire, restart)| {
            let nothing = matches!(known, Known::Nothing);
            let (container, record) = if nothing { (None, None) } else { (container, record) };
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
        2 => Just(Step::DeleteKeeping),
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
    let end = || prop_oneof![5 => Just(End::Succeeds), 2 => Just(End::Fails), 1 => Just(End::SucceedsUnheard)];
    prop_oneof![
        4 => Just(Step::LaunchProgresses),
        6 => launch_end.prop_map(Step::LaunchEnds),
        5 => end().prop_map(Step::TearDownEnds),
        2 => end().prop_map(Step::StopEnds),
        4 => end().prop_map(Step::SwitchEnds),
        4 => end().prop_map(Step::CommitEnds),
        2 => prop::bool::weighted(0.7).prop_map(|answered| Step::LookEnds { answered }),
        3 => prop::bool::weighted(0.8).prop_map(|answered| Step::CheckEnds { answered }),
        1 => Just(Step::StragglerActs),
        1 => Just(Step::StragglerEnds),
        2 => Just(Step::ContainerDies),
        1 => Just(Step::ContainerVanishes),
        1 => Just(Step::ContainerIsSwitched),
        2 => Just(Step::Stirs),
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
        1 => Just(Step::AskedToWriteDown),
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
    fn the_promises_hold_in_any_order(
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
            world.assert_everybody_is_answered();
            world.assert_everything_agrees();
        }
        world.take(Step::Delete);
        world.settle();
        world.assert_everybody_is_answered();
        world.assert_nothing_is_left();
    }
}
