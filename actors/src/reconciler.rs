//! Compares the engine, the journal and the chats, and acts on the differences: before serving, at an interval, after a
//! gap in the engine's events, and on request. A failed pass is an outcome, not a crash. Without an answer of the
//! engine, a pass changes no state.

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
use crate::domain::ids::{ChatId, ContainerName, SessionId};
use crate::domain::labels;
use crate::domain::sandbox::{Sandbox, Status};
use crate::journal::{Contents, Draft, JournalError};
use crate::pool;
use crate::ports::clock::Timestamp;
use crate::ports::engine::{EngineError, Observed};
use crate::root::{self, Reconciled};
use crate::sandboxes::ask;
use plan::{Action, PlanInput, plan};

/// A container without a record that is younger than this may still be acknowledged, by a task that outlived its actor.
const CREATION_GRACE: TimeDelta = TimeDelta::minutes(2);

/// The delay before a retry of a failed pass for a gap in the engine's events.
const GAP_RETRY: Duration = Duration::from_secs(2);

/// The batch size, so that very many chats delay neither writers of the journal nor callers of root.
const BATCH: usize = 512;

/// The number of ended containers that are inspected at once, and the time limit for all of them.
const INSPECTS_AT_ONCE: usize = 16;
const INSPECTS_LIMIT: Duration = Duration::from_secs(10);

/// Returns the sandbox of a chat without known state, as engine and journal together describe it.
pub async fn find_sandbox(world: &World, chat: ChatId) -> Result<Option<Box<Sandbox>>, EngineError> {
    // Includes the writes that a failed actor has handed over.
    world.journal.flush().await.map_err(journal_unavailable)?;
    let record = world.journal.sandbox(chat).await.map_err(journal_unavailable)?;
    let found = discover(world, chat).await?.and_then(Result::ok);
    let situation = PlanInput {
        listed: found.into_iter().collect(),
        unrecognised: Vec::new(),
        records: record.into_iter().collect(),
        adopted: BTreeSet::new(),
        // This chat had an actor a moment ago, or has had none since the service started: no container of it is being
        // created.
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
        // Acknowledge only after the journal commit, as for a created sandbox.
        world.journal.write(world.adoption(sandbox.clone()).collect()).await.map_err(journal_unavailable)?;
    }
    Ok(planned)
}

/// A pass needs the journal as much as the engine: without it, no decision is made.
fn journal_unavailable(error: JournalError) -> EngineError {
    EngineError::Interrupted { message: error.to_string() }
}

fn in_batches<T>(all: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut remaining = all.into_iter();
    std::iter::from_fn(move || {
        Some(remaining.by_ref().take(BATCH).collect()).filter(|batch: &Vec<T>| !batch.is_empty())
    })
}

/// Runs a decision on a blocking thread, because it takes a while with very many chats.
async fn on_blocking_thread<T: Send + 'static>(decide: impl FnOnce() -> T + Send + 'static) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(decide).await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => shutting_down(),
    })
}

fn shutting_down() -> EngineError {
    EngineError::Interrupted { message: "the service is shutting down".to_owned() }
}

#[derive(Debug)]
pub enum Message {
    /// Runs a pass now. The report lists the actions, which a dry run does not carry out.
    Pass {
        because: Trigger,
        dry_run: bool,
        report: Option<RpcReplyPort<Result<Report, EngineError>>>,
    },
    Tick,
    /// Retries a pass for a gap.
    RetryGap,
}

/// The cause of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Start,
    Interval,
    /// Engine events may have been missed.
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

/// The actions of a pass, or those that a dry run would carry out.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub dry_run: bool,
    pub containers: usize,
    /// Without actions that only confirm known state.
    pub actions: Vec<Action>,
}

#[derive(Debug)]
pub struct Reconciler;

#[derive(Debug)]
pub struct Arguments {
    pub world: Arc<World>,
    pub root: ActorRef<root::Message>,
    pub interval: Duration,
    /// The journal's contents at the start of the service, if no pass has succeeded since.
    pub unadopted: Option<Arc<Contents>>,
    /// The start of the service, which may be long ago.
    pub started_at: Timestamp,
}

#[derive(Debug)]
pub struct State {
    world: Arc<World>,
    root: ActorRef<root::Message>,
    interval: Duration,
    /// The journal's contents at the start of the service, until a pass has given every chat in it an actor.
    unadopted: Option<Arc<Contents>>,
    started_at: Timestamp,
    /// A retry of a failed pass is scheduled.
    gap_retry_scheduled: bool,
}

