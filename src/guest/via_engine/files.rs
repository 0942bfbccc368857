//! Files through the engine's archives: each file is an archive of one entry, or the beginning of a longer one.

use futures_util::StreamExt;
use hyper::body::Bytes as Part;
use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::tar::{self, END, Item, Kind, padding};
use sandbox_init::wire::{self, Event, Facts, Failure, FileKind, Request};

use super::frames::{Reader, Writer};
use super::names::{resolve, split};
use super::{GuestViaEngine, failed, other};
use crate::engine::guest::Archive;

/// The most links that are followed in a row.
const MAX_LINKS: usize = 16;

/// Entries of a directory that are sent at once.
const BATCH: usize = 256;

/// The most bytes that are read to list a directory, because an engine sends all content below it.
const MAX_LISTED: u64 = 1 << 30;

/// An archive, read entry by entry.
pub(super) struct Reading {
    pub(super) entry: tar::Entry,
    archive: Archive,
    reader: tar::Reader,
    part: Part,
    pub(super) received: u64,
}

impl Reading {
    pub(super) fn new(archive: Archive) -> Self {
        let empty = tar::Entry { name: vec![], kind: Kind::Other, size: 0, mode: 0, user: 0, group: 0, modified: 0 };
        Self { entry: empty, archive, reader: tar::Reader::default(), part: Part::new(), received: 0 }
    }

