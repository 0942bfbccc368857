//! Source repositories, read with git on this host.
//!
//! ```text
//! <state.dir>/repositories/          mode 0700
//!     <name>.git                     a mirror, so that each fetch gets new commits only
//!     <name>.checkout-<uuid>/        the files of one build, for its duration
//!     <name>.access-<uuid>/          the credentials of one git call, for its duration
//! ```
//!
//! Git gets credentials from a program that reads a file of mode 0600. They are in no argument, no variable, no
//! configuration of the clone, and no log.

mod access;
mod address;
mod submodules;
mod temporary;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use async_trait::async_trait;
use sandboxd_actors::builder::repository_image::Repository;
use sandboxd_actors::ports::images::ImageError;
use sandboxd_actors::ports::repositories::{Checkout, Sources};
use tokio::process::Command;

use access::{Access, AccessError};
use address::Address;
use temporary::{Temporary, remove_leftovers};

use crate::images::credentials::Credentials;

/// A directory for repositories that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct SourcesError {
    pub path: PathBuf,
    pub error: io::Error,
}

/// Access to source repositories with git.
#[derive(Debug)]
pub struct GitSources {
    directory: PathBuf,
    logins: BTreeMap<String, Login>,
}

/// The credentials for a repository, and the keys of its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    pub credentials: Credentials,
    /// The host keys for ssh. `None`: ssh's default files.
    pub known_hosts: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum GitError {
    #[error("cannot run git: {0}")]
    NotRun(io::Error),
    #[error("git {command} failed: {output}")]
    Failed { command: &'static str, output: String },
    #[error("the repository has no branch {0}")]
    NoBranch(String),
    /// The message leaves the address out, which may contain a password.
    #[error("the repository's url is invalid; use https, ssh or a local path, without a password")]
    Address,
    #[error("submodule {path} has a url that is not allowed for submodules of this repository")]
    Submodule { path: String },
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl GitSources {
    /// Creates the directory, and removes temporary directories of an earlier run.
    pub fn open(directory: &Path, logins: BTreeMap<String, Login>) -> Result<Self, SourcesError> {
        let unusable = |error| SourcesError { path: directory.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unusable)?;
        remove_leftovers(directory).map_err(unusable)?;
        Ok(Self { directory: directory.to_owned(), logins })
    }

    async fn read_head(&self, repository: &Repository) -> Result<String, GitError> {
        let address = Address::parse(&repository.url).ok_or(GitError::Address)?;
        let access = self.access(repository, &address, self.credentials_of(repository)).await?;
        let reference = format!("refs/heads/{}", repository.branch);
        let references = self.git(&access, "ls-remote", ["ls-remote", "--", &repository.url, &reference]).await?;
        let commit = references.lines().find_map(|line| line.strip_suffix(&reference)).map(str::trim);
        commit.map(str::to_owned).ok_or_else(|| GitError::NoBranch(repository.branch.clone()))
    }

    async fn fetch(&self, repository: &Repository) -> Result<Checkout, GitError> {
        let Repository { name, url, branch, .. } = repository;
        let address = Address::parse(url).ok_or(GitError::Address)?;
        let access = self.access(repository, &address, self.credentials_of(repository)).await?;
        let mirror = self.directory.join(format!("{name}.git"));
        let at = mirror.to_str().unwrap_or_default();
        if !mirror.exists() {
            self.git(&access, "init", ["init", "--quiet", "--bare", "--", at]).await?;
        }
        let wanted = format!("+refs/heads/{branch}:refs/heads/{branch}");
        let fetch = ["-C", at, "fetch", "--quiet", "--no-tags", "--", url, &wanted];
        if let Err(error) = self.git(&access, "fetch", fetch).await {
            // The mirror may be damaged, so the next fetch starts with a new one.
            let _ = tokio::fs::remove_dir_all(&mirror).await;
            return Err(error);
        }
        let checkout = Temporary::named(&self.directory, name, "checkout");
        let (path, files) = (checkout.path().to_owned(), checkout.path().to_string_lossy().into_owned());
        let clone = ["clone", "--quiet", "--no-tags", "--single-branch", "--branch", branch, "--", at, &files];
        // The following calls are local and need no credentials.
        let here = self.access(repository, &Address::Local(&mirror), &Credentials::None).await?;
        self.git(&here, "clone", clone).await?;
        self.git(&here, "remote", ["-C", &files, "remote", "set-url", "origin", url]).await?;
        let commit = self.git(&here, "rev-parse", ["-C", &files, "rev-parse", "HEAD"]).await?.trim().to_owned();
        if repository.submodules {
            self.add_submodules(repository, &address, &path).await?;
        }
        Ok(Checkout { directory: path, commit, guard: Box::new(checkout) })
    }

    fn credentials_of(&self, repository: &Repository) -> &Credentials {
        self.logins.get(&repository.name).map_or(&Credentials::None, |login| &login.credentials)
    }

    async fn access(
        &self,
        repository: &Repository,
        address: &Address<'_>,
        credentials: &Credentials,
    ) -> Result<Access, GitError> {
        let known_hosts = self.logins.get(&repository.name).and_then(|login| login.known_hosts.as_deref());
        Ok(Access::prepare(&self.directory, repository, address, credentials, known_hosts).await?)
    }

    /// Runs git and returns its output.
    async fn git<const N: usize>(
        &self,
        access: &Access,
        command: &'static str,
        arguments: [&str; N],
    ) -> Result<String, GitError> {
        let mut git = Command::new("git");
        git.args(arguments).env_clear().stdin(Stdio::null()).kill_on_drop(true);
        git.envs(access.environment());
        let Output { status, stdout, stderr } = git.output().await.map_err(GitError::NotRun)?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let output = access.redact(String::from_utf8_lossy(&stderr).trim());
        let output = if output.is_empty() { status.to_string() } else { output };
        Err(GitError::Failed { command, output })
    }
}

#[async_trait]
impl Sources for GitSources {
    async fn head(&self, repository: &Repository) -> Result<String, ImageError> {
        self.read_head(repository).await.map_err(|error| unavailable(repository, &error))
    }

    async fn check_out(&self, repository: &Repository) -> Result<Checkout, ImageError> {
        self.fetch(repository).await.map_err(|error| unavailable(repository, &error))
    }
}

fn unavailable(repository: &Repository, error: &GitError) -> ImageError {
    ImageError::SourceUnavailable { repository: repository.name.clone(), reason: error.to_string() }
}
