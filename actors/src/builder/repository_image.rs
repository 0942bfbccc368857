//! Images of repositories: when to look at one, when to build it anew, and what is known of it. All of it is pure.

use std::fmt::Write;
use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::hash::fnv1a;
use crate::ports::clock::Timestamp;
use crate::ports::images::ImageError;
use crate::ports::images::labels::Source;

/// A branch of a repository, and how an image is made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    pub name: String,
    pub url: String,
    pub branch: String,
    /// Whether its submodules are among its files, and theirs.
    pub submodules: bool,
    /// The image to start from.
    pub base: String,
    /// What the image is called.
    pub tag: String,
    /// Where the files are in the image.
    pub directory: String,
    /// Shell lines, run in this order in that directory.
    pub install: Vec<String>,
    pub build: Vec<String>,
    pub warm_up: Vec<String>,
    /// Between two looks at the branch.
    pub every: Duration,
    /// An image that was not known to be up to date for so long is stale.
    pub stale_after: Duration,
    pub timeout: Duration,
}

/// The name of the generated instructions, beside the files.
pub const DOCKERFILE: &str = "Dockerfile";
/// Where the files are in the build's context.
pub const PLACE: &str = "repository";

impl Repository {
    /// The instructions that make the image. Commands are arguments of the shell, so that nothing in them can be taken
    /// for an instruction.
    pub fn instructions(&self) -> String {
        let mut text = format!("FROM {}\n", self.base);
        let _ = writeln!(text, "COPY {}", array(&[PLACE, &self.directory]));
        let _ = writeln!(text, "WORKDIR {}", self.directory);
        for step in self.steps() {
            let _ = writeln!(text, "RUN {}", array(&["/bin/sh", "-c", step]));
        }
        text
    }

    /// Identifies what is done with a commit.
    pub fn recipe(&self, base_id: &str) -> String {
        let submodules = if self.submodules { "\0submodules" } else { "" };
        format!("{:016x}", fnv1a(format!("{base_id}\0{}{submodules}", self.instructions()).as_bytes()))
    }

    fn steps(&self) -> impl Iterator<Item = &String> {
        self.install.iter().chain(&self.build).chain(&self.warm_up)
    }
}

/// A JSON array of strings, as instructions take them, on one line.
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

/// Why an image is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    Missing,
    /// The branch has other commits.
    Moved,
    /// The steps or the base are others.
    Changed,
    Asked,
}

impl Because {
    pub fn as_str(self) -> &'static str {
        match self {
            Because::Missing => "there is no image yet",
            Because::Moved => "the branch has moved",
            Because::Changed => "its steps or its base have changed",
            Because::Asked => "it was asked for",
        }
    }
}

/// Whether to build; `built` is what the tag is now.
pub fn because(built: Option<&Source>, head: &str, recipe: &str, forced: bool) -> Option<Because> {
    match built {
        None => Some(Because::Missing),
        Some(built) if built.commit != head => Some(Because::Moved),
        Some(built) if built.recipe != recipe => Some(Because::Changed),
        Some(_) => forced.then_some(Because::Asked),
    }
}

/// What is known of a repository beyond its image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryState {
    /// When somebody last began to look, with whatever result.
    pub looked_at: Option<Timestamp>,
    /// When its image was last known to be up to date.
    pub confirmed_at: Option<Timestamp>,
    /// The commit that the branch was last seen at.
    pub head: Option<String>,
    /// Why its image could not be brought up to date, if the last try failed.
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub at: Timestamp,
    pub error: ImageError,
}

impl RepositoryState {
    pub fn is_due(&self, repository: &Repository, now: Timestamp) -> bool {
        self.looked_at.is_none_or(|at| passed(at, repository.every, now))
    }

    pub fn looks(&mut self, now: Timestamp) {
        self.looked_at = Some(now);
    }

    /// `head` is where the branch was, as far as that was found out.
    pub fn ended(&mut self, head: Option<String>, error: Option<ImageError>, now: Timestamp) {
        self.head = head.or(self.head.take());
        self.failure = error.map(|error| Failure { at: now, error });
        if self.failure.is_none() {
            self.confirmed_at = Some(now);
        }
    }

    /// Whether its image may be out of date. Until it was looked at, an image was up to date when it was built.
    pub fn is_stale(&self, repository: &Repository, built_at: Timestamp, now: Timestamp) -> bool {
        passed(self.confirmed_at.map_or(built_at, |at| at.max(built_at)), repository.stale_after, now)
    }
}

/// A clock that was set back has let no time pass, but does not put off what is due by more than that time either.
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
    fn a_step_is_one_instruction_whatever_it_contains() {
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
    fn it_is_built_only_if_something_is_different() {
        let built = Source { repository: "app".into(), commit: "c1".into(), recipe: "r1".into() };
        assert_eq!(because(None, "c1", "r1", false), Some(Because::Missing));
        assert_eq!(because(Some(&built), "c1", "r1", false), None);
        assert_eq!(because(Some(&built), "c2", "r1", false), Some(Because::Moved));
        assert_eq!(because(Some(&built), "c1", "r2", false), Some(Because::Changed));
        assert_eq!(because(Some(&built), "c1", "r1", true), Some(Because::Asked));
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
        let mut standing = RepositoryState::default();
        assert!(standing.is_due(&repository, built_at), "nobody has looked yet");
        standing.looks(built_at);
        standing.ended(Some("c1".into()), None, built_at);
        assert!(!standing.is_due(&repository, later(59)) && standing.is_due(&repository, later(60)));
        standing.looks(later(60));
        standing.ended(None, Some(ImageError::Interrupted), later(60));
        assert_eq!(standing.head.as_deref(), Some("c1"), "what was known is not forgotten");
        assert!(!standing.is_stale(&repository, built_at, later(119)));
        assert!(standing.is_stale(&repository, built_at, later(120)));
        standing.ended(Some("c2".into()), None, later(121));
        assert_eq!(standing.failure, None);
        assert!(!standing.is_stale(&repository, built_at, later(240)), "confirmed, though not built again");
    }

    proptest! {
        #[test]
        fn whatever_the_clock_does_a_look_comes_due(step in -1_000_000i64..1_000_000) {
            let (repository, start) = (repository(), Utc::now());
            let mut standing = RepositoryState::default();
            standing.looks(start);
            let stepped = start + TimeDelta::seconds(step);
            let waited = (0..=120).any(|seconds| standing.is_due(&repository, stepped + TimeDelta::seconds(seconds)));
            prop_assert!(waited, "at most twice its time after a step of the clock");
        }
    }
}
