//! What an image is made of, and how much each part takes up.
//!
//! An engine tells the layers in one list and the sizes in another, the history, which also has entries that made no
//! layer. One that has bytes is a layer for sure. One without may be a mere setting, or a layer of nothing but
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

/// What the older kind of builder puts before an instruction that runs nothing.
const NO_COMMAND: &str = "/bin/sh -c #(nop)";

/// From the lowest up. Together they are as large as the image: what cannot be told apart counts as the lowest, which is
/// the last to go.
pub(super) fn layers(image: ImageInspect, mut history: Vec<ImageHistoryResponseItem>) -> Vec<Layer> {
    let digests = image.root_fs.and_then(|root| root.layers).unwrap_or_default();
    history.reverse();
    let mut entries: Vec<(u64, bool)> =
        history.iter().map(|entry| (bytes(entry.size), is_setting(&entry.created_by))).collect();
    let mut spare = entries.len().saturating_sub(digests.len());
    for sure in [true, false] {
        entries.retain(|&(bytes, setting)| {
            let no_layer = spare > 0 && bytes == 0 && (setting || !sure);
            spare -= usize::from(no_layer);
            !no_layer
        });
    }
    let sizes = entries.into_iter().map(|(bytes, _)| bytes).chain(std::iter::repeat(0));
    let mut layers: Vec<Layer> =
        digests.into_iter().zip(sizes).map(|(digest, bytes)| Layer { digest, bytes }).collect();
    let told: u64 = layers.iter().map(|layer| layer.bytes).sum();
    if let Some(lowest) = layers.first_mut() {
        lowest.bytes += bytes(image.size.unwrap_or_default()).saturating_sub(told);
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
        assert_eq!(sizes(2, 103, &idle), [100, 3], "a command that changed nothing has left no layer");
    }

    #[test]
    fn what_no_history_tells_is_the_lowest() {
        assert_eq!(sizes(3, 50, &[]), [50, 0, 0]);
        assert_eq!(sizes(2, 50, &[("", 30), ("", 10), ("", 10)]), [40, 10]);
        assert_eq!(sizes(0, 0, &[("", 0)]), Vec::<u64>::new());
    }
}
