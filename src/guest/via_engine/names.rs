//! Paths and users of a container.

use sandbox_init::codec::Bytes;
use sandbox_init::tar::Kind;
use sandbox_init::wire::Failure;

use super::{GuestViaEngine, failed};

/// The most bytes read of a table of users.
const MAX_TABLE: usize = 1 << 20;

/// The user and group of a container's own processes; root by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl GuestViaEngine {
    /// Returns the absolute path.
    pub(super) async fn place(&self, path: &Bytes) -> Result<String, Failure> {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        if path.starts_with('/') {
            return Ok(path);
        }
        let directory = self.engine.command_defaults(&self.container).await?.directory;
        Ok(format!("{}/{path}", directory.trim_end_matches('/')))
    }

    /// Returns the owner of written files. The engine itself would give them to root.
    pub(super) async fn owner(&self) -> Result<Owner, Failure> {
        let user = self.engine.command_defaults(&self.container).await?.user;
        let (user, group) = user.split_once(':').map_or((&*user, None), |(user, group)| (user, Some(group)));
        if user.is_empty() {
            return Ok(Owner::default());
        }
        let number = |text: &str| text.parse::<u32>().ok();
        match (number(user), group.map(number)) {
            (Some(user), Some(Some(group))) => Ok(Owner { user, group }),
            _ => {
                let users = self.table("/etc/passwd").await?;
                let found = entry(&users, user).map(|(user, group)| Owner { user, group });
                let mut owner = match (found, number(user)) {
                    (Some(owner), _) => owner,
                    // The engine's rule: an unknown number is in root's group.
                    (None, Some(user)) => Owner { user, group: 0 },
                    (None, None) => return Err(failed(rustix::io::Errno::NOENT, format!("there is no user {user:?}"))),
                };
                if let Some(group) = group {
                    let groups = self.table("/etc/group").await?;
                    let found = number(group).or_else(|| entry(&groups, group).map(|(group, _)| group));
                    owner.group = found.unwrap_or(owner.group);
                }
                Ok(owner)
            }
        }
    }

    async fn table(&self, path: &str) -> Result<String, Failure> {
        let Ok(mut opened) = self.open(path).await else { return Ok(String::new()) };
        let mut text = Vec::new();
        if opened.entry.kind == Kind::File {
            while let Some(bytes) = opened.data().await? {
                text.extend_from_slice(&bytes);
                if text.len() > MAX_TABLE {
                    break;
                }
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Returns the third and fourth field of the line with this name or number.
fn entry(table: &str, name: &str) -> Option<(u32, u32)> {
    let mut lines = table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&name) || fields.get(2) == Some(&name))?;
    let number = |index: usize| line.get(index).and_then(|text| text.parse().ok());
    Some((number(2)?, number(3).unwrap_or(0)))
}

/// Returns the path that a link at `path` leads to.
pub(super) fn resolve(path: &str, target: &str) -> String {
    if target.starts_with('/') {
        return target.to_owned();
    }
    let (above, _) = split(path);
    format!("{}/{target}", above.trim_end_matches('/'))
}

/// Splits a path into its directory and its name.
pub(super) fn split(path: &str) -> (&str, &str) {
    let path = path.trim_end_matches('/');
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((above, name)) => (above, name),
        None => ("/", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_from_where_it_is() {
        assert_eq!(resolve("/a/link", "b"), "/a/b");
        assert_eq!(resolve("/link", "b"), "/b");
        assert_eq!(resolve("/a/link", "/b"), "/b");
        assert_eq!(split("/a/b/"), ("/a", "b"));
        assert_eq!(split("/a"), ("/", "a"));
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1001::/:\n";
        assert_eq!(entry(table, "ada"), Some((1000, 1001)));
        assert_eq!(entry(table, "1000"), Some((1000, 1001)));
        assert_eq!(entry(table, "bob"), None);
    }
}
