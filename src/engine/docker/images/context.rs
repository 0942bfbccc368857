//! Streams the context of a build as a tar archive: memory does not grow with its size.
//!
//! Directories are walked by descriptor and links are not followed, so that a user with write access to the context
//! cannot make the service read other files. Only files, directories and links are packed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use futures_util::{Stream, stream};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use sandboxd_actors::ports::images::Context;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::ignored::Ignored;

const CHUNK: usize = 64 << 10;

/// How many chunks are queued for the engine.
const QUEUED_CHUNKS: usize = 4;

/// Lists the files that are not part of the context.
const IGNORE_FILE: &str = ".dockerignore";

#[derive(Debug, thiserror::Error)]
#[error("cannot read the build context at {path}: {error}")]
pub(super) struct ContextError {
    path: PathBuf,
    error: io::Error,
}

impl ContextError {
    /// Returns whether the engine stopped reading. The engine's own error has the reason.
    pub(super) fn is_reader_gone(&self) -> bool {
        self.error.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Returns the archive as a stream of chunks, and the task that packs it.
pub(super) fn stream(
    context: Context,
    dockerfile: String,
) -> (impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static, JoinHandle<Result<(), ContextError>>) {
    let (sender, receiver) = mpsc::channel(QUEUED_CHUNKS);
    let packing = tokio::task::spawn_blocking(move || {
        let outcome = pack(&context, &dockerfile, Chunks { sender: sender.clone(), filled: Vec::new() });
        if outcome.is_err() {
            // The engine must not take a partial archive for a complete one.
            let _ = sender.blocking_send(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        outcome
    });
    let next = |mut receiver: mpsc::Receiver<_>| async move { receiver.recv().await.map(|chunk| (chunk, receiver)) };
    (stream::unfold(receiver, next), packing)
}

fn pack(context: &Context, dockerfile: &str, sink: impl Write) -> Result<(), ContextError> {
    let mut archive = Builder::new(sink);
    for (name, content) in &context.files {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, content.as_slice()).map_err(at(Path::new(name)))?;
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, &context.directory, flags, Mode::empty()).map_err(at(&context.directory))?;
    // A directory that is placed below the root of the context is packed unfiltered.
    let ignored = match context.place.as_str() {
        "" => ignored(&directory, dockerfile).map_err(at(Path::new(IGNORE_FILE)))?,
        _ => Ignored::default(),
    };
    let mut walk = Walk { archive: &mut archive, place: Path::new(&context.place), ignored };
    if !context.place.is_empty() {
        let stat = fstat(&directory).map_err(at(&context.directory))?;
        walk.entry(Path::new(""), &stat, EntryType::Directory).map_err(at(&context.directory))?;
    }
    walk.directory(directory, Path::new(""))?;
    archive.into_inner().and_then(|mut sink| sink.flush()).map_err(at(&context.directory))
}

/// Reads the context's ignore file. The Dockerfile and the ignore file itself are always part of the context.
fn ignored(directory: &OwnedFd, dockerfile: &str) -> io::Result<Ignored> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(directory, IGNORE_FILE, flags, Mode::empty()) {
        Ok(file) => {
            let mut text = String::new();
            File::from(file).take(1 << 20).read_to_string(&mut text)?;
            Ok(Ignored::parse(&format!("{text}\n!{dockerfile}\n!{IGNORE_FILE}\n")))
        }
        Err(rustix::io::Errno::NOENT) => Ok(Ignored::default()),
        Err(error) => Err(error.into()),
    }
}

struct Walk<'a, W: Write> {
    archive: &'a mut Builder<W>,
    place: &'a Path,
    ignored: Ignored,
}

impl<W: Write> Walk<'_, W> {
    fn directory(&mut self, directory: OwnedFd, below: &Path) -> Result<(), ContextError> {
        let mut names = names(&directory).map_err(at(below))?;
        // Equal contexts must give equal archives.
        names.sort_unstable();
        for name in names {
            let path = below.join(&name);
            let stat = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(at(&path))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let left_out = self.ignored.covers(&path);
            if left_out && (kind != FileType::Directory || !self.ignored.has_exceptions()) {
                continue;
            }
            match kind {
                FileType::Directory => {
                    if !left_out {
                        self.entry(&path, &stat, EntryType::Directory).map_err(at(&path))?;
                    }
                    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let inner = openat(&directory, &name, flags, Mode::empty()).map_err(at(&path))?;
                    self.directory(inner, &path)?;
                }
                FileType::RegularFile => self.file(&directory, &name, &path).map_err(at(&path))?,
                FileType::Symlink => {
                    let target = readlinkat(&directory, &name, Vec::new()).map_err(at(&path))?;
                    let target = OsString::from_vec(target.into_bytes());
                    let mut header = header(&stat, EntryType::Symlink);
                    self.archive.append_link(&mut header, self.place.join(&path), target).map_err(at(&path))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, stat: &Stat, kind: EntryType) -> io::Result<()> {
        self.archive.append_data(&mut header(stat, kind), self.place.join(path), io::empty())
    }

    fn file(&mut self, directory: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<()> {
        // The file may have been replaced by a pipe, whose open must not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(directory, name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        let mut header = header(&stat, EntryType::Regular);
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        header.set_size(size);
        let mut content = Exactly { source: File::from(file), left: size };
        self.archive.append_data(&mut header, self.place.join(path), &mut content)
    }
}

fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Leaves out the owner: users of the host have no meaning in an image.
fn header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_size(0);
    header
}

/// Reads exactly the announced number of bytes: a file that grows is cut off, one that shrinks is an error.
struct Exactly {
    source: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.source.read(&mut buffer[..most])?;
        self.left -= read as u64;
        match read {
            0 if self.left > 0 && most > 0 => Err(io::Error::other("the file became shorter while it was read")),
            read => Ok(read),
        }
    }
}

/// Collects written bytes into chunks, and blocks until the engine takes them.
struct Chunks {
    sender: mpsc::Sender<io::Result<Vec<u8>>>,
    filled: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.filled.extend_from_slice(bytes);
        if self.filled.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = std::mem::take(&mut self.filled);
        if chunk.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn at<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> ContextError {
    move |error| ContextError { path: path.to_owned(), error: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn packed(context: &Context) -> BTreeMap<String, String> {
        let mut bytes = Vec::new();
        pack(context, "Dockerfile", &mut bytes).expect("packed");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().expect("an archive").map(|entry| {
            let mut entry = entry.expect("an entry");
            let mut content = String::new();
            entry.read_to_string(&mut content).expect("text");
            let link = entry.link_name().expect("a name").map(|target| format!("-> {}", target.display()));
            (entry.path().expect("a path").display().to_string(), link.unwrap_or(content))
        });
        entries.collect()
    }

    fn context(directory: &Path, place: &str) -> Context {
        Context { directory: directory.to_owned(), place: place.to_owned(), files: BTreeMap::new() }
    }

    #[test]
    fn links_are_taken_as_links_and_long_names_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let long = "d/".repeat(80) + "file";
        let path = directory.path().join(&long);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, "deep").expect("written");
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).expect("linked");
        let mut whole = context(directory.path(), "below");
        whole.files.insert("Dockerfile".into(), b"FROM scratch".to_vec());
        let packed = packed(&whole);
        assert_eq!(packed["Dockerfile"], "FROM scratch");
        assert_eq!(packed[&format!("below/{long}")], "deep");
        assert_eq!(packed["below/link"], "-> /etc/passwd");
    }

    #[test]
    fn ignored_files_are_left_out_except_those_that_the_build_needs() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str| std::fs::write(directory.path().join(name), name).expect("written");
        std::fs::create_dir(directory.path().join("logs")).expect("made");
        for name in ["Dockerfile", "kept", "secret.key", "logs/a", "logs/b"] {
            write(name);
        }
        std::fs::write(directory.path().join(IGNORE_FILE), "*\n!kept\n!logs/b\n").expect("written");
        let names: Vec<_> = packed(&context(directory.path(), "")).into_keys().collect();
        assert_eq!(names, [".dockerignore", "Dockerfile", "kept", "logs/b"]);
        let whole = packed(&context(directory.path(), "below"));
        assert!(whole.contains_key("below/secret.key"), "a repository is taken whole");
    }

    #[tokio::test]
    async fn a_context_that_is_not_there_is_an_error_and_not_an_empty_one() {
        let (pieces, packing) = stream(context(Path::new("/nowhere/at/all"), ""), "Dockerfile".into());
        let pieces: Vec<_> = futures_util::StreamExt::collect(pieces).await;
        assert!(matches!(pieces.as_slice(), [Err(_)]), "{pieces:?}");
        let error = packing.await.expect("no panic").expect_err("missing").to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
