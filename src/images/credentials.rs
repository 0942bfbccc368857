//! Credentials for places elsewhere, such as a repository or a registry: read from a file or a program each time that
//! they are needed, kept no longer than that, and never shown.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;

/// Where the credentials for a place come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    None,
    File(PathBuf),
    /// A program with its arguments, which prints them.
    Command(Vec<String>),
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("its credentials cannot be read from {path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("the program {program} for its credentials cannot be run: {error}")]
    NotRun { program: String, error: io::Error },
    #[error("the program {program} for its credentials failed: {status}")]
    Failed { program: String, status: ExitStatus },
    #[error("its credentials are not text")]
    NotText,
}

/// For those who take a token for a password and do not mind the name.
const ANY_USER: &str = "x-access-token";

/// Never shown.
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<redacted>")
    }
}

impl Credentials {
    /// At most one of the two is given.
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
            Self::Command(words) => printed(words).await?,
        };
        let text = String::from_utf8(bytes).map_err(|_| CredentialsError::NotText)?;
        Ok(Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned())))
    }
}

async fn printed(words: &[String]) -> Result<Vec<u8>, CredentialsError> {
    let program = words.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    // What it says beside them may contain them.
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

    /// Of `user:password`, or of a token alone.
    pub fn user_and_password(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or((ANY_USER, &self.0))
    }

    /// What others said, without the secret, should they ever repeat it.
    pub fn struck_from(&self, said: &str) -> String {
        match self.user_and_password() {
            (_, "") => said.to_owned(),
            (_, password) => said.replace(password, "<redacted>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_and_a_program_say_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("credentials");
        std::fs::write(&file, "me:pass:word\n").unwrap();
        let program = ["cat".to_owned(), file.display().to_string()];
        for credentials in [Credentials::configured(Some(&file), &[]), Credentials::configured(None, &program)] {
            let secret = credentials.read().await.unwrap().unwrap();
            assert_eq!(secret.user_and_password(), ("me", "pass:word"));
            assert_eq!(format!("{secret:?}"), "<redacted>");
            assert_eq!(secret.struck_from("no, pass:word is wrong"), "no, <redacted> is wrong");
        }
        assert!(Credentials::configured(None, &[]).read().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_named_and_not_shown() {
        let missing = Credentials::File("/nowhere/at-all".into()).read().await.unwrap_err().to_string();
        assert!(missing.contains("/nowhere/at-all"), "{missing}");
        let words = ["sh", "-c", "echo hidden; exit 3"].map(String::from).to_vec();
        let failed = Credentials::Command(words).read().await.unwrap_err().to_string();
        assert!(failed.contains("sh") && failed.contains('3') && !failed.contains("hidden"), "{failed}");
    }
}
