//! The checked-in docs/protocol-reference.md against the text that the code generates.

use sandboxd_protocol::{example, reference};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol-reference.md");

#[test]
fn the_checked_in_reference_is_that_of_the_code() {
    let generated = reference::document(&example::all().unwrap()).unwrap();
    if std::env::var_os("UPDATE_REFERENCE").is_some_and(|update| update == "1") {
        std::fs::write(FILE, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        checked_in == generated,
        "docs/protocol-reference.md is out of date: run the tests with UPDATE_REFERENCE=1"
    );
}
