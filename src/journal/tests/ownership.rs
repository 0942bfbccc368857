//! A journal has one owner.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn only_its_owner_may_read_a_journal() {
    let place = Place::new();
    let mut journal = place.opened();
    journal.commit(&[save(1)]).unwrap();
    let modes: Vec<_> = place.bytes().into_keys().chain([beside(&place.file, ".lock")]).collect();
    assert!(modes.len() >= 3, "{modes:?}");
    for path in modes {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn a_second_opener_is_refused_with_the_owners_process_id() {
    let place = Place::new();
    let mut journal = place.opened();
    let in_use = place.open().unwrap_err();
    assert!(matches!(in_use, JournalError::Busy { .. }), "{in_use}");
    let not_aside = SqliteJournal::set_aside(&place.file, &instance(), true).unwrap_err();
    for message in [in_use.to_string(), not_aside.to_string()] {
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        assert!(message.contains("state.dir"), "{message}");
    }
    journal.commit(&[save(1)]).unwrap();
    drop(journal);
    assert_eq!(sandboxes(&mut place.opened()), [sandbox(1, 0)]);
}

#[test]
fn no_other_program_gets_in_while_it_is_open() {
    let place = Place::new();
    let _journal = place.opened();
    let other = Connection::open(&place.file).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    let error = other.execute("DELETE FROM sandboxes", []).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
}

#[test]
fn a_program_that_is_in_first_is_waited_for_and_named() {
    let place = Place::new();
    drop(place.opened());
    let other = Connection::open(&place.file).unwrap();
    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    let error = place.open().unwrap_err();
    assert!(matches!(error, JournalError::Busy { .. }), "{error}");
    other.execute_batch("COMMIT").unwrap();
    drop(other);
    place.opened();
}
