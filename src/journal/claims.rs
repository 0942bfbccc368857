//! Claims as rows. A claim always has the session of its chat's record.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Row, named_params};
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, SessionId};
use sandboxd_actors::pool::claims::Claim;

use super::rows::{parse_column, read_column};

/// Saves the claim if the chat's record has the claim's session.
pub(super) fn save(connection: &Connection, claim: &Claim) -> rusqlite::Result<()> {
    let mut replace = connection.prepare_cached(
        "REPLACE INTO claims (chat, session, slot, container, labels, environment, mounts) \
         SELECT :chat, :session, :slot, :container, :labels, :environment, :mounts \
         WHERE EXISTS (SELECT 1 FROM sandboxes WHERE chat = :chat AND session = :session)",
    )?;
    let environment: BTreeMap<&str, &str> = claim.environment.iter().collect();
    let mounts: BTreeMap<&str, &str> =
        claim.mounts.iter().map(|(target, source)| (target.as_str(), source.as_str())).collect();
    replace.execute(named_params! {
        ":chat": claim.chat.to_string(),
        ":session": claim.session.to_string(),
        ":slot": claim.slot.to_string(),
        ":container": claim.container.as_str(),
        ":labels": json(&claim.labels)?,
        ":environment": json(&environment)?,
        ":mounts": json(&mounts)?,
    })?;
    Ok(())
}

pub(super) fn all(connection: &Connection) -> rusqlite::Result<Vec<Arc<Claim>>> {
    connection.prepare("SELECT * FROM claims")?.query_map([], |row| read(row).map(Arc::new))?.collect()
}

/// Removes the claim of a session.
pub(super) fn remove(connection: &Connection, chat: ChatId, session: SessionId) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached("DELETE FROM claims WHERE chat = ?1 AND session = ?2")?;
    delete.execute((chat.to_string(), session.to_string()))?;
    Ok(())
}

/// Removes the claims of the chat's other sessions.
pub(super) fn remove_superseded(connection: &Connection, chat: ChatId, session: SessionId) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached("DELETE FROM claims WHERE chat = ?1 AND session <> ?2")?;
    delete.execute((chat.to_string(), session.to_string()))?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<Claim> {
    let path = |text: &str| HostPath::from_canonical(Path::new(text)).map_err(|why| why.to_string());
    let mounts = |text: &str| {
        let mounts: BTreeMap<String, String> = serde_json::from_str(text).map_err(|why| why.to_string())?;
        mounts.into_iter().map(|(target, source)| Ok((target, path(&source)?))).collect::<Result<_, String>>()
    };
    // The error must not contain the values.
    let environment = |text: &str| serde_json::from_str(text).map_err(|_| "expected names and values");
    Ok(Claim {
        slot: parse_column(row, "slot")?,
        session: parse_column(row, "session")?,
        chat: parse_column(row, "chat")?,
        container: ContainerId::new(row.get::<_, String>("container")?),
        labels: read_column(row, "labels", |text| serde_json::from_str(text))?,
        environment: Environment::recorded(read_column(row, "environment", environment)?),
        mounts: read_column(row, "mounts", mounts)?,
    })
}

fn json<T: serde::Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|why| rusqlite::Error::ToSqlConversionFailure(why.into()))
}
