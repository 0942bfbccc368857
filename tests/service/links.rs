//! Tests that the links of the documents lead to files and headings that exist.

use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn every_link_of_a_document_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("readable");
        for target in links(&text) {
            checked += 1;
            if !is_valid(&document, target) {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(checked > 100, "{checked}");
}

/// Returns the Markdown files of the root and of `docs`.
fn documents() -> impl Iterator<Item = PathBuf> {
    let files =
        ["", "docs"].into_iter().flat_map(|directory| Path::new(ROOT).join(directory).read_dir().expect("read"));
    files.map(|file| file.expect("read").path()).filter(|path| path.extension().is_some_and(|name| name == "md"))
}

/// Returns the targets of the links outside code blocks, without addresses of other hosts.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("\n```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

fn is_valid(document: &Path, target: &str) -> bool {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { document.to_owned() } else { document.with_file_name(path) };
    if anchor.is_empty() {
        return file.exists();
    }
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|heading| anchor_of(heading) == anchor)
}

/// Returns the anchor that a heading gets: lower case, with hyphens for spaces, without punctuation.
fn anchor_of(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    letters.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_')).collect()
}

#[test]
fn a_missing_file_or_heading_is_found() {
    let document = Path::new(ROOT).join("docs/protocol.md");
    let valid =
        ["#errors", "security.md", "security.md#the-hosts-own-services", "protocol-reference.md#sandboxrun_code"];
    assert!(valid.iter().all(|target| is_valid(&document, target)));
    let broken = ["#inside-a-sandbox", "no.md", "no.md#errors", "security.md#errors"];
    assert!(!broken.iter().any(|target| is_valid(&document, target)));
    assert_eq!(links("[a](b.md) `c`\n```sh\n[d](e)\n```\n[f](#g) [h](https://i)").collect::<Vec<_>>(), ["b.md", "#g"]);
}
