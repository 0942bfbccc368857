//! `.dockerignore`: the files that are not part of a context. The last pattern that matches a file decides.

use std::path::Path;

/// The patterns of an ignore file.
#[derive(Debug, Default)]
pub(super) struct Ignored(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    parts: Vec<String>,
    /// A `!` pattern: matching files are part of the context.
    exception: bool,
}

impl Ignored {
    pub(super) fn parse(text: &str) -> Self {
        let pattern = |line: &str| {
            let line = line.trim();
            let (exception, pattern) = match line.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line),
            };
            let parts: Vec<_> =
                pattern.split('/').filter(|part| !matches!(*part, "" | ".")).map(String::from).collect();
            (!line.starts_with('#') && !parts.is_empty()).then_some(Pattern { parts, exception })
        };
        Self(text.lines().filter_map(pattern).collect())
    }

    /// Returns whether a pattern excludes the file or a directory above it.
    pub(super) fn covers(&self, path: &Path) -> bool {
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let concerns =
            |pattern: &Pattern| (1..=parts.len()).any(|length| path_matches(&pattern.parts, &parts[..length]));
        self.0.iter().rfind(|pattern| concerns(pattern)).is_some_and(|pattern| !pattern.exception)
    }

    /// Returns whether an excluded directory may contain included files.
    pub(super) fn has_exceptions(&self) -> bool {
        self.0.iter().any(|pattern| pattern.exception)
    }
}

fn path_matches(pattern: &[String], parts: &[&str]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((any, rest)), _) if any == "**" => (0..=parts.len()).any(|skipped| path_matches(rest, &parts[skipped..])),
        (Some(_), None) => false,
        (Some((first, pattern)), Some((part, parts))) => {
            let first: Vec<char> = first.chars().collect();
            let part: Vec<char> = part.chars().collect();
            part_matches(&first, &part) && path_matches(pattern, parts)
        }
    }
}

fn part_matches(pattern: &[char], text: &[char]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        (['*', rest @ ..], _) => (0..=text.len()).any(|skipped| part_matches(rest, &text[skipped..])),
        (_, []) => false,
        (['?', pattern @ ..], [_, text @ ..]) => part_matches(pattern, text),
        (['\\', escaped, pattern @ ..], [letter, text @ ..]) => escaped == letter && part_matches(pattern, text),
        (['[', rest @ ..], [letter, text @ ..]) => match set_matches(rest, *letter) {
            Some((matches, pattern)) => matches && part_matches(pattern, text),
            None => false,
        },
        ([first, pattern @ ..], [letter, text @ ..]) => first == letter && part_matches(pattern, text),
    }
}

/// Returns whether a set such as `a-z]` has the letter, and the pattern after the set; `None` if the set has no end.
fn set_matches(set: &[char], letter: char) -> Option<(bool, &[char])> {
    let (negated, mut set) = match set {
        ['^', rest @ ..] => (true, rest),
        _ => (false, set),
    };
    let mut found = false;
    loop {
        match set {
            [] => return None,
            [']', rest @ ..] => return Some((found != negated, rest)),
            [from, '-', to, rest @ ..] if *to != ']' => {
                found |= (*from..=*to).contains(&letter);
                set = rest;
            }
            [one, rest @ ..] => {
                found |= *one == letter;
                set = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covers(rules: &str, path: &str) -> bool {
        Ignored::parse(rules).covers(Path::new(path))
    }

    #[test]
    fn patterns_are_about_paths_from_the_root_and_all_that_is_below() {
        assert!(covers("node_modules", "node_modules/a/b"));
        assert!(!covers("node_modules", "sub/node_modules"));
        assert!(covers("**/node_modules", "sub/node_modules/a"));
        assert!(covers("/build/", "build"));
        assert!(covers("*.log", "a.log") && !covers("*.log", "sub/a.log"));
        assert!(covers("*/temp*", "sub/temporary.txt") && covers("a?c", "abc"));
        assert!(covers("[a-c]x", "bx") && !covers("[^a-c]x", "bx") && !covers("[a", "a"));
        assert!(covers("# comment\n\n  secret  ", "secret") && !covers("# comment", "# comment"));
    }

    #[test]
    fn the_last_pattern_that_matches_counts() {
        let rules = "*.md\n!README*.md\nREADME-secret.md";
        assert!(covers(rules, "a.md") && !covers(rules, "README.md") && covers(rules, "README-secret.md"));
        assert!(covers("docs\n!docs/keep", "docs/other") && !covers("docs\n!docs/keep", "docs/keep"));
    }

    proptest! {
        #[test]
        fn no_rules_make_it_panic(rules in ".{0,40}", path in "[a-c/*\\[\\]]{0,20}") {
            covers(&rules, &path);
        }
    }
}
