//! Tests of sandboxctl's commands for a guest, as a shell sees them: output, input, terminals, exit codes, files.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use crate::support::{PATIENCE, Service, chat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

struct Sandbox {
    service: Service,
    chat: String,
    place: tempfile::TempDir,
}

struct Ran {
    code: Option<i32>,
    output: Vec<u8>,
    errors: String,
}

impl Ran {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.output).expect("UTF-8")
    }
}

impl Sandbox {
    async fn new() -> Self {
        let service = Service::start().await;
        let chat = chat();
        let created = service.connect().await.ask(service.create(1, &chat)).await;
        assert_eq!(created["result"]["status"], "running", "{created}");
        Self { service, chat, place: tempfile::tempdir().expect("a directory") }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
        command.env("SANDBOXD_SOCKET", &self.service.socket).args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[]).await
    }

    async fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut child = self.command(arguments).spawn().expect("sandboxctl runs");
        let mut stdin = child.stdin.take().expect("piped");
        let feed = async {
            // The command may end without reading its input.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let (output, ()) = tokio::join!(child.wait_with_output(), feed);
        let output = output.expect("it ended");
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        Ran { code: output.status.code(), output: output.stdout, errors }
    }

    /// Runs a line in the sandbox's shell.
    async fn exec(&self, options: &[&str], line: &str) -> Ran {
        self.run(&[&["exec", &self.chat], options, &["--", "sh", "-c", line]].concat()).await
    }

    fn remote_path(&self, path: &str) -> String {
        format!("{}:{}", self.chat, self.path(path))
    }

    /// Returns a guest path. The sandbox of these tests shares this machine's file system.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.place.path().to_str().expect("UTF-8"))
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().expect("it runs") as i32).expect("a process")
}

async fn ended(child: &mut Child) -> Option<i32> {
    tokio::time::timeout(PATIENCE, child.wait()).await.expect("in time").expect("it ended").code()
}

#[tokio::test]
async fn a_command_prints_where_it_means_to_and_its_exit_code_is_ours() {
    let sandbox = Sandbox::new().await;
    let ran = sandbox.exec(&["--cwd", "/usr", "--env", "A=b"], "pwd; echo $A; echo careful >&2; exit 3").await;
    assert_eq!((ran.code, ran.text(), ran.errors.as_str()), (Some(3), "/usr\nb\n", "careful\n"));
    assert_eq!(sandbox.exec(&[], "kill -9 $$").await.code, Some(137));
    assert_eq!(sandbox.exec(&["--timeout", "0.2"], "sleep 1000").await.code, Some(124));
    let ran = sandbox.exec(&["--json"], "echo out; exit 4").await;
    let result: Value = serde_json::from_slice(&ran.output).expect("one JSON object");
    assert_eq!((ran.code, &result["stdout"]["text"]), (Some(4), &json!("out\n")));
}

#[tokio::test]
async fn a_command_needs_no_dashes_before_it_and_keeps_its_own_options() {
    let sandbox = Sandbox::new().await;
    let ran =
        sandbox.run(&["exec", &sandbox.chat[..8], "--env", "A=b", "sh", "-c", "echo $A $0 $1", "--json", "--"]).await;
    assert_eq!((ran.code, ran.text(), ran.errors.as_str()), (Some(0), "b --json --\n", ""));
    let ran = sandbox.run(&["exec", &sandbox.chat, "--frobnicate", "true"]).await;
    assert!(ran.code == Some(2) && ran.errors.contains("--frobnicate"), "{}", ran.errors);
}

#[tokio::test]
async fn a_command_that_outlives_the_service_is_reported_with_its_attach_command() {
    let sandbox = Sandbox::new().await;
    let mut child =
        sandbox.command(&["exec", &sandbox.chat, "sh", "-c", "echo begun; sleep 20"]).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next_line().await.expect("readable").as_deref(), Some("begun"));
    sandbox.service.shutdown.cancel();
    assert_eq!(ended(&mut child).await, Some(125));
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).await.expect("UTF-8");
    let way_back = errors.trim_end().rsplit_once("sandboxctl attach ").map(|(_, rest)| rest).unwrap_or_default();
    let (chat, command) = way_back.split_once(' ').unwrap_or_default();
    assert!(chat == sandbox.chat && command.parse::<u64>().is_ok(), "{errors}");
}

