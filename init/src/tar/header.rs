//! Encoding and decoding of one header.

use super::{BLOCK, Entry, Kind, TarError, padding};

pub(super) const PAX: u8 = b'x';
pub(super) const PAX_GLOBAL: u8 = b'g';
pub(super) const LONG_NAME: u8 = b'L';
pub(super) const LONG_LINK: u8 = b'K';

const NAME: std::ops::Range<usize> = 0..100;
const MODE: std::ops::Range<usize> = 100..108;
const USER: std::ops::Range<usize> = 108..116;
const GROUP: std::ops::Range<usize> = 116..124;
const SIZE: std::ops::Range<usize> = 124..136;
const MODIFIED: std::ops::Range<usize> = 136..148;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;
const LINK: std::ops::Range<usize> = 157..257;
const MAGIC: std::ops::Range<usize> = 257..265;
const PREFIX: std::ops::Range<usize> = 345..500;

pub(super) fn put(entry: &Entry, out: &mut Vec<u8>) {
    let mut block = [0; BLOCK];
    let mut extension = Vec::new();
    let (kind, link): (u8, &[u8]) = match &entry.kind {
        Kind::File => (b'0', b""),
        Kind::Same { name } => (b'1', name),
        Kind::Link { target } => (b'2', target),
        Kind::Directory => (b'5', b""),
        // A pipe is the least harmful kind.
        Kind::Other => (b'6', b""),
    };
    put_text(&mut block, NAME, &entry.name, "path", &mut extension);
    put_text(&mut block, LINK, link, "linkpath", &mut extension);
    put_number(&mut block, MODE, u64::from(entry.mode & 0o7777), None, &mut extension);
    put_number(&mut block, USER, u64::from(entry.user), Some("uid"), &mut extension);
    put_number(&mut block, GROUP, u64::from(entry.group), Some("gid"), &mut extension);
    put_number(&mut block, SIZE, entry.size, Some("size"), &mut extension);
    match u64::try_from(entry.modified) {
        Ok(modified) => put_number(&mut block, MODIFIED, modified, Some("mtime"), &mut extension),
        Err(_) => {
            put_number(&mut block, MODIFIED, 0, None, &mut extension);
            put_record(&mut extension, "mtime", entry.modified.to_string().as_bytes());
        }
    }
    if !extension.is_empty() {
        put_extension(&extension, out);
    }
    block[TYPE] = kind;
    seal(&mut block);
    out.extend_from_slice(&block);
}

fn put_extension(records: &[u8], out: &mut Vec<u8>) {
    let mut block = [0; BLOCK];
    let no_extension = &mut Vec::new();
    put_text(&mut block, NAME, b"pax", "path", no_extension);
    put_number(&mut block, MODE, 0o644, None, no_extension);
    put_number(&mut block, USER, 0, None, no_extension);
    put_number(&mut block, GROUP, 0, None, no_extension);
    put_number(&mut block, SIZE, records.len() as u64, None, no_extension);
    put_number(&mut block, MODIFIED, 0, None, no_extension);
    block[TYPE] = PAX;
    seal(&mut block);
    out.extend_from_slice(&block);
    out.extend_from_slice(records);
    out.resize(out.len() + padding(records.len() as u64), 0);
}

fn put_text(block: &mut [u8; BLOCK], at: std::ops::Range<usize>, text: &[u8], key: &str, extension: &mut Vec<u8>) {
    if text.len() > at.len() {
        put_record(extension, key, text);
    }
    let clipped = &text[..text.len().min(at.len())];
    block[at][..clipped.len()].copy_from_slice(clipped);
}

/// Writes a number in octal with a final null, or, if it does not fit, as a record of the extension.
fn put_number(
    block: &mut [u8; BLOCK],
    at: std::ops::Range<usize>,
    number: u64,
    key: Option<&str>,
    extension: &mut Vec<u8>,
) {
    let digits = at.len() - 1;
    let fits = number < 1 << (3 * digits);
    if let Some(key) = key.filter(|_| !fits) {
        put_record(extension, key, number.to_string().as_bytes());
    }
    let text = format!("{:0digits$o}", if fits { number } else { 0 });
    block[at][..digits].copy_from_slice(text.as_bytes());
}

/// Appends a record. Its length includes the digits of the length.
fn put_record(extension: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    extension.extend_from_slice(format!("{length} {key}=").as_bytes());
    extension.extend_from_slice(value);
    extension.push(b'\n');
}

/// Writes the magic number and the checksum.
pub(super) fn seal(block: &mut [u8; BLOCK]) {
    block[MAGIC].copy_from_slice(b"ustar\x0000");
    let sum = format!("{:06o}\0 ", sum(block));
    block[CHECKSUM].copy_from_slice(sum.as_bytes());
}

/// Returns the checksum: the sum of all bytes, with the checksum field taken as spaces.
fn sum(block: &[u8; BLOCK]) -> u64 {
    let total = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    total(block) - total(&block[CHECKSUM]) + CHECKSUM.len() as u64 * u64::from(b' ')
}

/// Decodes a header into an entry and the type byte.
pub(super) fn parse(block: &[u8; BLOCK]) -> Result<(Entry, u8), TarError> {
    if number(&block[CHECKSUM])? != sum(block) {
        return Err(TarError::NoArchive);
    }
    let mut name = text(&block[NAME]).to_vec();
    let prefix = text(&block[PREFIX]);
    if block[MAGIC].starts_with(b"ustar\0") && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let link = text(&block[LINK]).to_vec();
    let typed = block[TYPE];
    let kind = match typed {
        // In formats before ustar, a directory is a file whose name ends with a slash.
        b'0' | 0 if !block[MAGIC].starts_with(b"ustar") && name.ends_with(b"/") => Kind::Directory,
        b'0' | 0 | b'7' => Kind::File,
        b'1' => Kind::Same { name: link },
        b'2' => Kind::Link { target: link },
        b'5' => Kind::Directory,
        _ => Kind::Other,
    };
    let small = |bytes: &[u8]| Ok(u32::try_from(number(bytes)?).unwrap_or(u32::MAX));
    let entry = Entry {
        name,
        kind,
        size: number(&block[SIZE])?,
        mode: small(&block[MODE])? & 0o7777,
        user: small(&block[USER])?,
        group: small(&block[GROUP])?,
        modified: i64::try_from(number(&block[MODIFIED])?).unwrap_or(0),
    };
    Ok((entry, typed))
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Decodes a number: octal, or binary if the highest bit is set.
fn number(field: &[u8]) -> Result<u64, TarError> {
    if let [first @ (0x80 | 0xff), rest @ ..] = field {
        // Only times are negative. They count as unknown.
        let (high, low) = rest.split_at(rest.len().saturating_sub(8));
        if *first == 0xff {
            return Ok(0);
        }
        if high.iter().any(|byte| *byte != 0) {
            return Err(TarError::NoArchive);
        }
        return Ok(low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)));
    }
    let digits = std::str::from_utf8(text(field)).map_err(|_| TarError::NoArchive)?.trim();
    if digits.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(digits, 8).map_err(|_| TarError::NoArchive)
}
