//! The host's users and groups, from its local files. Changed files are read again, so that a user who is added to a
//! group can call without a restart of the service.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

#[derive(Debug)]
pub struct Accounts {
    passwd: CachedFile<Users>,
    group: CachedFile<Groups>,
}

impl Accounts {
    pub fn of_host() -> Self {
        Self::from_files("/etc/passwd", "/etc/group")
    }

    pub fn from_files(passwd: impl Into<PathBuf>, group: impl Into<PathBuf>) -> Self {
        Self { passwd: CachedFile::new(passwd), group: CachedFile::new(group) }
    }

    pub fn uid(&mut self, name: &str) -> Option<u32> {
        self.passwd.current().by_name.get(name).copied()
    }

    pub fn gid(&mut self, name: &str) -> Option<u32> {
        self.group.current().by_name.get(name).copied()
    }

    /// Returns the known users that belong to the group.
    pub fn members(&mut self, gid: u32) -> Vec<u32> {
        let users: Vec<u32> = self.passwd.current().by_uid.keys().copied().collect();
        users.into_iter().filter(|uid| self.is_member(*uid, gid)).collect()
    }

    /// Returns whether the group is the user's primary group or one of its others.
    pub fn is_member(&mut self, uid: u32, gid: u32) -> bool {
        let users = self.passwd.current();
        let Some(accounts) = users.by_uid.get(&uid) else { return false };
        if accounts.iter().any(|(_, primary)| *primary == gid) {
            return true;
        }
        let members = self.group.current().members.get(&gid);
        members.is_some_and(|members| accounts.iter().any(|(name, _)| members.contains(name)))
    }
}

#[derive(Debug, Default)]
struct Users {
    by_name: HashMap<String, u32>,
    /// Names and primary groups; a uid may have several.
    by_uid: HashMap<u32, Vec<(String, u32)>>,
}

impl From<&str> for Users {
    fn from(passwd: &str) -> Users {
        let mut users = Users::default();
        for line in passwd.lines() {
            let fields: Vec<_> = line.split(':').collect();
            if let [name, _, uid, gid, ..] = fields[..]
                && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
            {
                users.by_name.entry(name.to_owned()).or_insert(uid);
                users.by_uid.entry(uid).or_default().push((name.to_owned(), gid));
            }
        }
        users
    }
}

#[derive(Debug, Default)]
struct Groups {
    by_name: HashMap<String, u32>,
    members: HashMap<u32, Vec<String>>,
}

impl From<&str> for Groups {
    fn from(group: &str) -> Groups {
        let mut groups = Groups::default();
        for line in group.lines() {
            let fields: Vec<_> = line.split(':').collect();
            if let [name, _, gid, members] = fields[..]
                && let Ok(gid) = gid.parse()
            {
                groups.by_name.entry(name.to_owned()).or_insert(gid);
                let members = members.split(',').filter(|member| !member.is_empty()).map(str::to_owned);
                groups.members.entry(gid).or_default().extend(members);
            }
        }
        groups
    }
}

/// The parsed content of a file, parsed again when the file changes.
#[derive(Debug)]
struct CachedFile<T> {
    path: PathBuf,
    version: Option<Version>,
    content: T,
}

/// Inode, size and time of change: tools replace these files, editors write into them.
type Version = (u64, u64, i64, i64);

impl<T: Default + for<'a> From<&'a str>> CachedFile<T> {
    fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), version: None, content: T::default() }
    }

    /// Returns the current content, or the last known one if the file cannot be read, so that permissions do not change.
    fn current(&mut self) -> &T {
        if let Err(error) = self.refresh() {
            tracing::warn!(path = %self.path.display(), %error, "cannot read the host's accounts; using the last known ones");
        }
        &self.content
    }

    fn refresh(&mut self) -> io::Result<()> {
        let version = version(&fs::metadata(&self.path)?);
        if self.version != Some(version) {
            self.content = T::from(&read_lossy(&self.path)?);
            self.version = Some(version);
        }
        Ok(())
    }
}

fn version(metadata: &Metadata) -> Version {
    (metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec())
}

/// Reads a file and replaces invalid UTF-8: a comment field in another encoding must not hide every account.
fn read_lossy(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100:\u{fffd}:/:\nann2:x:1000:101::/:\nbad\nx:x:y:0:::\n";
    const GROUP: &str = "wheel:x:10:ann,bob\nusers:x:100:\nothers:x:11:ann2\nempty:x:12:\n#\n";

    #[test]
    fn membership_is_primary_or_listed_under_any_name_of_the_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let (passwd, group) = (directory.path().join("passwd"), directory.path().join("group"));
        fs::write(&passwd, PASSWD).expect("written");
        fs::write(&group, GROUP).expect("written");
        let mut accounts = Accounts::from_files(&passwd, &group);

        assert_eq!((accounts.uid("ann"), accounts.uid("bad"), accounts.uid("x")), (Some(1000), None, None));
        assert_eq!((accounts.gid("wheel"), accounts.gid("nobody")), (Some(10), None));
        for (gid, member) in [(10, true), (100, true), (101, true), (11, true), (12, false), (0, false)] {
            assert_eq!(accounts.is_member(1000, gid), member, "{gid}");
        }
        assert!(!accounts.is_member(4242, 10));
    }

    #[test]
    fn changed_files_are_read_again_and_missing_files_are_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let (passwd, group) = (directory.path().join("passwd"), directory.path().join("group"));
        fs::write(&passwd, "ann:x:1000:100::/:\n").expect("written");
        fs::write(&group, "wheel:x:10:\n").expect("written");
        let mut accounts = Accounts::from_files(&passwd, &group);
        assert!(!accounts.is_member(1000, 10));

        fs::write(directory.path().join("new"), "wheel:x:10:ann\n").expect("written");
        fs::rename(directory.path().join("new"), &group).expect("renamed");
        assert!(accounts.is_member(1000, 10));

        fs::remove_file(&group).expect("removed");
        assert!(accounts.is_member(1000, 10));
    }
}
