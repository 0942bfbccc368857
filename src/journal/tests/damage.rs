//! Damaged files are refused without being changed, and with advice.

use proptest::prelude::*;

use super::super::schema::{self, MIGRATIONS};
use super::*;

/// Returns a closed journal of several pages.
fn filled() -> Place {
    let place = Place::new();
    let mut journal = place.opened();
    journal.commit(&(0..200).map(save).collect::<Vec<_>>()).unwrap();
    record(&mut journal, 200);
    drop(journal);
    place
}

/// Opens a journal and reads it completely.
fn read(place: &Place) -> Result<(), JournalError> {
    let mut journal = place.open()?;
    journal.load()?;
    journal.events(0, None, usize::MAX)?;
    Ok(())
}

/// Asserts that opening fails twice, names the file and leaves it unchanged; returns the error.
fn refused(place: &Place) -> JournalError {
    let before = place.bytes();
    let error = place.open().unwrap_err();
    assert_eq!(place.open().unwrap_err(), error);
    assert!(place.bytes() == before, "refused as {error}, but changed");
    assert!(error.to_string().contains(place.file.to_str().unwrap()), "{error}");
    error
}

fn assert_corrupt(place: &Place) {
    let error = refused(place);
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("--rebuild-journal"), "{error}");
}

#[test]
fn garbage_is_refused() {
    for garbage in [b"".to_vec(), b"\0".repeat(4096), b"not a journal\n".repeat(1000)] {
        let place = Place::new();
        fs::write(&place.file, garbage).unwrap();
        assert_corrupt(&place);
    }
}

#[test]
fn the_database_of_another_program_is_refused() {
    let place = Place::new();
    Connection::open(&place.file).unwrap().execute_batch("CREATE TABLE journal (instance TEXT)").unwrap();
    assert_corrupt(&place);
}

#[test]
fn a_truncated_journal_is_refused() {
    let whole = fs::read(&filled().file).unwrap();
    for length in [0, 1, 99, 100, 4096, 5000, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
        let place = Place::new();
        fs::write(&place.file, &whole[..length]).unwrap();
        assert_corrupt(&place);
    }
}

#[test]
fn a_log_without_its_journal_is_refused() {
    let place = Place::new();
    fs::write(beside(&place.file, "-wal"), "a log").unwrap();
    assert_corrupt(&place);
    let aside = SqliteJournal::set_aside(&place.file, &instance(), false).unwrap().unwrap();
    assert_eq!(fs::read(beside(&aside, "-wal")).unwrap(), b"a log");
    place.opened();
}

#[test]
fn broken_pages_are_refused() {
    let whole = fs::read(&filled().file).unwrap();
    for page in 0..whole.len() / 4096 {
        let mut bytes = whole.clone();
        bytes[page * 4096..][..64].iter_mut().for_each(|byte| *byte ^= 0xff);
        let place = Place::new();
        fs::write(&place.file, bytes).unwrap();
        assert_corrupt(&place);
    }
}

#[test]
fn a_row_that_makes_no_sense_is_damage_and_names_its_column() {
    for (column, value) in [("status", "asleep"), ("expires_at", "soon"), ("idle_timeout", "1.5"), ("volume", "data")] {
        let place = filled();
        let other = Connection::open(&place.file).unwrap();
        other
            .execute(&format!("UPDATE sandboxes SET {column} = ?1 WHERE chat = ?2"), (value, chat(7).to_string()))
            .unwrap();
        drop(other);
        let error = read(&place).unwrap_err();
        assert!(matches!(error, JournalError::Corrupt { .. }) && error.to_string().contains(column), "{error}");
    }
}

#[test]
fn missing_tables_are_damage() {
    let place = filled();
    Connection::open(&place.file).unwrap().execute_batch("DROP TABLE journal").unwrap();
    assert_corrupt(&place);
}

#[test]
fn a_newer_journal_is_refused() {
    let place = filled();
    let (next, this) = (schema::latest(MIGRATIONS) + 1, schema::latest(MIGRATIONS));
    Connection::open(&place.file).unwrap().pragma_update(None, "user_version", next).unwrap();
    let error = refused(&place);
    assert!(matches!(error, JournalError::Newer { found, known, .. } if (found, known) == (next, this)), "{error}");
    assert!(error.to_string().contains("--rebuild-journal"), "{error}");
}