#[tokio::test]
async fn code_is_run_from_a_file_or_as_it_is_piped() {
    let sandbox = Sandbox::new().await;
    let run = ["run", &sandbox.chat, "--language", "sh"];
    let ran = sandbox.run_with(&run, b"echo piped; exit 3").await;
    assert_eq!((ran.code, ran.text()), (Some(3), "piped\n"));
    let file = sandbox.path("code.sh");
    std::fs::write(&file, "echo from a file").expect("written");
    assert_eq!(sandbox.run(&[&run[..], &[&file]].concat()).await.text(), "from a file\n");
    let ran = sandbox.run(&["run", &sandbox.chat, "--language", "klingon", &file]).await;
    assert!(ran.code == Some(125) && ran.errors.contains("klingon"), "{}", ran.errors);
    let ran = sandbox.run(&["run", &sandbox.chat, "/no/such/file"]).await;
    assert!(ran.code == Some(125) && ran.errors.contains("/no/such/file"), "{}", ran.errors);
}

#[tokio::test]
async fn a_sandbox_has_logs_and_stats_and_can_be_paused() {
    let sandbox = Sandbox::new().await;
    let ran = sandbox.run(&["logs", &sandbox.chat, "--tail", "10"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.errors);
    let ran = sandbox.run(&["stats", &sandbox.chat]).await;
    assert!(ran.code == Some(0) && ran.text().contains("cpu time"), "{}", ran.text());
    let ran = sandbox.run(&["pause", &sandbox.chat]).await;
    assert!(ran.code == Some(0) && ran.text().contains("paused"), "{}", ran.text());
    let ran = sandbox.run(&["resume", &sandbox.chat]).await;
    assert!(ran.code == Some(0) && ran.text().contains("running"), "{}", ran.text());
}

#[tokio::test]
async fn a_command_that_never_ran_differs_from_one_that_failed() {
    let sandbox = Sandbox::new().await;
    assert_eq!(sandbox.run(&["exec", &sandbox.chat, "--", "frobnicate"]).await.code, Some(127));
    assert_eq!(sandbox.run(&["exec", &sandbox.chat, "--", "/"]).await.code, Some(126));
    let nowhere = sandbox.run(&["exec", &chat(), "--", "true"]).await;
    assert!(nowhere.code == Some(125) && nowhere.errors.contains("[sandbox_not_found]"), "{}", nowhere.errors);
    assert_eq!(sandbox.run(&["exec", &sandbox.chat]).await.code, Some(2));
}

#[tokio::test]
async fn standard_input_is_passed_on_byte_by_byte_when_asked_for() {
    let sandbox = Sandbox::new().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let ran = sandbox.run_with(&["exec", &sandbox.chat, "-i", "--", "cat"], &bytes).await;
    assert!(ran.code == Some(0) && ran.output == bytes, "{} of {} bytes", ran.output.len(), bytes.len());
    let ran = sandbox.run_with(&["exec", &sandbox.chat, "--", "wc", "-c"], &bytes).await;
    assert_eq!(ran.text(), "0\n", "it was not asked for");
    let ran = sandbox.run_with(&["exec", &sandbox.chat, "-i", "--", "true"], &bytes).await;
    assert_eq!(ran.code, Some(0), "a command may ignore its input: {}", ran.errors);
}

#[tokio::test]
async fn ctrl_c_ends_the_command_and_its_children() {
    let sandbox = Sandbox::new().await;
    let line = "setsid sleep 1000 & echo $!; sleep 1000";
    let mut child = sandbox.command(&["exec", &sandbox.chat, "--", "sh", "-c", line]).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let sleeper = lines.next_line().await.expect("readable").expect("a process");
    kill_process(pid(&child), Signal::INT).expect("signalled");
    assert_eq!(ended(&mut child).await, Some(130));
    let stat = format!("/proc/{sleeper}/stat");
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_detached_command_is_listed_followed_and_killed() {
    let sandbox = Sandbox::new().await;
    let started = sandbox.exec(&["--detach"], "echo serving; exec sleep 1000").await;
    let command = started.text().trim().to_owned();
    let listed = sandbox.run(&["ps", &sandbox.chat]).await;
    let row = listed.text().lines().nth(1).expect("a command").to_owned();
    assert!(row.starts_with(&command) && row.contains("  running  sh -c echo serving"), "{row}");

    // An attached caller may leave; the command goes on.
    let mut child = sandbox.command(&["attach", &sandbox.chat, &command]).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next_line().await.expect("readable").as_deref(), Some("serving"));
    kill_process(pid(&child), Signal::INT).expect("signalled");
    assert_eq!(ended(&mut child).await, Some(130));

    // Until the service has noticed the disconnect, it would send the end to the old connection.
    while sandbox.run(&["ps", &sandbox.chat]).await.text().contains("attached") {}

    assert_eq!(sandbox.run(&["kill", &sandbox.chat, &command, "--signal", "15"]).await.code, Some(0));
    assert_eq!(sandbox.run(&["attach", &sandbox.chat, &command]).await.code, Some(143));
    assert_eq!(sandbox.run(&["ps", &sandbox.chat]).await.text(), "no commands\n");
    let gone = sandbox.run(&["kill", &sandbox.chat, &command]).await;
    assert!(gone.code == Some(1) && gone.errors.contains("[command_not_found]"), "{}", gone.errors);
}

#[tokio::test]
async fn files_with_any_content_are_copied_both_ways() {
    let sandbox = Sandbox::new().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let (local, back) = (sandbox.path("local"), sandbox.path("back"));
    std::fs::write(&local, &bytes).expect("written");
    std::fs::set_permissions(&local, std::os::unix::fs::PermissionsExt::from_mode(0o750)).expect("changed");
    let copied = sandbox.run(&["cp", "-p", &local, &sandbox.remote_path("a/b/")]).await;
    assert_eq!((copied.code, copied.errors.as_str()), (Some(0), ""));
    assert!(std::fs::read(sandbox.path("a/b/local")).expect("a file") == bytes);
    assert_eq!(sandbox.run(&["cp", &sandbox.remote_path("a/b/local"), &back]).await.code, Some(0));
    assert!(std::fs::read(&back).expect("a file") == bytes);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&back).expect("a file").permissions());
    assert_eq!(mode & 0o777, 0o750);
    assert!(sandbox.run(&["cat", &sandbox.chat, &back]).await.output == bytes);
    assert!(sandbox.run(&["cp", &sandbox.remote_path("back"), "-"]).await.output == bytes);
    assert_eq!(sandbox.run_with(&["cp", "-", &sandbox.remote_path("piped")], b"typed").await.code, Some(0));
    assert_eq!(std::fs::read(sandbox.path("piped")).expect("a file"), b"typed");
}

