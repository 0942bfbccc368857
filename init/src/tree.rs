//! Directories with all that is in them, as archives: on their way out ([`Packing`]) and in ([`Unpacking`]).
//!
//! Somebody else may change the directory meanwhile, and the archive may come from anybody. So nothing is reached by a
//! path of more than one name: each is opened below the directory before it, and never through a symbolic link. What is
//! read was there, below the directory that was asked for, and what is written stays below it.

mod pack;
mod unpack;

use std::io;

pub use pack::Packing;
pub use unpack::Unpacking;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Files, directories and links.
    pub entries: u64,
    /// Of the files.
    pub bytes: u64,
    /// What is none of these, and what was exchanged for something else just when it was opened.
    pub skipped: u64,
}

/// Which entry could not be packed or unpacked. What came before it was.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", place(.entry))]
pub struct TreeError {
    /// Empty if it is about the archive or the directory as a whole.
    pub entry: Vec<u8>,
    pub error: io::Error,
}

fn place(entry: &[u8]) -> String {
    if entry.is_empty() { String::new() } else { format!("{}: ", String::from_utf8_lossy(entry).escape_debug()) }
}

impl TreeError {
    fn at(entry: &[u8], error: impl Into<io::Error>) -> Self {
        Self { entry: entry.to_vec(), error: error.into() }
    }
}

/// An entry's name without what means nothing; empty for the directory itself. One that would lead out is refused.
pub fn checked_name(name: &[u8]) -> io::Result<Vec<u8>> {
    if name.starts_with(b"/") {
        return Err(io::Error::other("an absolute name has no place in an archive"));
    }
    if name.contains(&0) {
        return Err(io::Error::other("its name has a null character in it"));
    }
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) {
        return Err(io::Error::other("it would leave the directory"));
    }
    Ok(parts.join(&b'/'))
}

#[cfg(test)]
mod tests;
