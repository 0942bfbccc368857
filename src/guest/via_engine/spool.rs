//! An unnamed file of the service, for content whose length must be known before it is sent.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use futures_util::StreamExt;
use hyper::body::Bytes;
use rustix::io::Errno;
use sandbox_init::wire::Failure;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::{failed, other};
use crate::engine::guest::Upload;

/// The longest file. The host's disk does not belong to the sandbox.
const MAX_LENGTH: u64 = 4 << 30;

const PART: usize = 64 << 10;

pub(super) struct Spool {
    file: tokio::fs::File,
    length: u64,
}

impl Spool {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".spool-{}", uuid::Uuid::new_v4()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self { file: tokio::fs::File::from_std(file), length: 0 })
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) async fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.length += bytes.len() as u64;
        if self.length > MAX_LENGTH {
            return Err(failed(
                Errno::FBIG,
                format!("a file that is written through the engine must have at most {MAX_LENGTH} bytes"),
            ));
        }
        self.file.write_all(bytes).await.map_err(other)
    }

    /// Returns the content as a stream, between `before` and `after`.
    pub(super) async fn between(mut self, before: Vec<u8>, after: Vec<u8>) -> io::Result<Upload> {
        self.file.flush().await?;
        self.file.rewind().await?;
        let content = futures_util::stream::unfold(Some(self.file), |file| async move {
            let mut file = file?;
            let mut part = vec![0; PART];
            match file.read(&mut part).await {
                Ok(0) => None,
                Ok(length) => {
                    part.truncate(length);
                    Some((Ok(Bytes::from(part)), Some(file)))
                }
                Err(error) => Some((Err(error), None)),
            }
        });
        let whole = |bytes: Vec<u8>| futures_util::stream::iter([Ok(Bytes::from(bytes))]);
        Ok(whole(before).chain(content).chain(whole(after)).boxed())
    }
}
