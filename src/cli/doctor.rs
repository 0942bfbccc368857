//! `doctor`: prints the checks of the service or, if the service does not answer, a diagnosis from the client's side.

use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, access};
use sandboxd_protocol::empty::NoParams;
use sandboxd_protocol::error;
use sandboxd_protocol::method::Method;
use serde_json::json;
use serde_json::value::RawValue;

use super::columns::Width;
use super::failure::CliError;
use super::{Arguments, Exit, parsed};
use crate::client::{Client, ClientError};
use crate::doctor::check::{self, Check, Checks, Status};
use crate::server::entry::DEFAULT_GROUP;

/// Longer than the service waits for its engine. A socket held by systemd accepts callers before the service answers.
const LIMIT: Duration = Duration::from_secs(30);

/// The name of the check that the client itself makes.
const SERVICE: &str = "service";

pub(super) async fn examine(arguments: &Arguments) -> Result<(Exit, String), CliError> {
    let asked = async {
        let client = Client::connect(&arguments.socket).await?;
        client.call::<Box<RawValue>>(Method::SystemDoctor, NoParams {}).await
    };
    let (checks, as_sent) = match tokio::time::timeout(LIMIT, asked).await {
        Ok(Ok(answer)) => (parsed::<Checks>(&answer)?, Some(answer)),
        Ok(Err(ClientError::Connect { source, .. })) => {
            (single(unreachable(source.kind(), &source.to_string(), &SocketAccess::at(&arguments.socket))), None)
        }
        Ok(Err(ClientError::Failed(failure))) if failure.data.kind == error::ErrorKind::Unauthorized => {
            let advice = "ask the operator to add your user or one of your groups to socket.allow_users, allow_groups or \
                          read_only_groups";
            (single(check::problem(SERVICE, failure.message, advice)), None)
        }
        Ok(Err(other)) => return Err(other.into()),
        Err(_) => {
            let message =
                format!("{} accepts connections, but no answer came within {LIMIT:?}", arguments.socket.display());
            let advice = "check whether the service starts: systemctl status sandboxd, journalctl -u sandboxd";
            (single(check::problem(SERVICE, message, advice)), None)
        }
    };
    let exit =
        if checks.checks.iter().any(|check| check.status == Status::Problem) { Exit::Failed } else { Exit::Done };
    let shown = match (arguments.json, as_sent) {
        (true, Some(answer)) => format!("{}\n", answer.get()),
        (true, None) => format!("{}\n", json!(checks)),
        (false, _) => {
            let width = if arguments.wide { Width::UNLIMITED } else { Width::of_terminal() };
            table(&checks, width, std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        }
    };
    Ok((exit, shown))
}

fn single(check: Check) -> Checks {
    Checks { checks: vec![check] }
}

/// The permissions of a socket, read without opening it.
struct SocketAccess {
    path: String,
    /// The group and the mode; absent if they cannot be read.
    owner: Option<(String, u32)>,
    /// The directory in the path that the user may not enter.
    closed_directory: Option<String>,
}

impl SocketAccess {
    fn at(socket: &Path) -> Self {
        let metadata = fs::metadata(socket).ok();
        let owner = metadata.map(|metadata| (group(metadata.gid()), metadata.permissions().mode() & 0o777));
        let parents: Vec<_> = socket.ancestors().skip(1).filter(|part| !part.as_os_str().is_empty()).collect();
        let closed = parents.into_iter().rev().find(|part| access(*part, Access::EXEC_OK).is_err());
        let closed_directory = closed.map(|part| part.display().to_string());
        Self { path: socket.display().to_string(), owner, closed_directory }
    }
}

fn group(gid: u32) -> String {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| gid.to_string())
}

/// Explains why the service cannot be reached, with advice.
fn unreachable(kind: ErrorKind, error: &str, socket: &SocketAccess) -> Check {
    let SocketAccess { path, owner, closed_directory } = socket;
    match (kind, owner, closed_directory) {
        (ErrorKind::NotFound, ..) => check::problem(
            SERVICE,
            format!("there is no socket {path}"),
            "start the service (systemctl start sandboxd), or name another socket with --socket or SANDBOXD_SOCKET",
        ),
        (ErrorKind::ConnectionRefused, ..) => check::problem(
            SERVICE,
            format!("no service listens at {path}: it has ended and left the socket behind"),
            "start the service (systemctl start sandboxd); journalctl -u sandboxd shows why it ended",
        ),
        (ErrorKind::PermissionDenied, _, Some(directory)) => check::problem(
            SERVICE,
            format!("your user may not enter {directory}, so it cannot open {path}"),
            format!("as owner of the directory, run: chmod o+x {directory}"),
        ),
        // Membership of root's group opens far more than this socket.
        (ErrorKind::PermissionDenied, Some((group, mode)), _) if group == "root" || group == "0" => check::problem(
            SERVICE,
            format!("your user may not open {path}, which belongs to group {group} and has mode {mode:04o}"),
            format!(
                "give the socket to a group of its callers: groupadd --system {DEFAULT_GROUP}, \
                 usermod -aG {DEFAULT_GROUP} USER, restart the service and log in again; see \"Callers that are not root\" \
                 in docs/operations.md"
            ),
        ),
        (ErrorKind::PermissionDenied, Some((group, mode)), _) => check::problem(
            SERVICE,
            format!("your user may not open {path}, which belongs to group {group} and has mode {mode:04o}"),
            format!(
                "become a member of group {group} (usermod -aG {group} USER, then log in again), or run sandboxctl as root"
            ),
        ),
        _ => check::problem(SERVICE, format!("{path}: {error}"), "check whether this is the service's socket"),
    }
}