impl Actor for Reconciler {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { world, root, interval, unadopted, started_at } = arguments;
        myself.send_after(interval, || Message::Tick);
        if unadopted.is_none() {
            // Requests to a failed predecessor are lost.
            myself.cast(Message::Pass { because: Trigger::Gap, dry_run: false, report: None })?;
        }
        Ok(State { world, root, interval, unadopted, started_at, gap_retry_scheduled: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            // The first pass of the service is still to come, and closes the gap.
            Message::Pass { because: Trigger::Gap, report: None, .. } if state.unadopted.is_some() => {}
            Message::Pass { because, dry_run, report } => {
                let outcome = state.pass(because, dry_run).await;
                if because == Trigger::Gap && outcome.is_err() {
                    state.schedule_gap_retry(&myself);
                }
                if let Some(report) = report {
                    let _ = report.send(outcome);
                }
            }
            Message::RetryGap => {
                state.gap_retry_scheduled = false;
                if state.pass(Trigger::Gap, false).await.is_err() {
                    state.schedule_gap_retry(&myself);
                }
            }
            Message::Tick => {
                let _ = state.pass(Trigger::Interval, false).await;
                // Armed after the pass, so that passes never queue up behind a slow pass.
                myself.send_after(state.interval, || Message::Tick);
            }
        }
        Ok(())
    }
}

impl State {
    /// A missed change may stay unnoticed until the next event of its container, so the retry comes soon.
    fn schedule_gap_retry(&mut self, myself: &ActorRef<Message>) {
        if !std::mem::replace(&mut self.gap_retry_scheduled, true) {
            myself.send_after(GAP_RETRY, || Message::RetryGap);
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
            Err(error) => tracing::warn!(because = because.as_str(), %error, "reconcile pass failed"),
        }
        outcome
    }

    async fn try_pass(&mut self, dry_run: bool) -> Result<Report, EngineError> {
        // The active chats are read before the listing: a chat that gets its container after the listing is not
        // suspected.
        let chats = |chats| root::Message::Chats { after: None, limit: usize::MAX, chats };
        let chats = ask(&self.root, chats).await.ok_or_else(shutting_down)?;
        let adopted: BTreeSet<ChatId> = chats.routes.into_iter().map(|(chat, _)| chat).collect();
        let world = &self.world;
        let listed = world.engine.list(&world.instance).await?;
        let containers = listed.len();
        let session = |shown: &Observed| match world.claims.of_container(shown) {
            Some(claim) => Some(claim.session),
            None => labels::session(&shown.labels),
        };
        let sessions: HashSet<SessionId> = listed.iter().filter_map(session).collect();
        let (instance, claims) = (world.instance.clone(), Arc::clone(&world.claims));
        let (mut ours, slots, unrecognised) =
            on_blocking_thread(move || PlanInput::recognise(&instance, &claims, listed)).await?;
        let records = self.records_without_actor(&ours, &adopted).await?;
        self.inspect_ended(&mut ours, &records, &adopted).await;
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
        let (situation, planned, actions) = on_blocking_thread(move || {
            let planned = plan(&situation);
            let actions = planned.iter().filter(|action| !matches!(action, Action::Tell { .. })).cloned().collect();
            (situation, planned, actions)
        })
        .await?;
        if !dry_run {
            self.finish_renames(&situation.listed);
            self.carry_out(planned).await?;
            self.world.slots.retain(&slots.iter().map(|(labels, _)| labels.slot).collect()).await;
            pool::distribute(&self.world, slots);
            self.remove_ended_sessions(sessions).await;
            self.finish_rebuild(&situation).await;
        }
        Ok(Report { dry_run, containers, actions })
    }

