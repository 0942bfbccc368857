//! Packs a few small files into a tar archive for the engine.

/// The block size of a tar archive.
const BLOCK: usize = 512;

/// Returns a tar archive of plain files that every user may read.
pub(super) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        archive.extend(header(name, content.len()));
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end the archive.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn header(name: &str, length: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000444\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{length:011o}\0"));
    put(136, "00000000000\0");
    // The checksum field counts as spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_at_a_block_and_so_does_the_next() {
        let archive = archive(&[("a", b"content"), ("b", &[7; 512])]);
        assert_eq!(archive.len(), 6 * BLOCK);
        assert_eq!(&archive[BLOCK..BLOCK + 7], b"content");
        assert_eq!(&archive[124..135], b"00000000007");
        assert_eq!((archive[2 * BLOCK], archive[3 * BLOCK]), (b'b', 7));
    }
}
