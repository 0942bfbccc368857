//! Brings together what the engine holds, what was promised, and what is being looked after: before serving, from time
//! to time, after a gap in what the engine tells, and when asked. A pass cannot fail: what went wrong is its outcome.
//! While the engine does not answer, nothing is done.

pub mod plan;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::{StreamExt, stream};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tracing::Instrument;

use crate::chat::World;
use crate::chat::effects::discover::{Condition, Found, discover};
use crate::domain::ids::{ChatId, SessionId};
use crate::domain::labels;
use crate::domain::sandbox::{Sandbox, Status};
use crate::journal::{Contents, Draft, JournalError};
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;
use crate::root;
use crate::sandboxes::ask;
use plan::{Action, PlanInput, plan};

/// A container without a record that is younger than this may still be on its way to being acknowledged, by a task that
/// outlived its actor.
const CREATION_GRACE: TimeDelta = TimeDelta::minutes(2);

/// When a pass is tried again that was to find what the engine did not tell of.
const GAP_AGAIN: Duration = Duration::from_secs(2);

/// So that very many chats hold up neither those who write to the journal nor those who ask root for something.
const AT_ONCE: usize = 512;

/// How many ended containers are looked at at once, and for how long in all.
const LOOKS_AT_ONCE: usize = 16;
const LOOKS_LIMIT: Duration = Duration::from_secs(10);

/// What may become of a chat of which nothing is known, as engine and journal together tell it.
pub async fn look(world: &World, chat: ChatId) -> Result<Option<Box<Sandbox>>, EngineError> {
    // What an actor that failed has handed over counts, so it is waited for.
    world.journal.flush().await.map_err(unread)?;
    let record = world.journal.sandbox(chat).await.map_err(unread)?;
    let found = discover(&world.engine, &world.instance, chat).await?.and_then(Result::ok);
    let situation = PlanInput {
        listed: found.into_iter().collect(),
        unrecognised: Vec::new(),
        records: record.into_iter().collect(),
        adopted: BTreeSet::new(),
        // This chat had an actor a moment ago, or has none since the service started: nothing of it is on its way.
        journal_is_new: world.journal.is_fresh(),
        now: world.clock.now(),
        underway_since: None,
    };
    let planned = plan(&situation).into_iter().find_map(|action| match action {
        Action::Adopt { sandbox, .. } => Some(sandbox),
        Action::Tell { .. } | Action::Leave { .. } => None,
    });
    let adopted = planned.as_ref().filter(|sandbox| situation.records.is_empty() && sandbox.status != Status::Deleting);
    if let Some(sandbox) = adopted {
        // What was found is promised like what is made: on disk before anybody is told.
        world.journal.write(world.adoption(sandbox.clone()).collect()).await.map_err(unread)?;
    }
    Ok(planned)
}

/// The journal is as much a part of what is known as the engine: without it, nothing is decided.
fn unread(error: JournalError) -> EngineError {
    EngineError::Interrupted { message: error.to_string() }
}

fn in_parts<T>(all: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut left = all.into_iter();
    std::iter::from_fn(move || Some(left.by_ref().take(AT_ONCE).collect()).filter(|part: &Vec<T>| !part.is_empty()))
}

/// Decides on a thread that serves nobody: with very many chats, it takes a while.
async fn aside<T: Send + 'static>(decide: impl FnOnce() -> T + Send + 'static) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(decide).await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => gone(),
    })
}

fn gone() -> EngineError {
    EngineError::Interrupted { message: "the service is ending".to_owned() }
}

#[derive(Debug)]
pub enum Message {
    /// Passes now. Whoever waits is told what was done, or what would be.
    Pass {
        because: Trigger,
        dry_run: bool,
        report: Option<RpcReplyPort<Result<Report, EngineError>>>,
    },
    Tick,
    /// A gap is still open.
    GapAgain,
}

/// Why a pass is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Start,
    Interval,
    /// Events of the engine may have been missed.
    Gap,
    Request,
}

