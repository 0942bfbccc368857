//! Repository images: when to check a branch, when to rebuild, and the known state. Pure.

use std::fmt::Write;
use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::hash::fnv1a;
use crate::ports::clock::Timestamp;
use crate::ports::images::ImageError;
use crate::ports::images::labels::Source;

/// A branch of a repository, and the recipe of its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    pub name: String,
    pub url: String,
    pub branch: String,
    /// Whether the checkout includes submodules, recursively.
    pub submodules: bool,
    /// The image to start from.
    pub base: String,
    /// The tag of the image.
    pub tag: String,
    /// The directory of the files in the image.
    pub directory: String,
    /// Shell commands, run in this order in that directory.
    pub install: Vec<String>,
    pub build: Vec<String>,
    pub warm_up: Vec<String>,
    /// The interval between two checks of the branch.
    pub every: Duration,
    /// An image is stale if it was not confirmed as up to date for this time.
    pub stale_after: Duration,
    pub timeout: Duration,
}

/// The name of the generated Dockerfile, beside the files.
pub const DOCKERFILE: &str = "Dockerfile";
/// The directory of the files in the build context.
pub const CONTEXT_DIRECTORY: &str = "repository";

impl Repository {
    /// Returns the Dockerfile of the image. Commands are arguments of the shell, so that no command can be read as an
    /// instruction.
    pub fn instructions(&self) -> String {
        let mut text = format!("FROM {}\n", self.base);
        let _ = writeln!(text, "COPY {}", array(&[CONTEXT_DIRECTORY, &self.directory]));
        let _ = writeln!(text, "WORKDIR {}", self.directory);
        for step in self.steps() {
            let _ = writeln!(text, "RUN {}", array(&["/bin/sh", "-c", step]));
        }
        text
    }

    /// Returns a hash of the build steps, without the commit.
    pub fn recipe(&self, base_id: &str) -> String {
        let submodules = if self.submodules { "\0submodules" } else { "" };
        format!("{:016x}", fnv1a(format!("{base_id}\0{}{submodules}", self.instructions()).as_bytes()))
    }

    fn steps(&self) -> impl Iterator<Item = &String> {
        self.install.iter().chain(&self.build).chain(&self.warm_up)
    }
}

/// Returns a JSON array of strings on one line, as Dockerfile instructions take them.
fn array(words: &[&str]) -> String {
    let quoted = |word: &&str| {
        let mut text = String::from('"');
        for letter in word.chars() {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                control if control < ' ' => drop(write!(text, "\\u{:04x}", u32::from(control))),
                letter => text.push(letter),
            }
        }
        text + "\""
    };
    format!("[{}]", words.iter().map(quoted).collect::<Vec<_>>().join(", "))
}

/// The cause of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    Missing,
    /// The branch has a new commit.
    Moved,
    /// The steps or the base have changed.
    Changed,
    Requested,
}

impl Because {
    pub fn as_str(self) -> &'static str {
        match self {
            Because::Missing => "there is no image yet",
            Because::Moved => "the branch has moved",
            Because::Changed => "its steps or its base have changed",
            Because::Requested => "it was asked for",
        }
    }
}

/// Returns why to build, if at all; `built` is the source of the tagged image.
pub fn because(built: Option<&Source>, head: &str, recipe: &str, forced: bool) -> Option<Because> {
    match built {
        None => Some(Because::Missing),
        Some(built) if built.commit != head => Some(Because::Moved),
        Some(built) if built.recipe != recipe => Some(Because::Changed),
        Some(_) => forced.then_some(Because::Requested),
    }
}

/// The state of a repository beyond its image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryState {
    /// The start of the last check, with any result.
    pub checked_at: Option<Timestamp>,
    /// The last time at which the image was known to be up to date.
    pub confirmed_at: Option<Timestamp>,
    /// The last observed commit of the branch.
    pub head: Option<String>,
    /// The cause of the last failed update, if the last try failed.
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub at: Timestamp,
    pub error: ImageError,
}

impl RepositoryState {
    pub fn is_due(&self, repository: &Repository, now: Timestamp) -> bool {
        self.checked_at.is_none_or(|at| passed(at, repository.every, now))
    }

    pub fn begin_check(&mut self, now: Timestamp) {
        self.checked_at = Some(now);
    }

