//! Credentials for registries.
//!
//! Credentials are read for each pull and each build, and sent to the engine in a header of that one request. The
//! engine sends them only to the registry that they are for.

use std::collections::{BTreeMap, HashMap};

use bollard::auth::DockerCredentials;
use bollard::{BollardRequest, Docker};

use crate::images::credentials::{Credentials, CredentialsError, Secret};

/// The registry of images whose names begin with no host.
const DOCKER_HUB: &str = "docker.io";
/// The engine's key for Docker Hub in the credentials of a build.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The headers that contain credentials.
const HEADERS: [&str; 2] = ["x-registry-auth", "x-registry-config"];

/// The credentials for registries, by host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries(BTreeMap<String, Credentials>);

impl FromIterator<(String, Credentials)> for Registries {
    fn from_iter<T: IntoIterator<Item = (String, Credentials)>>(hosts: T) -> Self {
        Self(hosts.into_iter().collect())
    }
}

impl Registries {
    /// Reads the credentials for the registry of an image.
    pub(super) async fn sign_in(&self, image: &str) -> Result<SignIn, SignInError> {
        let registry = host(image);
        let failed = |error| SignInError { registry: registry.clone(), error };
        let secret = match self.0.get(&registry) {
            Some(credentials) => credentials.read().await.map_err(failed)?,
            None => None,
        };
        Ok(SignIn { registry, secret })
    }

    /// Reads the credentials for all registries, because a build may start from any image. A registry with unreadable
    /// credentials is left out: the build may not need it.
    pub(super) async fn sign_in_all(&self) -> Vec<SignIn> {
        let mut all = Vec::new();
        for (registry, credentials) in &self.0 {
            match credentials.read().await {
                Ok(secret) => all.push(SignIn { registry: registry.clone(), secret }),
                Err(error) => tracing::warn!(registry, %error, "building without credentials of a registry"),
            }
        }
        all
    }
}

/// Credentials that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("registry {registry}: {error}")]
pub(super) struct SignInError {
    pub(super) registry: String,
    error: CredentialsError,
}

/// A registry with its credentials, if any are configured.
#[derive(Debug)]
pub(super) struct SignIn {
    pub(super) registry: String,
    secret: Option<Secret>,
}

impl SignIn {
    pub(super) fn credentials(&self) -> Option<DockerCredentials> {
        let (user, password) = self.secret.as_ref()?.user_and_password();
        Some(DockerCredentials {
            username: Some(user.to_owned()),
            password: Some(password.to_owned()),
            serveraddress: Some(self.key().to_owned()),
            ..Default::default()
        })
    }

    pub(super) fn redact(&self, message: &str) -> String {
        self.secret.as_ref().map_or_else(|| message.to_owned(), |secret| secret.redact(message))
    }

    /// Returns the engine's message about a failed pull, with the state of the credentials if it is about them.
    pub(super) fn explain(&self, message: &str) -> String {
        let (registry, message) = (&self.registry, self.redact(message));
        match &self.secret {
            _ if !is_about_credentials(&message) => message,
            Some(_) => {
                format!("registry {registry} does not accept the credentials that are configured for it: {message}")
            }
            None => format!("registry {registry} may require credentials, and none are configured for it: {message}"),
        }
    }

    fn key(&self) -> &str {
        if self.registry == DOCKER_HUB { DOCKER_HUB_KEY } else { &self.registry }
    }
}

/// Returns the credentials by registry, in the form that a build takes.
pub(super) fn credentials_by_registry(signed_in: &[SignIn]) -> HashMap<String, DockerCredentials> {
    signed_in.iter().filter_map(|it| Some((it.key().to_owned(), it.credentials()?))).collect()
}

/// Returns a client that encodes credentials for the engine. Engines expect URL-safe base64, bollard writes standard
/// base64, and an engine ignores credentials that it cannot decode. The headers are marked sensitive, so that no log
/// shows them.
pub(super) fn client(docker: &Docker) -> Docker {
    docker.clone().with_request_modifier(|mut request: BollardRequest| {
        for name in HEADERS {
            if let Some(value) = request.headers_mut().get_mut(name)
                && let Ok(text) = value.to_str()
                && let Ok(mut encoded) = text.replace('+', "-").replace('/', "_").parse::<hyper::header::HeaderValue>()
            {
                encoded.set_sensitive(true);
                *value = encoded;
            }
        }
        request
    })
}

/// Returns the registry of an image: the first part of its name if that is a host.
fn host(image: &str) -> String {
    let is_host = |first: &&str| first.contains(['.', ':']) || *first == "localhost";
    let first = image.split_once('/').map(|(first, _)| first).filter(is_host);
    match first.map(str::to_ascii_lowercase) {
        None => DOCKER_HUB.to_owned(),
        Some(hub) if hub == "index.docker.io" => DOCKER_HUB.to_owned(),
        Some(host) => host,
    }
}

/// Engines report it in the message only, in the words of the registry.
fn is_about_credentials(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let words = ["unauthorized", "no basic auth credentials", "authentication required", "denied", "forbidden"];
    words.iter().any(|word| message.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_at_the_registry_that_its_name_begins_with() {
        for (image, registry) in [
            ("app", "docker.io"),
            ("team/app:1", "docker.io"),
            ("docker.io/team/app", "docker.io"),
            ("index.docker.io/app", "docker.io"),
            ("registry.local/app@sha256:00", "registry.local"),
            ("localhost/app", "localhost"),
            ("Localhost:5000/team/app:1", "localhost:5000"),
            ("app:1.2", "docker.io"),
        ] {
            assert_eq!(host(image), registry, "{image}");
        }
    }

    #[tokio::test]
    async fn credentials_are_for_one_registry_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("credentials");
        std::fs::write(&file, "me:pa55word").unwrap();
        let gone = Credentials::File(directory.path().join("gone"));
        let registries: Registries =
            [("a.local".to_owned(), Credentials::File(file)), ("b.local".to_owned(), gone)].into_iter().collect();
        let signed_in = registries.sign_in("a.local/x").await.unwrap();
        assert_eq!(signed_in.credentials().and_then(|it| it.password).as_deref(), Some("pa55word"));
        assert!(!format!("{signed_in:?}").contains("pa55word"));
        assert!(registries.sign_in("c.local/x").await.unwrap().credentials().is_none());
        let failure = registries.sign_in("b.local/x").await.unwrap_err().to_string();
        assert!(failure.contains("b.local") && failure.contains("gone"), "{failure}");
        let all = credentials_by_registry(&registries.sign_in_all().await);
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a.local"], "a build goes on without the other");
    }

    #[test]
    fn a_refusal_names_missing_credentials() {
        let signed_in = SignIn { registry: "a.local".into(), secret: None };
        assert!(signed_in.explain("Head …: no basic auth credentials").contains("none are configured"));
        let unrelated = "Get http://a.local:4013/v2/: connection refused";
        assert_eq!(signed_in.explain(unrelated), unrelated);
    }
}
