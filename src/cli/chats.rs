//! Chats by the beginning of their ids.

use uuid::Uuid;

use super::Service;
use super::failure::Trouble;
use super::filter::Filter;

/// As many candidates are named.
const SHOWN: usize = 8;

#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum ChatError {
    #[error("{0:?} is no chat: expected its id, a UUID, or the beginning of it")]
    NotAnId(String),
    #[error("no sandbox's chat begins with {0}")]
    None(String),
    #[error("the chats of {} sandboxes begin with {prefix}: {}", candidates.len(), listed(candidates))]
    Several { prefix: String, candidates: Vec<String> },
}

/// Puts the id of a chat in place of its beginning. The service is asked only where that is needed.
pub(super) async fn complete(service: &Service, chat: &mut String) -> Result<(), Trouble> {
    if Uuid::try_parse(chat).is_ok() {
        return Ok(());
    }
    if !is_beginning(chat) {
        return Err(ChatError::NotAnId(chat.clone()).into());
    }
    *chat = only(chat, service.whole_list(&Filter::default()).await?.chats()?.into_iter())?;
    Ok(())
}

/// Whether it may be the beginning of an id as it is shown.
pub(super) fn is_beginning(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn only(prefix: &str, known: impl Iterator<Item = String>) -> Result<String, ChatError> {
    let prefix = prefix.to_ascii_lowercase();
    let mut candidates: Vec<_> = known.filter(|id| id.starts_with(&prefix)).collect();
    match candidates.len() {
        0 => Err(ChatError::None(prefix)),
        1 => Ok(candidates.remove(0)),
        _ => Err(ChatError::Several { prefix, candidates }),
    }
}

fn listed(candidates: &[String]) -> String {
    let shown = candidates.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if candidates.len() > SHOWN { format!("{shown}, …") } else { shown }
}

/// The beginning of each id that is as long as needed to tell it from the others, and no shorter than people read.
pub(super) fn beginnings(ids: &[String]) -> Vec<String> {
    const SHORTEST: usize = 8;
    let mut sorted: Vec<&str> = ids.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let in_common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let longest = sorted.windows(2).map(|pair| in_common(pair[0], pair[1])).max().unwrap_or_default();
    let length = SHORTEST.max(longest + 1);
    ids.iter().map(|id| id.get(..length).unwrap_or(id).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [&str; 3] = [
        "67e55044-10b1-426f-9247-bb680e5fe0c8",
        "67e55044-10b2-426f-9247-bb680e5fe0c8",
        "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1",
    ];

    fn found(prefix: &str) -> Result<String, ChatError> {
        only(prefix, IDS.into_iter().map(str::to_owned))
    }

    #[test]
    fn the_beginning_of_one_id_stands_for_it() {
        assert_eq!(found("8"), Ok(IDS[2].to_owned()));
        assert_eq!(found("67E55044-10b2"), Ok(IDS[1].to_owned()));
        assert_eq!(found("9"), Err(ChatError::None("9".into())));
        let several = found("67e5").expect_err("two begin like that");
        assert!(several.to_string().ends_with(&format!("begin with 67e5: {}, {}", IDS[0], IDS[1])), "{several}");
    }

    #[test]
    fn beginnings_are_told_apart() {
        let ids = IDS.map(str::to_owned);
        assert_eq!(beginnings(&ids), ["67e55044-10b1", "67e55044-10b2", "8f14e45f-ceea"]);
        assert_eq!(beginnings(&ids[1..]), ["67e55044", "8f14e45f"]);
    }
}
