//! Tables of commands and files.

use std::time::Duration;

use sandboxd_protocol::command::{CommandEnd, CommandInfo, CommandsResult};
use sandboxd_protocol::file::{File, FileKind, ListFilesResult};

use crate::cli::columns::{Columns, Width};
use crate::cli::moment::length;

pub(super) fn commands(CommandsResult { commands, .. }: CommandsResult, width: Width) -> String {
    if commands.is_empty() {
        return "no commands\n".to_owned();
    }
    let mut table = Columns::new(&[("ID", 0), ("AGE", 1), ("STATE", 0), ("COMMAND", 0)]);
    for CommandInfo { command_id, command, age, attached, end, .. } in commands {
        let state = match end {
            None if attached => "running, attached".to_owned(),
            None => "running".to_owned(),
            Some(CommandEnd { timed_out: true, .. }) => "timed out".to_owned(),
            Some(CommandEnd { oom_killed: true, .. }) => "out of memory".to_owned(),
            Some(CommandEnd { exit_code: Some(code), .. }) => format!("exited {code}"),
            Some(CommandEnd { signal, .. }) => format!("signal {}", signal.unwrap_or_default()),
        };
        let age = length(Duration::try_from_secs_f64(age).unwrap_or_default());
        table.row([command_id.to_string(), age, state, printable(&command.join(" "))]);
    }
    table.text(width)
}

pub(super) fn files(ListFilesResult { mut files, truncated }: ListFilesResult, _: Width) -> String {
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
    let at = modified_at.0.format("%Y-%m-%d %H:%M:%S").to_string();
    table.row([permissions(kind, mode), format!("{uid}:{gid}"), size.to_string(), at, name]);
}

/// Formats permissions like `ls`.
fn permissions(kind: FileKind, mode: u32) -> String {
    let kind = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::File => '-',
        FileKind::Other => '?',
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
        let listed = json!({ "files": [file], "truncated": true });
        let shown = files(serde_json::from_value(listed).expect("files"), Width::UNLIMITED);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[0], "lrw-r-----  1:2  5  2026-01-31 09:31:00  a\\u{1b}[2J -> b");
        assert_eq!(lines[1], "the list is truncated");
    }

    #[test]
    fn commands_are_shown_with_their_state() {
        let shown = |commands| super::commands(CommandsResult { commands, sync: None }, Width::UNLIMITED);
        let command = |end: Option<CommandEnd>| {
            let (command, running) = (["sh", "-c", "x\ny"].map(str::to_owned).into(), end.is_none());
            CommandInfo { command_id: 7, command, age: 61.5, attached: false, running, end }
        };
        let killed = |oom_killed| {
            let (exit_code, signal, timed_out, killed) = (None, Some(9), false, false);
            Some(CommandEnd { exit_code, signal, timed_out, killed, oom_killed, duration: 60.0 })
        };
        assert_eq!(shown(vec![]), "no commands\n");
        let shown = shown(vec![command(None), command(killed(false)), command(killed(true))]);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[1].ends_with("1m 1s  running        sh -c x\\ny"), "{shown}");
        assert!(lines[2].contains("signal 9"), "{shown}");
        assert!(lines[3].contains("out of memory"), "{shown}");
    }
}
