//! Whatever is asked, in whatever order the engine answers and fails: the promises of the lifecycle hold.

mod world;

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
    Wait(Duration),
    /// The launch under way gets as far as a container, or as far as a started one.
    LaunchProgresses,
    LaunchEnds(LaunchEnd),
    TearDownEnds(TearDownEnd),
    LookEnds {
        answered: bool,
    },
    CheckEnds {
        answered: bool,
    },
    TimerRings {
        oldest: bool,
    },
    /// A creation that was given up makes its container after all.
    StragglerActs,
    StragglerEnds,
    ContainerDies,
    ContainerVanishes,
    /// An answer to what an earlier generation asked for comes once more.
    OldAnswerComes {
        nth: usize,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TearDownEnd {
    Succeeds,
    Fails,
    SucceedsUnheard,
}

/// What the engine holds when the chat's actor starts, and what is known of it.
#[derive(Debug, Clone, Copy)]
enum Beginning {
    Absent,
    Unknown(Option<ContainerState>),
    Listed(ContainerState),
}

fn beginnings() -> impl Strategy<Value = Beginning> {
    let state = prop_oneof![
        4 => Just(ContainerState::Running),
        1 => Just(ContainerState::Created),
        1 => Just(ended()),
    ];
    prop_oneof![
        4 => Just(Beginning::Absent),
        1 => Just(Beginning::Unknown(None)),
        2 => state.clone().prop_map(|state| Beginning::Unknown(Some(state))),
        1 => state.prop_map(Beginning::Listed),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let launch_end = prop_oneof![
        6 => Just(LaunchEnd::Succeeds),
        2 => Just(LaunchEnd::Fails),
        1 => Just(LaunchEnd::IsLost),
        1 => Just(LaunchEnd::IsGivenUp),
        1 => prop::bool::weighted(0.3).prop_map(|other_agent| LaunchEnd::Finds { other_agent }),
    ];
    let tear_down_end = prop_oneof![
        5 => Just(TearDownEnd::Succeeds),
        2 => Just(TearDownEnd::Fails),
        1 => Just(TearDownEnd::SucceedsUnheard),
    ];
    let waits = [1, 1_000, 2_001, 100_000, 300_000].map(Duration::from_millis);
    prop_oneof![
        6 => prop::bool::weighted(0.2).prop_map(|other_agent| Step::Create { other_agent }),
        1 => Just(Step::Get),
        3 => Just(Step::Delete),
        2 => prop::sample::select(waits.to_vec()).prop_map(Step::Wait),
        4 => Just(Step::LaunchProgresses),
        5 => launch_end.prop_map(Step::LaunchEnds),
        5 => tear_down_end.prop_map(Step::TearDownEnds),
        2 => prop::bool::weighted(0.7).prop_map(|answered| Step::LookEnds { answered }),
        3 => prop::bool::weighted(0.8).prop_map(|answered| Step::CheckEnds { answered }),
        2 => any::<bool>().prop_map(|oldest| Step::TimerRings { oldest }),
        1 => Just(Step::StragglerActs),
        1 => Just(Step::StragglerEnds),
        1 => Just(Step::ContainerDies),
        1 => Just(Step::ContainerVanishes),
        2 => (0usize..20).prop_map(|nth| Step::OldAnswerComes { nth }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_promises_hold_in_any_order(
        beginning in beginnings(),
        steps in prop::collection::vec(steps(), 1..60),
        settles_first: bool,
    ) {
        let mut world = World::beginning(beginning);
        for step in steps {
            world.take(step);
        }
        if settles_first {
            world.settle();
            world.assert_everybody_is_answered();
        }
        world.take(Step::Delete);
        world.settle();
        world.assert_everybody_is_answered();
        world.assert_nothing_is_left();
    }
}
