//! The base image: what `profiles.default` names unless configured otherwise, and what it is made of. It is made of
//! Debian's packages, on the host, since no image can be taken for granted on an engine.

use sandboxd_actors::domain::hash::fnv1a;
use sandboxd_actors::ports::images::Image;

/// The image of every profile that names none.
pub const TAG: &str = "sandboxd-base:latest";

/// Says of which [`recipe`] an image was made.
pub const RECIPE_LABEL: &str = "sandboxd.base.recipe";

/// Prints a root file system of the packages that are its arguments.
pub const SCRIPT: &str = include_str!("../../scripts/debian-root");

/// A shell with the usual tools, Python and git. Busybox provides the tools that are not among them.
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

/// The configuration of the image, as instructions of a Dockerfile. The user is named by number, so that an engine needs no
/// look at the image's files.
const CONFIGURATION: [&str; 6] = [
    "ENV PATH=/usr/local/bin:/usr/bin:/usr/sbin",
    "ENV HOME=/home/sandbox",
    "ENV LANG=C.UTF-8",
    "USER 1000:1000",
    "WORKDIR /home/sandbox",
    r#"CMD ["sleep", "infinity"]"#,
];

/// Changes when the image would be made differently.
pub fn recipe() -> String {
    let parts = [SCRIPT].into_iter().chain(PACKAGES).chain(CONFIGURATION);
    format!("{:016x}", fnv1a(parts.collect::<Vec<_>>().join("\n").as_bytes()))
}

/// The instructions with which the root file system becomes the image.
pub fn instructions() -> Vec<String> {
    let label = format!("LABEL {RECIPE_LABEL}={}", recipe());
    CONFIGURATION.into_iter().map(str::to_owned).chain([label]).collect()
}

/// Whether an image was made as this version of the program makes it.
pub fn is_up_to_date(image: &Image) -> bool {
    image.labels.get(RECIPE_LABEL) == Some(&recipe())
}

/// Advice to a user whose engine lacks an image.
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
