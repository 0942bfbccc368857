//! The layers of an image and their sizes.
//!
//! An engine reports the layers in one list and the sizes in another, the history, which also has entries without a
//! layer. An entry with bytes always has a layer. An entry without bytes may be a setting, or a layer of empty
//! directories.

use bollard::models::{ImageHistoryResponseItem, ImageInspect};
use sandboxd_actors::ports::images::Layer;

/// Instructions that make no layer.
const SETTINGS: [&str; 13] = [
    "ARG",
    "CMD",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
];

/// The prefix of the legacy builder for an instruction that runs no command.
const NO_COMMAND: &str = "/bin/sh -c #(nop)";

/// Returns the layers from the lowest up. Together they are as large as the image: bytes without a known layer count as
/// the lowest, which is removed last.
pub(super) fn layers(image: ImageInspect, mut history: Vec<ImageHistoryResponseItem>) -> Vec<Layer> {
    let digests = image.root_fs.and_then(|root| root.layers).unwrap_or_default();
    history.reverse();
    let mut entries: Vec<(u64, bool)> =
        history.iter().map(|entry| (bytes(entry.size), is_setting(&entry.created_by))).collect();
    let mut surplus = entries.len().saturating_sub(digests.len());
    for sure in [true, false] {
        entries.retain(|&(bytes, setting)| {
            let no_layer = surplus > 0 && bytes == 0 && (setting || !sure);
            surplus -= usize::from(no_layer);
            !no_layer
        });
    }
    let sizes = entries.into_iter().map(|(bytes, _)| bytes).chain(std::iter::repeat(0));
    let mut layers: Vec<Layer> =
        digests.into_iter().zip(sizes).map(|(digest, bytes)| Layer { digest, bytes }).collect();
    let known: u64 = layers.iter().map(|layer| layer.bytes).sum();
    if let Some(lowest) = layers.first_mut() {
        lowest.bytes += bytes(image.size.unwrap_or_default()).saturating_sub(known);
    }
    layers
}

fn bytes(size: i64) -> u64 {
    u64::try_from(size).unwrap_or_default()
}

fn is_setting(created_by: &str) -> bool {
    let instruction = created_by.strip_prefix(NO_COMMAND).unwrap_or(created_by).trim_start();
    instruction.split(' ').next().is_some_and(|word| SETTINGS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::ImageInspectRootFs;

    /// `entries` are from the lowest up.
    fn sizes(count: usize, total: i64, entries: &[(&str, i64)]) -> Vec<u64> {
        let digests = (0..count).map(|number| number.to_string()).collect();
        let root_fs = Some(ImageInspectRootFs { typ: "layers".into(), layers: Some(digests) });
        let image = ImageInspect { root_fs, size: Some(total), ..Default::default() };
        let entry = |&(created_by, size): &(&str, i64)| ImageHistoryResponseItem {
            created_by: created_by.into(),
            size,
            ..Default::default()
        };
        layers(image, entries.iter().rev().map(entry).collect()).into_iter().map(|layer| layer.bytes).collect()
    }

    #[test]
    fn a_setting_is_no_layer_and_a_directory_is_one() {
        let entries = [
            ("", 100),
            ("/bin/sh -c #(nop) WORKDIR /app", 0),
            ("/bin/sh -c #(nop) COPY file:0 in /app ", 20),
            ("/bin/sh -c #(nop)  LABEL a=b", 0),
            ("RUN make # buildkit", 3),
            ("ENV A=b", 0),
        ];
        assert_eq!(sizes(4, 123, &entries), [100, 0, 20, 3]);
        let idle = [("", 100), ("/bin/sh -c true", 0), ("/bin/sh -c make", 3)];
        assert_eq!(sizes(2, 103, &idle), [100, 3], "a command without changes leaves no layer");
    }

    #[test]
    fn bytes_without_a_known_layer_count_as_the_lowest() {
        assert_eq!(sizes(3, 50, &[]), [50, 0, 0]);
        assert_eq!(sizes(2, 50, &[("", 30), ("", 10), ("", 10)]), [40, 10]);
        assert_eq!(sizes(0, 0, &[("", 0)]), Vec::<u64>::new());
    }
}
