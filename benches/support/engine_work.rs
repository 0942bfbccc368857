//! The same work through the engine's API alone.

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use futures_util::TryStreamExt;

pub(crate) struct EngineWork {
    pub(crate) docker: Docker,
    pub(crate) container: String,
}

impl EngineWork {
    /// Runs a command to its end and returns the size of its output. It also fetches the exit status, which is part of
    /// `sandbox.exec`'s answer.
    pub(crate) async fn exec(&self, command: &[&str]) -> Result<usize, Error> {
        let config = ExecConfig {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command.iter().map(ToString::to_string).collect()),
            ..Default::default()
        };
        let id = self.docker.create_exec(&self.container, config).await?.id;
        let mut printed = 0;
        if let StartExecResults::Attached { mut output, .. } =
            self.docker.start_exec(&id, None::<StartExecOptions>).await?
        {
            while let Some(piece) = output.try_next().await? {
                printed += piece.into_bytes().len();
            }
        }
        assert_eq!(self.docker.inspect_exec(&id).await?.exit_code, Some(0));
        Ok(printed)
    }

    pub(crate) async fn write(&self, directory: &str, name: &str, content: &[u8]) -> Result<(), Error> {
        let options = UploadToContainerOptionsBuilder::default().path(directory).build();
        let archive = bollard::body_full(archive(name, content).into());
        self.docker.upload_to_container(&self.container, Some(options), archive).await
    }

    /// Returns the length of the archive with the file.
    pub(crate) async fn read(&self, path: &str) -> Result<usize, Error> {
        let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let pieces = self.docker.download_from_container(&self.container, Some(options));
        pieces.try_fold(0, |length, piece| async move { Ok(length + piece.len()) }).await
    }
}

/// Returns a tar archive with one file.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", content.len()));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}
