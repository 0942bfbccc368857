//! An unnamed file of the service, for content whose length must be known before it is sent.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use hyper::body::Bytes;
use rustix::io::Errno;
use sandbox_init::wire::Failure;

use super::{failed, other};
use crate::engine::guest::Upload;
use crate::storage::file_system::{FileSystem, Own};

/// The longest file. The host's disk does not belong to the sandbox.
const MAX_LENGTH: u64 = 4 << 30;

const PART: usize = 64 << 10;

/// The directory of the unnamed files.
#[derive(Debug, Clone)]
pub(super) struct Spools {
    pub(super) directory: PathBuf,
    pub(super) file_system: FileSystem,
}

pub(super) struct Spool {
    file: Arc<File>,
    file_system: FileSystem,
    length: u64,
}

impl Spools {
    pub(super) async fn create(&self) -> io::Result<Spool> {
        let directory = self.directory.clone();
        let file = on_disk(&self.file_system, move || unnamed(&directory)).await?;
        Ok(Spool { file: Arc::new(file), file_system: self.file_system.clone(), length: 0 })
    }
}

impl Spool {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) async fn append(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        let (file, at) = (Arc::clone(&self.file), self.length);
        self.length += bytes.len() as u64;
        if self.length > MAX_LENGTH {
            return Err(failed(
                Errno::FBIG,
                format!("a file that is written through the engine must have at most {MAX_LENGTH} bytes"),
            ));
        }
        on_disk(&self.file_system, move || file.write_all_at(&bytes, at)).await.map_err(other)
    }

    /// Returns the content as a stream, between `before` and `after`.
    pub(super) fn between(self, before: Vec<u8>, after: Vec<u8>) -> Upload {
        let content = futures_util::stream::try_unfold((self, 0), |(spool, at)| async move {
            let part = spool.read(at).await?;
            let end = at + part.len() as u64;
            Ok((!part.is_empty()).then(|| (Bytes::from(part), (spool, end))))
        });
        let whole = |bytes: Vec<u8>| futures_util::stream::iter([Ok(Bytes::from(bytes))]);
        whole(before).chain(content.into_stream()).chain(whole(after)).boxed()
    }

    async fn read(&self, at: u64) -> io::Result<Vec<u8>> {
        let file = Arc::clone(&self.file);
        on_disk(&self.file_system, move || {
            let mut part = vec![0; PART];
            let length = file.read_at(&mut part, at)?;
            part.truncate(length);
            Ok(part)
        })
        .await
    }
}

async fn on_disk<T: Send + 'static>(
    file_system: &FileSystem,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    file_system.own(Own::State, work).await.map_err(io::Error::other)?
}

fn unnamed(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!(".spool-{}", uuid::Uuid::new_v4()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
