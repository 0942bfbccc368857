//! Credentials for repositories and registries. They are read from a file or a program for each use, dropped after it,
//! and never shown.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;

/// The source of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    None,
    File(PathBuf),
    /// A program with its arguments, which prints the credentials.
    Command(Vec<String>),
}

/// Why credentials cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot read credentials from {path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("cannot run the credentials program {program}: {error}")]
    NotRun { program: String, error: io::Error },
    #[error("the credentials program {program} failed: {status}")]
    Failed { program: String, status: ExitStatus },
    #[error("the credentials are not UTF-8 text")]
    NotText,
}

/// The user name for servers that accept a token as the password of any user.
const ANY_USER: &str = "x-access-token";

/// A secret that `Debug` does not show.
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<redacted>")
    }
}

impl Credentials {
    /// Selects the configured source. At most one of the two is set.
    pub fn configured(file: Option<&Path>, command: &[String]) -> Self {
        match file {
            Some(file) => Self::File(file.to_owned()),
            None if command.is_empty() => Self::None,
            None => Self::Command(command.to_owned()),
        }
    }

    pub async fn read(&self) -> Result<Option<Secret>, CredentialsError> {
        let bytes = match self {
            Self::None => return Ok(None),
            Self::File(path) => {
                tokio::fs::read(path).await.map_err(|error| CredentialsError::File { path: path.clone(), error })?
            }
            Self::Command(words) => run_program(words).await?,
        };
        let text = String::from_utf8(bytes).map_err(|_| CredentialsError::NotText)?;
        Ok(Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned())))
    }
}

async fn run_program(words: &[String]) -> Result<Vec<u8>, CredentialsError> {
    let program = words.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    // The program's error output may contain the credentials.
    command.args(words.iter().skip(1)).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let run = command.output().await;
    let output = run.map_err(|error| CredentialsError::NotRun { program: program.clone(), error })?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(CredentialsError::Failed { program, status: output.status }),
    }
}

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Splits `user:password`; a token alone gets a default user.
    pub fn user_and_password(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or((ANY_USER, &self.0))
    }

    /// Returns a message of another program without the secret.
    pub fn redact(&self, message: &str) -> String {
        match self.user_and_password() {
            (_, "") => message.to_owned(),
            (_, password) => message.replace(password, "<redacted>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_and_a_program_give_the_same_credentials() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("credentials");
        std::fs::write(&file, "me:pass:word\n").unwrap();
        let program = ["cat".to_owned(), file.display().to_string()];
        for credentials in [Credentials::configured(Some(&file), &[]), Credentials::configured(None, &program)] {
            let secret = credentials.read().await.unwrap().unwrap();
            assert_eq!(secret.user_and_password(), ("me", "pass:word"));
            assert_eq!(format!("{secret:?}"), "<redacted>");
            assert_eq!(secret.redact("no, pass:word is wrong"), "no, <redacted> is wrong");
        }
        assert!(Credentials::configured(None, &[]).read().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_failing_source_is_named_and_its_output_is_not_shown() {
        let missing = Credentials::File("/nowhere/at-all".into()).read().await.unwrap_err().to_string();
        assert!(missing.contains("/nowhere/at-all"), "{missing}");
        let words = ["sh", "-c", "echo hidden; exit 3"].map(String::from).to_vec();
        let failed = Credentials::Command(words).read().await.unwrap_err().to_string();
        assert!(failed.contains("sh") && failed.contains('3') && !failed.contains("hidden"), "{failed}");
    }
}
