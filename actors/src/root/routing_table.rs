//! The map from chat to actor: routing, retirement and restarts. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::ids::ChatId;

/// A crash after this time of service starts a new series of restarts.
const CRASH_WINDOW: Duration = Duration::from_secs(60);
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The number of quick restarts within [`CRASH_WINDOW`]. After them, an actor restarts once per [`LONGEST_DELAY`].
const QUICK_RESTARTS: u32 = 5;
const LONGEST_DELAY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct RoutingTable<A> {
    entries: BTreeMap<ChatId, Entry<A>>,
    last_incarnation: u64,
}

#[derive(Debug)]
struct Entry<A> {
    incarnation: u64,
    server: Server<A>,
    crashes: u32,
    /// The end of the delay after the last crash.
    back_at: Option<Instant>,
}

#[derive(Debug)]
enum Server<A> {
    Up { actor: A, forwarded: u64 },
    Down { until: Instant },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    Forward,
    Spawn,
    Down { retry_after: Duration },
}

impl<A> Default for RoutingTable<A> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), last_incarnation: 0 }
    }
}

impl<A: Clone> RoutingTable<A> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, chat: ChatId) -> bool {
        self.entries.contains_key(&chat)
    }

    /// Returns a number for a new actor, so that a message of an old actor is not taken for one of its successor.
    pub(super) fn next_incarnation(&mut self) -> u64 {
        self.last_incarnation += 1;
        self.last_incarnation
    }

    pub(super) fn admit(&mut self, chat: ChatId, incarnation: u64, actor: A) {
        let server = Server::Up { actor, forwarded: 0 };
        match self.entries.get_mut(&chat) {
            Some(entry) => (entry.incarnation, entry.server) = (incarnation, server),
            None => {
                self.entries.insert(chat, Entry { incarnation, server, crashes: 0, back_at: None });
            }
        }
    }

    pub(super) fn route(&self, chat: ChatId, now: Instant) -> Route {
        match self.entries.get(&chat).map(|entry| &entry.server) {
            None => Route::Spawn,
            Some(Server::Up { .. }) => Route::Forward,
            Some(Server::Down { until }) => Route::Down { retry_after: until.saturating_duration_since(now) },
        }
    }

    /// Returns the actor for one more call, and counts the call.
    pub(super) fn forward(&mut self, chat: ChatId) -> Option<&A> {
        match &mut self.entries.get_mut(&chat)?.server {
            Server::Up { actor, forwarded } => {
                *forwarded += 1;
                Some(actor)
            }
            Server::Down { .. } => None,
        }
    }

    /// Removes a chat that has handled every forwarded call. Otherwise the chat asks again.
    pub(super) fn retire(&mut self, chat: ChatId, incarnation: u64, handled: u64) -> Option<A> {
        if !self.has_handled_all(chat, incarnation, handled) {
            return None;
        }
        match self.entries.remove(&chat)?.server {
            Server::Up { actor, .. } => Some(actor),
            Server::Down { .. } => None,
        }
    }

    /// Returns whether the chat has handled every forwarded call.
    pub(super) fn has_handled_all(&self, chat: ChatId, incarnation: u64, handled: u64) -> bool {
        let entry = self.entries.get(&chat).filter(|entry| entry.incarnation == incarnation);
        entry.is_some_and(|entry| matches!(entry.server, Server::Up { forwarded, .. } if forwarded == handled))
    }

    /// Marks a crashed actor as down. Returns the delay before its restart.
    pub(super) fn crashed(&mut self, chat: ChatId, incarnation: u64, now: Instant) -> Option<Duration> {
        self.entries.get(&chat).filter(|entry| entry.incarnation == incarnation)?;
        Some(self.mark_down(chat, incarnation, now))
    }

    /// Marks a chat as down after a crash or a failed start. Returns the delay before the next start.
    pub(super) fn mark_down(&mut self, chat: ChatId, incarnation: u64, now: Instant) -> Duration {
        let down = Server::Down { until: now };
        let entry = self.entries.entry(chat).or_insert(Entry { incarnation, server: down, crashes: 0, back_at: None });
        let in_window = entry.back_at.is_some_and(|back_at| now.saturating_duration_since(back_at) < CRASH_WINDOW);
        entry.crashes = if in_window { entry.crashes.saturating_add(1) } else { 1 };
        let delay =
            if entry.crashes > QUICK_RESTARTS { LONGEST_DELAY } else { FIRST_DELAY * 2u32.pow(entry.crashes - 1) };
        let until = now + delay;
        (entry.incarnation, entry.server, entry.back_at) = (incarnation, Server::Down { until }, Some(until));
        delay
    }

    pub(super) fn is_up(&self, chat: ChatId, incarnation: u64) -> bool {
        self.entries
            .get(&chat)
            .is_some_and(|entry| entry.incarnation == incarnation && matches!(entry.server, Server::Up { .. }))
    }

    pub(super) fn is_down(&self, chat: ChatId, incarnation: u64) -> bool {
        self.entries
            .get(&chat)
            .is_some_and(|entry| entry.incarnation == incarnation && matches!(entry.server, Server::Down { .. }))
    }

    /// Returns the actor that serves a chat.
    pub(super) fn serving(&self, chat: ChatId) -> Option<&A> {
        match &self.entries.get(&chat)?.server {
            Server::Up { actor, .. } => Some(actor),
            Server::Down { .. } => None,
        }
    }

    /// Returns a page of chats in order, each with its actor unless the actor is down.
    pub(super) fn page(&self, after: Option<ChatId>, limit: usize) -> Vec<(ChatId, Option<A>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.entries
            .range((after.map_or(Unbounded, Excluded), Unbounded))
            .map(|(chat, entry)| match &entry.server {
                Server::Up { actor, .. } => (*chat, Some(actor.clone())),
                Server::Down { .. } => (*chat, None),
            })
            .take(limit)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(n: u128) -> ChatId {
        ChatId::new(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn a_chat_retires_only_when_it_has_handled_everything_it_was_sent() {
        let mut routing_table = RoutingTable::default();
        let incarnation = routing_table.next_incarnation();
        routing_table.admit(chat(1), incarnation, "a");
        routing_table.forward(chat(1));
        routing_table.forward(chat(1));
        assert_eq!(routing_table.retire(chat(1), incarnation, 1), None, "one call is still on its way");
        assert_eq!(routing_table.route(chat(1), Instant::now()), Route::Forward);
        assert_eq!(routing_table.retire(chat(1), incarnation, 2), Some("a"));
        assert_eq!(routing_table.route(chat(1), Instant::now()), Route::Spawn);
    }

    #[test]
    fn messages_of_an_old_actor_do_not_end_its_successor() {
        let mut routing_table = RoutingTable::default();
        let old = routing_table.next_incarnation();
        routing_table.admit(chat(1), old, "old");
        routing_table.crashed(chat(1), old, Instant::now());
        let new = routing_table.next_incarnation();
        routing_table.admit(chat(1), new, "new");
        assert_eq!(routing_table.retire(chat(1), old, 0), None);
        assert_eq!(routing_table.crashed(chat(1), old, Instant::now()), None);
        assert!(!routing_table.is_down(chat(1), old));
        assert_eq!(routing_table.retire(chat(1), new, 0), Some("new"));
    }

    #[test]
    fn restarts_back_off_and_then_stay_at_the_longest_delay() {
        let mut routing_table = RoutingTable::default();
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..7 {
            let incarnation = routing_table.next_incarnation();
            routing_table.admit(chat(1), incarnation, ());
            now += Duration::from_millis(1);
            delays.push(routing_table.crashed(chat(1), incarnation, now).unwrap().as_millis());
        }
        assert_eq!(delays, [50, 100, 200, 400, 800, 60_000, 60_000]);
        let Route::Down { retry_after } = routing_table.route(chat(1), now) else { panic!("not down") };
        assert_eq!(retry_after, LONGEST_DELAY);

        let incarnation = routing_table.next_incarnation();
        routing_table.admit(chat(1), incarnation, ());
        let again = routing_table.crashed(chat(1), incarnation, now + LONGEST_DELAY);
        assert_eq!(again, Some(LONGEST_DELAY), "the delay does not count as time of service");

        let incarnation = routing_table.next_incarnation();
        routing_table.admit(chat(1), incarnation, ());
        let later = routing_table.crashed(chat(1), incarnation, now + LONGEST_DELAY * 2 + CRASH_WINDOW);
        assert_eq!(later, Some(FIRST_DELAY), "a crash long after the others starts anew");
    }

    #[test]
    fn a_chat_whose_actor_did_not_start_is_down_and_keeps_its_entry() {
        let mut routing_table = RoutingTable::<()>::default();
        let incarnation = routing_table.next_incarnation();
        assert_eq!(routing_table.mark_down(chat(1), incarnation, Instant::now()), FIRST_DELAY);
        assert!(routing_table.is_down(chat(1), incarnation));
        let incarnation = routing_table.next_incarnation();
        assert_eq!(routing_table.mark_down(chat(1), incarnation, Instant::now()), FIRST_DELAY * 2);
        assert!(routing_table.is_down(chat(1), incarnation));
    }

    #[test]
    fn pages_walk_every_chat_once_in_order() {
        let mut routing_table = RoutingTable::default();
        for n in [5, 3, 9, 1] {
            let incarnation = routing_table.next_incarnation();
            routing_table.admit(chat(n), incarnation, n);
        }
        let first: Vec<_> = routing_table.page(None, 3).into_iter().filter_map(|(_, n)| n).collect();
        let second: Vec<_> = routing_table.page(Some(chat(5)), 3).into_iter().filter_map(|(_, n)| n).collect();
        assert_eq!((first, second), (vec![1, 3, 5], vec![9]));
    }

    #[test]
    fn a_page_names_chats_that_have_no_actor_at_the_moment() {
        let mut routing_table = RoutingTable::default();
        let incarnation = routing_table.next_incarnation();
        routing_table.admit(chat(1), incarnation, ());
        routing_table.crashed(chat(1), incarnation, Instant::now());
        assert_eq!(routing_table.page(None, 3), [(chat(1), None)]);
    }
}
