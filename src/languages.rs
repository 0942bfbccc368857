//! The interpreters of each profile.

use std::collections::BTreeMap;

use sandboxd_actors::domain::ids::ProfileName;

use crate::config::{self, Config, DEFAULT_PROFILE, Language};

#[derive(Debug)]
pub struct Languages {
    configured: BTreeMap<String, BTreeMap<String, Language>>,
    built_in: BTreeMap<String, Language>,
}

impl Languages {
    pub fn new(profiles: &BTreeMap<String, config::Profile>) -> Self {
        let languages = |(name, profile): (&String, &config::Profile)| (name.clone(), profile.languages.clone());
        let built_in = Config::default().profiles.remove(DEFAULT_PROFILE).map(|profile| profile.languages);
        Self { configured: profiles.iter().map(languages).collect(), built_in: built_in.unwrap_or_default() }
    }

    /// Returns the languages of a profile. A sandbox may outlive its profile, and then gets the built-in languages.
    pub fn of(&self, profile: &ProfileName) -> &BTreeMap<String, Language> {
        self.configured.get(profile.as_str()).unwrap_or(&self.built_in)
    }
}
