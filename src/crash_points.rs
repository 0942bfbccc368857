//! Kills the service at a moment of choice, to show that it may end at any. No part of a release build.
//!
//! Whatever the service does to the world goes through a port. Each call passes two boundaries, before it is made and
//! after it was answered: `before engine.create`, `after engine.create`, `before journal.commit` and so on. A passage
//! is a boundary and how often it was passed: `after journal.commit#2`.
//!
//! | variable | meaning |
//! |---|---|
//! | `SANDBOXD_CRASH_AT` | the passage at which the process kills itself; without a number, the first |
//! | `SANDBOXD_CRASH_LOG` | a file to which each passage is added, as a line |
//! | `SANDBOXD_CRASH_FROM` | a file; nothing counts before it is there |

mod ports;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};
use sandboxd_actors::chat::World;
use sandboxd_actors::journal::Journal;

use crate::service::Outside;

const AT: &str = "SANDBOXD_CRASH_AT";
const LOG: &str = "SANDBOXD_CRASH_LOG";
const FROM: &str = "SANDBOXD_CRASH_FROM";

/// Every call of a port that acts on the world or depends on what it holds. A probe only asks a sandbox.
const EFFECTS: [&str; 31] = [
    "directories.prepare",
    "directories.remove",
    "engine.commit",
    "engine.create",
    "engine.ensure_network",
    "engine.identify",
    "engine.image_id",
    "engine.inspect",
    "engine.list",
    "engine.log_tail",
    "engine.pause",
    "engine.remove",
    "engine.remove_drafts",
    "engine.remove_snapshot",
    "engine.rename",
    "engine.snapshot",
    "engine.snapshots",
    "engine.start",
    "engine.stop",
    "engine.unpause",
    "engine.watch",
    "journal.commit",
    "journal.events",
    "journal.last_events",
    "journal.load",
    "journal.sandbox",
    "slots.bind",
    "slots.clear",
    "slots.prepare",
    "slots.remember",
    "slots.take",
];

#[derive(Debug, thiserror::Error)]
pub enum InvalidCrashPoint {
    #[error(
        "{AT}: there is no boundary {0:?}; expected \"before\" or \"after\", one of {effects}, and perhaps \"#2\"",
        effects = EFFECTS.join(", ")
    )]
    Unknown(String),
    #[error("{LOG}: {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
}

/// Does nothing unless the environment asks for it.
#[derive(Debug, Default)]
pub struct CrashPoints {
    at: Option<Passage>,
    log: Option<File>,
    from: Option<PathBuf>,
    passed: Mutex<BTreeMap<Boundary, u32>>,
}

impl CrashPoints {
    pub fn from_environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Arc<Self>, InvalidCrashPoint> {
        let mut points = Self::default();
        for (name, value) in variables {
            match name.to_str() {
                Some(AT) => points.at = Some(value.to_string_lossy().parse()?),
                Some(LOG) => {
                    let path = PathBuf::from(value);
                    let opened = File::options().create(true).append(true).open(&path);
                    points.log = Some(opened.map_err(|source| InvalidCrashPoint::Log { path, source })?);
                }
                Some(FROM) => points.from = Some(value.into()),
                _ => {}
            }
        }
        Ok(Arc::new(points))
    }

    /// The same outside, with a boundary around each call.
    pub fn around_outside<J: Journal>(self: &Arc<Self>, outside: Outside<J>) -> Outside<impl Journal + use<J>> {
        let Outside { engine, inside, images, condition, engine_sockets, journal, listener } = outside;
        let (engine, journal) = (ports::engine(self, engine), ports::journal(self, journal));
        Outside { engine, inside, images, condition, engine_sockets, journal, listener }
    }

    /// The same world, with a boundary around what is not of the outside.
    pub fn around_world(self: &Arc<Self>, world: World) -> World {
        World {
            directories: ports::directories(self, world.directories),
            slots: ports::slots(self, world.slots),
            ..world
        }
    }

    fn pass(&self, side: Side, effect: &'static str) {
        debug_assert!(EFFECTS.contains(&effect), "{effect} is not among the effects");
        if (self.at.is_none() && self.log.is_none()) || self.from.as_ref().is_some_and(|file| !file.exists()) {
            return;
        }
        // Held to the end, so that nothing else is passed meanwhile.
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let boundary = Boundary { side, effect };
        let times = passed.entry(boundary).or_default();
        *times += 1;
        let passage = Passage { boundary, times: *times };
        if let Some(mut log) = self.log.as_ref() {
            // One write, so that a line is there as a whole or not at all.
            let _ = log.write_all(format!("{passage}\n").as_bytes());
        }
        if self.at == Some(passage) {
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Before,
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Boundary {
    side: Side,
    effect: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passage {
    boundary: Boundary,
    /// From 1 on.
    times: u32,
}

impl fmt::Display for Passage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.boundary.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(f, "{side} {}#{}", self.boundary.effect, self.times)
    }
}

impl FromStr for Passage {
    type Err = InvalidCrashPoint;

    fn from_str(text: &str) -> Result<Self, InvalidCrashPoint> {
        let parse = || {
            let (boundary, times) = text.split_once('#').unwrap_or((text, "1"));
            let (side, effect) = boundary.split_once(' ')?;
            let side = match side {
                "before" => Side::Before,
                "after" => Side::After,
                _ => return None,
            };
            let effect = EFFECTS.into_iter().find(|known| *known == effect)?;
            let times = times.parse().ok().filter(|times| *times > 0)?;
            Some(Passage { boundary: Boundary { side, effect }, times })
        };
        parse().ok_or_else(|| InvalidCrashPoint::Unknown(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_is_written_as_it_is_read() {
        for text in ["before engine.create#1", "after journal.commit#12"] {
            assert_eq!(text.parse::<Passage>().unwrap().to_string(), text);
        }
        assert_eq!("after engine.remove".parse::<Passage>().unwrap().to_string(), "after engine.remove#1");
    }

    #[test]
    fn what_is_no_boundary_is_refused_by_name() {
        for text in ["", "engine.create", "during engine.create", "after engine.explode", "after engine.start#0"] {
            let variables = [(AT.into(), text.into())];
            let error = CrashPoints::from_environment(variables).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("engine.create"), "{error}");
        }
    }

    #[test]
    fn passages_count_once_they_are_to() {
        let directory = tempfile::tempdir().unwrap();
        let (log, from) = (directory.path().join("log"), directory.path().join("from"));
        let variables = [(LOG.into(), log.clone().into()), (FROM.into(), from.clone().into())];
        let points = CrashPoints::from_environment(variables).unwrap();
        points.pass(Side::Before, "engine.start");
        std::fs::write(from, "").unwrap();
        for _ in 0..2 {
            points.pass(Side::Before, "engine.start");
        }
        points.pass(Side::After, "engine.start");
        let passed = std::fs::read_to_string(log).unwrap();
        assert_eq!(passed, "before engine.start#1\nbefore engine.start#2\nafter engine.start#1\n");
    }
}
