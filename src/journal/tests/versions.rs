//! From one version of the tables to the next.

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
fn a_migration_that_fails_changes_nothing() {
    let place = Place::new();
    drop(place.opened());
    let mut connection = Connection::open(&place.file).unwrap();
    let broken = [MIGRATIONS, &["CREATE TABLE colours (name TEXT)", "nonsense"]].concat();
    schema::migrate(&mut connection, &broken).unwrap_err();
    assert_eq!(schema::version(&connection).unwrap(), schema::latest(MIGRATIONS));
    drop(connection);
    place.opened();
}

#[test]
fn a_journal_of_the_first_version_keeps_what_held_its_sandboxes() {
    let place = Place::new();
    let held = Sandbox { held_until: Some(moment(60)), ..sandbox(1, 1) };
    place.opened().commit(&[Entry::Save(Box::new(held.clone()))]).unwrap();
    let connection = Connection::open(&place.file).unwrap();
    connection.execute_batch("ALTER TABLE sandboxes DROP COLUMN leases; ALTER TABLE sandboxes DROP COLUMN snapshot; PRAGMA user_version = 1").unwrap();
    drop(connection);
    assert_eq!(sandboxes(&mut place.opened()), [held]);
}