const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Returns one line per check, with the advice below it.
fn table(Checks { checks }: &Checks, room: Width, coloured: bool) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let mut shown = String::new();
    for Check { name, status, message, advice } in checks {
        let (mark, word, colour) = match status {
            Status::Ok => ("\u{2713}", "ok", GREEN),
            Status::Warning => ("!", "warning", YELLOW),
            Status::Problem => ("\u{2717}", "problem", RED),
        };
        let (begin, end) = if coloured { (colour, PLAIN) } else { ("", "") };
        let indent = 11 + width + 2;
        let hanging = |text: &str, indent| room.wrap(text, indent).join(&format!("\n{:indent$}", ""));
        shown += &format!("{begin}{mark} {word:<7}{end}  {name:<width$}  {}\n", hanging(message, indent));
        if let Some(advice) = advice {
            shown += &format!("{:indent$}-> {}\n", "", hanging(advice, indent + 3));
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let (problems, warnings) = (count(Status::Problem), count(Status::Warning));
    let counted = |number, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    let counts = [(checks.len(), "check"), (problems, "problem"), (warnings, "warning")];
    let counts: Vec<_> = counts.into_iter().map(|(number, noun)| counted(number, noun)).collect();
    shown + &format!("\n{}\n", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(owner: Option<(&str, u32)>, closed: Option<&str>) -> SocketAccess {
        let owner = owner.map(|(group, mode)| (group.to_owned(), mode));
        SocketAccess { path: "/run/s".into(), owner, closed_directory: closed.map(str::to_owned) }
    }

    #[test]
    fn each_way_of_not_reaching_the_service_has_its_own_advice() {
        let open = socket(Some(("agents", 0o660)), None);
        let closed = socket(None, Some("/run"));
        let roots = socket(Some(("root", 0o660)), None);
        for (kind, socket, message, advice) in [
            (ErrorKind::NotFound, &open, "there is no socket /run/s", "SANDBOXD_SOCKET"),
            (ErrorKind::ConnectionRefused, &open, "no service listens", "journalctl"),
            (ErrorKind::PermissionDenied, &open, "group agents and has mode 0660", "usermod -aG agents"),
            (ErrorKind::PermissionDenied, &roots, "group root and has mode 0660", "usermod -aG sandboxd USER"),
            (ErrorKind::PermissionDenied, &closed, "may not enter /run", "chmod o+x /run"),
            (ErrorKind::InvalidInput, &open, "/run/s: odd", "the service's socket"),
        ] {
            let check = unreachable(kind, "odd", socket);
            assert_eq!(check.status, Status::Problem);
            assert!(check.message.contains(message), "{}", check.message);
            assert!(check.advice.as_ref().is_some_and(|text| text.contains(advice)), "{:?}", check.advice);
            assert!(!check.advice.as_ref().is_some_and(|text| text.contains("-aG root")), "{:?}", check.advice);
        }
    }

    #[test]
    fn a_table_has_a_mark_for_each_and_advice_where_there_is_some() {
        let checks = vec![
            check::ok("engine", "answers"),
            check::warning("live_restore", "off", "turn it on, then restart"),
            check::problem("images", "gone", "pull"),
        ];
        assert_eq!(
            table(&Checks { checks: checks.clone() }, Width::UNLIMITED, false),
            "\u{2713} ok       engine        answers\n\
             ! warning  live_restore  off\n                         -> turn it on, then restart\n\
             \u{2717} problem  images        gone\n                         -> pull\n\n\
             3 checks, 1 problem, 1 warning\n"
        );
        assert!(
            table(&Checks { checks: checks.clone() }, Width::UNLIMITED, true)
                .starts_with("\x1b[32m\u{2713} ok     \x1b[0m  engine")
        );
        let narrow = table(&Checks { checks }, Width::of(44), false);
        assert!(narrow.contains("-> turn it on, then\n                            restart\n"), "{narrow}");
    }
}
