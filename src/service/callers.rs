//! Resolves the allowed callers and the socket's group from `[socket]`.

use std::path::Path;

use rustix::process::{getegid, geteuid, getgroups};

use super::{ServiceError, setting};
use crate::config::{Config, Principal};
use crate::server::access::{Access, Allowed, UnknownAccount};
use crate::server::accounts::Accounts;
use crate::server::entry::{DEFAULT_GROUP, ExcludedCaller, SocketAccess};
use crate::server::listener::SocketOptions;

pub fn allowed(config: &Config) -> Allowed {
    let names = |principals: &[Principal]| principals.iter().map(ToString::to_string).collect();
    Allowed {
        users: names(&config.socket.allow_users),
        groups: names(&config.socket.allow_groups),
        read_only_groups: names(&config.socket.read_only_groups),
    }
}

pub(super) fn access(config: &Config) -> Result<Access, ServiceError> {
    let mut rules = allowed(config);
    rules
        .groups
        .extend(group(config, &mut Accounts::of_host()).map_err(setting("socket.group"))?.map(|gid| gid.to_string()));
    Access::new(&rules, Accounts::of_host()).map_err(|unknown| {
        let key = match &unknown {
            UnknownAccount::User(_) => "socket.allow_users",
            UnknownAccount::Group(name) if rules.groups.contains(name) => "socket.allow_groups",
            UnknownAccount::Group(_) => "socket.read_only_groups",
        };
        setting(key)(unknown)
    })
}

pub(super) fn socket_options(config: &Config) -> Result<SocketOptions, ServiceError> {
    let socket = &config.socket;
    let gid = group(config, &mut Accounts::of_host()).map_err(setting("socket.group"))?;
    Ok(SocketOptions { path: socket.path.clone(), mode: socket.mode.bits(), gid })
}

/// Returns the group of the socket: the configured one or, if it exists and the service may assign it, the default one.
fn group(config: &Config, accounts: &mut Accounts) -> Result<Option<u32>, UnknownAccount> {
    match &config.socket.group {
        Some(Principal::Id(gid)) => Ok(Some(*gid)),
        Some(Principal::Name(name)) => accounts.gid(name).map(Some).ok_or_else(|| UnknownAccount::Group(name.clone())),
        None => Ok(accounts.gid(DEFAULT_GROUP).filter(|gid| may_assign(*gid))),
    }
}

fn may_assign(gid: u32) -> bool {
    let is_ours = |groups: Vec<rustix::process::Gid>| groups.iter().any(|group| group.as_raw() == gid);
    geteuid().is_root() || getegid().as_raw() == gid || getgroups().is_ok_and(is_ours)
}

/// Returns the callers that the configuration allows but that cannot open the socket that the service would create.
pub fn excluded_callers(config: &Config) -> Vec<ExcludedCaller> {
    let mut accounts = Accounts::of_host();
    let gid = group(config, &mut accounts).ok().flatten().unwrap_or_else(|| getegid().as_raw());
    let access = SocketAccess { uid: geteuid().as_raw(), gid, mode: config.socket.mode.bits() };
    access.excluded_callers(&allowed(config), &mut accounts)
}

/// Returns the same for an existing socket, or an empty list if its metadata cannot be read.
pub(super) fn excluded_callers_of(socket: &Path, config: &Config) -> Vec<ExcludedCaller> {
    let access = SocketAccess::of(socket);
    access.map(|access| access.excluded_callers(&allowed(config), &mut Accounts::of_host())).unwrap_or_default()
}