    /// Only this service creates containers, and not before its first pass. A request of an earlier service may create
    /// a container even later: an engine completes a request whose caller has died.
    fn underway_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.unadopted.is_none().then(|| self.started_at.max(now - CREATION_GRACE))
    }

    /// Inspects ended containers whose records do not say how they ended, because a listing does not say it. A
    /// container whose inspection takes too long counts as ended without a cause: the service does not wait for it.
    async fn inspect_ended(&self, ours: &mut [Found], records: &[Sandbox], adopted: &BTreeSet<ChatId>) {
        let has_end = |record: &&Sandbox| !matches!(record.status, Status::Running | Status::Paused);
        let known: HashSet<SessionId> = records.iter().filter(has_end).map(|record| record.session).collect();
        let needs_inspect = |found: &Found| {
            let labels = &found.labels;
            found.condition() == Condition::Ended && !adopted.contains(&labels.chat) && !known.contains(&labels.session)
        };
        let unknown: Vec<(usize, ChatId)> = ours
            .iter()
            .enumerate()
            .filter(|(_, found)| needs_inspect(found))
            .map(|(at, found)| (at, found.labels.chat))
            .collect();
        let world = &*self.world;
        let inspects = stream::iter(unknown).map(|(at, chat)| async move { (at, discover(world, chat).await) });
        let inspects = inspects.buffer_unordered(INSPECTS_AT_ONCE).take_until(tokio::time::sleep(INSPECTS_LIMIT));
        let inspected: Vec<_> = inspects.collect().await;
        for (at, inspected) in inspected {
            if let Ok(Some(Ok(inspected))) = inspected {
                ours[at] = inspected;
            }
        }
    }

    /// Returns the records of the chats without an actor. A chat may have been served, and its sandbox deleted, since
    /// the service started, so the record of a chat without a container is read again. A container is removed for lack
    /// of a record only if there is no record at this moment.
    async fn records_without_actor(
        &self,
        listed: &[Found],
        adopted: &BTreeSet<ChatId>,
    ) -> Result<Vec<Sandbox>, EngineError> {
        let journal = &self.world.journal;
        let shown: BTreeSet<ChatId> = listed.iter().map(|found| found.labels.chat).collect();
        let mut records = Vec::new();
        let at_start = self.unadopted.iter().flat_map(|contents| &contents.sandboxes);
        for record in at_start.filter(|record| !adopted.contains(&record.chat)) {
            if shown.contains(&record.chat) {
                records.push(record.clone());
            } else {
                records.extend(journal.sandbox(record.chat).await.map_err(journal_unavailable)?);
            }
        }
        if self.unadopted.is_none() {
            for chat in shown.difference(adopted) {
                records.extend(journal.sandbox(*chat).await.map_err(journal_unavailable)?);
            }
        }
        Ok(records)
    }

    /// Renames the claimed slots whose rename was interrupted by the end of the service or a failure of the engine.
    fn finish_renames(&self, ours: &[Found]) {
        let world = &self.world;
        for Found { labels, container, .. } in ours {
            let name = ContainerName::of(&world.instance, labels.chat);
            if container.name != name.as_str() {
                tokio::spawn(pool::claim::rename(world.engine.clone(), container.id.clone(), name));
            }
        }
    }

    async fn carry_out(&mut self, planned: Vec<Action>) -> Result<(), EngineError> {
        let (mut sandboxes, mut seen) = (Vec::new(), Vec::new());
        for action in planned {
            match action {
                Action::Adopt { sandbox, because } => {
                    metrics::counter!("sandboxd_reconcile_actions_total", "because" => because.as_str()).increment(1);
                    tracing::info!(
                        chat.id = %sandbox.chat, session.id = %sandbox.session, status = sandbox.status.as_str(),
                        because = because.as_str(), "adopting sandbox"
                    );
                    sandboxes.push(sandbox);
                }
                Action::Tell { chat, seen: live_container } => seen.push((chat, live_container)),
                Action::Leave { container, why } => {
                    metrics::counter!("sandboxd_reconcile_actions_total", "because" => "left_alone").increment(1);
                    tracing::warn!(container.id = %container, why, "container left alone");
                }
            }
        }
        for observed in in_batches(seen) {
            self.report(Reconciled { observed, ..Reconciled::default() }).await?;
        }
        self.save_unrecorded(&sandboxes).await.map_err(journal_unavailable)?;
        for adopted in in_batches(sandboxes) {
            self.report(Reconciled { adopted, ..Reconciled::default() }).await?;
            // Their writes so far make room for those of the others. A full disk keeps no chat from being served.
            let _ = self.world.journal.flush().await;
        }
        self.report(Reconciled { complete: true, ..Reconciled::default() }).await?;
        self.unadopted = None;
        Ok(())
    }

    /// Reports results to root, and waits until root has applied them.
    async fn report(&self, results: Reconciled) -> Result<(), EngineError> {
        ask(&self.root, |done| root::Message::Reconciled { results, done }).await.ok_or_else(shutting_down)
    }

    /// Saves the sandboxes that are known only by their labels before they get an actor, as with every acknowledgement.
    /// All other sandboxes have a record, which their actor keeps: a write here could undo a newer one of a chat that
    /// is being served.
    async fn save_unrecorded(&self, sandboxes: &[Box<Sandbox>]) -> Result<(), JournalError> {
        let journal = &self.world.journal;
        if !journal.is_fresh() {
            return Ok(());
        }
        let adopted: Vec<_> = sandboxes.iter().filter(|sandbox| sandbox.status != Status::Deleting).collect();
        for batch in adopted.chunks(BATCH) {
            journal.write(batch.iter().flat_map(|sandbox| self.world.adoption((*sandbox).clone())).collect()).await?;
        }
        Ok(())
    }

    /// Removes the leftovers of sessions that have ended: the engine lists no container of theirs, and the journal has
    /// no record. The state of the chats' actors is not used. Other sessions are checked again in the next pass.
    async fn remove_ended_sessions(&self, mut known: HashSet<SessionId>) {
        if !self.world.guests.has_inherited() {
            return;
        }
        match self.world.journal.sessions().await {
            Ok(recorded) => {
                known.extend(recorded);
                self.world.guests.retain(&known).await;
            }
            Err(error) => {
                tracing::warn!(%error, "directories of ended sandboxes not removed; retrying in the next pass")
            }
        }
    }

    /// Labels are trusted until every container from before the service started has its record, including those of
    /// chats that had an actor by then and ask the engine for themselves.
    async fn finish_rebuild(&self, situation: &PlanInput) {
        if !self.world.journal.is_fresh() {
            return;
        }
        let rebuilt = async {
            let journal = &self.world.journal;
            let earlier = situation.listed.iter().filter(|found| found.labels.created_at < self.started_at);
            for found in earlier.filter(|found| situation.adopted.contains(&found.labels.chat)) {
                if journal.sandbox(found.labels.chat).await?.is_none() {
                    return Ok(());
                }
            }
            journal.write(vec![Draft::Rebuilt]).await
        };
        if let Err(error) = rebuilt.await {
            tracing::warn!(%error, "journal rebuild not finished; labels stay trusted until the next pass");
        }
    }
}

#[cfg(test)]
mod tests;
