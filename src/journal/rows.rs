//! Sandboxes and events as rows.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use chrono::SecondsFormat;
use rusqlite::types::Type;
use rusqlite::{Connection, Row, named_params};
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, LeaseId, SessionId};
use sandboxd_actors::domain::sandbox::{Endpoint, Sandbox, Status};
use sandboxd_actors::journal::{Change, LifecycleEvent};
use sandboxd_actors::ports::clock::Timestamp;

pub(super) fn save_sandbox(connection: &Connection, sandbox: &Sandbox) -> rusqlite::Result<()> {
    let mut replace = connection.prepare_cached(
        "REPLACE INTO sandboxes (chat, session, agent, workspace, volume, profile, image, snapshot, container, ip, port, \
         status, reason, message, created_at, started_at, last_activity_at, expires_at, idle_timeout, held_until, leases) \
         VALUES (:chat, :session, :agent, :workspace, :volume, :profile, :image, :snapshot, :container, :ip, :port, \
         :status, :reason, :message, :created_at, :started_at, :last_activity_at, :expires_at, \
         :idle_timeout, :held_until, :leases)",
    )?;
    replace.execute(named_params! {
        ":chat": sandbox.chat.to_string(),
        ":session": sandbox.session.to_string(),
        ":agent": sandbox.agent.as_str(),
        ":workspace": sandbox.workspace.map(|workspace| workspace.to_string()),
        ":volume": sandbox.volume.as_ref().map(HostPath::as_str),
        ":profile": sandbox.profile.as_str(),
        ":image": sandbox.image,
        ":snapshot": sandbox.snapshot.map(|snapshot| snapshot.to_string()),
        ":container": sandbox.container.as_ref().map(ContainerId::as_str),
        ":ip": sandbox.endpoint.map(|endpoint| endpoint.ip.to_string()),
        ":port": sandbox.endpoint.map(|endpoint| endpoint.port),
        ":status": sandbox.status.as_str(),
        ":reason": sandbox.reason.as_str(),
        ":message": sandbox.message,
        ":created_at": time(sandbox.created_at),
        ":started_at": sandbox.started_at.map(time),
        ":last_activity_at": time(sandbox.last_activity_at),
        ":expires_at": time(sandbox.expires_at),
        ":idle_timeout": duration(sandbox.idle_timeout),
        ":held_until": sandbox.held_until.map(time),
        ":leases": leases(&sandbox.durable_leases),
    })?;
    Ok(())
}

pub(super) fn read_sandbox(row: &Row<'_>, instance: &InstanceName) -> rusqlite::Result<Sandbox> {
    let chat = parse_column(row, "chat")?;
    let endpoint = match (parse_optional_column(row, "ip")?, row.get("port")?) {
        (Some(ip), Some(port)) => Some(Endpoint { ip, port }),
        _ => None,
    };
    Ok(Sandbox {
        session: parse_column(row, "session")?,
        chat,
        agent: parse_column(row, "agent")?,
        workspace: parse_optional_column(row, "workspace")?,
        volume: volume(row)?,
        profile: parse_column(row, "profile")?,
        image: row.get("image")?,
        snapshot: parse_optional_column(row, "snapshot")?,
        container_name: ContainerName::of(instance, chat),
        container: container(row)?,
        endpoint,
        status: parse_column(row, "status")?,
        reason: parse_column(row, "reason")?,
        message: row.get("message")?,
        created_at: parse_column(row, "created_at")?,
        started_at: parse_optional_column(row, "started_at")?,
        last_activity_at: parse_column(row, "last_activity_at")?,
        expires_at: parse_column(row, "expires_at")?,
        idle_timeout: read_column(row, "idle_timeout", read_duration)?,
        held_until: parse_optional_column(row, "held_until")?,
        held_by: Vec::new(),
        durable_leases: read_column(row, "leases", read_leases)?,
    })
}

pub(super) fn find_sandbox(
    connection: &Connection,
    instance: &InstanceName,
    chat: ChatId,
) -> rusqlite::Result<Option<Sandbox>> {
    connection
        .prepare_cached("SELECT * FROM sandboxes WHERE chat = ?1")?
        .query_map([chat.to_string()], |row| read_sandbox(row, instance))?
        .next()
        .transpose()
}

pub(super) fn sessions(connection: &Connection) -> rusqlite::Result<Vec<SessionId>> {
    connection
        .prepare_cached("SELECT session FROM sandboxes")?
        .query_map([], |row| parse_column(row, "session"))?
        .collect()
}

pub(super) fn remove_sandbox(connection: &Connection, chat: ChatId, session: SessionId) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached("DELETE FROM sandboxes WHERE chat = ?1 AND session = ?2")?;
    delete.execute((chat.to_string(), session.to_string()))?;
    Ok(())
}

pub(super) fn save_activity(
    connection: &Connection,
    chat: ChatId,
    session: SessionId,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let mut update =
        connection.prepare_cached("UPDATE sandboxes SET last_activity_at = ?3 WHERE chat = ?1 AND session = ?2")?;
    update.execute((chat.to_string(), session.to_string(), time(at)))?;
    Ok(())
}