#[tokio::test]
async fn a_failed_copy_leaves_no_file() {
    let sandbox = Sandbox::new().await;
    let missing = sandbox.run(&["cp", &sandbox.remote_path("none"), &sandbox.path("here")]).await;
    assert!(missing.code == Some(1) && missing.errors.contains("[file_error]"), "{}", missing.errors);
    let nowhere = sandbox.run_with(&["cp", "-", &sandbox.remote_path("none/there")], b"x").await;
    assert!(nowhere.code == Some(1) && nowhere.errors.contains("[file_error]"), "{}", nowhere.errors);
    let local = sandbox.run(&["cp", &sandbox.path("none"), &sandbox.remote_path("there")]).await;
    assert!(local.code == Some(1) && local.errors.contains("/none: "), "{}", local.errors);
    assert_eq!(std::fs::read_dir(sandbox.place.path()).expect("a directory").count(), 0);
    assert_eq!(sandbox.run(&["cp", "a", "b"]).await.code, Some(2), "neither is in a sandbox");
}

#[tokio::test]
async fn files_are_listed_moved_and_removed() {
    let sandbox = Sandbox::new().await;
    let (one, two) = (sandbox.path("one"), sandbox.path("two"));
    assert_eq!(sandbox.run(&["mkdir", "-p", &sandbox.chat, &format!("{one}/sub")]).await.code, Some(0));
    std::fs::write(format!("{one}/evil\u{1b}[2J"), "12345").expect("written");
    assert_eq!(sandbox.run(&["mv", &sandbox.chat, &one, &two]).await.code, Some(0));
    let listed = sandbox.run(&["ls", &sandbox.chat, &two]).await;
    let lines: Vec<_> = listed.text().lines().collect();
    assert!(lines[0].starts_with("-rw") && lines[0].ends_with("evil\\u{1b}[2J"), "{lines:?}");
    assert!(lines[1].starts_with("drwx") && lines[1].ends_with("sub"), "{lines:?}");
    let file = sandbox.run(&["ls", &sandbox.chat, &format!("{two}/evil\u{1b}[2J")]).await;
    assert!(file.text().contains("  5  "), "{}{}", file.text(), file.errors);
    let refused = sandbox.run(&["rm", &sandbox.chat, &two]).await;
    assert!(refused.code == Some(1) && refused.errors.contains("not empty"), "{}", refused.errors);
    assert_eq!(sandbox.run(&["rm", "-r", &sandbox.chat, &two]).await.code, Some(0));
    assert!(!std::path::Path::new(&two).exists());
}

