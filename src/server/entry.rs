//! Check whether the socket file admits the callers that the configuration allows. The kernel checks the file's
//! permissions before the service checks the lists of [`access`](super::access).

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::access::Allowed;
use super::accounts::Accounts;

/// The group of the socket if none is configured and the host has this group.
pub const DEFAULT_GROUP: &str = "sandboxd";

/// The owner, the group and the permissions of a socket file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketAccess {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// A caller that the configuration allows but that cannot open the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedCaller {
    /// The key of the configuration that names the caller.
    pub key: &'static str,
    pub name: String,
    pub access: SocketAccess,
}

impl SocketAccess {
    pub fn of(socket: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(socket)?;
        Ok(Self { uid: file.uid(), gid: file.gid(), mode: file.mode() & 0o777 })
    }

    /// Returns whether the user may connect, which takes the permission to write: the owner's bit for the owner, the
    /// group's bit for its members, and the last bit for all other users.
    fn admits(self, uid: u32, is_member: bool) -> bool {
        let bit = if uid == self.uid {
            0o200
        } else if is_member {
            0o020
        } else {
            0o002
        };
        uid == 0 || self.mode & bit != 0
    }

    /// Returns the callers of `allowed` that cannot open the socket. A group is one of them if any of its members is.
    pub fn excluded_callers(self, allowed: &Allowed, accounts: &mut Accounts) -> Vec<ExcludedCaller> {
        let mut excluded_callers = Vec::new();
        let mut exclude =
            |key, name: &String| excluded_callers.push(ExcludedCaller { key, name: name.clone(), access: self });
        for name in &allowed.users {
            let uid = name.parse().ok().or_else(|| accounts.uid(name));
            if uid.is_some_and(|uid| !self.admits(uid, accounts.is_member(uid, self.gid))) {
                exclude("socket.allow_users", name);
            }
        }
        let groups = allowed.groups.iter().map(|name| ("socket.allow_groups", name));
        for (key, name) in groups.chain(allowed.read_only_groups.iter().map(|name| ("socket.read_only_groups", name))) {
            let Some(gid) = name.parse().ok().or_else(|| accounts.gid(name)) else { continue };
            let members = accounts.members(gid);
            let admitted = match members.is_empty() || gid == self.gid {
                true => self.mode & if gid == self.gid { 0o020 } else { 0o002 } != 0,
                false => members.iter().all(|uid| self.admits(*uid, accounts.is_member(*uid, self.gid))),
            };
            if !admitted {
                exclude(key, name);
            }
        }
        excluded_callers
    }
}

impl fmt::Display for ExcludedCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExcludedCaller { key, name, access: SocketAccess { gid, mode, .. } } = self;
        write!(f, "{key}: {name} cannot open the socket, which belongs to group {gid} and has mode {mode:04o}")
    }
}

impl ExcludedCaller {
    /// Returns how to admit the caller. It never suggests root's group, which opens far more than this socket.
    pub fn advice(&self) -> String {
        let Self { name, .. } = self;
        let (program, subject) = match self.key {
            "socket.allow_users" => (format!("usermod -aG {DEFAULT_GROUP} {name}"), name.clone()),
            _ => (format!("usermod -aG {DEFAULT_GROUP} USER"), format!("the members of {name}")),
        };
        format!(
            "give the socket a group of its callers and make {subject} members of it ({program}; the service uses a group of \
             that name without further settings), or open the file to all users with socket.mode = \"0666\", so that only \
             the lists of [socket] decide who may call"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT_OWNED: SocketAccess = SocketAccess { uid: 0, gid: 0, mode: 0o660 };

    fn excluded_callers(
        access: SocketAccess,
        users: &[&str],
        groups: &[&str],
        read_only_groups: &[&str],
    ) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        let (passwd, group) = (directory.path().join("passwd"), directory.path().join("group"));
        std::fs::write(&passwd, "ann:x:1000:1000::/:\nbob:x:1001:1001::/:\n").expect("written");
        std::fs::write(&group, "sandboxd:x:900:ann\nagents:x:50:ann\nothers:x:51:ann,bob\nempty:x:52:\n")
            .expect("written");
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let allowed = Allowed { users: owned(users), groups: owned(groups), read_only_groups: owned(read_only_groups) };
        let mut accounts = Accounts::from_files(passwd, group);
        access
            .excluded_callers(&allowed, &mut accounts)
            .into_iter()
            .map(|caller| format!("{} {}", caller.key, caller.name))
            .collect()
    }

    #[test]
    fn a_caller_is_excluded_unless_the_file_admits_it() {
        let group_owned = SocketAccess { gid: 900, ..ROOT_OWNED };
        let none: [&str; 0] = [];
        assert_eq!(
            excluded_callers(ROOT_OWNED, &["ann", "1001", "root", "0"], &[], &[]),
            ["socket.allow_users ann", "socket.allow_users 1001"]
        );
        assert_eq!(excluded_callers(group_owned, &["ann", "bob"], &[], &[]), ["socket.allow_users bob"]);
        assert_eq!(
            excluded_callers(SocketAccess { mode: 0o666, ..ROOT_OWNED }, &["ann"], &["agents", "empty"], &["others"]),
            none
        );
        assert_eq!(
            excluded_callers(SocketAccess { mode: 0o606, ..group_owned }, &["ann", "bob"], &[], &[]),
            ["socket.allow_users ann"]
        );
        assert_eq!(excluded_callers(SocketAccess { uid: 1000, mode: 0o600, ..ROOT_OWNED }, &["ann"], &[], &[]), none);
        assert_eq!(
            excluded_callers(SocketAccess { mode: 0o600, ..group_owned }, &[], &["sandboxd"], &[]),
            ["socket.allow_groups sandboxd"]
        );
    }

    #[test]
    fn a_group_is_excluded_if_one_of_its_members_is() {
        let group_owned = SocketAccess { gid: 900, ..ROOT_OWNED };
        assert_eq!(excluded_callers(group_owned, &[], &["sandboxd", "agents", "900"], &[]), Vec::<String>::new());
        assert_eq!(
            excluded_callers(group_owned, &[], &["others"], &["empty"]),
            ["socket.allow_groups others", "socket.read_only_groups empty"]
        );
    }

    #[test]
    fn no_advice_leads_into_the_group_of_root() {
        for key in ["socket.allow_users", "socket.allow_groups"] {
            let advice = ExcludedCaller { key, name: "ann".into(), access: ROOT_OWNED }.advice();
            assert!(advice.contains("usermod -aG sandboxd") && !advice.contains("root"), "{advice}");
        }
    }
}
