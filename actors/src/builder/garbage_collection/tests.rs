use chrono::{TimeDelta, TimeZone, Utc};
use proptest::prelude::*;

use super::*;
use crate::ports::images::labels::Source;

const GIB: u64 = 1 << 30;

fn instance() -> InstanceName {
    "one".parse().unwrap()
}

fn image(id: &str, tag: Option<&str>, age: i64, labels: BTreeMap<String, String>) -> Image {
    let created_at = Utc.timestamp_opt(1_700_000_000, 0).unwrap() - TimeDelta::seconds(age);
    Image { id: id.into(), tags: tag.into_iter().map(str::to_owned).collect(), bytes: GIB, created_at, labels }
}

/// An image created by the service, of a repository if one is named.
fn ours(id: &str, tagged: bool, age: i64, repository: Option<&str>) -> Image {
    let tag = format!("{}:latest", repository.unwrap_or(id));
    let source = repository.map(|name| Source { repository: name.into(), commit: id.into(), recipe: "r".into() });
    let built_at = Utc.timestamp_opt(1_700_000_000, 0).unwrap() - TimeDelta::seconds(age);
    let labels = Origin { tag: tag.clone(), built_at, source }.encode(&instance());
    image(id, tagged.then_some(tag.as_str()), age, labels)
}

fn ids(plan: &Plan) -> Vec<&str> {
    plan.images.iter().map(|image| image.id.as_str()).collect()
}

fn decide(images: &[Image], needs: &Needs, used_percent: u64, occasion: Occasion) -> Plan {
    let disk = Disk { total_bytes: 100 * GIB, free_bytes: (100 - used_percent) * GIB };
    plan(images, needs, disk, Watermarks { high: 85.0, low: 80.0 }, occasion, &instance())
}

#[test]
fn a_layer_is_freed_once_and_only_if_no_kept_image_has_it() {
    let image = |layers: &[(&str, u64)]| {
        layers.iter().map(|&(digest, bytes)| Layer { digest: digest.into(), bytes }).collect::<Vec<_>>()
    };
    let (old, new) = (image(&[("base", 100), ("old", 20)]), image(&[("base", 100), ("new", 3)]));
    assert_eq!(freed(&[old.clone(), new.clone()], &[]), 123, "the base of both counts once");
    assert_eq!(freed(std::slice::from_ref(&old), std::slice::from_ref(&new)), 20, "the base stays");
    let same = std::slice::from_ref(&old);
    assert_eq!(freed(same, same), 0, "an image that shares all of it");
    let elsewhere = image(&[("other", 1), ("old", 20)]);
    assert_eq!(freed(&[old], &[elsewhere]), 120, "upon another layer it is another");
    assert_eq!(freed(&[], &[new]), 0);
}

#[test]
fn replaced_images_are_removed_and_the_newest_stays() {
    let images = [ours("old", false, 60, Some("app")), ours("new", true, 0, Some("app"))];
    let needs = Needs { repositories: ["app".to_owned()].into(), ..Needs::default() };
    let regular = decide(&images, &needs, 10, Occasion::Regular);
    assert_eq!(ids(&regular), ["old"]);
    assert!(!regular.build_cache);
    assert_eq!(ids(&decide(&images, &needs, 99, Occasion::Requested)), ["old"]);
    let unconfigured = decide(&images, &Needs::default(), 10, Occasion::Requested);
    assert_eq!(ids(&unconfigured), ["old", "new"], "an unconfigured repository keeps no image");
}

#[test]
fn spare_images_go_oldest_first_until_the_disk_has_room_again() {
    let images: Vec<_> = (0..10).map(|age| ours(&format!("i{age}"), true, age, None)).collect();
    assert_eq!(ids(&decide(&images, &Needs::default(), 85, Occasion::Regular)), Vec::<&str>::new());
    let full = decide(&images, &Needs::default(), 86, Occasion::Regular);
    assert_eq!(ids(&full), ["i9", "i8", "i7", "i6", "i5", "i4"]);
    assert!(full.build_cache);
    assert_eq!(decide(&images, &Needs::default(), 10, Occasion::Requested).images.len(), 10);
}

#[test]
fn foreign_images_are_removed_only_if_configured_and_snapshots_never() {
    let snapshot = BTreeMap::from([("sandboxd.snapshot.chat-id".to_owned(), "c".to_owned())]);
    let images = [image("foreign", Some("debian:12"), 0, BTreeMap::new()), image("snapshot", None, 0, snapshot)];
    assert_eq!(ids(&decide(&images, &Needs::default(), 99, Occasion::Requested)), Vec::<&str>::new());
    let all = Needs { all: true, ..Needs::default() };
    assert_eq!(ids(&decide(&images, &all, 99, Occasion::Requested)), ["foreign"]);
}

prop_compose! {
    fn any_image()(
        id in 0u8..20, tagged: bool, age in 0i64..100, repository in prop::option::of(0u8..3), foreign: bool
    ) -> Image {
        let id = format!("i{id}");
        let name = repository.map(|number| format!("r{number}"));
        match foreign {
            true => image(&id, Some("foreign:1"), age, BTreeMap::new()),
            false => ours(&id, tagged, age, name.as_deref()),
        }
    }
}

proptest! {
    #[test]
    fn needed_images_are_never_removed(
        images in prop::collection::vec(any_image(), 0..20),
        named in prop::collection::btree_set(0u8..20, 0..6),
        in_use in prop::collection::btree_set(0u8..20, 0..6),
        used in 0u64..=100,
        asked: bool,
        all: bool,
    ) {
        let mut images = images;
        images.sort_by(|a, b| a.id.cmp(&b.id));
        images.dedup_by(|a, b| a.id == b.id);
        let id = |number: u8| format!("i{number}");
        let needs = Needs {
            named: named.into_iter().map(id).collect(),
            in_use: in_use.into_iter().map(id).collect(),
            repositories: ["r0".to_owned(), "r1".to_owned()].into(),
            all,
        };
        let occasion = if asked { Occasion::Requested } else { Occasion::Regular };
        let plan = decide(&images, &needs, used, occasion);
        for image in &plan.images {
            prop_assert!(!needs.named.contains(&image.id) && !needs.in_use.contains(&image.id));
            let origin = Origin::of(image, &instance());
            prop_assert!(origin.is_some() || all, "foreign");
            if used <= 85 && !asked {
                prop_assert!(image.tags.is_empty(), "the disk is not full");
            }
        }
        for repository in &needs.repositories {
            let of_repository = |image: &&Image| {
                let source = Origin::of(image, &instance()).and_then(|origin| origin.source);
                source.is_some_and(|source| source.repository == *repository)
            };
            let had_one = images.iter().any(|image| of_repository(&image));
            let left = images.iter().filter(of_repository).filter(|image| !plan.images.contains(image)).count();
            prop_assert!(!had_one || left > 0, "a repository has lost its last image");
        }
    }
}
