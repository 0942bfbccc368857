//! Idle actors as a lower bound for the service's actors: they have no state and only answer.

use std::error::Error;

use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Idle;

impl Actor for Idle {
    type Msg = RpcReplyPort<()>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(&self, _: ActorRef<Self::Msg>, asked: Self::Msg, (): &mut ()) -> Result<(), ActorProcessingErr> {
        let _ = asked.send(());
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Self::Msg>,
        _: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

/// Idle actors that one of them supervises, as root supervises chats.
pub(crate) struct IdleActors {
    supervisor: ActorRef<RpcReplyPort<()>>,
    actors: Vec<ActorRef<RpcReplyPort<()>>>,
}

impl IdleActors {
    pub(crate) async fn start(count: usize) -> Outcome<Self> {
        let (supervisor, _) = Actor::spawn(None, Idle, ()).await?;
        let mut actors = Vec::with_capacity(count);
        for _ in 0..count {
            actors.push(Actor::spawn_linked(None, Idle, (), supervisor.get_cell()).await?.0);
        }
        Ok(Self { supervisor, actors })
    }

    /// Stops all actors.
    pub(crate) async fn stop(self) -> Outcome<()> {
        for actor in self.actors {
            actor.stop_and_wait(None, None).await?;
        }
        Ok(self.supervisor.stop_and_wait(None, None).await?)
    }

    /// Calls one actor and waits for the answer.
    pub(crate) async fn call(&self, n: usize) -> Outcome<()> {
        match self.actors[n % self.actors.len()].call(|answer| answer, None).await? {
            CallResult::Success(()) => Ok(()),
            other => Err(format!("an idle actor answered {other:?}").into()),
        }
    }
}
