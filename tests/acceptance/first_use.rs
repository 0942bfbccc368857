//! Tests of the README's commands and Python example, exactly as written.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::daemon::Daemon;
use crate::engine::engine_host;
use crate::installation::Installation;
use crate::network::SharedNetwork;

const README: &str = include_str!("../../README.md");

/// The base image may need packages that are not downloaded yet.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// Returns the README's code block in a language, below a heading.
fn example(heading: &str, language: &str) -> &'static str {
    let (_, below) = README.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let (_, block) = below.split_once(&format!("\n```{language}\n")).expect("an example");
    block.split_once("```").expect("its end").0
}

async fn ran(command: Command) -> (String, Output) {
    let running = tokio::process::Command::from(command).kill_on_drop(true).output();
    let output = tokio::time::timeout(LONGEST, running).await.expect("it ends").expect("it can be run");
    (String::from_utf8(output.stdout.clone()).expect("UTF-8"), output)
}

impl Installation {
    /// Returns a shell in a simulated checkout with built programs, which uses this installation.
    fn shell_in_checkout(&self) -> Command {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let checkout = self.path("checkout");
        std::fs::create_dir_all(checkout.join("target/release")).expect("a directory");
        symlink(project.join("Makefile"), checkout.join("Makefile")).expect("a link");
        for program in [env!("CARGO_BIN_EXE_sandboxd"), env!("CARGO_BIN_EXE_sandboxctl")] {
            let name = Path::new(program).file_name().expect("a name");
            symlink(program, checkout.join("target/release").join(name)).expect("a link");
        }
        // The programs are already built, for debugging: the release build is skipped.
        std::fs::create_dir(checkout.join("scripts")).expect("a directory");
        symlink("/bin/true", checkout.join("scripts/split-symbols")).expect("a link");
        let mut shell = self.command("bash");
        shell.current_dir(checkout).env("CARGO", "true");
        for (key, name) in [
            ("SANDBOXD_SOCKET", "sandboxd.sock"),
            ("SANDBOXD_SOCKET__PATH", "sandboxd.sock"),
            ("SANDBOXD_STATE__DIR", "state"),
            ("SANDBOXD_CHATS__ROOT", "chats"),
            ("SANDBOXD_MOUNTS__DEPENDENCIES_SOURCE", "dependencies"),
            ("SANDBOXD_MOUNTS__LAMBDA_TOOLS_SOURCE", "lambda-tools"),
        ] {
            shell.env(key, self.path(name));
        }
        shell.env("SANDBOXD_INSTANCE__NAME", self.name()).env("SANDBOXD_ENGINE__NETWORK", SharedNetwork::name());
        shell.env("SANDBOXD_METRICS__LISTEN", "off").env("SANDBOXD_ENGINE__HOST", engine_host());
        shell
    }
}

#[tokio::test]
async fn the_first_sandbox_takes_the_three_commands_of_the_readme() {
    let commands = example("First sandbox", "sh");
    assert_eq!(commands.lines().count(), 3, "{commands}");
    let installation = Installation::new("");
    let mut shell = installation.shell_in_checkout();
    let more = r#"
        sandboxctl exec "$(sandboxctl create --quiet)" bash -c '
            id -un; git --version; python3 -c "import json, ssl, sqlite3; print(sqlite3.sqlite_version)"
            echo kept >/chat/note; touch /usr/x 2>/dev/null || echo "no root"; python3 -m venv v && v/bin/pip --version'
    "#;
    shell.args(["-euc", &format!("trap 'kill $! && wait' EXIT\n{commands}{more}")]);
    let (said, output) = ran(shell).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let mut lines = said.lines().skip_while(|line| *line != "42").skip(1);
    for begin in ["sandbox", "git version 2.", "3.", "no root", "pip "] {
        assert!(lines.next().is_some_and(|line| line.starts_with(begin)), "{begin}: {said}{errors}");
    }
    let again = installation.sandboxctl(&["image", "base"]).await;
    let again = String::from_utf8(again.stdout).expect("UTF-8");
    assert!(again.starts_with("sandboxd-base:latest is up to date"), "{again}");
}

#[tokio::test]
async fn a_base_image_without_debians_tools_fails_with_advice() {
    let installation = Installation::new("");
    let tools = installation.path("tools");
    std::fs::create_dir(&tools).expect("a directory");
    let mut search = installation.command("bash");
    let (bash, _) = ran({
        search.args(["-c", "type -P bash"]);
        search
    })
    .await;
    symlink(bash.trim(), tools.join("bash")).expect("a link");
    let mut command = installation.command(env!("CARGO_BIN_EXE_sandboxctl"));
    command.env("PATH", &tools).args(["image", "base", "--force", "--tag", "sandboxd-test-none:none"]);
    let (_, output) = ran(command).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("this host has no apt-get") && errors.contains("profiles.default.image"), "{errors}");
}

#[tokio::test]
async fn the_raw_socket_examples_create_a_sandbox_and_stream_its_output() {
    let service = Daemon::start("").await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/raw_socket.py");
    let mut python = service.command("python3");
    python.arg(script);
    // Cargo builds the examples with the tests, beside the programs.
    let program = Path::new(env!("CARGO_BIN_EXE_sandboxd")).with_file_name("examples").join("raw_socket");
    let program = program.to_str().expect("UTF-8");
    for mut example in [python, service.command(program)] {
        example.env("SANDBOXD_SOCKET", service.socket());
        let (printed, output) = ran(example).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(printed, "created running\nstdout 1\nstdout 2\nstdout 3\nexit code 0\n", "{errors}");
        assert!(output.status.success() && service.list().await.is_empty(), "{errors}");
    }
}
