//! Authorization of callers: their users, groups and roles.

use super::accounts::Accounts;

/// The permissions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Full,
    /// May only read.
    ReadOnly,
}

/// The caller of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
}

/// The access rules: root, the service's own user, and the configured users and groups may call.
#[derive(Debug)]
pub struct Access {
    own_uid: u32,
    users: Vec<u32>,
    groups: Vec<u32>,
    read_only_groups: Vec<u32>,
    accounts: Accounts,
}

/// Users and groups, each by name or number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    pub users: Vec<String>,
    pub groups: Vec<String>,
    pub read_only_groups: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownAccount {
    #[error("there is no user {0:?} on this host")]
    User(String),
    #[error("there is no group {0:?} on this host")]
    Group(String),
}

impl Access {
    /// Resolves the names once: a name that is reassigned later does not transfer the permission.
    pub fn new(allowed: &Allowed, accounts: Accounts) -> Result<Self, UnknownAccount> {
        Self::of_service_user(rustix::process::geteuid().as_raw(), allowed, accounts)
    }

    fn of_service_user(own_uid: u32, allowed: &Allowed, mut accounts: Accounts) -> Result<Self, UnknownAccount> {
        let users = allowed.users.iter().map(|user| uid(&mut accounts, user)).collect::<Result<_, _>>()?;
        let mut gids = |groups: &[String]| -> Result<Vec<u32>, UnknownAccount> {
            groups.iter().map(|group| gid(&mut accounts, group)).collect()
        };
        let groups = gids(&allowed.groups)?;
        let read_only_groups = gids(&allowed.read_only_groups)?;
        Ok(Self { own_uid, users, groups, read_only_groups, accounts })
    }

    /// Returns the role of a caller, or `None` without access. The full role takes precedence.
    pub fn role(&mut self, peer: Peer) -> Option<Role> {
        if peer.uid == 0 || peer.uid == self.own_uid || self.users.contains(&peer.uid) {
            return Some(Role::Full);
        }
        let mut belongs =
            |groups: &[u32]| groups.iter().any(|group| *group == peer.gid || self.accounts.is_member(peer.uid, *group));
        if belongs(&self.groups) {
            Some(Role::Full)
        } else if belongs(&self.read_only_groups) {
            Some(Role::ReadOnly)
        } else {
            None
        }
    }
}

fn uid(accounts: &mut Accounts, user: &str) -> Result<u32, UnknownAccount> {
    user.parse().ok().or_else(|| accounts.uid(user)).ok_or_else(|| UnknownAccount::User(user.to_owned()))
}

/// Returns the id of a group that is given by name or number.
pub fn gid(accounts: &mut Accounts, group: &str) -> Result<u32, UnknownAccount> {
    group.parse().ok().or_else(|| accounts.gid(group)).ok_or_else(|| UnknownAccount::Group(group.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> (tempfile::TempDir, Accounts) {
        let directory = tempfile::tempdir().expect("a directory");
        let (passwd, group) = (directory.path().join("passwd"), directory.path().join("group"));
        std::fs::write(&passwd, "ann:x:1000:1000::/:\nbob:x:1001:1001::/:\neve:x:1002:1002::/:\n").expect("written");
        std::fs::write(&group, "agents:x:50:bob\nmonitors:x:51:bob,eve\n").expect("written");
        let accounts = Accounts::from_files(passwd, group);
        (directory, accounts)
    }

    fn allowed(users: &[&str], groups: &[&str], read_only_groups: &[&str]) -> Allowed {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Allowed { users: owned(users), groups: owned(groups), read_only_groups: owned(read_only_groups) }
    }

    #[test]
    fn without_rules_only_root_and_the_services_own_user_may_call() {
        let (_files, accounts) = accounts();
        let mut access = Access::of_service_user(900, &Allowed::default(), accounts).expect("known names");
        for (uid, role) in [(0, Some(Role::Full)), (900, Some(Role::Full)), (1000, None)] {
            assert_eq!(access.role(Peer { uid, gid: 0 }), role, "{uid}");
        }
    }

    #[test]
    fn users_and_groups_are_named_or_numbered_and_the_greater_role_wins() {
        let (_files, accounts) = accounts();
        let rules = allowed(&["ann", "2000"], &["agents", "77"], &["monitors"]);
        let mut access = Access::of_service_user(900, &rules, accounts).expect("known names");
        for (uid, gid, role) in [
            (1000, 1000, Some(Role::Full)),
            (2000, 2000, Some(Role::Full)),
            (1001, 1001, Some(Role::Full)),
            (1002, 1002, Some(Role::ReadOnly)),
            (1003, 1003, None),
            (1003, 77, Some(Role::Full)),
            (1003, 51, Some(Role::ReadOnly)),
        ] {
            assert_eq!(access.role(Peer { uid, gid }), role, "{uid}:{gid}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_from_the_start() {
        for (rules, error) in [
            (allowed(&["zed"], &[], &[]), UnknownAccount::User("zed".into())),
            (allowed(&[], &["ann"], &[]), UnknownAccount::Group("ann".into())),
            (allowed(&[], &[], &["zed"]), UnknownAccount::Group("zed".into())),
        ] {
            let (_files, accounts) = accounts();
            assert_eq!(Access::of_service_user(900, &rules, accounts).err(), Some(error));
        }
    }
}
