//! Tests of `SANDBOXD_<SECTION>__<KEY>`.

use proptest::prelude::*;

use super::*;

#[test]
fn every_key_can_be_overridden_by_its_variable() {
    let full = accept(&shipped_in_full(), NO_VARIABLES);
    let document: toml::Table = shipped_in_full().parse().expect("TOML");
    let mut variables = Vec::new();
    let named = ["registries", "repositories"].into_iter().flat_map(|section| {
        let entries = document[section].as_table().expect("a table").iter();
        let keys = |entry: &toml::Value| entry.as_table().expect("a table").keys().cloned().collect::<Vec<_>>();
        entries.flat_map(move |(name, entry)| keys(entry).into_iter().map(move |key| format!("{section}.{name}.{key}")))
    });
    for key in Config::keys().into_iter().chain(named) {
        let mut parts = key.split('.');
        let section = document.get(parts.next().expect("a section"));
        let value = parts.fold(section, |value, part| value?.get(part)).expect("a key of the file");
        let text = value.as_str().map_or_else(|| value.to_string(), String::from);
        variables.push((environment::variable(&key), text));
    }
    assert_eq!(Config::from_sources(Table::new(), variables).expect("valid"), full);
}

#[test]
fn every_wrong_variable_is_named() {
    for key in Config::keys() {
        let variable = environment::variable(&key);
        for wrong in ["[[]]", "\u{1}"] {
            // An argument or a preamble may be any text.
            if key.ends_with(".preamble") || key.ends_with(".command") && wrong == "\u{1}" {
                continue;
            }
            let lines = refuse("", [(variable.as_str(), wrong)]);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].starts_with(&format!("{variable}: ")), "{lines:?}");
        }
    }
}

