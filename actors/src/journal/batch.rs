//! Assembles the drafts of several writers into the entries of one commit.

use std::collections::HashSet;

use super::{Draft, Entry, LifecycleEvent};

/// Numbers the events, continuing after `last_event`, and keeps only the last activity entry of each session.
pub(super) fn assemble(drafts: Vec<Draft>, last_event: u64) -> Vec<Entry> {
    let mut active = HashSet::new();
    let mut drafts: Vec<Draft> = drafts
        .into_iter()
        .rev()
        .filter(|draft| match draft {
            Entry::Activity { chat, session, .. } => active.insert((*chat, *session)),
            _ => true,
        })
        .collect();
    drafts.reverse();
    let mut sequence = last_event;
    let numbered = |draft| match draft {
        Entry::Save(sandbox) => Entry::Save(sandbox),
        Entry::Remove { chat, session } => Entry::Remove { chat, session },
        Entry::Activity { chat, session, at } => Entry::Activity { chat, session, at },
        Entry::Claim(claim) => Entry::Claim(claim),
        Entry::ClaimsImported => Entry::ClaimsImported,
        Entry::Rebuilt => Entry::Rebuilt,
        Entry::Probe => Entry::Probe,
        Entry::Event(change) => {
            sequence += 1;
            Entry::Event(Box::new(LifecycleEvent { sequence, change: *change }))
        }
    };
    drafts.into_iter().map(numbered).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::memory::MemoryJournal;
    use super::super::tests::{change, chat, claim, moment, sandbox, session};
    use super::super::{Contents, Journal};
    use super::*;

    /// Generates drafts of few chats and few sessions, so that entries affect each other.
    fn draft() -> impl Strategy<Value = Draft> {
        let ids = (0u128..3, 0u128..2);
        prop_oneof![
            ids.clone().prop_map(|(chat, session)| Entry::Save(Box::new(sandbox(chat, session)))),
            ids.clone().prop_map(|(chat, session)| Entry::Claim(Arc::new(claim(chat, session)))),
            ids.clone().prop_map(|(c, s)| Entry::Remove { chat: chat(c), session: session(s) }),
            (ids, 0i64..100).prop_map(|((c, s), at)| Entry::Activity {
                chat: chat(c),
                session: session(s),
                at: moment(at)
            }),
            (0u128..3).prop_map(|chat| Entry::Event(Box::new(change(chat)))),
        ]
    }

    fn written(batches: Vec<Vec<Draft>>) -> (Contents, Vec<LifecycleEvent>) {
        let mut journal = MemoryJournal::new();
        for drafts in batches {
            let last_event = journal.load().unwrap().last_event;
            journal.commit(&assemble(drafts, last_event)).unwrap();
        }
        (journal.load().unwrap(), journal.recorded())
    }

    proptest! {
        #[test]
        fn a_batch_has_the_effect_of_its_drafts_one_by_one(drafts in prop::collection::vec(draft(), 0..40)) {
            let one_by_one = drafts.iter().map(|draft| vec![draft.clone()]).collect();
            prop_assert_eq!(written(vec![drafts]), written(one_by_one));
        }

        #[test]
        fn a_batch_has_one_activity_entry_per_session(drafts in prop::collection::vec(draft(), 0..40)) {
            let mut seen = HashSet::new();
            for entry in assemble(drafts, 0) {
                if let Entry::Activity { chat, session, .. } = entry {
                    prop_assert!(seen.insert((chat, session)));
                }
            }
        }
    }

    #[test]
    fn events_are_numbered_in_order_and_without_gaps() {
        let drafts = (0..3).map(|chat| Draft::Event(Box::new(change(chat)))).collect();
        let numbers: Vec<_> = assemble(drafts, 41)
            .into_iter()
            .map(|entry| match entry {
                Entry::Event(event) => (event.sequence, event.change.chat),
                other => panic!("{other:?} is no event"),
            })
            .collect();
        assert_eq!(numbers, [(42, chat(0)), (43, chat(1)), (44, chat(2))]);
    }
}
