//! Decides which images to remove. Pure.
//!
//! ```text
//! kept      used by a profile, as a repository's base or by a container; the newest image of a configured repository;
//!           a snapshot; an image that the service did not create, unless all images are collected
//! garbage   created by the service and without a tag, because a newer image replaced it: always removed
//! spare     all other images: removed on request, or while the disk is too full
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::domain::ids::InstanceName;
use crate::ports::clock::Timestamp;
use crate::ports::images::labels::{self, Origin};
use crate::ports::images::{Disk, Image, Layer};

/// The limits for the use of the engine's disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watermarks {
    /// In percent: above this, spare images are removed.
    pub high: f64,
    /// In percent: spare images are removed until the use is below this.
    pub low: f64,
}

/// The cause of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The interval has passed: spare images are removed only if the disk is too full.
    Regular,
    /// A caller requests it: all spare images are removed.
    Requested,
}

/// The uses of images.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// The ids of images that profiles and repositories name.
    pub named: BTreeSet<String>,
    /// The ids of images that containers use.
    pub in_use: BTreeSet<String>,
    pub repositories: BTreeSet<String>,
    /// Includes images that the service did not create.
    pub all: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order of their removal.
    pub images: Vec<Image>,
    /// Whether the build cache is removed, too.
    pub build_cache: bool,
}

pub fn plan(
    images: &[Image],
    needs: &Needs,
    disk: Disk,
    watermarks: Watermarks,
    occasion: Occasion,
    instance: &InstanceName,
) -> Plan {
    let newest = newest(images, needs, instance);
    let (mut garbage, mut spare) = (Vec::new(), Vec::new());
    for image in images {
        let origin = Origin::of(image, instance);
        let needed = needs.named.contains(&image.id)
            || needs.in_use.contains(&image.id)
            || newest.contains(&image.id)
            || labels::is_snapshot(image)
            || (origin.is_none() && !needs.all);
        match origin {
            _ if needed => {}
            Some(_) if image.tags.is_empty() => garbage.push(image.clone()),
            _ => spare.push(image.clone()),
        }
    }
    let age = |image: &Image| (image.created_at, image.id.clone());
    garbage.sort_by_key(age);
    spare.sort_by_key(age);

    let full = disk.used_percent() > watermarks.high;
    match occasion {
        Occasion::Requested => {}
        Occasion::Regular if full => spare = oldest_until(spare, &garbage, disk, watermarks.low),
        Occasion::Regular => spare.clear(),
    }
    garbage.extend(spare);
    Plan { images: garbage, build_cache: full || occasion == Occasion::Requested }
}

/// Returns the size that the removal of these images frees: each layer once, without layers of the images that stay.
pub fn freed(gone: &[Vec<Layer>], kept: &[Vec<Layer>]) -> u64 {
    // Each layer has a number that follows from its own digest and the number of the layer below it.
    let mut numbers: HashMap<(usize, &str), usize> = HashMap::new();
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for (counts, image) in kept.iter().map(|image| (false, image)).chain(gone.iter().map(|image| (true, image))) {
        let mut below = 0;
        for layer in image {
            let next = numbers.len() + 1;
            below = *numbers.entry((below, &layer.digest)).or_insert(next);
            if seen.insert(below) && counts {
                bytes += layer.bytes;
            }
        }
    }
    bytes
}

/// Returns the oldest images that together with `garbage` bring the disk below the low watermark. Sizes include shared
/// layers, so it may take another pass.
fn oldest_until(spare: Vec<Image>, garbage: &[Image], disk: Disk, low: f64) -> Vec<Image> {
    let allowed = (disk.total_bytes as f64 * low / 100.0) as u64;
    let mut used = disk.total_bytes.saturating_sub(disk.free_bytes);
    used = garbage.iter().fold(used, |used, image| used.saturating_sub(image.bytes));
    let mut taken = Vec::new();
    for image in spare {
        if used <= allowed {
            break;
        }
        used = used.saturating_sub(image.bytes);
        taken.push(image);
    }
    taken
}

/// Returns the newest image of each configured repository.
fn newest(images: &[Image], needs: &Needs, instance: &InstanceName) -> BTreeSet<String> {
    let mut newest: BTreeMap<String, (Timestamp, String)> = BTreeMap::new();
    for image in images {
        let Some(Origin { built_at, source: Some(source), .. }) = Origin::of(image, instance) else { continue };
        if needs.repositories.contains(&source.repository) {
            let this = (built_at, image.id.clone());
            let newest = newest.entry(source.repository).or_insert_with(|| this.clone());
            *newest = newest.clone().max(this);
        }
    }
    newest.into_values().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests;