impl Trigger {
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Start => "start",
            Trigger::Interval => "interval",
            Trigger::Gap => "gap",
            Trigger::Request => "request",
        }
    }
}

/// What a pass has done, or would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub dry_run: bool,
    pub containers: usize,
    /// Without those that only confirm what is known.
    pub actions: Vec<Action>,
}

#[derive(Debug)]
pub struct Reconciler;

#[derive(Debug)]
pub struct Arguments {
    pub world: Arc<World>,
    pub root: ActorRef<root::Message>,
    pub interval: Duration,
    /// What the journal held when the service started, if no pass has succeeded since.
    pub unadopted: Option<Arc<Contents>>,
    /// When the service started, which may be long ago.
    pub started_at: Timestamp,
}

#[derive(Debug)]
pub struct State {
    world: Arc<World>,
    root: ActorRef<root::Message>,
    interval: Duration,
    /// What the journal held when the service started, until a pass has given every chat in it an actor.
    unadopted: Option<Arc<Contents>>,
    started_at: Timestamp,
    /// A pass that failed is going to be tried again.
    gap_is_open: bool,
}

impl Actor for Reconciler {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { world, root, interval, unadopted, started_at } = arguments;
        myself.send_after(interval, || Message::Tick);
        if unadopted.is_none() {
            // What was asked of a predecessor that failed is lost.
            myself.cast(Message::Pass { because: Trigger::Gap, dry_run: false, report: None })?;
        }
        Ok(State { world, root, interval, unadopted, started_at, gap_is_open: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            // The pass that the service starts with is still to come, and closes the gap.
            Message::Pass { because: Trigger::Gap, report: None, .. } if state.unadopted.is_some() => {}
            Message::Pass { because, dry_run, report } => {
                let outcome = state.pass(because, dry_run).await;
                if because == Trigger::Gap && outcome.is_err() {
                    state.leave_gap_open(&myself);
                }
                if let Some(report) = report {
                    let _ = report.send(outcome);
                }
            }
            Message::GapAgain => {
                state.gap_is_open = false;
                if state.pass(Trigger::Gap, false).await.is_err() {
                    state.leave_gap_open(&myself);
                }
            }
            Message::Tick => {
                let _ = state.pass(Trigger::Interval, false).await;
                // Armed after the pass: passes never queue up behind a slow one.
                myself.send_after(state.interval, || Message::Tick);
            }
        }
        Ok(())
    }
}

impl State {
    /// What was missed may stay unseen for as long as nothing else happens to it, so it is looked for again soon.
    fn leave_gap_open(&mut self, myself: &ActorRef<Message>) {
        if !std::mem::replace(&mut self.gap_is_open, true) {
            myself.send_after(GAP_AGAIN, || Message::GapAgain);
        }
    }

    async fn pass(&mut self, because: Trigger, dry_run: bool) -> Result<Report, EngineError> {
        let started = Instant::now();
        let span = tracing::info_span!("reconcile", because = because.as_str(), dry_run);
        let outcome = self.try_pass(dry_run).instrument(span).await;
        let result = if outcome.is_ok() { "ok" } else { "engine_unavailable" };
        metrics::counter!("sandboxd_reconcile_passes_total", "trigger" => because.as_str(), "result" => result)
            .increment(1);
        metrics::histogram!("sandboxd_reconcile_duration_seconds").record(started.elapsed().as_secs_f64());
        match &outcome {
            Ok(report) => {
                let (containers, actions) = (report.containers, report.actions.len());
                tracing::info!(because = because.as_str(), dry_run, containers, actions, "reconciled");
            }
            Err(error) => tracing::warn!(because = because.as_str(), %error, "nothing was reconciled"),
        }
        outcome
    }

