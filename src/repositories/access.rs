//! What git needs to get at a repository, for as long as one look takes.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use sandboxd_actors::builder::repository::Repository;

use super::address::Address;
use super::temporary::Temporary;
use crate::credentials::{Credentials, CredentialsError, Secret};

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{path}: {error}")]
    Disk { path: PathBuf, error: io::Error },
}

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

/// Asked by git for user and password, in words such as `Password for 'https://me@host': `. It has neither in its text,
/// and gives them to nobody but the host that they are for: git may have been sent on to another. The host is what comes
/// last, whatever a user's name looks like.
const ASKPASS: &str = r#"#!/bin/sh
asked=${1%"': "}
scheme=${asked#*"'"}
host=${asked##*://}
[ "${scheme%%://*}://${host##*@}" = "$(cat "${0%/*}/origin")" ] || exit 1
case $1 in
Username*) exec cat "${0%/*}/user" ;;
*) exec cat "${0%/*}/password" ;;
esac
"#;

#[derive(Debug)]
pub(super) struct Access {
    place: Temporary,
    is_ssh: bool,
    knows_hosts: bool,
    protocols: &'static str,
    secret: Option<Secret>,
}

impl Access {
    pub(super) async fn prepare(
        directory: &Path,
        repository: &Repository,
        address: &Address<'_>,
        credentials: &Credentials,
        known_hosts: Option<&Path>,
    ) -> Result<Self, AccessError> {
        let secret = credentials.read().await?;
        let is_ssh = address.is_ssh();
        let place = Temporary::named(directory, &repository.name, "access");
        let disk = |error| AccessError::Disk { path: place.path().to_owned(), error };
        DirBuilder::new().mode(0o700).create(place.path()).map_err(disk)?;
        let write = |name: &str, content: &str, mode| write(&place.path().join(name), content, mode).map_err(disk);
        write("config", &configuration(address), 0o600)?;
        match &secret {
            Some(key) if is_ssh => write("key", &format!("{}\n", key.expose().trim_end()), 0o600)?,
            Some(secret) => {
                let (user, password) = secret.user_and_password();
                write("user", user, 0o600)?;
                write("password", password, 0o600)?;
                write("origin", &address.origin().unwrap_or_default(), 0o600)?;
                write("askpass", ASKPASS, 0o700)?;
            }
            None => {}
        }
        if let Some(file) = known_hosts {
            symlink(file, place.path().join("known_hosts")).map_err(disk)?;
        }
        Ok(Self { place, is_ssh, knows_hosts: known_hosts.is_some(), protocols: address.protocols(), secret })
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
            // Whatever it is sent on to.
            ("GIT_ALLOW_PROTOCOL", self.protocols.into()),
            // Whoever has no answer fails at once instead of asking a terminal.
            ("GIT_TERMINAL_PROMPT", "0".into()),
        ]);
        match &self.secret {
            _ if self.is_ssh => variables.push(("GIT_SSH_COMMAND", self.ssh().into())),
            Some(_) => variables.push(("GIT_ASKPASS", path("askpass"))),
            None => {}
        }
        variables
    }

    /// Shows nothing to a host that is not known, whatever the user's own settings are.
    fn ssh(&self) -> String {
        let path = |name: &str| self.place.path().join(name).display().to_string();
        let mut words = vec!["-oBatchMode=yes".to_owned(), "-oStrictHostKeyChecking=yes".to_owned()];
        if self.secret.is_some() {
            words.extend(["-oIdentitiesOnly=yes".to_owned(), "-i".to_owned(), path("key")]);
        }
        if self.knows_hosts {
            words.push(format!("-oUserKnownHostsFile=\"{}\"", path("known_hosts")));
            words.push("-oGlobalKnownHostsFile=/dev/null".to_owned());
        }
        let quoted = |word: String| format!(" '{}'", word.replace('\'', r"'\''"));
        "ssh".to_owned() + &words.into_iter().map(quoted).collect::<String>()
    }

    /// What git said, without the secret, should it ever repeat it.
    pub(super) fn redacted(&self, said: &str) -> String {
        self.secret.as_ref().map_or_else(|| said.to_owned(), |secret| secret.struck_from(said))
    }
}

/// Nothing that could keep what it is told, nothing of the repository that is run, and no quarrel about whose a local
/// repository is.
fn configuration(address: &Address<'_>) -> String {
    let local = address.local().map(|path| path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\""));
    let safe = local.map(|path| format!("[safe]\n\tdirectory = \"{path}\"\n")).unwrap_or_default();
    format!("[credential]\n\thelper =\n[core]\n\thooksPath = /dev/null\n{safe}")
}

fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(mode).open(path)?.write_all(content.as_bytes())
}
