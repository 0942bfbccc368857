//! Text of doc comments.

/// Joins the lines of each paragraph and of each list item, which are wrapped only in the source.
pub(crate) fn unwrap(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(str::trim) {
        match line {
            "" if joined.is_empty() || joined.ends_with('\n') => {}
            "" => joined.push_str("\n\n"),
            _ => {
                if !joined.is_empty() && !joined.ends_with('\n') {
                    joined.push(if line.starts_with("- ") { '\n' } else { ' ' });
                }
                joined.push_str(line);
            }
        }
    }
    joined.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_list_items_are_one_line_each() {
        assert_eq!(unwrap(" a\n b\n\n - c\n   d\n - e\n"), "a b\n\n- c d\n- e");
        assert_eq!(unwrap("\n a\n"), "a");
    }
}
