//! Keeps the deadlines of all chats and notifies a chat when its deadline is reached. The reaper never touches a
//! container: the chat decides with its current state, so a renewal that reached the chat's mailbox first wins.

pub mod clock_steps;
pub mod deadlines;

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::time::Instant;

use crate::domain::ids::ChatId;
use crate::ports::clock::{Clock, Timestamp};
use crate::root;
use clock_steps::ClockSteps;
use deadlines::Deadlines;

/// The largest number of chats notified per tick, so that a thousand deadlines at once stall no actor. The other chats
/// follow with the next ticks.
const MAX_PER_TICK: usize = 1000;

#[derive(Debug)]
pub enum Message {
    /// Sets the chat's next deadline, in place of its earlier one.
    Arm {
        chat: ChatId,
        at: Timestamp,
    },
    Disarm {
        chat: ChatId,
    },
    Tick,
    /// Requests the time of the next deadline.
    Next(RpcReplyPort<Option<Timestamp>>),
    /// A liveness check, answered in mailbox order.
    Ping(RpcReplyPort<()>),
}

#[derive(Debug)]
pub struct Reaper;

pub struct Arguments {
    pub root: ActorRef<root::Message>,
    pub clock: Arc<dyn Clock>,
    pub tick: Duration,
}

pub struct State {
    root: ActorRef<root::Message>,
    clock: Arc<dyn Clock>,
    tick: Duration,
    deadlines: Deadlines,
    steps: ClockSteps,
}

impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arguments").field("tick", &self.tick).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("deadlines", &self.deadlines.len()).finish_non_exhaustive()
    }
}

impl Actor for Reaper {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { root, clock, tick } = arguments;
        myself.send_after(tick, || Message::Tick);
        Ok(State { root, clock, tick, deadlines: Deadlines::default(), steps: ClockSteps::default() })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Arm { chat, at } => state.deadlines.arm(chat, at),
            Message::Disarm { chat } => state.deadlines.disarm(chat),
            Message::Next(next) => drop(next.send(state.deadlines.next())),
            Message::Ping(pong) => drop(pong.send(())),
            Message::Tick => {
                state.pass();
                // Armed after the pass, so that ticks never queue up behind a slow pass.
                myself.send_after(state.tick, || Message::Tick);
            }
        }
        Ok(())
    }
}

impl State {
    fn pass(&mut self) {
        let started = Instant::now();
        let now = self.clock.now();
        if let Some(by) = self.steps.observe(now, started) {
            tracing::warn!(seconds = by.num_seconds(), "wall clock stepped");
            let _ = self.root.cast(root::Message::ClockStepped { by });
        }
        for _ in 0..MAX_PER_TICK {
            let Some(chat) = self.deadlines.pop_due(now) else { break };
            let _ = self.root.cast(root::Message::Due { chat });
        }
        metrics::gauge!("sandboxd_deadlines").set(self.deadlines.len() as f64);
        metrics::histogram!("sandboxd_reaper_pass_duration_seconds").record(started.elapsed().as_secs_f64());
    }
}
