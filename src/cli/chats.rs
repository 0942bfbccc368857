//! Resolves prefixes of chat ids.

use uuid::Uuid;

use super::Service;
use super::failure::CliError;
use super::filter::Filter;

/// The number of candidates in an error message.
const MAX_SHOWN: usize = 8;

#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum ChatError {
    #[error("{0:?} is not a chat: expected a chat id, which is a UUID, or a prefix of one")]
    NotAnId(String),
    #[error("no chat with a sandbox has an id that begins with {0}")]
    None(String),
    #[error("the ids of {} chats begin with {prefix}: {}", candidates.len(), listed(candidates))]
    Several { prefix: String, candidates: Vec<String> },
}

/// Replaces a prefix by the chat's id. A complete id needs no call to the service.
pub(super) async fn resolve(service: &Service, chat: &mut String) -> Result<(), CliError> {
    if Uuid::try_parse(chat).is_ok() {
        return Ok(());
    }
    if !is_prefix(chat) {
        return Err(ChatError::NotAnId(chat.clone()).into());
    }
    *chat = unique_match(chat, service.list_all(&Filter::default()).await?.chats()?.into_iter())?;
    Ok(())
}

/// Returns whether the text can be a prefix of a chat id.
pub(super) fn is_prefix(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn unique_match(prefix: &str, known: impl Iterator<Item = String>) -> Result<String, ChatError> {
    let prefix = prefix.to_ascii_lowercase();
    let mut candidates: Vec<_> = known.filter(|id| id.starts_with(&prefix)).collect();
    match candidates.len() {
        0 => Err(ChatError::None(prefix)),
        1 => Ok(candidates.remove(0)),
        _ => Err(ChatError::Several { prefix, candidates }),
    }
}

fn listed(candidates: &[String]) -> String {
    let shown = candidates.iter().take(MAX_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if candidates.len() > MAX_SHOWN { format!("{shown}, …") } else { shown }
}

/// Returns a unique prefix of each id, with at least eight characters.
pub(super) fn short_prefixes(ids: &[String]) -> Vec<String> {
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
        unique_match(prefix, IDS.into_iter().map(str::to_owned))
    }

    #[test]
    fn a_unique_prefix_is_resolved() {
        assert_eq!(found("8"), Ok(IDS[2].to_owned()));
        assert_eq!(found("67E55044-10b2"), Ok(IDS[1].to_owned()));
        assert_eq!(found("9"), Err(ChatError::None("9".into())));
        let several = found("67e5").expect_err("two ids have this prefix");
        assert!(several.to_string().ends_with(&format!("begin with 67e5: {}, {}", IDS[0], IDS[1])), "{several}");
    }

    #[test]
    fn prefixes_are_unique() {
        let ids = IDS.map(str::to_owned);
        assert_eq!(short_prefixes(&ids), ["67e55044-10b1", "67e55044-10b2", "8f14e45f-ceea"]);
        assert_eq!(short_prefixes(&ids[1..]), ["67e55044", "8f14e45f"]);
    }
}
