//! Tar archives: the parts of ustar that the service needs, with pax headers for values that do not fit.
//!
//! This module opens no file; it only encodes and decodes entries. The input is untrusted.

mod header;
mod reader;

pub use reader::{Item, Reader};

/// The block size: every header and every content starts at a multiple of it.
pub const BLOCK: usize = 512;

/// The end mark of an archive.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: Kind,
    /// The length of the content. Only a file, or an entry of unknown kind, has content.
    pub size: u64,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    /// Seconds since 1970.
    pub modified: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link {
        target: Vec<u8>,
    },
    /// A hard link to an earlier file.
    Same {
        name: Vec<u8>,
    },
    /// A device, a pipe, or an unknown kind.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TarError {
    #[error("not a tar archive, or a damaged one")]
    NoArchive,
    #[error("a header of the archive is longer than {} bytes", reader::MAX_EXTENSION)]
    TooLong,
    #[error("the archive has an entry of an unsupported kind")]
    Unsupported,
    #[error("the archive ends too early")]
    Truncated,
}

impl Entry {
    /// Appends the header. The caller appends the content, and then [`padding`].
    pub fn put(&self, out: &mut Vec<u8>) {
        header::put(self, out);
    }
}

/// Returns the number of zeros that follow content of this size.
pub fn padding(size: u64) -> usize {
    let over = (size % BLOCK as u64) as usize;
    if over == 0 { 0 } else { BLOCK - over }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: Kind, size: u64) -> Entry {
        Entry { name: name.into(), kind, size, mode: 0o640, user: 7, group: 8, modified: 1_700_000_000 }
    }

    fn read(archive: &[u8], at_once: usize) -> Result<Vec<(Entry, Vec<u8>)>, TarError> {
        let (mut reader, mut found) = (Reader::default(), Vec::<(Entry, Vec<u8>)>::new());
        for mut part in archive.chunks(at_once) {
            while let Some(item) = reader.next(&mut part)? {
                match item {
                    Item::Entry(entry) => found.push((entry, Vec::new())),
                    Item::Data(bytes) => found.last_mut().expect("an entry").1.extend_from_slice(bytes),
                    Item::EndOfEntry => {}
                }
            }
        }
        reader.finish().map(|()| found)
    }

    fn archive(entries: &[(Entry, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (entry, content) in entries {
            entry.put(&mut out);
            out.extend_from_slice(content);
            out.resize(out.len() + padding(entry.size), 0);
        }
        out.extend_from_slice(&END);
        out
    }

    #[test]
    fn entries_are_read_back_however_they_are_cut() {
        let long = format!("{}é", "directory/".repeat(40));
        let content = |length: usize| (0..length).map(|byte| byte as u8).collect::<Vec<u8>>();
        let mut huge_numbers = entry("numbers", Kind::File, 3);
        (huge_numbers.user, huge_numbers.modified) = (u32::MAX, -5);
        let entries = [
            (entry("./", Kind::Directory, 0), vec![]),
            (entry("a", Kind::File, 1000), content(1000)),
            (entry("empty", Kind::File, 0), vec![]),
            (entry(&long, Kind::File, 512), content(512)),
            (entry("link", Kind::Link { target: long.clone().into() }, 0), vec![]),
            (entry("same", Kind::Same { name: b"a".into() }, 0), vec![]),
            (huge_numbers, content(3)),
        ];
        for at_once in [1, 100, 512, 1 << 20] {
            assert_eq!(read(&archive(&entries), at_once).unwrap(), entries);
        }
    }

    #[test]
    fn a_size_beyond_the_old_format_is_written_as_an_extension() {
        let mut out = Vec::new();
        entry("huge", Kind::File, 1 << 40).put(&mut out);
        let mut rest = &out[..];
        let found = Reader::default().next(&mut rest).unwrap();
        assert!(matches!(found, Some(Item::Entry(Entry { size, .. })) if size == 1 << 40), "{found:?}");
    }

    #[test]
    fn a_truncated_archive_is_detected() {
        let whole = archive(&[(entry("a", Kind::File, 700), vec![1; 700])]);
        for end in [1, 511, 512, 600, 1024, 1500] {
            assert_eq!(read(&whole[..end], 64), Err(TarError::Truncated), "{end}");
        }
        assert_eq!(read(&whole[..1536], 64).map(|found| found.len()), Ok(1), "only the end mark is missing");
        assert_eq!(read(&[], 64), Ok(vec![]));
    }

    #[test]
    fn an_invalid_archive_is_refused_without_allocation() {
        assert_eq!(read(&[b'x'; 4096], 512), Err(TarError::NoArchive));
        let mut lying = archive(&[(entry(&"n".repeat(200), Kind::File, 0), vec![])]);
        lying[124..136].copy_from_slice(b"77777777777\0");
        header::seal(lying.first_chunk_mut().unwrap());
        assert_eq!(read(&lying, 512), Err(TarError::TooLong));
    }
}
