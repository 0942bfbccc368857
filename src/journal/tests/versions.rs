//! Migrations between versions of the tables.

use super::super::schema::{self, MIGRATIONS};
use super::*;

#[test]
fn an_older_journal_is_brought_forward_with_all_it_holds() {
    let place = Place::new();
    place.opened().commit(&[save(1)]).unwrap();
    let next = [MIGRATIONS, &["ALTER TABLE sandboxes ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'"]].concat();

    let mut connection = Connection::open(&place.file).unwrap();
    schema::migrate(&mut connection, &next).unwrap();
    schema::migrate(&mut connection, &next).unwrap();
    assert_eq!(schema::version(&connection).unwrap(), schema::latest(&next));
    let row = connection.query_row("SELECT chat, colour FROM sandboxes", [], |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!(row.unwrap(), (chat(1).to_string(), "blue".to_owned()));

    let mut empty = Connection::open_in_memory().unwrap();
    schema::migrate(&mut empty, &next).unwrap();
    assert_eq!(schema::version(&empty).unwrap(), schema::latest(&next));
}

#[test]
fn a_failed_migration_is_rolled_back() {
    let place = Place::new();
    drop(place.opened());
    let mut connection = Connection::open(&place.file).unwrap();
    let broken = [MIGRATIONS, &["CREATE TABLE colours (name TEXT)", "invalid"]].concat();
    schema::migrate(&mut connection, &broken).unwrap_err();
    assert_eq!(schema::version(&connection).unwrap(), schema::latest(MIGRATIONS));
    drop(connection);
    place.opened();
}

#[test]
fn a_journal_of_the_first_version_keeps_held_until() {
    let place = Place::new();
    let held = Sandbox { held_until: Some(moment(60)), ..sandbox(1, 1) };
    place.opened().commit(&[Entry::Save(Box::new(held.clone()))]).unwrap();
    place.downgrade_to(1, &["leases", "snapshot", "workspace"]);
    assert_eq!(sandboxes(&mut place.opened()), [held]);
}

#[test]
fn sandboxes_from_before_there_were_workspaces_are_in_none_and_later_ones_in_theirs() {
    let place = Place::new();
    place.opened().commit(&[save(1)]).unwrap();
    place.downgrade_to(3, &["workspace"]);
    let mut journal = place.opened();
    assert_eq!(sandboxes(&mut journal), [sandbox(1, 0)]);
    let workspace = Some("8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1".parse().unwrap());
    let later = Sandbox { workspace, ..sandbox(2, 2) };
    journal.commit(&[Entry::Save(Box::new(later.clone()))]).unwrap();
    drop(journal);
    assert_eq!(sandboxes(&mut place.opened()), [sandbox(1, 0), later]);
}

#[test]
fn sandboxes_from_before_a_volume_was_optional_keep_theirs_and_later_ones_need_none() {
    let place = Place::new();
    place.opened().commit(&[save(1)]).unwrap();
    let connection = Connection::open(&place.file).unwrap();
    let required = "ALTER TABLE sandboxes DROP COLUMN volume;
                    ALTER TABLE sandboxes ADD COLUMN volume TEXT NOT NULL DEFAULT '/data'";
    connection.execute_batch(required).unwrap();
    remove_claims(&connection);
    connection.pragma_update(None, "user_version", 4).unwrap();
    drop(connection);
    let mut journal = place.opened();
    assert_eq!(sandboxes(&mut journal), [sandbox(1, 0)]);
    let later = Sandbox { volume: None, ..sandbox(2, 2) };
    journal.commit(&[Entry::Save(Box::new(later.clone()))]).unwrap();
    assert_eq!(sandboxes(&mut journal), [sandbox(1, 0), later]);
}

impl Place {
    /// Downgrades the journal to an older version without these columns.
    fn downgrade_to(&self, version: i32, unknown: &[&str]) {
        let connection = Connection::open(&self.file).unwrap();
        remove_claims(&connection);
        for column in unknown {
            connection.execute_batch(&format!("ALTER TABLE sandboxes DROP COLUMN {column}")).unwrap();
        }
        connection.pragma_update(None, "user_version", version).unwrap();
    }
}

/// Removes the claims table, as before claims were entries.
fn remove_claims(connection: &Connection) {
    connection.execute_batch("DROP TABLE claims; ALTER TABLE journal DROP COLUMN claims_in_files").unwrap();
}

#[test]
fn the_claims_of_a_journal_from_before_they_were_entries_are_files_until_they_are_imported() {
    let place = Place::new();
    place.opened().commit(&[save(1)]).unwrap();
    assert!(!place.opened().load().unwrap().claims_in_files, "a new journal has its own");
    place.downgrade_to(5, &[]);
    let mut journal = place.opened();
    assert!(journal.load().unwrap().claims_in_files);
    let imported = Arc::new(claim(&sandbox(1, 0)));
    journal.commit(&[Entry::Claim(Arc::clone(&imported)), Entry::ClaimsImported]).unwrap();
    drop(journal);
    let contents = place.opened().load().unwrap();
    assert_eq!((contents.claims, contents.claims_in_files), (vec![imported], false));
}
