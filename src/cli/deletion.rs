//! `delete`: one sandbox, or many.

use std::io::{IsTerminal, Write};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::failure::Trouble;
use super::filter::Filter;
use super::{Exit, Service, parsed, print, say, tables};
use crate::client::{ClientError, Failure};

/// Asked for at the same time: more would only wait for the engine.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct How {
    /// Whether a snapshot is taken first; `None`: as the profile says.
    pub(super) snapshot: Option<bool>,
    /// Whether the chat's directory is removed as well.
    pub(super) purge: bool,
}

pub(super) async fn one(service: &Service, chat: &str, how: How) -> Result<(Exit, String), Trouble> {
    let deletion = service.call("sandbox.delete", params(chat, how)).await?;
    let done = parsed::<Value>(&deletion)?;
    let found = done["result"] == "deleted" || done["purged"] == true;
    let exit = if found { Exit::Done } else { Exit::NotFound };
    Ok((exit, service.show(&deletion, tables::deletion)?))
}

/// Those that the filter admits. A failure is told and does not keep the others from being removed.
pub(super) async fn many(
    service: &Service,
    filter: &Filter,
    how: How,
    is_sure: bool,
) -> Result<(Exit, String), Trouble> {
    let mut list = service.whole_list(filter).await?;
    if !filter.is_empty() {
        list.undescribed.clear();
    }
    let chats = list.chats()?;
    if !is_sure && !chats.is_empty() && !confirmed(chats.len())? {
        return Ok((Exit::Failed, String::new()));
    }
    let mut exit = Exit::Done;
    let mut deletions = stream::iter(chats)
        .map(async |chat| {
            let deletion = service.call("sandbox.delete", params(&chat, how)).await;
            (chat, deletion)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((chat, deletion)) = deletions.next().await {
        match deletion {
            Ok(deletion) => {
                print(&service.show(&deletion, tables::deletion)?);
            }
            Err(ClientError::Failed(Failure { message, data, .. })) => {
                exit = Exit::Failed;
                say(&format!("chat {chat}: {message} [{}]", data.kind));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((exit, String::new()))
}

fn params(chat: &str, how: How) -> Value {
    let mut params = json!({ "chat_id": chat });
    if let Some(snapshot) = how.snapshot {
        params["snapshot"] = json!(snapshot);
    }
    if how.purge {
        params["purge"] = json!(true);
    }
    params
}

/// Asks the user. Without a terminal there is no one to ask.
fn confirmed(count: usize) -> Result<bool, Trouble> {
    if !std::io::stdin().is_terminal() {
        return Err(Trouble::Usage("delete --all asks before it removes, or needs --yes where it cannot ask"));
    }
    let _ = write!(std::io::stderr(), "remove {count} sandboxes? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
