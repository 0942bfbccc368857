//! An incremental reader of archives, which accepts input in parts of any size.

use super::header::{self, LONG_LINK, LONG_NAME, PAX, PAX_GLOBAL};
use super::{BLOCK, Entry, Kind, TarError, padding};

/// A path is at most 4096 bytes long. This is room for two paths and for further records.
pub(super) const MAX_EXTENSION: u64 = 64 * 1024;

/// An incremental reader. It buffers at most one header and its extension.
#[derive(Debug, Default)]
pub struct Reader {
    state: State,
    /// The received part of a header or of an extension.
    buffer: Vec<u8>,
    extended: Extended,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Entry(Entry),
    /// Content of the last entry.
    Data(&'a [u8]),
    /// The end of a file, also of an empty one.
    EndOfEntry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Header,
    /// An extension of the next header: its kind and its length.
    Extension(u8, u64),
    Content {
        left: u64,
        padding: u64,
    },
    Padding(u64),
    /// The end mark was read. Further input is ignored.
    Ended,
}

/// Values of an extension, which replace those of the next header.
#[derive(Debug, Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    user: Option<u32>,
    group: Option<u32>,
    modified: Option<i64>,
    is_set: bool,
}

impl Reader {
    /// Returns the next item, and advances `input` past it. `None`: more input is needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, TarError> {
        loop {
            match self.state {
                State::Header => {
                    if !self.fill_buffer(input, BLOCK) {
                        return Ok(None);
                    }
                    if let Some(entry) = self.header()? {
                        return Ok(Some(Item::Entry(entry)));
                    }
                }
                State::Extension(kind, length) => {
                    if !self.fill_buffer(input, length as usize) {
                        return Ok(None);
                    }
                    let buffer = std::mem::take(&mut self.buffer);
                    self.extended.take(kind, &buffer)?;
                    self.state = State::Padding(padding(length) as u64);
                }
                State::Content { left: 0, padding } => {
                    self.state = State::Padding(padding);
                    return Ok(Some(Item::EndOfEntry));
                }
                State::Content { left, padding } => {
                    let taken = take(input, left);
                    self.state = State::Content { left: left - taken.len() as u64, padding };
                    return Ok((!taken.is_empty()).then_some(Item::Data(taken)));
                }
                State::Padding(0) => self.state = State::Header,
                State::Padding(left) => match take(input, left).len() as u64 {
                    0 => return Ok(None),
                    skipped => self.state = State::Padding(left - skipped),
                },
                State::Ended => {
                    *input = &[];
                    return Ok(None);
                }
            }
        }
    }

    /// Returns an error if the input ended within an entry. The end mark may be missing.
    pub fn finish(&self) -> Result<(), TarError> {
        match self.state {
            State::Ended => Ok(()),
            State::Header if self.buffer.is_empty() && !self.extended.is_set => Ok(()),
            _ => Err(TarError::Truncated),
        }
    }

    fn fill_buffer(&mut self, input: &mut &[u8], length: usize) -> bool {
        let missing = length - self.buffer.len();
        self.buffer.extend_from_slice(take(input, missing as u64));
        self.buffer.len() == length
    }

    /// Handles a full header. `None`: it is not the header of an entry.
    fn header(&mut self) -> Result<Option<Entry>, TarError> {
        let buffer = std::mem::take(&mut self.buffer);
        let block: &[u8; BLOCK] = buffer.first_chunk().ok_or(TarError::NoArchive)?;
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::Ended;
            return Ok(None);
        }
        let (mut entry, typed) = header::parse(block)?;
        if [PAX, PAX_GLOBAL, LONG_NAME, LONG_LINK].contains(&typed) {
            if entry.size > MAX_EXTENSION {
                return Err(TarError::TooLong);
            }
            self.state = State::Extension(typed, entry.size);
            return Ok(None);
        }
        std::mem::take(&mut self.extended).apply_to(&mut entry);
        // The content of a sparse file, or of an entry of unknown kind, cannot be interpreted.
        if !matches!(typed, 0 | b'0'..=b'7') {
            return Err(TarError::Unsupported);
        }
        if entry.kind != Kind::File {
            entry.size = 0;
        }
        self.state = match entry.kind {
            Kind::File => State::Content { left: entry.size, padding: padding(entry.size) as u64 },
            _ => State::Header,
        };
        Ok(Some(entry))
    }
}

impl Extended {
    fn take(&mut self, kind: u8, bytes: &[u8]) -> Result<(), TarError> {
        let text = || bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        match kind {
            LONG_NAME => self.name = Some(text()),
            LONG_LINK => self.link = Some(text()),
            PAX => self.take_records(bytes)?,
            // Global records hold no value that is used here.
            _ => return Ok(()),
        }
        self.is_set = true;
        Ok(())
    }

    fn take_records(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        while !records.is_empty() {
            let (key, value, rest) = record(records).ok_or(TarError::NoArchive)?;
            records = rest;
            let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
            let small = || number().and_then(|number| u32::try_from(number).ok());
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number().ok_or(TarError::NoArchive)?),
                b"uid" => self.user = small(),
                b"gid" => self.group = small(),
                // A fraction of a second may follow.
                b"mtime" => {
                    let whole = value.split(|byte| *byte == b'.').next().unwrap_or_default();
                    self.modified = std::str::from_utf8(whole).ok().and_then(|text| text.parse().ok());
                }
                _ if key.starts_with(b"GNU.sparse.") => return Err(TarError::Unsupported),
                _ => {}
            }
        }
        Ok(())
    }

    fn apply_to(self, entry: &mut Entry) {
        let Self { name, link, size, user, group, modified, .. } = self;
        if let Some(name) = name {
            entry.name = name;
        }
        if let (Kind::Link { target: known } | Kind::Same { name: known }, Some(link)) = (&mut entry.kind, link) {
            *known = link;
        }
        entry.size = size.unwrap_or(entry.size);
        entry.user = user.unwrap_or(entry.user);
        entry.group = group.unwrap_or(entry.group);
        entry.modified = modified.unwrap_or(entry.modified);
    }
}

/// Splits a record `LENGTH KEY=VALUE\n` into key, value and the remaining records.
fn record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}

fn take<'a>(input: &mut &'a [u8], most: u64) -> &'a [u8] {
    let length = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    let (taken, rest) = input.split_at(length);
    *input = rest;
    taken
}