#[tokio::test]
async fn a_shell_has_our_terminal_and_gives_it_back() {
    let sandbox = Sandbox::new().await;
    let (master, slave) = terminal();
    let size = |ws_row, ws_col| Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size(31, 97)).expect("sized");
    let before = tcgetattr(&slave).expect("a terminal");
    let ours = || Stdio::from(slave.try_clone().expect("another one"));
    let mut command = sandbox.command(&["shell", &sandbox.chat]);
    let mut child = command.stdin(ours()).stdout(ours()).stderr(ours()).spawn().expect("it runs");
    let mut keys = tokio::fs::File::from_std(File::from(master.try_clone().expect("another one")));
    let mut screen = tokio::fs::File::from_std(File::from(master.try_clone().expect("another one")));

    keys.write_all(b"stty size\n").await.expect("typed");
    see(&mut screen, &["31 97\r\n"]).await;
    tcsetwinsize(&master, size(40, 120)).expect("sized");
    kill_process(pid(&child), Signal::WINCH).expect("signalled");
    loop {
        keys.write_all(b"stty size\n").await.expect("typed");
        if see(&mut screen, &["31 97\r\n", "40 120\r\n"]).await == 1 {
            break;
        }
    }
    keys.write_all(b"exit 7\n").await.expect("typed");
    assert_eq!(ended(&mut child).await, Some(7));
    let after = tcgetattr(&slave).expect("a terminal");
    assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
}

fn terminal() -> (OwnedFd, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("granted");
    unlockpt(&master).expect("unlocked");
    let name = ptsname(&master, Vec::new()).expect("a name").into_string().expect("UTF-8");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).expect("opened");
    (master, slave)
}

/// Waits until one of the texts is on the screen, and returns its index.
async fn see(screen: &mut tokio::fs::File, texts: &[&str]) -> usize {
    let mut seen = Vec::new();
    let looking = async {
        loop {
            let mut bytes = [0; 1024];
            let length = screen.read(&mut bytes).await.expect("readable");
            seen.extend_from_slice(&bytes[..length]);
            let shown = String::from_utf8_lossy(&seen);
            if let Some(index) = texts.iter().position(|text| shown.contains(text)) {
                return index;
            }
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(index) => index,
        Err(_) => panic!("{texts:?} is not in {:?}", String::from_utf8_lossy(&seen)),
    }
}