    async fn try_pass(&mut self, dry_run: bool) -> Result<Report, EngineError> {
        // Whoever has an actor is asked for first: a chat that gets its container after the listing is not suspected.
        let adopted = ask(&self.root, |chats| root::Message::Adopted { chats }).await;
        let adopted = adopted.ok_or_else(gone)?;
        let world = &self.world;
        let listed = world.engine.list(&world.instance).await?;
        let containers = listed.len();
        let sessions: HashSet<SessionId> = listed.iter().filter_map(|shown| labels::session(&shown.labels)).collect();
        let instance = world.instance.clone();
        let (mut ours, slots, unrecognised) = aside(move || PlanInput::recognise(&instance, listed)).await?;
        let records = self.promised(&ours, &adopted).await?;
        self.complete(&mut ours, &records, &adopted).await;
        let now = world.clock.now();
        let situation = PlanInput {
            listed: ours,
            unrecognised,
            records,
            adopted,
            journal_is_new: world.journal.is_fresh(),
            now,
            underway_since: self.underway_since(now),
        };
        let (situation, planned, actions) = aside(move || {
            let planned = plan(&situation);
            let actions = planned.iter().filter(|action| !matches!(action, Action::Tell { .. })).cloned().collect();
            (situation, planned, actions)
        })
        .await?;
        if !dry_run {
            self.carry_out(planned).await?;
            self.world.slots.retain(&slots.iter().map(|(labels, _)| labels.slot).collect()).await;
            let _ = self.root.cast(root::Message::SlotsSeen { slots });
            self.remove_ended(sessions).await;
            self.conclude_rebuilding(&situation).await;
        }
        Ok(Report { dry_run, containers, actions })
    }

