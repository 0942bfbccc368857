//! Signing in at registries: whose credentials an image needs, and how the engine is told them.
//!
//! They are read for each pull and each build, and go to the engine in a header of that one request. The engine sends
//! them to the registry that they are for, and to no other.

use std::collections::{BTreeMap, HashMap};

use bollard::auth::DockerCredentials;
use bollard::{BollardRequest, Docker};

use crate::images::credentials::{Credentials, CredentialsError, Secret};

/// Has the images whose names begin with no host.
const DOCKER_HUB: &str = "docker.io";
/// What an engine calls it in the credentials of a build.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The headers that credentials are sent in.
const HEADERS: [&str; 2] = ["x-registry-auth", "x-registry-config"];

/// The credentials for registries, by their hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries(BTreeMap<String, Credentials>);

impl FromIterator<(String, Credentials)> for Registries {
    fn from_iter<T: IntoIterator<Item = (String, Credentials)>>(hosts: T) -> Self {
        Self(hosts.into_iter().collect())
    }
}

impl Registries {
    /// For the registry of one image.
    pub(super) async fn sign_in(&self, image: &str) -> Result<SignIn, NoSignIn> {
        let registry = host(image);
        let failed = |error| NoSignIn { registry: registry.clone(), error };
        let secret = match self.0.get(&registry) {
            Some(credentials) => credentials.read().await.map_err(failed)?,
            None => None,
        };
        Ok(SignIn { registry, secret })
    }

    /// For whichever images a build may start from. One registry whose credentials cannot be had is no reason to refuse
    /// a build that may not need it.
    pub(super) async fn sign_in_everywhere(&self) -> Vec<SignIn> {
        let mut all = Vec::new();
        for (registry, credentials) in &self.0 {
            match credentials.read().await {
                Ok(secret) => all.push(SignIn { registry: registry.clone(), secret }),
                Err(error) => tracing::warn!(registry, %error, "a build goes on without signing in at a registry"),
            }
        }
        all
    }
}

#[derive(Debug, thiserror::Error)]
#[error("registry {registry}: {error}")]
pub(super) struct NoSignIn {
    pub(super) registry: String,
    error: CredentialsError,
}

/// What there is to show to one registry.
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

    pub(super) fn struck_from(&self, said: &str) -> String {
        self.secret.as_ref().map_or_else(|| said.to_owned(), |secret| secret.struck_from(said))
    }

    /// Why the registry does not give an image, from what the engine says about it.
    pub(super) fn explain(&self, said: &str) -> String {
        let (registry, said) = (&self.registry, self.struck_from(said));
        match &self.secret {
            _ if !is_about_credentials(&said) => said,
            Some(_) => {
                format!("registry {registry} does not accept the credentials that are configured for it: {said}")
            }
            None => format!("registry {registry} may want credentials, and none are configured for it: {said}"),
        }
    }

    fn key(&self) -> &str {
        if self.registry == DOCKER_HUB { DOCKER_HUB_KEY } else { &self.registry }
    }
}

/// By registry, as a build takes them.
pub(super) fn all_of(signed_in: &[SignIn]) -> HashMap<String, DockerCredentials> {
    signed_in.iter().filter_map(|it| Some((it.key().to_owned(), it.credentials()?))).collect()
}

/// A client whose credentials arrive: engines read them in the alphabet of addresses, bollard writes them in the usual
/// one, and an engine that cannot read them goes on without. Nor are they part of what is shown of a request.
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

/// The registry that an image is at: what its name begins with, if that can be nothing but a host.
fn host(image: &str) -> String {
    let is_host = |first: &&str| first.contains(['.', ':']) || *first == "localhost";
    let first = image.split_once('/').map(|(first, _)| first).filter(is_host);
    match first.map(str::to_ascii_lowercase) {
        None => DOCKER_HUB.to_owned(),
        Some(hub) if hub == "index.docker.io" => DOCKER_HUB.to_owned(),
        Some(host) => host,
    }
}

/// Engines tell it in words alone, and registries choose them.
fn is_about_credentials(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    let words = ["unauthorized", "no basic auth credentials", "authentication required", "denied", "forbidden"];
    words.iter().any(|word| said.contains(word))
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
        let here = registries.sign_in("a.local/x").await.unwrap();
        assert_eq!(here.credentials().and_then(|it| it.password).as_deref(), Some("pa55word"));
        assert!(!format!("{here:?}").contains("pa55word"));
        assert!(registries.sign_in("c.local/x").await.unwrap().credentials().is_none());
        let failure = registries.sign_in("b.local/x").await.unwrap_err().to_string();
        assert!(failure.contains("b.local") && failure.contains("gone"), "{failure}");
        let everywhere = all_of(&registries.sign_in_everywhere().await);
        assert_eq!(everywhere.keys().collect::<Vec<_>>(), ["a.local"], "a build goes on without the other");
    }

    #[test]
    fn a_refusal_says_whether_credentials_were_shown() {
        let signed_in = SignIn { registry: "a.local".into(), secret: None };
        assert!(signed_in.explain("Head …: no basic auth credentials").contains("none are configured"));
        let unrelated = "Get http://a.local:4013/v2/: connection refused";
        assert_eq!(signed_in.explain(unrelated), unrelated);
    }
}
