//! "Did you mean": suggests the known word nearest to a mistyped one.

/// Returns the nearest candidate whose edit distance is at most a third of the word's length.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word: Vec<char> = word.to_lowercase().chars().collect();
    let farthest = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, _)| *distance <= farthest)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the edit distance: insertions, deletions, replacements and swaps of neighbours.
fn distance(from: &[char], to: &str) -> usize {
    let to: Vec<char> = to.to_lowercase().chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
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
