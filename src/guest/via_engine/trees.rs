//! Trees through the engine's archives.
//!
//! The engine unpacks any archive within the container. This module checks entry by entry, as the archive passes, that
//! it stays below its directory: an entry that would lead out is refused, and so is an entry that goes through a link
//! of the same archive. The engine follows links that already exist in the sandbox, and they cannot lead out of the
//! sandbox.

use std::collections::HashSet;

use futures_util::StreamExt;
use hyper::body::Bytes as Part;
use sandbox_init::codec::Bytes;
use sandbox_init::tar::{self, END, Item, Kind, padding};
use sandbox_init::tree::{Totals, checked_name};
use sandbox_init::wire::{self, Event, Failure};
use tokio::sync::mpsc;

use super::frames::{Reader, Writer};
use super::names::Owner;
use super::{GuestViaEngine, other};

/// The most links of one archive, because all of them are remembered.
const MAX_LINKS: usize = 10_000;

/// The most parts that wait to be sent to the engine.
const MAX_QUEUED_PARTS: usize = 4;

impl GuestViaEngine {
    pub(super) async fn read_tree(&self, path: &Bytes, writer: &mut Writer) -> Result<(), Failure> {
        let (path, reading) = self.follow(&self.place(path).await?).await?;
        if reading.entry.kind != Kind::Directory {
            return Err(super::failed(rustix::io::Errno::NOTDIR, "not a directory"));
        }
        drop(reading);
        let mut archive = self.engine.read_archive(&self.container, &format!("{path}/.")).await?;
        let (mut reader, mut totals) = (tar::Reader::default(), Totals::default());
        while let Some(part) = archive.next().await {
            let part = part?;
            let mut rest = &part[..];
            while let Some(item) = reader.next(&mut rest).map_err(other)? {
                if let Item::Entry(entry) = item {
                    count(&entry, &mut totals);
                }
            }
            writer.data(wire::Kind::Data, &part).await;
            if writer.is_closed() {
                return Ok(());
            }
        }
        reader.finish().map_err(other)?;
        writer.event(&tree_event(totals)).await;
        Ok(())
    }

    pub(super) async fn write_tree(
        &self,
        path: &Bytes,
        parents: bool,
        mut reader: Reader,
        writer: &mut Writer,
    ) -> Result<(), Failure> {
        let path = self.place(path).await?;
        if parents {
            self.make_directories(&path).await?;
        }
        let (path, target) = self.follow(&path).await?;
        if target.entry.kind != Kind::Directory {
            return Err(super::failed(rustix::io::Errno::NOTDIR, "not a directory"));
        }
        drop(target);
        let (sender, mut parts) = mpsc::channel::<std::io::Result<Part>>(MAX_QUEUED_PARTS);
        let archive = futures_util::stream::poll_fn(move |context| parts.poll_recv(context)).boxed();
        let mut filter = ArchiveFilter { owner: self.owner().await?, ..ArchiveFilter::default() };
        let checked = async {
            loop {
                let (bytes, end) = match reader.next().await {
                    Some((wire::Kind::Data, bytes)) => (bytes, false),
                    Some((wire::Kind::End, _)) => (Vec::new(), true),
                    Some(_) => continue,
                    None => return Err(other("the caller is gone")),
                };
                let rewritten = match filter.pass(&bytes) {
                    Ok(rewritten) if end => filter.finish().map(|()| [rewritten, END.to_vec()].concat()),
                    outcome => outcome,
                };
                match rewritten {
                    // The engine reports its own errors.
                    Ok(part) => drop(sender.send(Ok(part.into())).await),
                    Err(failure) => {
                        // The upload is aborted, so that the engine does not take the first part for the whole archive.
                        let _ = sender.send(Err(std::io::ErrorKind::InvalidData.into())).await;
                        return Err(failure);
                    }
                }
                if end {
                    drop(sender);
                    return Ok(filter.totals);
                }
            }
        };
        let writing = self.engine.write_archive(&self.container, &path, archive);
        let (totals, written) = tokio::join!(checked, writing);
        let totals = totals?;
        written?;
        writer.event(&tree_event(totals)).await;
        Ok(())
    }
}

/// A filter of an archive.
#[derive(Default)]
struct ArchiveFilter {
    owner: Owner,
    reader: tar::Reader,
    links: HashSet<Vec<u8>>,
    /// The name and the padding of the current entry.
    current: Option<(Vec<u8>, usize)>,
    totals: Totals,
}

impl ArchiveFilter {
    /// Returns the filtered bytes: with the owner replaced, and without entries that are not files, directories or
    /// links.
    fn pass(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::with_capacity(bytes.len() + tar::BLOCK);
        while let Some(item) = self.reader.next(&mut bytes).map_err(|error| self.current_failure(error))? {
            match item {
                Item::Entry(entry) => self.begin(entry, &mut out)?,
                Item::Data(data) => out.extend_from_slice(data),
                Item::EndOfEntry => {
                    let (_, padding) = self.current.take().unwrap_or_default();
                    out.resize(out.len() + padding, 0);
                }
            }
        }
        Ok(out)
    }