pub(super) fn add_event(connection: &Connection, event: &LifecycleEvent) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO events (sequence, at, chat, session, agent, container, from_status, to_status, reason, message) \
         VALUES (:sequence, :at, :chat, :session, :agent, :container, :from, :to, :reason, :message)",
    )?;
    let change = &event.change;
    insert.execute(named_params! {
        ":sequence": number(event.sequence),
        ":at": time(change.at),
        ":chat": change.chat.to_string(),
        ":session": change.session.to_string(),
        ":agent": change.agent.as_str(),
        ":container": change.container.as_ref().map(ContainerId::as_str),
        ":from": change.from.map(Status::as_str),
        ":to": change.to.map(Status::as_str),
        ":reason": change.reason.as_str(),
        ":message": change.message,
    })?;
    Ok(())
}

pub(super) fn read_events(
    connection: &Connection,
    after: u64,
    chat: Option<ChatId>,
    limit: usize,
) -> rusqlite::Result<Vec<LifecycleEvent>> {
    let (after, limit) = (number(after), i64::try_from(limit).unwrap_or(i64::MAX));
    match chat {
        None => connection
            .prepare_cached("SELECT * FROM events WHERE sequence > ?1 ORDER BY sequence LIMIT ?2")?
            .query_map((after, limit), read_event)?
            .collect(),
        Some(chat) => connection
            .prepare_cached("SELECT * FROM events WHERE chat = ?3 AND sequence > ?1 ORDER BY sequence LIMIT ?2")?
            .query_map((after, limit, chat.to_string()), read_event)?
            .collect(),
    }
}

pub(super) fn last_events(
    connection: &Connection,
    chat: ChatId,
    limit: usize,
) -> rusqlite::Result<Vec<LifecycleEvent>> {
    connection
        .prepare_cached("SELECT * FROM events WHERE chat = ?1 ORDER BY sequence DESC LIMIT ?2")?
        .query_map((chat.to_string(), i64::try_from(limit).unwrap_or(i64::MAX)), read_event)?
        .collect()
}

pub(super) fn prune_events(connection: &Connection, kept_from: u64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM events WHERE sequence < ?1")?.execute([number(kept_from)])?;
    Ok(())
}

fn read_event(row: &Row<'_>) -> rusqlite::Result<LifecycleEvent> {
    Ok(LifecycleEvent {
        sequence: row.get::<_, i64>("sequence")?.unsigned_abs(),
        change: Change {
            at: parse_column(row, "at")?,
            chat: parse_column(row, "chat")?,
            session: parse_column(row, "session")?,
            agent: parse_column(row, "agent")?,
            container: container(row)?,
            from: parse_optional_column(row, "from_status")?,
            to: parse_optional_column(row, "to_status")?,
            reason: parse_column(row, "reason")?,
            message: row.get("message")?,
        },
    })
}

fn volume(row: &Row<'_>) -> rusqlite::Result<Option<HostPath>> {
    match row.get_ref("volume")?.as_str_or_null()? {
        None => Ok(None),
        Some(_) => read_column(row, "volume", |text| HostPath::from_canonical(Path::new(text))).map(Some),
    }
}

fn container(row: &Row<'_>) -> rusqlite::Result<Option<ContainerId>> {
    Ok(row.get::<_, Option<String>>("container")?.map(ContainerId::new))
}

pub(super) fn parse_column<T: FromStr<Err: Display>>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    read_column(row, column, str::parse)
}

fn parse_optional_column<T: FromStr<Err: Display>>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)?.as_str_or_null()? {
        None => Ok(None),
        Some(_) => parse_column(row, column).map(Some),
    }
}

pub(super) fn read_column<T, E: Display>(
    row: &Row<'_>,
    column: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> rusqlite::Result<T> {
    let index = row.as_ref().column_index(column)?;
    read(row.get_ref(index)?.as_str()?)
        .map_err(|why| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, format!("{column}: {why}").into()))
}

/// SQLite's integers are signed. Event numbers start at a time in milliseconds and never reach the limit.
fn number(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

/// Keeps nanoseconds, so that a time that is read back equals the acknowledged one.
fn time(at: Timestamp) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

fn leases(held: &[(LeaseId, Timestamp)]) -> String {
    held.iter().map(|(lease, until)| format!("{lease} {}\n", time(*until))).collect()
}

fn read_leases(text: &str) -> Result<Vec<(LeaseId, Timestamp)>, String> {
    let lease = |line: &str| {
        let (id, until) = line.split_once(' ')?;
        Some((id.parse().ok()?, until.parse().ok()?))
    };
    text.lines().map(|line| lease(line).ok_or_else(|| format!("expected a lease, got {line:?}"))).collect()
}

/// Writes seconds with nine decimals or none, which is exact for every duration.
fn duration(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (seconds, 0) => seconds.to_string(),
        (seconds, nanos) => format!("{seconds}.{nanos:09}"),
    }
}

fn read_duration(text: &str) -> Result<Duration, String> {
    let (seconds, decimals) = text.split_once('.').unwrap_or((text, "000000000"));
    match (seconds.parse(), decimals.parse()) {
        (Ok(seconds), Ok(nanos)) if decimals.len() == 9 => Ok(Duration::new(seconds, nanos)),
        _ => Err(format!("expected seconds, got {text:?}")),
    }
}
