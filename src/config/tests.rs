//! Tests of the configuration as a whole.

mod variables;

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SHIPPED: &str = include_str!("../../config/sandboxd.toml");
const NO_VARIABLES: [(&str, &str); 0] = [];

fn load<const N: usize>(text: &str, variables: [(&str, &str); N]) -> Result<Config, ConfigError> {
    let tree = source::parse_file(Path::new("test.toml"), text);
    Config::from_sources(tree.map_err(|problem| ConfigError::Invalid(vec![problem]))?, variables)
}

fn accept<const N: usize>(text: &str, variables: [(&str, &str); N]) -> Config {
    load(text, variables).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the lines of the error.
fn refuse<const N: usize>(text: &str, variables: [(&str, &str); N]) -> Vec<String> {
    let error = load(text, variables).expect_err("should be refused").to_string();
    error.lines().map(String::from).collect()
}

/// Returns the shipped file with its commented-out settings enabled.
fn shipped_in_full() -> String {
    let setting = |line: &str| !line.starts_with("# ") && line != "#";
    let enabled = |line: &str| match line.strip_prefix('#') {
        Some(rest) if setting(line) => rest.to_owned(),
        _ => line.to_owned(),
    };
    SHIPPED.lines().map(enabled).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_usual_file_is_read_if_it_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let usual = dir.path().join("sandboxd.toml");
    let load = || Config::from_sources(find_file(None, &usual)?, NO_VARIABLES);
    assert_eq!(load().expect("no file"), Config::default());
    std::fs::write(&usual, "instance.name = 'mine'").expect("written");
    assert_eq!(load().expect("a file").instance.name, "mine");
    assert!(find_file(Some(Path::new("/nowhere")), &usual).is_err(), "a named file is never replaced by another");
    assert!(find_file(None, dir.path()).is_err(), "a file that cannot be read is not passed over");
}

#[test]
fn an_empty_configuration_is_the_defaults() {
    let config = accept("", NO_VARIABLES);
    assert_eq!(config, Config::default());
    let profile = &config.profiles[DEFAULT_PROFILE];
    assert_eq!(profile.ttl, Duration::from_secs(4 * 3600));
    assert_eq!(profile.idle_timeout, Duration::from_secs(2 * 3600));
    assert_eq!(profile.memory, Size::from_bytes(1 << 30));
    assert_eq!(profile.network, Network::Shared);
    assert_eq!(config.socket.mode.bits(), 0o660);
    assert_eq!(config.metrics.listen, "127.0.0.1:9464".parse().ok());
    assert_eq!(config.http.listen, None);
}

#[test]
fn the_shipped_file_is_the_defaults() {
    assert_eq!(accept(SHIPPED, NO_VARIABLES), Config::default());
}

#[test]
fn the_shipped_file_has_every_key_and_no_other() {
    let full = shipped_in_full();
    accept(&full, NO_VARIABLES);
    let document: toml::Table = full.parse().expect("TOML");
    for key in Config::keys() {
        let mut parts = key.split('.');
        let section = document.get(parts.next().expect("a section"));
        let value = parts.fold(section, |value, part| value?.get(part));
        assert!(value.is_some(), "{key} is missing");
    }
}

#[test]
fn the_shipped_file_explains_every_key() {
    let lines: Vec<&str> = SHIPPED.lines().collect();
    let is_prose = |line: &str| line.starts_with("# ");
    let is_setting = |line: &str| line.contains(" = ") && !is_prose(line);
    for pair in lines.windows(2) {
        // The comment of a table with free names is above its header.
        let explained = is_prose(pair[0]) || pair[0].starts_with("[profiles.default.");
        assert!(!is_setting(pair[1]) || explained, "{} lacks a comment", pair[1]);
    }
}

#[test]
fn the_effective_configuration_reads_back() {
    for config in [Config::default(), accept(&shipped_in_full().replace("HTTP_PROXY", "#"), NO_VARIABLES)] {
        assert_eq!(accept(&config.to_string(), NO_VARIABLES), config);
    }
    let off = accept("metrics.listen = ''\nprofiles.a.network = 'none'", NO_VARIABLES);
    assert_eq!(accept(&off.to_string(), NO_VARIABLES), off);
}

#[test]
fn every_wrong_type_in_the_file_names_the_key_and_the_line() {
    let flags = [
        "engine.private",
        "engine.network_isolated",
        "images.gc.all",
        "profiles.default.read_only_root",
        "profiles.default.init",
        "profiles.default.snapshot_on_delete",
        "profiles.default.languages.python.stdin",
        "profiles.default.languages.sh.stdin",
    ];
    for key in Config::keys() {
        for wrong in ["true", "[[]]", "1979-05-27", "99999999999999999999", "nan", "{ wrong = [] }"] {
            if wrong == "true" && flags.contains(&key.as_str()) {
                continue;
            }
            let lines = refuse(&format!("\n\n{key} = {wrong}\n"), NO_VARIABLES);
            assert_eq!(lines.len(), 1, "{key} = {wrong}: {lines:?}");
            assert!(lines[0].starts_with(&format!("test.toml:3: {key}")), "{lines:?}");
            assert!(lines[0].contains("expected "), "{lines:?}");
        }
    }
}

#[test]
fn every_section_must_be_a_table() {
    let keys = Config::keys();
    let sections: BTreeSet<&str> = keys.iter().filter_map(|key| Some(key.rsplit_once('.')?.0)).collect();
    for section in sections {
        let lines = refuse(&format!("{section} = 3"), NO_VARIABLES);
        assert_eq!(lines, [format!("test.toml:1: {section}: expected a table, got an integer")]);
    }
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    let text = "[socket]\npth = '/x'\n[sokcet]\n[profiles.default]\nmemroy = '1g'\nquota = 1\n[profiles.default.pool]\nsizes = 1";
    let lines = refuse(text, NO_VARIABLES);
    assert_eq!(lines[0], r#"test.toml:2: socket.pth: unknown key, did you mean "path"?"#);
    assert_eq!(lines[1], r#"test.toml:3: sokcet: unknown section, did you mean "socket"?"#);
    assert_eq!(lines[2], r#"test.toml:5: profiles.default.memroy: unknown key, did you mean "memory"?"#);
    assert!(lines[3].starts_with("test.toml:6: profiles.default.quota: unknown key, known here: image, "));
    assert_eq!(lines[4], r#"test.toml:8: profiles.default.pool.sizes: unknown key, did you mean "size"?"#);
    assert_eq!(lines.len(), 5);
}

#[test]
fn all_wrong_values_are_reported_together_in_order() {
    let text = "[profiles.default]\nmemory = 'lots'\nttl = 0\n[socket]\nmode = 660";
    assert_eq!(
        refuse(text, [("SANDBOXD_REAPER__TICK", "1us")]),
        [
            r#"test.toml:2: profiles.default.memory: expected a size such as "512MiB" or "2g", got "lots""#,
            r#"test.toml:3: profiles.default.ttl: expected a duration of at least "1ms", got 0"#,
            r#"test.toml:5: socket.mode: expected an octal string such as "0660", got 660"#,
            r#"SANDBOXD_REAPER__TICK: expected a duration of at least "10ms", got "1us""#,
        ]
    );
}

#[test]
fn invalid_toml_is_refused_with_its_line_and_without_its_text() {
    let lines = refuse("[profiles.default.env]\nTOKEN = 'hunter2\n", NO_VARIABLES);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("test.toml:2: "), "{lines:?}");
    assert!(!lines[0].contains("hunter2"), "{lines:?}");
    assert!(refuse("a = 1\na = 2", NO_VARIABLES)[0].starts_with("test.toml:2: duplicate key"));
}

#[test]
fn secrets_are_never_shown() {
    let config = accept("profiles.default.env.TOKEN = 'hunter2'", NO_VARIABLES);
    assert!(config.to_string().contains(r#"TOKEN = "<redacted>""#), "{config}");
    for shown in [config.to_string(), format!("{config:?}"), format!("{config:#?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    for problems in [
        refuse("profiles.default.env.TOKEN = 71712", NO_VARIABLES),
        refuse("profiles.default.env = 'TOKEN=71712'", NO_VARIABLES),
        refuse("profiles.default.env.TOKEN = { a = '71712' }", NO_VARIABLES),
        refuse("profiles.default.env.TOKEN = \"71712\\u0000\"", NO_VARIABLES),
        refuse("profiles.default.evn.TOKEN = '71712'", NO_VARIABLES),
        refuse("", [("SANDBOXD_PROFILES__DEFAULT__ENV", "TOKEN=71712")]),
        refuse("", [("SANDBOXD_PROFILES__DEFAULT__ENV__TOKEN", "71712\0")]),
    ] {
        assert!(!problems.concat().contains("71712"), "{problems:?}");
    }
}

#[test]
fn a_profile_takes_the_built_in_defaults_and_not_the_default_profile() {
    let config = accept("profiles.default.port = 1\nprofiles.other.ttl = '1m'", NO_VARIABLES);
    assert_eq!(config.profiles["default"].port, 1);
    assert_eq!(config.profiles["other"].port, 8080);
    assert_eq!(config.profiles["other"].ttl, Duration::from_secs(60));
}

#[test]
fn a_profile_name_is_one_that_a_variable_can_spell() {
    for name in ["Big", "a_b", "a.b", "", "ä"] {
        let lines = refuse(&format!("[profiles.'{name}']"), NO_VARIABLES);
        assert!(lines[0].contains("expected a profile's name of a-z, 0-9 and -"), "{lines:?}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for wrong in [
        "instance.name = 'Upper'",
        "instance.name = '-a'",
        "instance.name = 'a234567890123456789012345678901x'",
        "socket.max_connections = 0",
        "volumes.roots = ['relative']",
        "volumes.roots = ['/']",
        "engine.kind = 'podman'",
        "engine.network = 'host'",
        "log.filter = 'sandboxd=loud'",
        "log.format = 'xml'",
        "profiles.default.port = 0",
        "profiles.default.port = 65536",
        "profiles.default.cpus = 0",
        "profiles.default.cpus = -1.0",
        "profiles.default.cpus = inf",
        "profiles.default.pids = 0",
        "profiles.default.memory = '5MiB'",
        "profiles.default.ttl = '0s'",
        "profiles.default.idle_timeout = -1",
        "profiles.default.network = 'host'",
        "profiles.default.network = 'container:abc'",
        "profiles.default.user = 'root'",
        "profiles.default.image = ''",
        "profiles.default.image = '--privileged'",
        "profiles.default.on_expire = 'keep'",
        "snapshots.keep = 0",
        "snapshots.max_age = '0s'",
        "profiles.default.restart = 'always'",
        "profiles.default.capabilities = ['ALL']",
        "profiles.default.readiness.path = 'health'",
        "profiles.default.pool.size = -1",
        "profiles.default.env.'A=B' = 'x'",
        "profiles.default.tmpfs.'/' = '1m'",
        "profiles.default.mounts.'/models' = 'models'",
        "profiles.default.mounts.'/models' = '/srv/models:rx'",
    ] {
        let key = wrong.split([' ', '\'']).next().expect("a key").trim_end_matches('.');
        let lines = refuse(wrong, NO_VARIABLES);
        assert!(lines.len() == 1 && lines[0].contains(key), "{wrong}: {lines:?}");
    }
    let path = format!("socket.path = '/{}'", "x".repeat(107));
    assert!(refuse(&path, NO_VARIABLES)[0].contains("at most 107 bytes"));
}

#[test]
fn capabilities_are_read_in_either_spelling() {
    let config = accept("profiles.default.capabilities = ['CAP_NET_RAW', 'chown']", NO_VARIABLES);
    assert_eq!(config.profiles["default"].capabilities, ["NET_RAW", "CHOWN"]);
    assert_eq!(
        refuse("profiles.default.capabilities = ['NET_ADMN']", NO_VARIABLES),
        [
            r#"test.toml:1: profiles.default.capabilities: item 1: expected a capability such as "NET_BIND_SERVICE", got "NET_ADMN", did you mean "NET_ADMIN"?"#
        ]
    );
}

#[test]
fn mount_points_must_not_overlap() {
    assert_eq!(
        refuse("mounts.volume = '/chat/'", NO_VARIABLES),
        ["test.toml:1: mounts.volume: /chat overlaps /chat of mounts.chat"]
    );
    assert_eq!(
        refuse("", [("SANDBOXD_MOUNTS__CHAT", "/volume/chat")]),
        ["mounts.volume: /volume overlaps /volume/chat of mounts.chat"]
    );
    accept("mounts.volume = '/chatter'", NO_VARIABLES);
    assert_eq!(
        refuse("profiles.x.tmpfs.'/chat/tmp' = '1m'", NO_VARIABLES),
        ["test.toml:1: profiles.x.tmpfs: /chat/tmp overlaps /chat of mounts.chat"]
    );
    assert_eq!(
        refuse("profiles.x.mounts.'/chat' = '/srv'", NO_VARIABLES),
        ["test.toml:1: profiles.x.mounts: /chat overlaps /chat of mounts.chat"]
    );
}

#[test]
fn an_http_address_is_refused_as_long_as_there_is_no_gateway() {
    for address in ["127.0.0.1:8090", "0.0.0.0:8090"] {
        let lines = refuse(&format!("\nhttp.listen = '{address}'\nhttp.token_file = '/etc/token'"), NO_VARIABLES);
        assert_eq!(lines, [r#"test.toml:2: http.listen: the service has no HTTP gateway yet; expected "off""#]);
    }
    let lines = refuse("", [("SANDBOXD_HTTP__LISTEN", "127.0.0.1:8090")]);
    assert_eq!(lines, [r#"SANDBOXD_HTTP__LISTEN: the service has no HTTP gateway yet; expected "off""#]);
    accept("http.listen = 'off'", NO_VARIABLES);
}

#[test]
fn a_name_whose_variables_would_be_ambiguous_is_refused() {
    for name in ["a--b", "-a", "a-"] {
        for table in ["profiles", "registries", "repositories", "profiles.default.languages"] {
            let lines = refuse(&format!("[{table}.{name}]"), NO_VARIABLES);
            assert!(lines[0].contains("environment variables would be ambiguous"), "{table}: {lines:?}");
        }
    }
}

#[test]
fn a_teardown_has_time_for_its_steps() {
    assert!(refuse("teardown.graceful = '6s'", NO_VARIABLES)[0].starts_with("teardown.total: expected at least 11s"));
    accept("teardown = { graceful = 0, total = '5s' }", NO_VARIABLES);
}

proptest! {
    #[test]
    fn no_value_of_any_key_panics(key in prop::sample::select(Config::keys().into_iter().collect::<Vec<_>>()), text in ".*") {
        let _ = load("", [(environment::variable(&key).as_str(), text.as_str())]);
        let _ = load(&format!("{key} = {text}"), NO_VARIABLES);
    }
}

#[test]
fn languages_are_configured_by_name_and_by_variable() {
    let text = "[profiles.default.languages.js]\ncommand = ['node', '-e']\nmax_output = '1KiB'";
    let variables = [
        ("SANDBOXD_PROFILES__DEFAULT__LANGUAGES__JS__TIMEOUT", "5s"),
        ("SANDBOXD_PROFILES__DEFAULT__LANGUAGES__C_SHELL__COMMAND", "csh,-c"),
    ];
    let languages = &accept(text, variables).profiles["default"].languages;
    assert_eq!(languages.keys().collect::<Vec<_>>(), ["c-shell", "js", "python", "sh"]);
    assert_eq!(languages["js"].timeout, Some(Duration::from_secs(5)));
    assert_eq!(
        (&*languages["js"].command, &*languages["c-shell"].command),
        (&["node", "-e"].map(String::from)[..], &["csh", "-c"].map(String::from)[..])
    );
}

#[test]
fn a_language_without_a_right_command_is_refused_by_its_key() {
    let lines = refuse("profiles.default.languages.js.stdin = true", NO_VARIABLES);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("profiles.default.languages.js.command: expected an interpreter"), "{lines:?}");
    for (text, key) in [
        ("profiles.default.languages.sh.command = []", "profiles.default.languages.sh.command: "),
        ("profiles.default.languages.sh.max_output = '17MiB'", "profiles.default.languages.sh.max_output: "),
        ("profiles.default.languages.'C++'.command = ['c']", "expected a language's name"),
    ] {
        let lines = refuse(text, NO_VARIABLES);
        assert!(lines.len() == 1 && lines[0].contains(key), "{lines:?}");
    }
}

#[test]
fn a_repository_needs_an_address_and_a_base() {
    assert_eq!(
        refuse("[repositories.app]\ncredentials_file = '/a'\ncredentials_command = ['b']", NO_VARIABLES),
        [
            "repositories.app.url: expected the address of the repository",
            "repositories.app.base: expected the image to start from",
            "test.toml:3: repositories.app.credentials_command: expected either this or credentials_file",
        ]
    );
    let config = accept("[repositories.app]\nurl = '/srv/app.git'\nbase = 'base:1'", NO_VARIABLES);
    assert_eq!(config.repositories["app"].every, Duration::from_secs(30 * 60));
    assert_eq!(accept(&config.to_string(), NO_VARIABLES), config);
}

#[test]
fn memory_for_callers_fits_together() {
    for (text, key) in [
        ("socket.max_memory = '60MiB'", "socket.max_memory:"),
        ("socket.max_line = '17MiB'", "socket.max_memory_per_connection:"),
        ("socket.max_memory_per_connection = '16MiB'", "socket.max_memory_per_connection:"),
    ] {
        let lines = refuse(text, NO_VARIABLES);
        assert!(lines.len() == 1 && lines[0].contains(key), "{lines:?}");
    }
    let lines = refuse("", [("SANDBOXD_SOCKET__MAX_MEMORY", "1MiB")]);
    assert!(lines.len() == 1 && lines[0].contains("max_memory"), "{lines:?}");
}

#[test]
fn watermarks_are_in_order() {
    let lines = refuse("images.gc = { high_watermark = 50, low_watermark = 60 }", NO_VARIABLES);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("images.gc.low_watermark"), "{lines:?}");
}