    /// Only this service can be creating a container, and not before its first pass. What an earlier one asked for may
    /// come into being later than that: an engine goes on with a request whose caller has died.
    fn underway_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.unadopted.is_none().then(|| self.started_at.max(now - CREATION_GRACE))
    }

    /// Learns how containers ended, which a listing does not say, where their records do not say it either. A container
    /// whose end cannot be learned in time has ended all the same: the service does not wait for it.
    async fn complete(&self, ours: &mut [Found], records: &[Sandbox], adopted: &BTreeSet<ChatId>) {
        let is_told = |record: &&Sandbox| !matches!(record.status, Status::Running | Status::Paused);
        let told: HashSet<SessionId> = records.iter().filter(is_told).map(|record| record.session).collect();
        let is_open = |found: &Found| {
            let labels = &found.labels;
            found.condition() == Condition::Ended && !adopted.contains(&labels.chat) && !told.contains(&labels.session)
        };
        let open: Vec<(usize, ChatId)> = ours
            .iter()
            .enumerate()
            .filter(|(_, found)| is_open(found))
            .map(|(at, found)| (at, found.labels.chat))
            .collect();
        let World { engine, instance, .. } = &*self.world;
        let looks = stream::iter(open).map(|(at, chat)| async move { (at, discover(engine, instance, chat).await) });
        let looks = looks.buffer_unordered(LOOKS_AT_ONCE).take_until(tokio::time::sleep(LOOKS_LIMIT));
        let looked: Vec<_> = looks.collect().await;
        for (at, looked) in looked {
            if let Ok(Some(Ok(looked))) = looked {
                ours[at] = looked;
            }
        }
    }

    /// What was promised to the chats without an actor. A chat may have been served, and its sandbox deleted, since the
    /// service started, so what is not there any more is read again. A container is removed for want of a record only if
    /// there is none at this moment.
    async fn promised(&self, listed: &[Found], adopted: &BTreeSet<ChatId>) -> Result<Vec<Sandbox>, EngineError> {
        let journal = &self.world.journal;
        let shown: BTreeSet<ChatId> = listed.iter().map(|found| found.labels.chat).collect();
        let mut records = Vec::new();
        let at_start = self.unadopted.iter().flat_map(|contents| &contents.sandboxes);
        for record in at_start.filter(|record| !adopted.contains(&record.chat)) {
            if shown.contains(&record.chat) {
                records.push(record.clone());
            } else {
                records.extend(journal.sandbox(record.chat).await.map_err(unread)?);
            }
        }
        if self.unadopted.is_none() {
            for chat in shown.difference(adopted) {
                records.extend(journal.sandbox(*chat).await.map_err(unread)?);
            }
        }
        Ok(records)
    }

    async fn carry_out(&mut self, planned: Vec<Action>) -> Result<(), EngineError> {
        let (mut sandboxes, mut seen) = (Vec::new(), Vec::new());
        for action in planned {
            match action {
                Action::Adopt { sandbox, because } => {
                    metrics::counter!("sandboxd_reconcile_actions_total", "because" => because.as_str()).increment(1);
                    tracing::info!(
                        chat.id = %sandbox.chat, session.id = %sandbox.session, status = sandbox.status.as_str(),
                        because = because.as_str(), "adopting to a sandbox"
                    );
                    sandboxes.push(sandbox);
                }
                Action::Tell { chat, seen: live_container } => seen.push((chat, live_container)),
                Action::Leave { container, why } => {
                    metrics::counter!("sandboxd_reconcile_actions_total", "because" => "left_alone").increment(1);
                    tracing::warn!(container.id = %container, why, "left a container alone");
                }
            }
        }
        for live_containers in in_parts(seen) {
            ask(&self.root, |told| root::Message::Seen { live_containers, told }).await.ok_or_else(gone)?;
        }
        self.flush_unsaved(&sandboxes).await.map_err(unread)?;
        for sandboxes in in_parts(sandboxes) {
            ask(&self.root, |adopted| root::Message::Adopt { sandboxes, adopted }).await.ok_or_else(gone)?;
            // What they have written down so far makes room for the others. A full disk keeps nobody from being served.
            let _ = self.world.journal.flush().await;
        }
        ask(&self.root, |known| root::Message::AllAdopted { known }).await.ok_or_else(gone)?;
        self.unadopted = None;
        Ok(())
    }

    /// What labels alone tell of is written down before it has an actor, as with every promise. All else has its record,
    /// and its actor keeps it: written from here, it could undo what a chat that is being served has written since.
    async fn flush_unsaved(&self, sandboxes: &[Box<Sandbox>]) -> Result<(), JournalError> {
        let journal = &self.world.journal;
        if !journal.is_fresh() {
            return Ok(());
        }
        let adopted: Vec<_> = sandboxes.iter().filter(|sandbox| sandbox.status != Status::Deleting).collect();
        for part in adopted.chunks(AT_ONCE) {
            journal.write(part.iter().flat_map(|sandbox| self.world.adoption((*sandbox).clone())).collect()).await?;
        }
        Ok(())
    }

    /// Removes what an earlier run left of sessions that are gone: the engine's list shows no container of theirs, and the
    /// journal has no record. What the actors of the chats know, or could not find out, plays no part in it. Sessions that
    /// are not gone yet are looked at again in the next pass.
    async fn remove_ended(&self, mut known: HashSet<SessionId>) {
        if !self.world.guests.has_inherited() {
            return;
        }
        match self.world.journal.sessions().await {
            Ok(recorded) => {
                known.extend(recorded);
                self.world.guests.retain(&known).await;
            }
            Err(error) => tracing::warn!(%error, "the directories of ended sandboxes stay until the next pass"),
        }
    }

    /// Labels are trusted until everything from before the service started has its record, also what belongs to chats
    /// that had an actor by then and look for themselves.
    async fn conclude_rebuilding(&self, situation: &PlanInput) {
        if !self.world.journal.is_fresh() {
            return;
        }
        let concluded = async {
            let journal = &self.world.journal;
            let earlier = situation.listed.iter().filter(|found| found.labels.created_at < self.started_at);
            for found in earlier.filter(|found| situation.adopted.contains(&found.labels.chat)) {
                if journal.sandbox(found.labels.chat).await?.is_none() {
                    return Ok(());
                }
            }
            journal.write(vec![Draft::Rebuilt]).await
        };
        if let Err(error) = concluded.await {
            tracing::warn!(%error, "labels stay trusted until the next pass");
        }
    }
}

#[cfg(test)]
mod tests;
