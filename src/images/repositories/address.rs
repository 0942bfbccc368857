//! The address of a repository, and the rules for the addresses of its submodules.
//!
//! The addresses of submodules come from the repository, so every user with write access to it controls them. None of
//! them may make the service send credentials to another host, or read files of this host:
//!
//! ```text
//! main repository    a submodule
//! https://host/…     https; with the credentials if it is at the same host, without them otherwise
//! http://host/…      http or https, by the same rule
//! ssh://host/…       ssh at the same host only: a login attempt reveals the key to the host
//! a directory        a directory below the one that holds the main repository
//! ```

use std::path::{Component, Path};

/// The address of a repository, reduced to its protocol and host or path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address<'a> {
    Http(Host<'a>),
    Https(Host<'a>),
    Ssh(Host<'a>),
    Local(&'a Path),
}

/// A host without the user. Case does not matter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host<'a> {
    name: &'a str,
    port: u16,
    /// The host and port as written.
    written: &'a str,
}

impl PartialEq for Host<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.name.eq_ignore_ascii_case(other.name) && self.port == other.port
    }
}

impl Eq for Host<'_> {}

/// Whether a submodule is fetched with the repository's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    WithCredentials,
    WithoutCredentials,
}

impl<'a> Address<'a> {
    /// Parses an address. Returns `None` for other forms that git may accept, and for an address with a password.
    pub(super) fn parse(url: &'a str) -> Option<Self> {
        if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return None;
        }
        if url.starts_with('/') {
            return Some(Self::Local(Path::new(url)));
        }
        match url.split_once("://") {
            Some(("https", rest)) => Some(Self::Https(host(rest, 443)?)),
            Some(("http", rest)) => Some(Self::Http(host(rest, 80)?)),
            Some(("ssh", rest)) => Some(Self::Ssh(host(rest, 22)?)),
            Some(("file", path)) if path.starts_with('/') => Some(Self::Local(Path::new(path))),
            Some(_) => None,
            // The short form `git@host:path`. A double colon selects a git remote helper, which runs programs.
            None => {
                let (place, path) = url.split_once(':')?;
                let short = !place.contains('/') && !path.starts_with(':');
                short.then(|| host(place, 22)).flatten().map(Self::Ssh)
            }
        }
    }

    /// Returns the protocols that git may use, in the form of `GIT_ALLOW_PROTOCOL`.
    pub(super) fn protocols(&self) -> &'static str {
        match self {
            Self::Https(_) => "https",
            // A redirect may lead to https.
            Self::Http(_) => "http:https",
            Self::Ssh(_) => "ssh",
            Self::Local(_) => "file",
        }
    }

    pub(super) fn is_ssh(&self) -> bool {
        matches!(self, Self::Ssh(_))
    }

    pub(super) fn local(&self) -> Option<&'a Path> {
        match self {
            Self::Local(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the origin as git writes it in a password prompt.
    pub(super) fn origin(&self) -> Option<String> {
        match self {
            Self::Https(host) => Some(format!("https://{}", host.written)),
            Self::Http(host) => Some(format!("http://{}", host.written)),
            _ => None,
        }
    }

    /// Returns how a submodule at that address is fetched; `None` if a repository at this address may not have it.
    pub(super) fn admits(&self, submodule: &Address<'_>) -> Option<Trust> {
        let trust = |same| if same { Trust::WithCredentials } else { Trust::WithoutCredentials };
        match (self, submodule) {
            (Self::Https(main), Address::Https(other)) | (Self::Http(main), Address::Http(other)) => {
                Some(trust(main == other))
            }
            (Self::Http(_), Address::Https(_)) => Some(Trust::WithoutCredentials),
            (Self::Ssh(main), Address::Ssh(other)) => (main == other).then_some(Trust::WithCredentials),
            (Self::Local(main), Address::Local(other)) => {
                let plain = other.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
                let beside = main.parent().is_some_and(|parent| other.starts_with(parent) && *other != parent);
                (plain && beside).then_some(Trust::WithCredentials)
            }
            _ => None,
        }
    }
}

/// Parses the host after the scheme. Allows only characters that every URL parser reads alike.
fn host(rest: &str, usual_port: u16) -> Option<Host<'_>> {
    let place = rest.split('/').next()?;
    let (user, written) = place.rsplit_once('@').unwrap_or(("", place));
    let plain = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
    let (name, port, is_name) = match written.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((number, port)) => (number, port, plain(number, ":")),
        None => {
            let end = written.find(':').unwrap_or(written.len());
            let (name, port) = written.split_at(end);
            (name, port, name.starts_with(|c: char| c.is_ascii_alphanumeric()) && plain(name, "-._"))
        }
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok()?,
        None if port.is_empty() => usual_port,
        None => return None,
    };
    (is_name && plain(user, "-._+~%") && !user.starts_with('-')).then_some(Host { name, port, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(main: &str, submodule: &str) -> Option<Trust> {
        Address::parse(main).expect(main).admits(&Address::parse(submodule)?)
    }

    #[test]
    fn credentials_go_to_the_main_repositorys_host_alone() {
        for (main, submodule) in [
            ("https://me@host/a.git", "https://HOST:443/b.git"),
            ("http://host:8080/a.git", "http://host:8080/b.git"),
            ("https://[::1]:8443/a.git", "https://[::1]:8443/b.git"),
            ("ssh://git@host/a.git", "git@host:b.git"),
            ("ssh://git@host:2222/a.git", "ssh://git@host:2222/b.git"),
            ("/srv/git/a.git", "/srv/git/deeper/b.git"),
            ("file:///srv/git/a.git", "/srv/git/b.git"),
        ] {
            assert_eq!(admitted(main, submodule), Some(Trust::WithCredentials), "{submodule}");
        }
        for (main, submodule) in [
            ("https://host/a.git", "https://host.evil/b.git"),
            ("https://host/a.git", "https://host@evil/b.git"),
            ("https://host/a.git", "https://host:8443/b.git"),
            ("http://host/a.git", "https://host/b.git"),
        ] {
            assert_eq!(admitted(main, submodule), Some(Trust::WithoutCredentials), "{submodule}");
        }
    }

    #[test]
    fn a_submodule_cannot_read_files_or_run_programs_of_this_host() {
        for submodule in [
            "/etc",
            "file:///srv/a.git",
            "../a.git",
            "ext::sh -c x",
            "ext::x",
            "git://host/b.git",
            "http://host/b.git",
            "git@host:b.git",
            "ssh://-oProxyCommand=x/b.git",
            "-oProxyCommand=x:b.git",
            "-o@host:b.git",
            "https://me:secret@host/b.git",
            "https://evil%40host/b.git",
            "https://host/b.git\nhttps://evil",
            "--upload-pack=x",
            "",
        ] {
            assert_eq!(admitted("https://host/a.git", submodule), None, "{submodule}");
        }
        for elsewhere in ["/etc", "/srv/git", "/srv/git/../other.git", "/srv/gitx/b.git", "https://host/b.git"] {
            assert_eq!(admitted("/srv/git/a.git", elsewhere), None, "{elsewhere}");
        }
        assert_eq!(admitted("ssh://git@host/a.git", "git@evil:b.git"), None);
        assert_eq!(admitted("ssh://git@host/a.git", "https://host/b.git"), None);
    }
}
