//! Turns at the engine. It gets slower, not faster, when more is asked of it at once, so a launch, a tear-down, the removal
//! of a slot, a stop, a pause and a snapshot each take one of these. To let a paused sandbox go on takes none: a caller
//! waits for it, and it is short.
//!
//! Starts, requested removals and expiries wait in lanes of their own, each of which gets its share, so that none of them
//! crowds out another. Within a lane, those who wait are served in rotation by party, which is a workspace where there is
//! one and an agent where there is none, and within a party in their order: a party that asks for much waits behind itself.
//! A slot that no caller waits for takes a turn only while most are free. [`queue`] has the rule.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{AgentId, WorkspaceId};
use crate::domain::sandbox::Sandbox;
use queue::FairQueue;
pub use queue::Lane;

/// How often it is looked whether the engine has little to do.
const PATIENCE: Duration = Duration::from_millis(50);

/// On whose behalf a turn is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenant {
    /// All of its agents together.
    Workspace(WorkspaceId),
    /// One whose chat is in no workspace.
    Agent(AgentId),
    /// The service itself, with work that no caller asked for.
    Service,
}

impl Tenant {
    pub fn of(request: &CreateRequest) -> Self {
        Self::named(request.workspace, &request.agent)
    }

    pub fn owning(sandbox: &Sandbox) -> Self {
        Self::named(sandbox.workspace, &sandbox.agent)
    }

    fn named(workspace: Option<WorkspaceId>, agent: &AgentId) -> Self {
        workspace.map_or_else(|| Tenant::Agent(agent.clone()), Tenant::Workspace)
    }
}

#[derive(Debug, Clone)]
pub struct EngineQueue {
    queue: Arc<Mutex<Queue>>,
    all: usize,
}

/// Who waits; no sandbox's life is decided here.
type Queue = FairQueue<oneshot::Sender<EnginePermit>>;

/// Held for as long as the engine is at work.
#[derive(Debug)]
pub struct EnginePermit {
    queue: Arc<Mutex<Queue>>,
    lane: Lane,
}

/// Nobody had a turn to give in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine had no time for it within {0:?}")]
pub struct QueueTimeout(pub Duration);

impl EngineQueue {
    pub fn new(all: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(FairQueue::new(all))), all }
    }

    /// However long it takes.
    pub async fn take(&self, lane: Lane, tenant: Tenant) -> EnginePermit {
        loop {
            if let Some(turn) = self.at_once(lane) {
                return turn;
            }
            let (given, turn) = oneshot::channel();
            lock(&self.queue).wait(lane, tenant.clone(), given);
            hand_out(&self.queue);
            // The other end is dropped only with the whole queue.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    pub async fn take_within(&self, limit: Duration, lane: Lane, tenant: Tenant) -> Result<EnginePermit, QueueTimeout> {
        tokio::time::timeout(limit, self.take(lane, tenant)).await.map_err(|_| QueueTimeout(limit))
    }

    /// Once at least half of them are free.
    pub async fn take_in_a_quiet_moment(&self) -> EnginePermit {
        loop {
            let quiet = lock(&self.queue).free() * 2 >= self.all;
            if quiet && let Some(turn) = self.at_once(Lane::Start) {
                return turn;
            }
            tokio::time::sleep(PATIENCE).await;
        }
    }

    fn at_once(&self, lane: Lane) -> Option<EnginePermit> {
        let taken = lock(&self.queue).take_at_once(lane);
        taken.then(|| EnginePermit { queue: Arc::clone(&self.queue), lane })
    }
}

/// Gives what is free to those who wait. Somebody who gave up meanwhile is passed over.
fn hand_out(queue: &Arc<Mutex<Queue>>) {
    loop {
        let next = lock(queue).next(oneshot::Sender::is_closed);
        let Some((lane, waiter)) = next else { return };
        // A turn that nobody takes is given back by being dropped, which comes here again.
        let _ = waiter.send(EnginePermit { queue: Arc::clone(queue), lane });
    }
}

impl Drop for EnginePermit {
    fn drop(&mut self) {
        lock(&self.queue).give_back(self.lane);
        hand_out(&self.queue);
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // No panic can leave it half changed.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::create_request::tests::request;
    use futures_util::FutureExt;

    fn tenant(agent: &str) -> Tenant {
        Tenant::Agent(agent.parse().unwrap())
    }

    fn in_workspace(agent: &str, workspace: &str) -> Tenant {
        let (agent, workspace) = (agent.parse().unwrap(), Some(workspace.parse().unwrap()));
        Tenant::of(&CreateRequest { agent, workspace, ..request() })
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_leaves_half_of_the_turns_to_others() {
        let turns = EngineQueue::new(4);
        let first = turns.take(Lane::Start, tenant("any")).await;
        let _second = turns.take_in_a_quiet_moment().await;
        let _third = turns.take_in_a_quiet_moment().await;
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none());
        let _fourth = turns.take(Lane::Start, tenant("any")).await;
        drop(first);
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none(), "one of four is not enough");
    }

    #[tokio::test(start_paused = true)]
    async fn with_one_turn_there_are_quiet_moments_too() {
        let turns = EngineQueue::new(1);
        drop(turns.take_in_a_quiet_moment().await);
        let _busy = turns.take(Lane::Start, tenant("any")).await;
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none());
    }

    /// The names in the order in which they were served who asked in this order, with one turn for all.
    async fn served<const N: usize>(asked: [(&'static str, Tenant); N]) -> Vec<&'static str> {
        let turns = EngineQueue::new(1);
        let busy = turns.take(Lane::Start, tenant("any")).await;
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (name, tenant) in asked {
            let (turns, told) = (turns.clone(), told.clone());
            tokio::spawn(async move {
                let turn = turns.take_within(Duration::from_secs(60), Lane::Start, tenant).await.unwrap();
                told.send(name).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        drop((busy, told));
        let mut served = Vec::new();
        while let Some(name) = order.recv().await {
            served.push(name);
        }
        served
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_for_much_waits_behind_themselves() {
        let asked = ["many", "many", "many", "one", "other", "other"].map(|name| (name, tenant(name)));
        assert_eq!(served(asked).await, ["many", "one", "other", "many", "other", "many"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_workspace_gains_nothing_by_having_many_agents() {
        let [mine, yours] = ["8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1", "45c48cce-2e2d-4fbd-aa1a-fc51c7c6ad26"];
        let asked = [
            ("mine", in_workspace("first", mine)),
            ("mine", in_workspace("second", mine)),
            ("mine", in_workspace("third", mine)),
            ("yours", in_workspace("first", yours)),
            ("nobody's", tenant("first")),
        ];
        assert_eq!(served(asked).await, ["mine", "yours", "nobody's", "mine", "mine"]);
    }

    #[test]
    fn an_agent_that_is_called_like_a_workspace_is_another_party() {
        let workspace = "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1";
        assert_ne!(in_workspace("agent", workspace), tenant(workspace));
        assert_eq!(in_workspace("agent", workspace), in_workspace("another", &workspace.to_uppercase()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_loses_no_turn_to_anybody() {
        let turns = EngineQueue::new(1);
        let busy = turns.take(Lane::Start, tenant("any")).await;
        let limit = Duration::from_secs(1);
        assert_eq!(turns.take_within(limit, Lane::Start, tenant("late")).await.map(drop), Err(QueueTimeout(limit)));
        let patient = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take_within(Duration::from_secs(60), Lane::Start, tenant("patient")).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(busy);
        assert_eq!(patient.await.unwrap(), Ok(()));
        drop(turns.take(Lane::Start, tenant("any")).now_or_never().expect("all turns are free again"));
    }
}
