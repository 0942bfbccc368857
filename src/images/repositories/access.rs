//! The configuration and credentials of one git call.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use sandboxd_actors::builder::repository_image::Repository;

use super::address::Address;
use super::temporary::Temporary;
use crate::images::credentials::{Credentials, CredentialsError, Secret};

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{path}: {error}")]
    Disk { path: PathBuf, error: io::Error },
}

/// The service's variables that git and its helpers may need for the network.
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

/// The program that git runs for the user and the password, with a prompt such as `Password for 'https://me@host': `.
/// It reads both from files, and prints them only for their own host: a redirect may have led git to another one. The
/// host is the part after the last `@`, because a user name may contain `@`.
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

/// A temporary directory with git's configuration and credentials.
#[derive(Debug)]
pub(super) struct Access {
    directory: Temporary,
    is_ssh: bool,
    has_known_hosts: bool,
    protocols: &'static str,
    secret: Option<Secret>,
}

impl Access {
    pub(super) async fn prepare(
        parent: &Path,
        repository: &Repository,
        address: &Address<'_>,
        credentials: &Credentials,
        known_hosts: Option<&Path>,
    ) -> Result<Self, AccessError> {
        let secret = credentials.read().await?;
        let is_ssh = address.is_ssh();
        let directory = Temporary::named(parent, &repository.name, "access");
        let disk = |error| AccessError::Disk { path: directory.path().to_owned(), error };
        DirBuilder::new().mode(0o700).create(directory.path()).map_err(disk)?;
        let write = |name: &str, content: &str, mode| write(&directory.path().join(name), content, mode).map_err(disk);
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
            symlink(file, directory.path().join("known_hosts")).map_err(disk)?;
        }
        Ok(Self { directory, is_ssh, has_known_hosts: known_hosts.is_some(), protocols: address.protocols(), secret })
    }

    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let path = |name: &str| self.directory.path().join(name).into_os_string();
        let mut variables: Vec<_> =
            PASSED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
        variables.extend([
            ("HOME", path("")),
            ("LC_ALL", "C".into()),
            ("GIT_CONFIG_NOSYSTEM", "1".into()),
            ("GIT_CONFIG_GLOBAL", path("config")),
            // Applies also to redirects.
            ("GIT_ALLOW_PROTOCOL", self.protocols.into()),
            // Missing credentials must fail at once instead of prompting at a terminal.
            ("GIT_TERMINAL_PROMPT", "0".into()),
        ]);
        match &self.secret {
            _ if self.is_ssh => variables.push(("GIT_SSH_COMMAND", self.ssh().into())),
            Some(_) => variables.push(("GIT_ASKPASS", path("askpass"))),
            None => {}
        }
        variables
    }

    /// Returns the ssh command. It refuses unknown hosts, regardless of the user's settings.
    fn ssh(&self) -> String {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let mut words = vec!["-oBatchMode=yes".to_owned(), "-oStrictHostKeyChecking=yes".to_owned()];
        if self.secret.is_some() {
            words.extend(["-oIdentitiesOnly=yes".to_owned(), "-i".to_owned(), path("key")]);
        }
        if self.has_known_hosts {
            words.push(format!("-oUserKnownHostsFile=\"{}\"", path("known_hosts")));
            words.push("-oGlobalKnownHostsFile=/dev/null".to_owned());
        }
        let quoted = |word: String| format!(" '{}'", word.replace('\'', r"'\''"));
        "ssh".to_owned() + &words.into_iter().map(quoted).collect::<String>()
    }

    /// Returns git's output without the secret.
    pub(super) fn redact(&self, output: &str) -> String {
        self.secret.as_ref().map_or_else(|| output.to_owned(), |secret| secret.redact(output))
    }
}

/// Returns git's configuration: no credential helper that could store a secret, no hooks of the repository, and no
/// ownership check for a local repository.
fn configuration(address: &Address<'_>) -> String {
    let local = address.local().map(|path| path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\""));
    let safe = local.map(|path| format!("[safe]\n\tdirectory = \"{path}\"\n")).unwrap_or_default();
    format!("[credential]\n\thelper =\n[core]\n\thooksPath = /dev/null\n{safe}")
}

fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(mode).open(path)?.write_all(content.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    fn repository(url: &str) -> Repository {
        Repository {
            name: "app".into(),
            url: url.into(),
            branch: "main".into(),
            submodules: false,
            base: "base:1".into(),
            tag: "app:latest".into(),
            directory: "/app".into(),
            install: vec![],
            build: vec![],
            warm_up: vec![],
            every: Duration::from_secs(60),
            stale_after: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
        }
    }

    async fn access(directory: &Path, url: &str, known_hosts: Option<&Path>) -> Access {
        let file = directory.join("credentials");
        std::fs::write(&file, "me:pa55word\n").unwrap();
        let address = Address::parse(url).unwrap();
        Access::prepare(directory, &repository(url), &address, &Credentials::File(file), known_hosts).await.unwrap()
    }

    #[tokio::test]
    async fn a_password_is_given_to_its_host_alone() {
        let directory = tempfile::tempdir().unwrap();
        let access = access(directory.path(), "https://host:8443/app.git", None).await;
        let answer = |prompt: &str| {
            let output = Command::new("sh").arg(access.directory.path().join("askpass")).arg(prompt).output().unwrap();
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(answer("Username for 'https://host:8443': ").as_deref(), Some("me"));
        assert_eq!(answer("Password for 'https://me@host:8443': ").as_deref(), Some("pa55word"));
        assert_eq!(answer("Password for 'https://me@corp@host:8443': ").as_deref(), Some("pa55word"));
        for elsewhere in ["https://me@host", "https://me@evil", "http://me@host:8443", "https://https://host:8443@evil"]
        {
            assert_eq!(answer(&format!("Password for '{elsewhere}': ")), None, "{elsewhere}");
        }
        assert_eq!(answer("Password for 'https://x'https://host:8443': '@evil': "), None);
        assert_eq!(answer("Enter passphrase: "), None);
    }

    #[tokio::test]
    async fn ssh_shows_a_key_to_known_hosts_alone_wherever_the_files_are() {
        let directory = tempfile::tempdir().unwrap();
        let odd = directory.path().join("it's here");
        std::fs::create_dir(&odd).unwrap();
        let access = access(&odd, "ssh://git@host/app.git", Some(Path::new("/etc/hosts-i-know"))).await;
        let variables = access.environment();
        let command = variables.iter().find(|(name, _)| *name == "GIT_SSH_COMMAND").unwrap().1.to_str().unwrap();
        let words = Command::new("sh").args(["-c", &format!("printf '%s\\n' {command}")]).output().unwrap().stdout;
        let words = String::from_utf8(words).unwrap();
        let place = access.directory.path().display();
        assert!(words.contains("-oStrictHostKeyChecking=yes\n") && words.contains("-oBatchMode=yes\n"), "{words}");
        assert!(words.contains(&format!("-i\n{place}/key\n")), "{words}");
        assert!(words.contains(&format!("-oUserKnownHostsFile=\"{place}/known_hosts\"\n")), "{words}");
        assert!(!words.contains("pa55word"));
    }
}
