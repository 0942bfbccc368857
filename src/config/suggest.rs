//! "Did you mean": suggests the known word nearest to a mistyped one.

/// Returns the nearest candidate whose edit distance is at most a third of the word's length. A swap of two neighbours
/// counts as one edit.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word = word.to_lowercase();
    let farthest = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= farthest)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    const KEYS: [&str; 4] = ["path", "mode", "allow_users", "allow_groups"];

    #[test]
    fn a_mistyped_word_finds_its_neighbour() {
        assert_eq!(nearest("pth", KEYS), Some("path"));
        assert_eq!(nearest("apth", KEYS), Some("path"));
        assert_eq!(nearest("MODE", KEYS), Some("mode"));
        assert_eq!(nearest("allow_user", KEYS), Some("allow_users"));
        assert_eq!(nearest("alow_group", KEYS), Some("allow_groups"));
    }

    #[test]
    fn a_foreign_word_finds_none() {
        assert_eq!(nearest("listen", KEYS), None);
        assert_eq!(nearest("", KEYS), None);
    }
}
