//! Tests of packing and unpacking, with valid and hostile archives.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::*;
use crate::tar::{END, Entry, Kind, padding};

fn pack(path: &Path) -> (Vec<u8>, Totals) {
    let (mut packing, mut out) = (Packing::open(path).unwrap(), Vec::new());
    loop {
        if let Some(totals) = packing.advance(&mut out, 1000).unwrap() {
            return (out, totals);
        }
    }
}

fn unpack(archive: &[u8], path: &Path) -> Result<Totals, TreeError> {
    let mut unpacking = Unpacking::open(path, true).unwrap();
    for part in archive.chunks(700) {
        unpacking.take(part)?;
    }
    unpacking.finish()
}

fn entry(name: &str, kind: Kind) -> Entry {
    Entry { name: name.into(), kind, size: 0, mode: 0o644, user: 0, group: 0, modified: 1_000_000 }
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        entry.put(&mut out);
        out.resize(out.len() + entry.size as usize + padding(entry.size), b'x');
    }
    out.extend_from_slice(&END);
    out
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("a/b/to"));
    let deep = from.join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), vec![7; 5000]).unwrap();
    fs::write(from.join("run"), "#!/bin/sh").unwrap();
    fs::set_permissions(from.join("run"), Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(from.join("run"), from.join("again")).unwrap();
    symlink("/nowhere", from.join("link")).unwrap();
    fs::create_dir(from.join("closed")).unwrap();
    fs::write(from.join("closed/in"), "").unwrap();
    fs::set_permissions(from.join("closed"), Permissions::from_mode(0o555)).unwrap();
    let _socket = UnixListener::bind(from.join("socket")).unwrap();

    let (archive, totals) = pack(&from);
    assert_eq!(totals, Totals { entries: 9, bytes: 5018, skipped: 1 });
    assert_eq!(unpack(&archive, &to).unwrap(), Totals { skipped: 0, ..totals });
    let copied = to.join(deep.strip_prefix(&from).unwrap()).join("file");
    assert_eq!(fs::read(&copied).unwrap(), vec![7; 5000]);
    assert_eq!(copied.metadata().unwrap().mtime(), deep.join("file").metadata().unwrap().mtime());
    assert_eq!(to.join("run").metadata().unwrap().mode() & 0o7777, 0o755, "without set-user-id");
    assert_eq!(fs::read(to.join("again")).unwrap(), b"#!/bin/sh");
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
    assert_eq!(to.join("closed").metadata().unwrap().mode() & 0o777, 0o555);
    assert!(to.join("closed/in").exists());
    assert_eq!(unpack(&archive, &to).unwrap().entries, 9, "and again, over the existing tree");
}

#[test]
fn an_archive_that_would_leave_the_directory_is_refused_by_name() {
    let link = |target: &str| Kind::Link { target: target.into() };
    let hostile = [
        vec![entry("../out", Kind::File)],
        vec![entry("a/../../out", Kind::File)],
        vec![entry("/tmp/sandboxd-out", Kind::File)],
        vec![entry("../out", Kind::Directory)],
        vec![entry("l", link("..")), entry("l/out", Kind::File)],
        vec![entry("l", link("..")), entry("l/out", Kind::Directory)],
        vec![entry("l", link("..")), entry("l", Kind::Directory), entry("l/out", Kind::File)],
        vec![entry("d/l", link("../..")), entry("d/l/deep/out", Kind::File)],
        vec![entry("same", Kind::Same { name: "../secret".into() })],
        vec![entry("l", link("..")), entry("same", Kind::Same { name: "l/secret".into() })],
    ];
    for entries in hostile {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("secret"), "").unwrap();
        let error = unpack(&archive(&entries), &place.path().join("to")).unwrap_err();
        let named = entries.iter().any(|entry| entry.name == error.entry);
        assert!(named, "{error} is about one of {entries:?}");
        let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{entries:?} left {left:?}");
    }
}

#[test]
fn an_existing_link_is_replaced_and_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    fs::write(place.path().join("secret"), "mine").unwrap();
    symlink("../secret", to.join("f")).unwrap();
    unpack(&archive(&[entry("f", Kind::File)]), &to).unwrap();
    assert_eq!(fs::read(place.path().join("secret")).unwrap(), b"mine");
    assert!(to.join("f").symlink_metadata().unwrap().is_file());
}

#[test]
fn a_truncated_entry_is_removed_and_named() {
    let place = tempfile::tempdir().unwrap();
    let mut whole = entry("whole", Kind::File);
    whole.size = 600;
    let mut huge = entry("huge", Kind::File);
    huge.size = 600;
    let mut bytes = archive(&[whole, huge.clone()]);
    bytes.truncate(512 + 1024 + 512 + 100);
    let error = unpack(&bytes, place.path()).unwrap_err();
    assert_eq!(error.to_string(), "huge: the archive ends too early");
    assert!(place.path().join("whole").exists() && !place.path().join("huge").exists());
    // A header that claims more than any disk holds is handled the same way.
    huge.size = 1 << 60;
    let mut bytes = Vec::new();
    huge.put(&mut bytes);
    bytes.resize(bytes.len() + 4096, 0);
    assert_eq!(unpack(&bytes, place.path()).unwrap_err().entry, b"huge");
    assert!(!place.path().join("huge").exists());
}

#[test]
fn devices_are_skipped_and_an_invalid_archive_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let totals = unpack(&archive(&[entry("pipe", Kind::Other), entry("f", Kind::File)]), place.path()).unwrap();
    assert_eq!(totals, Totals { entries: 1, bytes: 0, skipped: 1 });
    let error = unpack(&[b'x'; 2000], place.path()).unwrap_err();
    assert_eq!(error.to_string(), "not a tar archive, or a damaged one");
}

#[test]
fn a_file_that_shrinks_meanwhile_keeps_the_archive_whole() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("log");
    fs::write(&file, vec![1; 3000]).unwrap();
    let (mut packing, mut out) = (Packing::open(place.path()).unwrap(), Vec::new());
    while out.len() < 2 * 512 {
        assert_eq!(packing.advance(&mut out, 100).unwrap(), None);
    }
    fs::write(&file, "").unwrap();
    while packing.advance(&mut out, 1000).unwrap().is_none() {}
    let copy = tempfile::tempdir().unwrap();
    assert_eq!(unpack(&out, copy.path()).unwrap().entries, 2);
    assert_eq!(fs::read(copy.path().join("log")).unwrap().len(), 3000);
}

#[test]
fn a_directory_that_is_swapped_for_a_link_is_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let (tree, elsewhere) = (place.path().join("tree"), place.path().join("elsewhere"));
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join("secret"), "the-secret").unwrap();
    let (mut packing, mut out) = (Packing::open(&tree).unwrap(), Vec::new());
    // The directory is open, and its entries are not read.
    while packing.open.len() < 2 {
        assert_eq!(packing.advance(&mut out, 1000).unwrap(), None);
    }
    fs::remove_dir(tree.join("d")).unwrap();
    symlink(&elsewhere, tree.join("d")).unwrap();
    while packing.advance(&mut out, 1000).unwrap().is_none() {}
    assert!(!out.windows(10).any(|window| window == b"the-secret"));
}