    fn finish(&self) -> Result<(), Failure> {
        self.reader.finish().map_err(|error| self.current_failure(error))
    }

    fn current_failure(&self, error: tar::TarError) -> Failure {
        match &self.current {
            Some((name, _)) => entry_failure(name, error),
            None => other(error),
        }
    }

    fn begin(&mut self, mut entry: tar::Entry, out: &mut Vec<u8>) -> Result<(), Failure> {
        let shown = entry.name.clone();
        let name = self.checked(&entry.name).map_err(|error| entry_failure(&shown, error))?;
        count(&entry, &mut self.totals);
        match &mut entry.kind {
            Kind::Other => return Ok(()),
            // The directory exists and is not changed.
            Kind::Directory if name.is_empty() => return Ok(()),
            Kind::Same { name: known } => *known = self.checked(known).map_err(|error| entry_failure(&shown, error))?,
            Kind::Link { .. } if self.links.len() == MAX_LINKS => {
                return Err(entry_failure(&shown, format!("the archive has more than {MAX_LINKS} symbolic links")));
            }
            Kind::Link { .. } => drop(self.links.insert(name.clone())),
            Kind::File => self.current = Some((shown, padding(entry.size))),
            Kind::Directory => {}
        }
        (entry.name, entry.user, entry.group) = (name, self.owner.user, self.owner.group);
        entry.mode &= 0o1777;
        entry.put(out);
        Ok(())
    }

    fn checked(&self, name: &[u8]) -> std::io::Result<Vec<u8>> {
        let name = checked_name(name)?;
        let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        if slashes.into_iter().any(|(at, _)| self.links.contains(&name[..at])) {
            return Err(std::io::Error::other("it would go through a symbolic link"));
        }
        Ok(name)
    }
}

fn entry_failure(name: &[u8], error: impl ToString) -> Failure {
    other(format!("{}: {}", String::from_utf8_lossy(name).escape_debug(), error.to_string()))
}

fn count(entry: &tar::Entry, totals: &mut Totals) {
    match entry.kind {
        Kind::Other => totals.skipped += 1,
        _ => {
            totals.entries += 1;
            totals.bytes += entry.size;
        }
    }
}

fn tree_event(Totals { entries, bytes, skipped }: Totals) -> Event {
    Event::Tree { entries, bytes, skipped }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: Kind) -> tar::Entry {
        tar::Entry { name: name.into(), kind, size: 0, mode: 0o4755, user: 7, group: 7, modified: 0 }
    }

    fn pass(entries: &[tar::Entry]) -> Result<(Vec<tar::Entry>, Totals), String> {
        let mut archive = Vec::new();
        for entry in entries {
            entry.put(&mut archive);
            archive.resize(archive.len() + entry.size as usize + padding(entry.size), b'x');
        }
        archive.extend_from_slice(&END);
        let mut filter = ArchiveFilter { owner: Owner { user: 1, group: 2 }, ..ArchiveFilter::default() };
        let mut passed = Vec::new();
        let shown = |failure: Failure| String::from_utf8_lossy(&failure.message.0).into_owned();
        for part in archive.chunks(300) {
            passed.extend(filter.pass(part).map_err(shown)?);
        }
        filter.finish().map_err(shown)?;
        let (mut reader, mut rest, mut found) = (tar::Reader::default(), &passed[..], Vec::new());
        while let Some(item) = reader.next(&mut rest).expect("an archive") {
            if let Item::Entry(entry) = item {
                found.push(entry);
            }
        }
        Ok((found, filter.totals))
    }

    #[test]
    fn entries_get_the_owner_and_lose_set_user_id() {
        let mut file = entry("./a/b", Kind::File);
        file.size = 700;
        let (found, totals) =
            pass(&[entry("./", Kind::Directory), file, entry("pipe", Kind::Other)]).expect("harmless");
        assert_eq!(totals, Totals { entries: 2, bytes: 700, skipped: 1 });
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].name[..], found[0].user, found[0].group, found[0].mode), (&b"a/b"[..], 1, 2, 0o755));
    }

    #[test]
    fn entries_that_lead_out_are_refused() {
        let link = Kind::Link { target: b"/".into() };
        for hostile in [
            vec![entry("../a", Kind::File)],
            vec![entry("/a", Kind::File)],
            vec![entry("a", Kind::Same { name: b"../b".into() })],
            vec![entry("l", link.clone()), entry("l/a", Kind::File)],
            vec![entry("d/l", link.clone()), entry("d/./l/x/y", Kind::Directory)],
        ] {
            let refused = pass(&hostile).expect_err("it leads out");
            assert!(refused.contains(": "), "{refused} names it");
        }
    }
}
