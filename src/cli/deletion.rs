//! `delete`: removes one sandbox or many.

use std::io::{IsTerminal, Write};

use futures_util::{StreamExt, stream};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::sandbox::{DeleteParams, DeleteResult, Deletion};

use super::failure::CliError;
use super::filter::Filter;
use super::{Exit, Service, parsed, print, print_notice, tables};
use crate::client::ClientError;

/// The number of concurrent removals. More would only wait for the engine.
const CONCURRENCY: usize = 8;

pub(super) async fn one(service: &Service, params: DeleteParams) -> Result<(Exit, String), CliError> {
    let deletion = service.call(Method::SandboxDelete, params).await?;
    let is_found = |done: DeleteResult| done.result == Deletion::Deleted || done.purged;
    let found = parsed(&deletion).is_ok_and(is_found);
    let exit = if found { Exit::Done } else { Exit::NotFound };
    Ok((exit, service.show(&deletion, tables::deletion)?))
}

/// Removes the sandboxes that match the filter. A failure is printed and does not stop the other removals.
pub(super) async fn many(
    service: &Service,
    filter: &Filter,
    params: impl Fn(&str) -> DeleteParams,
    is_sure: bool,
) -> Result<(Exit, String), CliError> {
    let mut list = service.list_all(filter).await?;
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
            let deletion = service.call(Method::SandboxDelete, params(&chat)).await;
            (chat, deletion)
        })
        .buffer_unordered(CONCURRENCY);
    while let Some((chat, deletion)) = deletions.next().await {
        match deletion {
            Ok(deletion) => {
                print(&service.show(&deletion, tables::deletion)?);
            }
            Err(ClientError::Failed(failure)) => {
                exit = Exit::Failed;
                print_notice(&format!("chat {chat}: {failure} [{}]", failure.data.kind));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((exit, String::new()))
}

/// Asks the user for confirmation, which needs a terminal.
fn confirmed(count: usize) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::Usage("delete --all needs --yes if standard input is not a terminal"));
    }
    let _ = write!(std::io::stderr(), "remove {count} sandboxes? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
