//! The base image, which is the default image of profiles. It is built on the host from Debian's packages, because an
//! engine may have no image to start from.

use sandboxd_actors::domain::hash::fnv1a;
use sandboxd_actors::ports::images::Image;

/// The default image of a profile.
pub const TAG: &str = "sandboxd-base:latest";

/// The label with the [`recipe`] of an image.
pub const RECIPE_LABEL: &str = "sandboxd.base.recipe";

/// A script that prints a root file system of the packages in its arguments.
pub const SCRIPT: &str = include_str!("../../scripts/debian-root");

/// The packages: a shell with the usual tools, Python and git. Busybox provides further tools.
pub const PACKAGES: [&str; 15] = [
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "diffutils",
    "findutils",
    "git",
    "grep",
    "gzip",
    "less",
    "procps",
    "python3",
    "python3-venv",
    "sed",
    "tar",
];

/// The configuration of the image, as Dockerfile instructions. The user is numeric, so that an engine need not read the
/// image's files.
const CONFIGURATION: [&str; 6] = [
    "ENV PATH=/usr/local/bin:/usr/bin:/usr/sbin",
    "ENV HOME=/home/sandbox",
    "ENV LANG=C.UTF-8",
    "USER 1000:1000",
    "WORKDIR /home/sandbox",
    r#"CMD ["sleep", "infinity"]"#,
];

/// Returns a hash of everything that the image is built from.
pub fn recipe() -> String {
    let parts = [SCRIPT].into_iter().chain(PACKAGES).chain(CONFIGURATION);
    format!("{:016x}", fnv1a(parts.collect::<Vec<_>>().join("\n").as_bytes()))
}

/// Returns the instructions that turn the root file system into the image.
pub fn instructions() -> Vec<String> {
    let label = format!("LABEL {RECIPE_LABEL}={}", recipe());
    CONFIGURATION.into_iter().map(str::to_owned).chain([label]).collect()
}

/// Returns whether an image has the recipe of this version.
pub fn is_up_to_date(image: &Image) -> bool {
    image.labels.get(RECIPE_LABEL) == Some(&recipe())
}

/// Returns advice for a missing image.
pub fn how_to_get(image: &str) -> String {
    match Image::full_tag(image) == TAG {
        true => "`sandboxctl image base` makes it".to_owned(),
        false => format!("`sandboxctl image pull {image}` gets it; `image build` and `image refresh` make one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_base_image_is_made_and_any_other_pulled() {
        assert_eq!(how_to_get("sandboxd-base"), "`sandboxctl image base` makes it");
        assert!(how_to_get("python:3.13").contains("`sandboxctl image pull python:3.13`"));
    }
}