    /// Records the end of a check. `head` is the observed commit of the branch, if known.
    pub fn ended(&mut self, head: Option<String>, error: Option<ImageError>, now: Timestamp) {
        self.head = head.or(self.head.take());
        self.failure = error.map(|error| Failure { at: now, error });
        if self.failure.is_none() {
            self.confirmed_at = Some(now);
        }
    }

    /// Returns whether the image may be outdated. Before the first check, an image counts as up to date at its build.
    pub fn is_stale(&self, repository: &Repository, built_at: Timestamp, now: Timestamp) -> bool {
        passed(self.confirmed_at.map_or(built_at, |at| at.max(built_at)), repository.stale_after, now)
    }
}

/// Returns whether `time` has passed. A clock that was set back delays a due check by at most `time`.
fn passed(since: Timestamp, time: Duration, now: Timestamp) -> bool {
    let time = TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
    let elapsed = now.signed_duration_since(since);
    elapsed >= time || elapsed < -time
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Utc;
    use proptest::prelude::*;

    fn repository() -> Repository {
        Repository {
            name: "app".into(),
            url: "/srv/app.git".into(),
            branch: "main".into(),
            submodules: false,
            base: "base:1".into(),
            tag: "app:latest".into(),
            directory: "/app".into(),
            install: vec!["apk add \"x\"\nUSER root".into()],
            build: vec!["make".into()],
            warm_up: vec![],
            every: Duration::from_secs(60),
            stale_after: Duration::from_secs(120),
            timeout: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_step_with_any_content_is_one_instruction() {
        let expected = [
            "FROM base:1",
            r#"COPY ["repository", "/app"]"#,
            "WORKDIR /app",
            r#"RUN ["/bin/sh", "-c", "apk add \"x\"\u000aUSER root"]"#,
            r#"RUN ["/bin/sh", "-c", "make"]"#,
        ];
        assert_eq!(repository().instructions().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_image_is_built_only_if_an_input_differs() {
        let built = Source { repository: "app".into(), commit: "c1".into(), recipe: "r1".into() };
        assert_eq!(because(None, "c1", "r1", false), Some(Because::Missing));
        assert_eq!(because(Some(&built), "c1", "r1", false), None);
        assert_eq!(because(Some(&built), "c2", "r1", false), Some(Because::Moved));
        assert_eq!(because(Some(&built), "c1", "r2", false), Some(Because::Changed));
        assert_eq!(because(Some(&built), "c1", "r1", true), Some(Because::Requested));
    }

    #[test]
    fn the_recipe_changes_with_the_base_the_steps_and_the_files() {
        let changed = Repository { warm_up: vec!["true".into()], ..repository() };
        let whole = Repository { submodules: true, ..repository() };
        let recipes = [repository().recipe("1"), repository().recipe("2"), changed.recipe("1"), whole.recipe("1")];
        assert_eq!(recipes.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert_eq!(repository().recipe("1"), recipes[0]);
    }

    #[test]
    fn a_failure_is_kept_until_a_success_and_lets_the_image_go_stale() {
        let (repository, built_at) = (repository(), Utc::now());
        let later = |seconds| built_at + TimeDelta::seconds(seconds);
        let mut state = RepositoryState::default();
        assert!(state.is_due(&repository, built_at), "not checked yet");
        state.begin_check(built_at);
        state.ended(Some("c1".into()), None, built_at);
        assert!(!state.is_due(&repository, later(59)) && state.is_due(&repository, later(60)));
        state.begin_check(later(60));
        state.ended(None, Some(ImageError::Interrupted), later(60));
        assert_eq!(state.head.as_deref(), Some("c1"), "a failure keeps the last commit");
        assert!(!state.is_stale(&repository, built_at, later(119)));
        assert!(state.is_stale(&repository, built_at, later(120)));
        state.ended(Some("c2".into()), None, later(121));
        assert_eq!(state.failure, None);
        assert!(!state.is_stale(&repository, built_at, later(240)), "confirmed, though not built again");
    }

    proptest! {
        #[test]
        fn a_check_comes_due_after_any_clock_step(step in -1_000_000i64..1_000_000) {
            let (repository, start) = (repository(), Utc::now());
            let mut state = RepositoryState::default();
            state.begin_check(start);
            let stepped = start + TimeDelta::seconds(step);
            let due = (0..=120).any(|seconds| state.is_due(&repository, stepped + TimeDelta::seconds(seconds)));
            prop_assert!(due, "due within twice the interval after a clock step");
        }
    }
}
