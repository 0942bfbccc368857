//! Fetches the submodules of a repository, recursively.
//!
//! The repository's description of them is not trusted: each address is checked before git connects to it, and git uses
//! only the credentials and protocols of that address. Paths and commits come from the repository's own tree, and git
//! itself keeps the paths within the checkout.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use sandboxd_actors::builder::repository_image::Repository;

use super::address::{Address, Trust};
use super::{GitError, GitSources};
use crate::images::credentials::Credentials;

/// The repository's list of submodules.
const DESCRIPTION: &str = ".gitmodules";

struct Submodule {
    path: String,
    /// Absolute: relative urls are resolved.
    url: String,
}

impl GitSources {
    /// Adds the submodules to a checkout.
    pub(super) async fn add_submodules(
        &self,
        repository: &Repository,
        main: &Address<'_>,
        checkout: &Path,
    ) -> Result<(), GitError> {
        let mut left: Vec<PathBuf> = vec![checkout.to_owned()];
        while let Some(directory) = left.pop() {
            let at = directory.to_str().unwrap_or_default();
            for Submodule { path, url } in self.submodules_of(repository, &directory).await? {
                let address = Address::parse(&url);
                let trusted = address.and_then(|address| Some((main.admits(&address)?, address)));
                let Some((trust, address)) = trusted else { return Err(GitError::Submodule { path }) };
                let credentials = match trust {
                    Trust::WithCredentials => self.credentials_of(repository),
                    Trust::WithoutCredentials => &Credentials::None,
                };
                let access = self.access(repository, &address, credentials).await?;
                let update = ["-C", at, "submodule", "--quiet", "update", "--checkout", "--", &path];
                self.git(&access, "submodule update", update).await?;
                let below = directory.join(&path);
                // Without a `.git`, git would use the parent repository.
                if below.join(".git").exists() {
                    left.push(below);
                }
            }
        }
        Ok(())
    }

    async fn submodules_of(&self, repository: &Repository, directory: &Path) -> Result<Vec<Submodule>, GitError> {
        let is_file = |path: PathBuf| std::fs::symlink_metadata(path).is_ok_and(|it| it.is_file());
        if !is_file(directory.join(DESCRIPTION)) {
            return Ok(Vec::new());
        }
        let at = directory.to_str().unwrap_or_default();
        let here = self.access(repository, &Address::Local(directory), &Credentials::None).await?;
        // Registers the submodules of the tree and resolves their urls.
        self.git(&here, "submodule init", ["-C", at, "submodule", "--quiet", "init"]).await?;
        let own = self.git(&here, "config", ["-C", at, "config", "--local", "--null", "--list"]).await?;
        let committed = format!("HEAD:{DESCRIPTION}");
        let listed = self.git(&here, "config", ["-C", at, "config", "--blob", &committed, "--null", "--list"]).await?;
        let mut paths = settings(&listed, "path");
        let urls = settings(&own, "url");
        let found = urls.into_iter().filter_map(|(name, url)| Some(Submodule { path: paths.remove(&name)?, url }));
        found.map(check_path).collect()
    }
}

fn check_path(submodule: Submodule) -> Result<Submodule, GitError> {
    match Path::new(&submodule.path).components().all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(submodule),
        false => Err(GitError::Submodule { path: submodule.path }),
    }
}

/// Returns the values of `submodule.<name>.<key>` by name. Git lists each key on a line before its value and ends it
/// with a NUL.
fn settings(listed: &str, key: &str) -> BTreeMap<String, String> {
    let of_submodule = |entry: &str| {
        let (name, value) = entry.split_once('\n')?;
        let (name, last) = name.strip_prefix("submodule.")?.rsplit_once('.')?;
        (last == key).then(|| (name.to_owned(), value.to_owned()))
    };
    listed.split('\0').filter_map(of_submodule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_dots_and_values_lines() {
        let listed = "core.bare\nfalse\0submodule.a.b.url\n/x\ny\0submodule.active\n.\0submodule.a.b.path\nlib\0";
        assert_eq!(settings(listed, "url"), BTreeMap::from([("a.b".to_owned(), "/x\ny".to_owned())]));
        assert_eq!(settings(listed, "path")["a.b"], "lib");
    }

    #[test]
    fn a_path_stays_within_the_checkout() {
        let at = |path: &str| check_path(Submodule { path: path.into(), url: String::new() }).is_ok();
        assert!(at("lib") && at("deep/lib"));
        assert!(!at("../lib") && !at("/lib") && !at("a/../../lib"));
    }
}
