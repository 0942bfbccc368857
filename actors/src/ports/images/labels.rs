//! The labels of images that the service has built.
//!
//! Their names differ from the labels of containers, because a container inherits the labels of its image. An image
//! also inherits the labels of its base: so an image is ours only if it has the tag that it was built for, or no tag.

use std::collections::BTreeMap;

use chrono::SecondsFormat;

use super::Image;
use crate::domain::ids::InstanceName;
use crate::domain::snapshot;
use crate::ports::clock::Timestamp;

const INSTANCE: &str = "sandboxd.image.instance";
const TAG: &str = "sandboxd.image.tag";
const BUILT_AT: &str = "sandboxd.image.built-at";
const REPOSITORY: &str = "sandboxd.image.repository";
const COMMIT: &str = "sandboxd.image.commit";
const RECIPE: &str = "sandboxd.image.recipe";

/// The origin of a built image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub tag: String,
    pub built_at: Timestamp,
    /// Absent if a caller requested the build.
    pub source: Option<Source>,
}

/// The repository and commit that an image was built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub repository: String,
    pub commit: String,
    /// A hash of the build settings; it differs after a change of the configuration or of the base image.
    pub recipe: String,
}

impl Origin {
    pub fn encode(&self, instance: &InstanceName) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            (INSTANCE.to_owned(), instance.to_string()),
            (TAG.to_owned(), self.tag.clone()),
            (BUILT_AT.to_owned(), self.built_at.to_rfc3339_opts(SecondsFormat::Millis, true)),
        ]);
        // Set also without a source, to override the inherited labels of a base.
        let source = self.source.as_ref();
        let value = |of: fn(&Source) -> &String| source.map(of).cloned().unwrap_or_default();
        labels.insert(REPOSITORY.to_owned(), value(|source| &source.repository));
        labels.insert(COMMIT.to_owned(), value(|source| &source.commit));
        labels.insert(RECIPE.to_owned(), value(|source| &source.recipe));
        labels
    }

    /// Returns the origin of an image that this instance has built. `None` for an image that was derived from one.
    pub fn of(image: &Image, instance: &InstanceName) -> Option<Origin> {
        let text = |label: &str| image.labels.get(label).filter(|text| !text.is_empty());
        let tag = text(TAG)?.clone();
        let built_here = text(INSTANCE)? == instance.as_str();
        let not_derived = image.tags.is_empty() || image.tags.contains(&tag);
        if !built_here || !not_derived || is_snapshot(image) {
            return None;
        }
        let built_at = text(BUILT_AT)?.parse().ok()?;
        let source = text(REPOSITORY).zip(text(COMMIT)).zip(text(RECIPE));
        let source = source.map(|((repository, commit), recipe)| Source {
            repository: repository.clone(),
            commit: commit.clone(),
            recipe: recipe.clone(),
        });
        Some(Origin { tag, built_at, source })
    }
}

/// Whether the image is a snapshot. A snapshot also has the labels of the image of its sandbox, but has its own
/// retention.
pub fn is_snapshot(image: &Image) -> bool {
    image.labels.iter().any(|(label, value)| label.starts_with(snapshot::LABEL_PREFIX) && !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    fn image(tags: &[&str], labels: BTreeMap<String, String>) -> Image {
        let tags = tags.iter().map(ToString::to_string).collect();
        Image { id: "sha256:1".into(), tags, bytes: 1, created_at: chrono::Utc::now(), labels }
    }

    fn origin() -> Origin {
        let source = Source { repository: "app".into(), commit: "c1".into(), recipe: "r1".into() };
        let built_at = chrono::Utc.timestamp_millis_opt(1_700_000_000_123).unwrap();
        Origin { tag: "app:latest".into(), built_at, source: Some(source) }
    }

    #[test]
    fn written_labels_are_read_back() {
        let instance: InstanceName = "one".parse().unwrap();
        let built = Origin { source: None, ..origin() };
        for origin in [origin(), built] {
            let labels = origin.encode(&instance);
            assert_eq!(Origin::of(&image(&["app:latest"], labels.clone()), &instance), Some(origin.clone()));
            assert_eq!(Origin::of(&image(&[], labels), &instance), Some(origin), "superseded");
        }
    }

    #[test]
    fn a_derived_image_is_not_ours() {
        let instance: InstanceName = "one".parse().unwrap();
        let labels = origin().encode(&instance);
        assert_eq!(Origin::of(&image(&["mine:1"], labels.clone()), &instance), None);
        assert_eq!(Origin::of(&image(&["app:latest"], labels.clone()), &"two".parse().unwrap()), None);
        let mut snapshot = labels;
        snapshot.insert("sandboxd.snapshot.chat-id".to_owned(), "c".to_owned());
        assert_eq!(Origin::of(&image(&[], snapshot), &instance), None);
    }
}
