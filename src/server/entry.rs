//! Whether the socket file lets those in whom the configuration allows to call. The kernel asks for the file's permissions
//! first, and without them a caller never gets as far as the lists of [`access`](super::access).

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::access::Allowed;
use super::accounts::Accounts;

/// The group that the socket belongs to where none is configured and the host has this one.
pub const DEFAULT_GROUP: &str = "sandboxd";

/// Whom a socket file belongs to, and its permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// A caller that is allowed to call and cannot open the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptOut {
    /// The key of the configuration that names the caller.
    pub key: &'static str,
    pub name: String,
    pub entry: Entry,
}

impl Entry {
    pub fn of(socket: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(socket)?;
        Ok(Self { uid: file.uid(), gid: file.gid(), mode: file.mode() & 0o777 })
    }

    /// Connecting takes the permission to write: the owner's bit for the owner, the group's for its members, and the
    /// last one for all others.
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

    /// Those of `allowed` whom the file keeps out. A group counts if any of its members is kept out.
    pub fn kept_out(self, allowed: &Allowed, accounts: &mut Accounts) -> Vec<KeptOut> {
        let mut kept_out = Vec::new();
        let mut note = |key, name: &String| kept_out.push(KeptOut { key, name: name.clone(), entry: self });
        for name in &allowed.users {
            let uid = name.parse().ok().or_else(|| accounts.uid(name));
            if uid.is_some_and(|uid| !self.admits(uid, accounts.is_member(uid, self.gid))) {
                note("socket.allow_users", name);
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
                note(key, name);
            }
        }
        kept_out
    }
}

impl fmt::Display for KeptOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeptOut { key, name, entry: Entry { gid, mode, .. } } = self;
        write!(f, "{key}: {name} cannot open the socket, which belongs to group {gid} and has mode {mode:04o}")
    }
}

impl KeptOut {
    /// How to let the caller in. Membership of root's group is never the way: it opens far more than this socket.
    pub fn advice(&self) -> String {
        let Self { name, .. } = self;
        let (program, subject) = match self.key {
            "socket.allow_users" => (format!("usermod -aG {DEFAULT_GROUP} {name}"), name.clone()),
            _ => (format!("usermod -aG {DEFAULT_GROUP} USER"), format!("the members of {name}")),
        };
        format!(
            "let the socket belong to a group of its callers and make {subject} members of it ({program}; a group of that name \
             is used by itself), or open the file to all with socket.mode = \"0666\", which leaves it to the lists of \
             [socket] who may call"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: Entry = Entry { uid: 0, gid: 0, mode: 0o660 };

    fn kept_out(entry: Entry, users: &[&str], groups: &[&str], read_only_groups: &[&str]) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        let (passwd, group) = (directory.path().join("passwd"), directory.path().join("group"));
        std::fs::write(&passwd, "ann:x:1000:1000::/:\nbob:x:1001:1001::/:\n").expect("written");
        std::fs::write(&group, "sandboxd:x:900:ann\nagents:x:50:ann\nothers:x:51:ann,bob\nempty:x:52:\n")
            .expect("written");
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let allowed = Allowed { users: owned(users), groups: owned(groups), read_only_groups: owned(read_only_groups) };
        let mut accounts = Accounts::from_files(passwd, group);
        entry
            .kept_out(&allowed, &mut accounts)
            .into_iter()
            .map(|kept_out| format!("{} {}", kept_out.key, kept_out.name))
            .collect()
    }

    #[test]
    fn a_caller_is_kept_out_unless_the_file_admits_it() {
        let ours = Entry { gid: 900, ..ROOTS };
        let none: [&str; 0] = [];
        assert_eq!(
            kept_out(ROOTS, &["ann", "1001", "root", "0"], &[], &[]),
            ["socket.allow_users ann", "socket.allow_users 1001"]
        );
        assert_eq!(kept_out(ours, &["ann", "bob"], &[], &[]), ["socket.allow_users bob"]);
        assert_eq!(kept_out(Entry { mode: 0o666, ..ROOTS }, &["ann"], &["agents", "empty"], &["others"]), none);
        assert_eq!(kept_out(Entry { mode: 0o606, ..ours }, &["ann", "bob"], &[], &[]), ["socket.allow_users ann"]);
        assert_eq!(kept_out(Entry { uid: 1000, mode: 0o600, ..ROOTS }, &["ann"], &[], &[]), none);
        assert_eq!(kept_out(Entry { mode: 0o600, ..ours }, &[], &["sandboxd"], &[]), ["socket.allow_groups sandboxd"]);
    }

    #[test]
    fn a_group_is_kept_out_if_one_of_its_members_is() {
        let ours = Entry { gid: 900, ..ROOTS };
        assert_eq!(kept_out(ours, &[], &["sandboxd", "agents", "900"], &[]), Vec::<String>::new());
        assert_eq!(
            kept_out(ours, &[], &["others"], &["empty"]),
            ["socket.allow_groups others", "socket.read_only_groups empty"]
        );
    }

    #[test]
    fn no_advice_leads_into_the_group_of_root() {
        for key in ["socket.allow_users", "socket.allow_groups"] {
            let advice = KeptOut { key, name: "ann".into(), entry: ROOTS }.advice();
            assert!(advice.contains("usermod -aG sandboxd") && !advice.contains("root"), "{advice}");
        }
    }
}
