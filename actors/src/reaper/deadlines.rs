//! The deadlines of chats, as a queue: a change costs O(log n), and so does each due chat. A pass without a due chat
//! costs one look at the first entry.

use std::collections::{BTreeSet, HashMap};

use crate::domain::ids::ChatId;
use crate::ports::clock::Timestamp;

#[derive(Debug, Default)]
pub struct Deadlines {
    queue: BTreeSet<(Timestamp, ChatId)>,
    by_chat: HashMap<ChatId, Timestamp>,
}

impl Deadlines {
    /// Sets a chat's next deadline, in place of its earlier one.
    pub fn arm(&mut self, chat: ChatId, at: Timestamp) {
        if let Some(before) = self.by_chat.insert(chat, at) {
            self.queue.remove(&(before, chat));
        }
        self.queue.insert((at, chat));
    }

    pub fn disarm(&mut self, chat: ChatId) {
        if let Some(at) = self.by_chat.remove(&chat) {
            self.queue.remove(&(at, chat));
        }
    }

    /// Removes and returns one due chat, the longest overdue first.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<ChatId> {
        let &(at, chat) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.by_chat.remove(&chat);
        Some(chat)
    }

    /// Returns the time of the next deadline.
    pub fn next(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn chat(n: u8) -> ChatId {
        ChatId::new(uuid::Uuid::from_u128(n.into()))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timestamp(seconds, 0).unwrap()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arm(u8, i64),
        Disarm(u8),
        Due(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..8u8, 0..50i64).prop_map(|(chat, at)| Step::Arm(chat, at)),
            (0..8u8).prop_map(Step::Disarm),
            (0..50i64).prop_map(Step::Due),
        ]
    }

    proptest! {
        #[test]
        fn every_chat_is_due_once_and_at_its_latest_deadline(steps in prop::collection::vec(step(), 0..80)) {
            let mut deadlines = Deadlines::default();
            let mut model: BTreeMap<u8, i64> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Arm(n, seconds) => {
                        deadlines.arm(chat(n), at(seconds));
                        model.insert(n, seconds);
                    }
                    Step::Disarm(n) => {
                        deadlines.disarm(chat(n));
                        model.remove(&n);
                    }
                    Step::Due(now) => {
                        let mut due: Vec<_> = std::iter::from_fn(|| deadlines.pop_due(at(now))).collect();
                        due.sort();
                        let expected: Vec<_> = model.extract_if(.., |_, at| *at <= now).map(|(n, _)| chat(n)).collect();
                        prop_assert_eq!(due, expected);
                    }
                }
                prop_assert_eq!(deadlines.len(), model.len());
                prop_assert_eq!(deadlines.queue.len(), deadlines.by_chat.len());
            }
        }
    }
}
