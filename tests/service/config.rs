//! Tests of loading the configuration from files and from an environment.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use sandboxd::config::{Config, ConfigError};

const EMPTY: [(OsString, OsString); 0] = [];

#[test]
fn the_shipped_file_loads_as_the_defaults() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/sandboxd.toml");
    assert_eq!(Config::load(Some(&shipped), EMPTY).expect("valid"), Config::default());
}

#[test]
fn a_named_file_that_is_missing_is_an_error_with_its_path() {
    let error = Config::load(Some(Path::new("/nowhere/sandboxd.toml")), EMPTY).expect_err("missing");
    assert!(matches!(error, ConfigError::Unreadable { .. }));
    assert!(error.to_string().starts_with("cannot read configuration /nowhere/sandboxd.toml: "), "{error}");
}

#[test]
fn a_file_that_is_no_text_or_no_file_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let binary = dir.path().join("binary.toml");
    fs::write(&binary, [0xff, 0xfe]).expect("written");
    for path in [binary.as_path(), dir.path()] {
        let error = Config::load(Some(path), EMPTY).expect_err("unreadable").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn problems_name_file_line_and_key_or_the_variable() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sandboxd.toml");
    fs::write(&file, "[socket]\npath = \"/run/x.sock\"\n\n[profiles.default]\nmemory = \"lots\"\n").expect("written");
    let error = Config::load(Some(&file), [("SANDBOXD_STATE__DIR", "here")]).expect_err("wrong").to_string();
    let expected = [
        format!(
            r#"{}:5: profiles.default.memory: expected a size such as "512MiB" or "2g", got "lots""#,
            file.display()
        ),
        r#"SANDBOXD_STATE__DIR: expected an absolute path without "..", got "here""#.to_owned(),
    ];
    assert_eq!(error, expected.join("\n"));
}

#[test]
fn a_variable_that_is_no_text_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sandboxd.toml");
    fs::write(&file, "").expect("written");
    let variable = (OsString::from("SANDBOXD_STATE__DIR"), OsString::from_vec(vec![b'/', 0xff]));
    let error = Config::load(Some(&file), [variable]).expect_err("not UTF-8").to_string();
    assert_eq!(error, "SANDBOXD_STATE__DIR: expected text in UTF-8");
}

#[test]
fn the_environment_of_a_process_will_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sandboxd.toml");
    fs::write(&file, "instance.name = 'mine'").expect("written");
    assert_eq!(Config::load(Some(&file), std::env::vars_os()).expect("valid").instance.name, "mine");
}
