//! Repositories of source code, by git on this host.
//!
//! ```text
//! <state.dir>/repositories/          mode 0700
//!     <name>.git                     what was fetched so far, so that only what is new has to be
//!     <name>.checkout-<uuid>/        the files of one build, as long as it lasts
//!     <name>.access-<uuid>/          the credentials of one look, as long as it lasts
//! ```
//!
//! Credentials reach git through a file that only this user can read, and a program that git asks for them: they are in no
//! argument, no variable, no configuration of the clone, and not in what is logged.

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
use temporary::{Temporary, clear};

use crate::images::credentials::Credentials;

#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct SourcesError {
    pub path: PathBuf,
    pub error: io::Error,
}

#[derive(Debug)]
pub struct GitSources {
    directory: PathBuf,
    logins: BTreeMap<String, Login>,
}

/// How a repository knows us, and we its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    pub credentials: Credentials,
    /// The hosts' keys, for ssh. Without, they are where ssh looks for them by itself.
    pub known_hosts: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum GitError {
    #[error("git cannot be run: {0}")]
    NotRun(io::Error),
    #[error("git {what} failed: {said}")]
    Failed { what: &'static str, said: String },
    #[error("there is no branch {0}")]
    NoBranch(String),
    /// It is not shown: it may have a password in it.
    #[error("its address is not understood")]
    Address,
    #[error("submodule {path} is at an address that a submodule of this repository may not have")]
    Submodule { path: String },
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl GitSources {
    /// Takes a directory of its own, and clears away what an earlier run left there.
    pub fn open(directory: &Path, logins: BTreeMap<String, Login>) -> Result<Self, SourcesError> {
        let unusable = |error| SourcesError { path: directory.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unusable)?;
        clear(directory).map_err(unusable)?;
        Ok(Self { directory: directory.to_owned(), logins })
    }

    async fn look(&self, repository: &Repository) -> Result<String, GitError> {
        let address = Address::parse(&repository.url).ok_or(GitError::Address)?;
        let access = self.access(repository, &address, self.credentials_of(repository)).await?;
        let reference = format!("refs/heads/{}", repository.branch);
        let told = self.git(&access, "ls-remote", ["ls-remote", "--", &repository.url, &reference]).await?;
        let commit = told.lines().find_map(|line| line.strip_suffix(&reference)).map(str::trim);
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
            // Whatever is wrong with it, the next time begins anew.
            let _ = tokio::fs::remove_dir_all(&mirror).await;
            return Err(error);
        }
        let checkout = Temporary::named(&self.directory, name, "checkout");
        let (path, files) = (checkout.path().to_owned(), checkout.path().to_string_lossy().into_owned());
        let clone = ["clone", "--quiet", "--no-tags", "--single-branch", "--branch", branch, "--", at, &files];
        // From here on there is nobody to show credentials to.
        let here = self.access(repository, &Address::Local(&mirror), &Credentials::None).await?;
        self.git(&here, "clone", clone).await?;
        self.git(&here, "remote", ["-C", &files, "remote", "set-url", "origin", url]).await?;
        let commit = self.git(&here, "rev-parse", ["-C", &files, "rev-parse", "HEAD"]).await?.trim().to_owned();
        if repository.submodules {
            self.add_submodules(repository, &address, &path).await?;
        }
        Ok(Checkout { directory: path, commit, held: Box::new(checkout) })
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

    /// What git prints.
    async fn git<const N: usize>(
        &self,
        access: &Access,
        what: &'static str,
        arguments: [&str; N],
    ) -> Result<String, GitError> {
        let mut git = Command::new("git");
        git.args(arguments).env_clear().stdin(Stdio::null()).kill_on_drop(true);
        git.envs(access.environment());
        let Output { status, stdout, stderr } = git.output().await.map_err(GitError::NotRun)?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let said = access.redacted(String::from_utf8_lossy(&stderr).trim());
        let said = if said.is_empty() { status.to_string() } else { said };
        Err(GitError::Failed { what, said })
    }
}

#[async_trait]
impl Sources for GitSources {
    async fn head(&self, repository: &Repository) -> Result<String, ImageError> {
        self.look(repository).await.map_err(|error| unavailable(repository, &error))
    }

    async fn check_out(&self, repository: &Repository) -> Result<Checkout, ImageError> {
        self.fetch(repository).await.map_err(|error| unavailable(repository, &error))
    }
}

fn unavailable(repository: &Repository, error: &GitError) -> ImageError {
    ImageError::SourceUnavailable { repository: repository.name.clone(), reason: error.to_string() }
}
