//! Turns at the engine. It gets slower, not faster, when more is asked of it at once, so a launch or a tear-down takes one
//! of these.
//!
//! Whoever asks for many sandboxes at once waits behind themselves: those who wait are served in turn by party, which is a
//! workspace where there is one and an agent where there is none, and within a party in their order. What nobody waits
//! for takes a turn only while most are free.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::ids::{AgentId, WorkspaceId};
use crate::request::CreateRequest;

/// How often it is looked whether the engine has little to do.
const PATIENCE: Duration = Duration::from_millis(50);

/// On whose behalf a turn is taken. The service's own work is a party like any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    Service,
    /// All of its agents together.
    Workspace(WorkspaceId),
    /// One whose chat is in no workspace.
    Agent(AgentId),
}

impl Party {
    pub fn of(request: &CreateRequest) -> Self {
        match request.workspace {
            Some(workspace) => Party::Workspace(workspace),
            None => Party::Agent(request.agent.clone()),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Turns {
    queue: Arc<Mutex<Queue>>,
    all: usize,
}

/// Held for as long as the engine is at work.
#[derive(Debug)]
pub struct Turn(Arc<Mutex<Queue>>);

/// Nobody had a turn to give in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine had no time for it within {0:?}")]
pub struct NoTurn(pub Duration);

/// Who waits; no sandbox's life is decided here.
#[derive(Debug)]
struct Queue {
    free: usize,
    /// The next party first. None is empty.
    parties: VecDeque<(Party, VecDeque<oneshot::Sender<Turn>>)>,
}

impl Turns {
    pub fn new(all: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue { free: all, parties: VecDeque::new() })), all }
    }

    /// However long it takes.
    pub async fn take(&self) -> Turn {
        self.next(Party::Service).await
    }

    pub async fn take_within(&self, limit: Duration, party: Party) -> Result<Turn, NoTurn> {
        tokio::time::timeout(limit, self.next(party)).await.map_err(|_| NoTurn(limit))
    }

    /// Once at least half of them are free.
    pub async fn take_in_a_quiet_moment(&self) -> Turn {
        loop {
            let quiet = lock(&self.queue).free * 2 >= self.all;
            if quiet && let Some(turn) = self.at_once() {
                return turn;
            }
            tokio::time::sleep(PATIENCE).await;
        }
    }

    fn at_once(&self) -> Option<Turn> {
        let mut queue = lock(&self.queue);
        // As long as somebody waits, what is free is on its way to them.
        if queue.free == 0 || !queue.parties.is_empty() {
            return None;
        }
        queue.free -= 1;
        Some(Turn(Arc::clone(&self.queue)))
    }

    async fn next(&self, party: Party) -> Turn {
        loop {
            if let Some(turn) = self.at_once() {
                return turn;
            }
            let (given, turn) = oneshot::channel();
            lock(&self.queue).wait(party.clone(), given);
            hand_out(&self.queue);
            // The other end is dropped only with the whole queue.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }
}

impl Queue {
    fn wait(&mut self, party: Party, given: oneshot::Sender<Turn>) {
        match self.parties.iter_mut().find(|(known, _)| *known == party) {
            Some((_, waiting)) => waiting.push_back(given),
            None => self.parties.push_back((party, VecDeque::from([given]))),
        }
    }

    /// The one who is next, and whose party is last from then on.
    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some((party, mut waiting)) = self.parties.pop_front() {
            // Many may have given up at once.
            while waiting.front().is_some_and(oneshot::Sender::is_closed) {
                waiting.pop_front();
            }
            let next = waiting.pop_front();
            if !waiting.is_empty() {
                self.parties.push_back((party, waiting));
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

/// Gives what is free to those who wait. Somebody who gave up meanwhile is passed over.
fn hand_out(queue: &Arc<Mutex<Queue>>) {
    loop {
        let next = {
            let mut state = lock(queue);
            if state.free == 0 {
                return;
            }
            let Some(next) = state.pop() else { return };
            state.free -= 1;
            next
        };
        // A turn that nobody takes is given back by being dropped, which comes here again.
        let _ = next.send(Turn(Arc::clone(queue)));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.0).free += 1;
        hand_out(&self.0);
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // No panic can leave it half changed.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;
    use futures_util::FutureExt;

    fn party(agent: &str) -> Party {
        Party::Agent(agent.parse().unwrap())
    }

    fn in_workspace(agent: &str, workspace: &str) -> Party {
        let (agent, workspace) = (agent.parse().unwrap(), Some(workspace.parse().unwrap()));
        Party::of(&CreateRequest { agent, workspace, ..request() })
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_leaves_half_of_the_turns_to_others() {
        let turns = Turns::new(4);
        let first = turns.take().await;
        let _second = turns.take_in_a_quiet_moment().await;
        let _third = turns.take_in_a_quiet_moment().await;
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none());
        let _fourth = turns.take().await;
        drop(first);
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none(), "one of four is not enough");
    }

    #[tokio::test(start_paused = true)]
    async fn with_one_turn_there_are_quiet_moments_too() {
        let turns = Turns::new(1);
        drop(turns.take_in_a_quiet_moment().await);
        let _busy = turns.take().await;
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none());
    }

    /// The names in the order in which they were served who asked in this order, with one turn for all.
    async fn served<const N: usize>(asked: [(&'static str, Party); N]) -> Vec<&'static str> {
        let turns = Turns::new(1);
        let busy = turns.take().await;
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (name, party) in asked {
            let (turns, told) = (turns.clone(), told.clone());
            tokio::spawn(async move {
                let turn = turns.take_within(Duration::from_secs(60), party).await.unwrap();
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
        let asked = ["many", "many", "many", "one", "other", "other"].map(|name| (name, party(name)));
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
            ("nobody's", party("first")),
        ];
        assert_eq!(served(asked).await, ["mine", "yours", "nobody's", "mine", "mine"]);
    }

    #[test]
    fn an_agent_that_is_called_like_a_workspace_is_another_party() {
        let workspace = "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1";
        assert_ne!(in_workspace("agent", workspace), party(workspace));
        assert_eq!(in_workspace("agent", workspace), in_workspace("another", &workspace.to_uppercase()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_loses_no_turn_to_anybody() {
        let turns = Turns::new(1);
        let busy = turns.take().await;
        let limit = Duration::from_secs(1);
        assert_eq!(turns.take_within(limit, party("late")).await.map(drop), Err(NoTurn(limit)));
        let patient = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take_within(Duration::from_secs(60), party("patient")).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(busy);
        assert_eq!(patient.await.unwrap(), Ok(()));
        drop(turns.take().now_or_never().expect("all turns are free again"));
    }
}
