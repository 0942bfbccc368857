//! Directory trees as archives: packed by [`Packing`] and unpacked by [`Unpacking`].
//!
//! Other processes may change the directory meanwhile, and the archive is untrusted. So no path of more than one name
//! is opened: each name is opened below its parent directory, and never through a symbolic link. Everything that is
//! read lies below the requested directory, and everything that is written stays below it.

mod pack;
mod unpack;

use std::io;

pub use pack::Packing;
pub use unpack::Unpacking;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Files, directories and links.
    pub entries: u64,
    /// The total size of the files.
    pub bytes: u64,
    /// Entries of another kind, and entries that were replaced while they were opened.
    pub skipped: u64,
}

/// The failure of one entry. The entries before it are packed or unpacked.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", location(.entry))]
pub struct TreeError {
    /// Empty for a failure of the archive or of the directory as a whole.
    pub entry: Vec<u8>,
    pub error: io::Error,
}

fn location(entry: &[u8]) -> String {
    if entry.is_empty() { String::new() } else { format!("{}: ", String::from_utf8_lossy(entry).escape_debug()) }
}

impl TreeError {
    fn at(entry: &[u8], error: impl Into<io::Error>) -> Self {
        Self { entry: entry.to_vec(), error: error.into() }
    }
}

/// Normalizes an entry's name; empty for the directory itself. Refuses a name that leads out of the directory.
pub fn checked_name(name: &[u8]) -> io::Result<Vec<u8>> {
    if name.starts_with(b"/") {
        return Err(io::Error::other("the name of an entry must not be absolute"));
    }
    if name.contains(&0) {
        return Err(io::Error::other("the name of an entry must not contain a null character"));
    }
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) {
        return Err(io::Error::other("it would leave the directory"));
    }
    Ok(parts.join(&b'/'))
}

#[cfg(test)]
mod tests;