#[test]
fn the_environment_goes_before_the_file() {
    let text = "[profiles.default]\nmemory = '2g'\nreadiness = { kind = 'http', path = '/up' }";
    let config = accept(
        text,
        [
            ("SANDBOXD_PROFILES__DEFAULT__MEMORY", "1g"),
            ("SANDBOXD_PROFILES__DEFAULT__READINESS__KIND", "tcp"),
            ("SANDBOXD_SOCKET__ALLOW_USERS", "alice, 1000"),
            ("SANDBOXD_PROFILES__DEFAULT__COMMAND", r#"["sh", "-c", "a,b"]"#),
            ("SANDBOXD_INSTANCE__NAME", "42"),
        ],
    );
    let profile = &config.profiles["default"];
    assert_eq!(profile.memory, Size::from_bytes(1 << 30));
    assert_eq!(profile.readiness.kind, ReadinessKind::Tcp);
    assert_eq!(profile.readiness.path, "/up", "keys without a variable keep their value");
    assert_eq!(profile.command, ["sh", "-c", "a,b"]);
    assert_eq!(config.socket.allow_users, [Principal::Name("alice".into()), Principal::Id(1000)]);
    assert_eq!(config.instance.name, "42");
}

#[test]
fn a_variable_can_make_a_profile_and_spell_its_dash() {
    let config = accept("profiles.data-science.port = 1", [("SANDBOXD_PROFILES__DATA_SCIENCE__PORT", "9000")]);
    assert_eq!(config.profiles["data-science"].port, 9000);
    let config = accept("", [("SANDBOXD_PROFILES__NEW__PORT", "9000")]);
    assert_eq!(config.profiles.keys().collect::<Vec<_>>(), ["default", "new"]);
}

#[test]
fn a_variable_spells_the_dash_of_every_table_that_an_operator_names() {
    let file = "registries.our-team.host = 'a.example.com'\nregistries.our-team.credentials_file = '/c'
                repositories.our-app.url = '/a'\nrepositories.our-app.base = 'a:1'
                profiles.default.languages.type-script.command = ['ts']";
    let config = accept(
        file,
        [
            ("SANDBOXD_REGISTRIES__OUR_TEAM__HOST", "b.example.com"),
            ("SANDBOXD_REPOSITORIES__OUR_APP__BASE", "b:1"),
            ("SANDBOXD_PROFILES__DEFAULT__LANGUAGES__TYPE_SCRIPT__STDIN", "true"),
        ],
    );
    assert_eq!(config.registries.keys().collect::<Vec<_>>(), ["our-team"]);
    assert_eq!(config.registries["our-team"].host, "b.example.com");
    assert_eq!(config.repositories["our-app"].base, "b:1");
    assert!(config.profiles["default"].languages["type-script"].stdin);
}

#[test]
fn a_sandbox_variable_keeps_its_name() {
    let config = accept(
        "profiles.default.env = { FROM_FILE = 'f', Both = 'f' }",
        [
            ("SANDBOXD_PROFILES__DEFAULT__ENV__Both", "e"),
            ("SANDBOXD_PROFILES__DEFAULT__ENV__WITH__DASHES_", r#"{"json": [1]}"#),
        ],
    );
    let env = &config.profiles["default"].env;
    let shown: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(shown, [("Both", "e"), ("FROM_FILE", "f"), ("WITH__DASHES_", r#"{"json": [1]}"#)]);
}

#[test]
fn a_table_given_as_a_whole_replaces_the_files_and_yields_to_single_keys() {
    let config = accept(
        "profiles.default.env.OLD = 'x'",
        [
            ("SANDBOXD_PROFILES__DEFAULT__ENV", "{ A = '1', B = '1' }"),
            ("SANDBOXD_PROFILES__DEFAULT__ENV__B", "2"),
            ("SANDBOXD_PROFILES__DEFAULT__POOL", "{ size = 3 }"),
        ],
    );
    let profile = &config.profiles["default"];
    assert_eq!(profile.env.keys().collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!(profile.env["B"].expose(), "2");
    assert_eq!(profile.pool.size, 3);
}

#[test]
fn other_names_are_no_configuration() {
    let config = accept(
        "",
        [
            ("SANDBOXD_SOCKET", "/tmp/x"),
            ("SANDBOXD_LOG", "debug"),
            ("SANDBOXD_TEST_A__B", "x"),
            ("OTHER__KEY", "x"),
            ("PATH", "/bin"),
        ],
    );
    assert_eq!(config, Config::default());
}

#[test]
fn unknown_variables_are_refused_with_the_nearest_known_one() {
    let lines = refuse(
        "",
        [
            ("SANDBOXD_ENGIN__HOST", "auto"),
            ("SANDBOXD_SOCKET__PTH", "/x"),
            ("SANDBOXD_SOCKET__PATH__X", "/x"),
            ("SANDBOXD_foreign__name", "/x"),
            ("SANDBOXD_state__dir", "/x"),
        ],
    );
    assert_eq!(lines[0], "SANDBOXD_ENGIN__HOST: engin: unknown section, did you mean SANDBOXD_ENGINE__…?");
    assert_eq!(
        lines[1],
        r#"SANDBOXD_SOCKET__PATH__X: socket.path: expected an absolute path without "..", got a table"#
    );
    assert_eq!(lines[2], "SANDBOXD_SOCKET__PTH: unknown key, did you mean SANDBOXD_SOCKET__PATH?");
    assert!(lines[3].contains("unknown section, known here: instance, socket"), "{}", lines[3]);
    assert_eq!(lines[4], "SANDBOXD_state__dir: STATE: unknown section, did you mean SANDBOXD_STATE__…?");
}

#[test]
fn a_variable_below_a_plain_value_is_refused_with_its_origin() {
    assert_eq!(
        refuse("socket.path = '/x'", [("SANDBOXD_SOCKET__PATH__X", "/y")]),
        [r#"SANDBOXD_SOCKET__PATH__X: test.toml:1 already gives "path" a value that is not a table"#]
    );
}

proptest! {
    #[test]
    fn no_variable_name_panics(name in "SANDBOXD_(PROFILES|SOCKET|[A-Za-z_-]{0,4})__([A-Z_]{0,9}|ENV|DEFAULT__ENV__[ -~]{0,5})(__)?", text in ".*") {
        let _ = load("", [(name.as_str(), text.as_str())]);
    }
}
