//! The engine queue. More concurrent calls make an engine slower, so a launch, a tear-down, the removal of a slot, a
//! stop, a pause and a snapshot each need a permit. A resume needs none: it is short, and a caller waits for it.
//!
//! Starts, requested removals and expiries wait in separate lanes with fair shares, so that none starves another.
//! Within a lane, tenants are served in rotation, and the requests of one tenant in their order: a tenant with many
//! requests delays only itself. A tenant is a workspace, or an agent without a workspace. A slot that no caller waits
//! for gets a permit only while at least half of them are free. [`queue`] implements the rule.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{AgentId, WorkspaceId};
use crate::domain::sandbox::Sandbox;
use queue::FairQueue;
pub use queue::Lane;

/// The interval between two checks whether half of the permits are free.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The tenant in whose name a call waits in the engine queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenant {
    /// A workspace with all of its agents.
    Workspace(WorkspaceId),
    /// An agent whose chat has no workspace.
    Agent(AgentId),
    /// The service itself, for work without a caller.
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

/// The fair queue in front of expensive engine calls.
#[derive(Debug, Clone)]
pub struct EngineQueue {
    queue: Arc<Mutex<Queue>>,
    permits: usize,
}

type Queue = FairQueue<oneshot::Sender<EnginePermit>>;

/// The right to make an expensive engine call. Dropping it returns the permit to the queue.
#[derive(Debug)]
pub struct EnginePermit {
    queue: Arc<Mutex<Queue>>,
    lane: Lane,
}

/// No permit became free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine is busy: no permit became free within {0:?}; try again later")]
pub struct QueueTimeout(pub Duration);

impl EngineQueue {
    pub fn new(permits: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(FairQueue::new(permits))), permits }
    }

    /// Waits for a permit without a limit.
    pub async fn acquire(&self, lane: Lane, tenant: Tenant) -> EnginePermit {
        loop {
            if let Some(permit) = self.try_acquire(lane) {
                return permit;
            }
            let (granted, permit) = oneshot::channel();
            lock(&self.queue).wait(lane, tenant.clone(), granted);
            grant_free_permits(&self.queue);
            // The other end is dropped only with the whole queue.
            if let Ok(permit) = permit.await {
                return permit;
            }
        }
    }

    pub async fn acquire_within(
        &self,
        limit: Duration,
        lane: Lane,
        tenant: Tenant,
    ) -> Result<EnginePermit, QueueTimeout> {
        tokio::time::timeout(limit, self.acquire(lane, tenant)).await.map_err(|_| QueueTimeout(limit))
    }

    /// Waits until at least half of the permits are free, and takes one.
    pub async fn acquire_when_half_free(&self) -> EnginePermit {
        loop {
            let half_free = lock(&self.queue).free() * 2 >= self.permits;
            if half_free && let Some(permit) = self.try_acquire(Lane::Start) {
                return permit;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn try_acquire(&self, lane: Lane) -> Option<EnginePermit> {
        let acquired = lock(&self.queue).try_acquire(lane);
        acquired.then(|| EnginePermit { queue: Arc::clone(&self.queue), lane })
    }
}

/// Grants free permits to waiting requests. Cancelled requests are skipped.
fn grant_free_permits(queue: &Arc<Mutex<Queue>>) {
    loop {
        let next = lock(queue).next(oneshot::Sender::is_closed);
        let Some((lane, waiter)) = next else { return };
        // A permit that the waiter no longer takes is dropped, which calls this function again.
        let _ = waiter.send(EnginePermit { queue: Arc::clone(queue), lane });
    }
}

impl Drop for EnginePermit {
    fn drop(&mut self) {
        lock(&self.queue).release(self.lane);
        grant_free_permits(&self.queue);
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // No panic can leave the queue in an inconsistent state.
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
    async fn work_without_a_caller_leaves_half_of_the_permits_free() {
        let queue = EngineQueue::new(4);
        let first = queue.acquire(Lane::Start, tenant("any")).await;
        let _second = queue.acquire_when_half_free().await;
        let _third = queue.acquire_when_half_free().await;
        assert!(queue.acquire_when_half_free().now_or_never().is_none());
        let _fourth = queue.acquire(Lane::Start, tenant("any")).await;
        drop(first);
        assert!(queue.acquire_when_half_free().now_or_never().is_none(), "one of four is not enough");
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_permit_can_be_half_free() {
        let queue = EngineQueue::new(1);
        drop(queue.acquire_when_half_free().await);
        let _busy = queue.acquire(Lane::Start, tenant("any")).await;
        assert!(queue.acquire_when_half_free().now_or_never().is_none());
    }

    /// Returns the names in the order in which they are served, for requests in this order and one permit.
    async fn served<const N: usize>(asked: [(&'static str, Tenant); N]) -> Vec<&'static str> {
        let queue = EngineQueue::new(1);
        let busy = queue.acquire(Lane::Start, tenant("any")).await;
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (name, tenant) in asked {
            let (queue, sender) = (queue.clone(), sender.clone());
            tokio::spawn(async move {
                let permit = queue.acquire_within(Duration::from_secs(60), Lane::Start, tenant).await.unwrap();
                sender.send(name).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(permit);
            });
            tokio::task::yield_now().await;
        }
        drop((busy, sender));
        let mut served = Vec::new();
        while let Some(name) = order.recv().await {
            served.push(name);
        }
        served
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_many_requests_delays_only_itself() {
        let asked = ["many", "many", "many", "one", "other", "other"].map(|name| (name, tenant(name)));
        assert_eq!(served(asked).await, ["many", "one", "other", "many", "other", "many"]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_agents_do_not_increase_the_share_of_a_workspace() {
        let [mine, yours] = ["8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1", "45c48cce-2e2d-4fbd-aa1a-fc51c7c6ad26"];
        let asked = [
            ("mine", in_workspace("first", mine)),
            ("mine", in_workspace("second", mine)),
            ("mine", in_workspace("third", mine)),
            ("yours", in_workspace("first", yours)),
            ("none", tenant("first")),
        ];
        assert_eq!(served(asked).await, ["mine", "yours", "none", "mine", "mine"]);
    }

    #[test]
    fn an_agent_with_the_name_of_a_workspace_is_another_tenant() {
        let workspace = "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1";
        assert_ne!(in_workspace("agent", workspace), tenant(workspace));
        assert_eq!(in_workspace("agent", workspace), in_workspace("another", &workspace.to_uppercase()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_loses_no_permit() {
        let queue = EngineQueue::new(1);
        let busy = queue.acquire(Lane::Start, tenant("any")).await;
        let limit = Duration::from_secs(1);
        assert_eq!(queue.acquire_within(limit, Lane::Start, tenant("late")).await.map(drop), Err(QueueTimeout(limit)));
        let patient = tokio::spawn({
            let queue = queue.clone();
            async move { queue.acquire_within(Duration::from_secs(60), Lane::Start, tenant("patient")).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(busy);
        assert_eq!(patient.await.unwrap(), Ok(()));
        drop(queue.acquire(Lane::Start, tenant("any")).now_or_never().expect("all permits are free again"));
    }
}
