//! Tables of commands and files.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::cli::columns::{Columns, Width};
use crate::cli::moment::length;

#[derive(Debug, Deserialize)]
pub(super) struct Started {
    command_id: u64,
}

pub(super) fn started(started: Started) -> String {
    format!("{}\n", started.command_id)
}

#[derive(Debug, Deserialize)]
pub(super) struct Commands {
    commands: Vec<Command>,
}

#[derive(Debug, Deserialize)]
struct Command {
    command_id: u64,
    command: Vec<String>,
    age: f64,
    attached: bool,
    end: Option<End>,
}

#[derive(Debug, Deserialize)]
struct End {
    exit_code: Option<i32>,
    signal: Option<i32>,
    timed_out: bool,
    #[serde(default)]
    oom_killed: bool,
}

pub(super) fn commands(Commands { commands }: Commands, width: Width) -> String {
    if commands.is_empty() {
        return "no commands\n".to_owned();
    }
    let mut table = Columns::new(&[("ID", 0), ("AGE", 1), ("STATE", 0), ("COMMAND", 0)]);
    for Command { command_id, command, age, attached, end } in commands {
        let state = match end {
            None if attached => "running, attached".to_owned(),
            None => "running".to_owned(),
            Some(End { timed_out: true, .. }) => "timed out".to_owned(),
            Some(End { oom_killed: true, .. }) => "out of memory".to_owned(),
            Some(End { exit_code: Some(code), .. }) => format!("exited {code}"),
            Some(End { signal, .. }) => format!("signal {}", signal.unwrap_or_default()),
        };
        let age = length(Duration::try_from_secs_f64(age).unwrap_or_default());
        table.row([command_id.to_string(), age, state, printable(&command.join(" "))]);
    }
    table.text(width)
}

#[derive(Debug, Deserialize)]
pub(super) struct Files {
    files: Vec<File>,
    truncated: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct File {
    name: Option<String>,
    kind: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    modified_at: DateTime<Utc>,
    target: Option<String>,
}

pub(super) fn files(Files { mut files, truncated }: Files) -> String {
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut table = Columns::without_header(5);
    for file in files {
        add(&mut table, file);
    }
    let more = if truncated { "the list is truncated\n" } else { "" };
    table.text(Width::UNLIMITED) + more
}

pub(super) fn file(path: &str, file: File) -> String {
    let mut table = Columns::without_header(5);
    add(&mut table, File { name: Some(path.to_owned()), ..file });
    table.text(Width::UNLIMITED)
}

fn add(table: &mut Columns, file: File) {
    let File { name, kind, size, mode, uid, gid, modified_at, target } = file;
    let name = printable(&name.unwrap_or_default());
    let name = target.map_or_else(|| name.clone(), |target| format!("{name} -> {}", printable(&target)));
    let at = modified_at.format("%Y-%m-%d %H:%M:%S").to_string();
    table.row([permissions(&kind, mode), format!("{uid}:{gid}"), size.to_string(), at, name]);
}

/// Formats permissions like `ls`.
fn permissions(kind: &str, mode: u32) -> String {
    let kind = match kind {
        "directory" => 'd',
        "symlink" => 'l',
        "file" => '-',
        _ => '?',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    let shown = bits.map(|(bit, letter)| if mode & (1 << bit) == 0 { '-' } else { letter });
    std::iter::once(kind).chain(shown).collect()
}

/// Escapes control characters. The guest chooses the names, and they must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_file_is_shown_like_ls_and_cannot_control_the_terminal() {
        let file = json!({
            "name": "a\u{1b}[2J", "kind": "symlink", "size": 5, "mode": 0o640, "uid": 1, "gid": 2,
            "modified_at": "2026-01-31T09:31:00.000Z", "target": "b",
        });
        let shown = files(serde_json::from_value(json!({ "files": [file], "truncated": true })).expect("files"));
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[0], "lrw-r-----  1:2  5  2026-01-31 09:31:00  a\\u{1b}[2J -> b");
        assert_eq!(lines[1], "the list is truncated");
    }

    #[test]
    fn commands_are_shown_with_their_state() {
        let command = |end| json!({ "command_id": 7, "command": ["sh", "-c", "x\ny"], "age": 61.5, "attached": false, "end": end });
        let ended = json!({ "exit_code": null, "signal": 9, "timed_out": false });
        let oom_killed = json!({ "exit_code": null, "signal": 9, "timed_out": false, "oom_killed": true });
        let listed = json!({ "commands": [command(json!(null)), command(ended), command(oom_killed)] });
        let shown = commands(serde_json::from_value(listed).expect("commands"), Width::UNLIMITED);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[1].ends_with("1m 1s  running        sh -c x\\ny"), "{shown}");
        assert!(lines[2].contains("signal 9"), "{shown}");
        assert!(lines[3].contains("out of memory"), "{shown}");
        assert_eq!(commands(Commands { commands: vec![] }, Width::UNLIMITED), "no commands\n");
    }
}