#[test]
fn a_newer_journal_whose_version_is_still_in_the_log_is_refused() {
    let place = filled();
    let other = Connection::open(&place.file).unwrap();
    other.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    other.pragma_update(None, "user_version", 7).unwrap();
    drop(other);
    assert!(fs::metadata(beside(&place.file, "-wal")).unwrap().len() > 0);
    assert!(matches!(refused(&place), JournalError::Newer { found: 7, .. }));
}

#[test]
fn the_journal_of_another_instance_is_refused() {
    let place = filled();
    let before = place.bytes();
    let error = SqliteJournal::open(&place.file, &"other".parse().unwrap(), 10).unwrap_err();
    assert!(matches!(&error, JournalError::OtherInstance { found, .. } if found == "default"), "{error}");
    assert!(place.bytes() == before);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let error = SqliteJournal::open(Path::new("/nowhere/journal.db"), &instance(), 10).unwrap_err();
    assert!(matches!(error, JournalError::Io { .. }) && error.to_string().contains("/nowhere/journal.db"), "{error}");
}

#[test]
fn setting_aside_keeps_every_part_and_makes_room() {
    let place = filled();
    assert_eq!(SqliteJournal::set_aside(&Place::new().file, &instance(), false).unwrap(), None);
    fs::write(beside(&place.file, "-wal"), "log").unwrap();
    let before = place.bytes();
    let aside = SqliteJournal::set_aside(&place.file, &instance(), true).unwrap().unwrap();
    assert!(aside.to_str().unwrap().contains("journal.db.aside-"), "{}", aside.display());
    let contents = |bytes: BTreeMap<PathBuf, Vec<u8>>| bytes.into_values().collect::<Vec<_>>();
    assert!(contents(place.bytes()) == contents(before), "renamed, but changed");

    let contents = place.opened().load().unwrap();
    assert!(contents.fresh && contents.sandboxes.is_empty());
    fs::remove_file(beside(&aside, "-wal")).unwrap();
    assert_eq!(sandboxes(&mut SqliteJournal::open(&aside, &instance(), 10).unwrap()).len(), 200);
}

#[test]
fn a_healthy_journal_is_set_aside_only_by_force() {
    for version in [schema::latest(MIGRATIONS), 1] {
        let place = filled();
        let other = Connection::open(&place.file).unwrap();
        other.pragma_update(None, "user_version", version).unwrap();
        drop(other);
        let before = place.bytes();
        let refused = SqliteJournal::set_aside(&place.file, &instance(), false).unwrap_err();
        assert!(matches!(refused, NotSetAside::Healthy { sandboxes: 200, .. }), "{refused}");
        assert!(refused.to_string().contains("--force"), "{refused}");
        let other_instance = SqliteJournal::set_aside(&place.file, &"other".parse().unwrap(), false).unwrap_err();
        assert!(
            matches!(other_instance, NotSetAside::Unusable(JournalError::OtherInstance { .. })),
            "{other_instance}"
        );
        assert!(place.bytes() == before, "refused, but changed");
        assert!(SqliteJournal::set_aside(&place.file, &instance(), true).unwrap().is_some());
    }
}

#[test]
fn a_journal_that_cannot_be_used_is_set_aside_without_force() {
    let damages: [fn(&Connection) -> rusqlite::Result<()>; 3] = [
        |other| other.execute_batch("UPDATE sandboxes SET status = 'asleep'"),
        |other| other.execute_batch("UPDATE events SET at = 'soon'"),
        |other| other.pragma_update(None, "user_version", schema::latest(MIGRATIONS) + 1),
    ];
    for damage in damages {
        let place = filled();
        let other = Connection::open(&place.file).unwrap();
        damage(&other).unwrap();
        drop(other);
        assert!(SqliteJournal::set_aside(&place.file, &instance(), false).unwrap().is_some());
    }
}

#[test]
fn an_interrupted_creation_leaves_no_journal() {
    let place = Place::new();
    for part in PARTS {
        fs::write(beside(&beside(&place.file, ".new"), part), "half").unwrap();
    }
    place.opened().commit(&[save(1)]).unwrap();
    assert_eq!(sandboxes(&mut place.opened()), [sandbox(1, 0)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn flipped_bytes_never_panic_and_a_refused_file_is_unchanged(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..40)
    ) {
        let place = Place::new();
        drop(place.opened());
        let mut bytes = fs::read(&place.file).unwrap();
        for (index, mask) in flips {
            let at = index.index(bytes.len());
            bytes[at] ^= mask;
        }
        fs::write(&place.file, &bytes).unwrap();
        if place.open().is_err() {
            prop_assert!(fs::read(&place.file).unwrap() == bytes);
        }
    }
}