    /// Skips to the next entry. `false`: there is none.
    pub(super) async fn next_entry(&mut self) -> Result<bool, Failure> {
        loop {
            match self.advance().await? {
                Some(Step::Entry(entry)) => {
                    self.entry = entry;
                    return Ok(true);
                }
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Returns the next content of this entry. `None`: the entry is complete.
    pub(super) async fn data(&mut self) -> Result<Option<Part>, Failure> {
        match self.advance().await? {
            Some(Step::Data(part)) => Ok(Some(part)),
            _ => Ok(None),
        }
    }

    async fn advance(&mut self) -> Result<Option<Step>, Failure> {
        loop {
            let mut rest = &self.part[..];
            let before = rest.len();
            let item = self.reader.next(&mut rest).map_err(other)?;
            let (used, taken) = (before - rest.len(), before);
            let step = match item {
                Some(Item::Entry(entry)) => Some(Step::Entry(entry)),
                // The consumed bytes end with the data.
                Some(Item::Data(data)) => Some(Step::Data(self.part.slice(used - data.len()..used))),
                Some(Item::EndOfEntry) => Some(Step::End),
                None => None,
            };
            let _ = self.part.split_to(used);
            if step.is_some() {
                return Ok(step);
            }
            debug_assert_eq!(used, taken);
            match self.archive.next().await {
                Some(part) => self.part = part?,
                None => return Ok(None),
            }
            self.received += self.part.len() as u64;
        }
    }

    pub(super) fn facts(&self) -> Facts {
        let entry = &self.entry;
        let (kind, target) = match &entry.kind {
            Kind::File | Kind::Same { .. } => (FileKind::File {}, None),
            Kind::Directory => (FileKind::Directory {}, None),
            Kind::Link { target } => (FileKind::Link {}, Some(Bytes(target.clone()))),
            Kind::Other => (FileKind::Other {}, None),
        };
        let modified = entry.modified.saturating_mul(1_000_000_000);
        Facts { kind, size: entry.size, mode: entry.mode, user: entry.user, group: entry.group, modified, target }
    }
}

enum Step {
    Entry(tar::Entry),
    Data(Part),
    End,
}

impl GuestViaEngine {
    pub(super) async fn file(&self, request: Request, writer: &mut Writer) -> Result<(), Failure> {
        match request {
            Request::Read { path, offset, length } => self.read(&path, offset, length, writer).await,
            Request::ReadDirectory { path } => self.list(&path, writer).await,
            Request::Facts { path } => {
                let facts = self.open(&self.place(&path).await?).await?.facts();
                writer.event(&Event::Facts { facts }).await;
                Ok(())
            }
            Request::MakeDirectory { path, mode, parents } => {
                let made = self.make_directory(&self.place(&path).await?, mode.unwrap_or(0o755), parents).await;
                self.answer(writer, made).await
            }
            Request::MakeLink { path, target } => {
                let path = self.place(&path).await?;
                let made = self.put(&path, Kind::Link { target: target.0 }, 0o777).await;
                self.answer(writer, made).await
            }
            Request::Remove { path, recursive } => {
                let removed = self.remove(&self.place(&path).await?, recursive).await;
                self.answer(writer, removed).await
            }
            Request::Move { from, to } => {
                let moved = self.rename(&self.place(&from).await?, &self.place(&to).await?).await;
                self.answer(writer, moved).await
            }
            _ => Err(super::unsupported("the engine does not support this request")),
        }
    }

    /// Opens the entry at this path, without following a link.
    pub(super) async fn open(&self, path: &str) -> Result<Reading, Failure> {
        let mut reading = Reading::new(self.engine.read_archive(&self.container, path).await?);
        if reading.next_entry().await? { Ok(reading) } else { Err(other("the engine sent an empty archive")) }
    }

    /// Opens the entry at this path and follows links. Returns also the resolved path.
    pub(super) async fn follow(&self, path: &str) -> Result<(String, Reading), Failure> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let reading = self.open(&path).await?;
            match &reading.entry.kind {
                Kind::Link { target } => path = resolve(&path, &String::from_utf8_lossy(target)),
                _ => return Ok((path, reading)),
            }
        }
        Err(failed(Errno::LOOP, "too many levels of symbolic links"))
    }

    async fn read(&self, path: &Bytes, offset: u64, length: u64, writer: &mut Writer) -> Result<(), Failure> {
        let (_, mut reading) = self.follow(&self.place(path).await?).await?;
        match reading.entry.kind {
            Kind::File => {}
            Kind::Directory => return Err(failed(Errno::ISDIR, "is a directory")),
            _ => return Err(other("not a regular file")),
        }
        writer.event(&Event::Facts { facts: reading.facts() }).await;
        // An engine sends a file from its beginning.
        let (mut skip, mut left) = (offset, length);
        while let Some(part) = reading.data().await? {
            let start = usize::try_from(skip).unwrap_or(usize::MAX).min(part.len());
            skip -= start as u64;
            let end = start + usize::try_from(left).unwrap_or(usize::MAX).min(part.len() - start);
            left -= (end - start) as u64;
            writer.data(wire::Kind::Data, &part[start..end]).await;
            if left == 0 || writer.is_closed() {
                break;
            }
        }
        writer.end().await;
        Ok(())
    }

    async fn list(&self, path: &Bytes, writer: &mut Writer) -> Result<(), Failure> {
        let (path, mut reading) = self.follow(&self.place(path).await?).await?;
        if reading.entry.kind != Kind::Directory {
            return Err(failed(Errno::NOTDIR, "not a directory"));
        }
        let top = reading.entry.name.clone();
        let mut entries = Vec::new();
        while reading.next_entry().await? {
            if reading.received > MAX_LISTED {
                return Err(other(format!(
                    "the directory contains more than {MAX_LISTED} bytes, which the engine would send for a list"
                )));
            }
            let Some(name) = reading.entry.name.strip_prefix(&top[..]) else { continue };
            let name = name.strip_suffix(b"/").unwrap_or(name).to_vec();
            if name.is_empty() || name.contains(&b'/') {
                continue;
            }
            let facts = match reading.entry.kind {
                // A hard link to an earlier file, which has the facts.
                Kind::Same { .. } => self.open(&format!("{path}/{}", String::from_utf8_lossy(&name))).await?.facts(),
                _ => reading.facts(),
            };
            entries.push(wire::Entry { name: Bytes(name), facts });
            if entries.len() == BATCH {
                writer.event(&Event::Entries { entries: std::mem::take(&mut entries) }).await;
            }
            if writer.is_closed() {
                return Ok(());
            }
        }
        writer.event(&Event::Entries { entries }).await;
        writer.end().await;
        Ok(())
    }

    /// Writes a file. Unlike init, an engine removes the old file first, so this is not atomic.
    pub(super) async fn write(
        &self,
        path: &Bytes,
        mode: Option<u32>,
        parents: bool,
        mut reader: Reader,
    ) -> Result<(), Failure> {
        let asked = self.place(path).await?;
        let (path, before) = match self.follow(&asked).await {
            Ok((path, reading)) if reading.entry.kind == Kind::File => (path, Some(reading.entry.mode)),
            Ok((_, reading)) if reading.entry.kind == Kind::Directory => {
                return Err(failed(Errno::ISDIR, "is a directory"));
            }
            Ok(_) => return Err(other("not a regular file")),
            Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => (asked, None),
            Err(failure) => return Err(failure),
        };
        let (above, name) = split(&path);
        if parents {
            self.make_directories(above).await?;
        }
        // The header of an archive needs the length of the file.
        let mut spool = self.spools.create().await.map_err(other)?;
        loop {
            match reader.next().await {
                Some((wire::Kind::Data, bytes)) => spool.append(bytes).await?,
                Some((wire::Kind::End, _)) => break,
                Some(_) => {}
                // Without the end frame, the file is not written.
                None => return Ok(()),
            }
        }
        let entry = self.entry(name, Kind::File, spool.length(), mode.or(before).unwrap_or(0o644)).await?;
        let mut header = Vec::new();
        entry.put(&mut header);
        let mut end = vec![0; padding(entry.size)];
        end.extend_from_slice(&END);
        let archive = spool.between(header, end);
        Ok(self.engine.write_archive(&self.container, above, archive).await?)
    }

    async fn make_directory(&self, path: &str, mode: u32, parents: bool) -> Result<(), Failure> {
        match self.follow(path).await {
            Ok((_, reading)) if parents && reading.entry.kind == Kind::Directory => return Ok(()),
            Ok(_) => return Err(failed(Errno::EXIST, "the path already exists")),
            Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => {}
            Err(failure) => return Err(failure),
        }
        if parents {
            self.make_directories(split(path).0).await?;
        }
        self.put(path, Kind::Directory, mode).await
    }

    pub(super) async fn make_directories(&self, path: &str) -> Result<(), Failure> {
        let mut missing = Vec::new();
        let mut at = path;
        while !matches!(at, "" | "/") {
            match self.follow(at).await {
                Ok((_, reading)) if reading.entry.kind == Kind::Directory => break,
                Ok(_) => return Err(failed(Errno::NOTDIR, format!("{at} is not a directory"))),
                Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => missing.push(at),
                Err(failure) => return Err(failure),
            }
            at = split(at).0;
        }
        for directory in missing.into_iter().rev() {
            self.put(directory, Kind::Directory, 0o755).await?;
        }
        Ok(())
    }

    /// Creates an entry without content at a path.
    async fn put(&self, path: &str, kind: Kind, mode: u32) -> Result<(), Failure> {
        let (above, name) = split(path);
        let mut archive = Vec::new();
        self.entry(name, kind, 0, mode).await?.put(&mut archive);
        archive.extend_from_slice(&END);
        let archive = futures_util::stream::iter([Ok(Part::from(archive))]).boxed();
        Ok(self.engine.write_archive(&self.container, above, archive).await?)
    }

    async fn entry(&self, name: &str, kind: Kind, size: u64, mode: u32) -> Result<tar::Entry, Failure> {
        let owner = self.owner().await?;
        let modified = chrono::Utc::now().timestamp();
        Ok(tar::Entry { name: name.into(), kind, size, mode, user: owner.user, group: owner.group, modified })
    }

    /// Removes a file with the image's own tools, because an engine can only add files.
    async fn remove(&self, path: &str, recursive: bool) -> Result<(), Failure> {
        let is_directory = self.open(path).await?.entry.kind == Kind::Directory;
        match (is_directory, recursive) {
            (true, false) => self.tool(&["rmdir", "--", path]).await,
            (true, true) => self.tool(&["rm", "-r", "-f", "--", path]).await,
            (false, _) => self.tool(&["rm", "-f", "--", path]).await,
        }
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), Failure> {
        self.open(from).await?;
        self.tool(&["mv", "-f", "--", from, to]).await
    }
}
