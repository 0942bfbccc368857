//! What git needs to get at a repository, for as long as one look takes.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sandboxd_actors::builder::repository::Repository;
use tokio::process::Command;

use super::temporary::Temporary;

/// Where the credentials of a repository come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    None,
    File(PathBuf),
    /// A program with its arguments, which prints them.
    Command(Vec<String>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error("its credentials cannot be read from {path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("the program {program} for its credentials cannot be run: {error}")]
    NotRun { program: String, error: io::Error },
    #[error("the program {program} for its credentials failed: {status}")]
    Failed { program: String, status: std::process::ExitStatus },
    #[error("its credentials are not text")]
    NotText,
    #[error("{path}: {error}")]
    Disk { path: PathBuf, error: io::Error },
}

/// For forges that take a token for a password and do not mind the name.
const ANY_USER: &str = "x-access-token";

/// What git and its helpers may need of our environment to reach others.
const PASSED: [&str; 10] = [
    "PATH",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSH_AUTH_SOCK",
];

/// Asked by git for user and password. It has neither in its text.
const ASKPASS: &str = r#"#!/bin/sh
case $1 in
Username*) exec cat "${0%/*}/user" ;;
*) exec cat "${0%/*}/password" ;;
esac
"#;

#[derive(Debug)]
pub(super) struct Access {
    place: Temporary,
    is_key: bool,
    secret: Option<Secret>,
}

/// Never shown.
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<redacted>")
    }
}

impl Access {
    pub(super) async fn prepare(
        directory: &Path,
        repository: &Repository,
        credentials: &Credentials,
    ) -> Result<Self, AccessError> {
        let secret = read(credentials).await?;
        let is_key = repository.url.starts_with("ssh://");
        let place = Temporary::named(directory, &repository.name, "access");
        let disk = |error| AccessError::Disk { path: place.path().to_owned(), error };
        DirBuilder::new().mode(0o700).create(place.path()).map_err(disk)?;
        let write = |name: &str, content: &str, mode| write(&place.path().join(name), content, mode).map_err(disk);
        // Nothing that could keep what it is told, and no quarrel about whose a local repository is.
        let local = repository.url.strip_prefix("file://").unwrap_or(&repository.url);
        let local = local.replace('\\', "\\\\").replace('"', "\\\"");
        write("config", &format!("[credential]\n\thelper =\n[safe]\n\tdirectory = \"{local}\"\n"), 0o600)?;
        match &secret {
            Some(Secret(key)) if is_key => write("key", &format!("{}\n", key.trim_end()), 0o600)?,
            Some(Secret(text)) => {
                let (user, password) = text.split_once(':').unwrap_or((ANY_USER, text));
                write("user", user, 0o600)?;
                write("password", password, 0o600)?;
                write("askpass", ASKPASS, 0o700)?;
            }
            None => {}
        }
        Ok(Self { place, is_key, secret })
    }

    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let path = |name: &str| self.place.path().join(name).into_os_string();
        let mut variables: Vec<_> =
            PASSED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
        variables.extend([
            ("HOME", path("")),
            ("LC_ALL", "C".into()),
            ("GIT_CONFIG_NOSYSTEM", "1".into()),
            ("GIT_CONFIG_GLOBAL", path("config")),
            // Whoever has no answer fails at once instead of asking a terminal.
            ("GIT_TERMINAL_PROMPT", "0".into()),
        ]);
        match &self.secret {
            Some(_) if self.is_key => {
                let key = self.place.path().join("key");
                let ssh = format!("ssh -o BatchMode=yes -o IdentitiesOnly=yes -i '{}'", key.display());
                variables.push(("GIT_SSH_COMMAND", ssh.into()));
            }
            Some(_) => variables.push(("GIT_ASKPASS", path("askpass"))),
            None => variables.push(("GIT_SSH_COMMAND", "ssh -o BatchMode=yes".into())),
        }
        variables
    }

    /// What git said, without the secret, should it ever repeat it.
    pub(super) fn redacted(&self, said: &str) -> String {
        let Some(Secret(secret)) = &self.secret else { return said.to_owned() };
        let password = secret.split_once(':').map_or(secret.as_str(), |(_, password)| password);
        if password.is_empty() { said.to_owned() } else { said.replace(password, "<redacted>") }
    }
}

async fn read(credentials: &Credentials) -> Result<Option<Secret>, AccessError> {
    let bytes = match credentials {
        Credentials::None => return Ok(None),
        Credentials::File(path) => {
            tokio::fs::read(path).await.map_err(|error| AccessError::File { path: path.clone(), error })?
        }
        Credentials::Command(words) => {
            let program = words.first().cloned().unwrap_or_default();
            let mut command = Command::new(&program);
            // What it says beside them may contain them.
            command.args(words.iter().skip(1)).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            let run = command.output().await;
            let output = run.map_err(|error| AccessError::NotRun { program: program.clone(), error })?;
            if !output.status.success() {
                return Err(AccessError::Failed { program, status: output.status });
            }
            output.stdout
        }
    };
    let text = String::from_utf8(bytes).map_err(|_| AccessError::NotText)?;
    Ok(Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned())))
}

fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(mode).open(path)?.write_all(content.as_bytes())
}
