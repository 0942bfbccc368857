//! Kills the service at a chosen crash point, to test that it may end at any point. Not part of a release build.
//!
//! The service acts on the outside only through ports. Each port call has two boundaries, before the call and after its
//! answer: `before engine.create`, `after engine.create`, `before journal.commit` and so on. A crash point is a
//! boundary and the number of times that it was reached: `after journal.commit#2`.
//!
//! | variable | meaning |
//! |---|---|
//! | `SANDBOXD_CRASH_AT` | the crash point at which the process kills itself; without a number, the first time |
//! | `SANDBOXD_CRASH_LOG` | a file to which each reached crash point is appended, as a line |
//! | `SANDBOXD_CRASH_FROM` | a file; boundaries are counted only once it exists |

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

use crate::service::Dependencies;

const AT: &str = "SANDBOXD_CRASH_AT";
const LOG: &str = "SANDBOXD_CRASH_LOG";
const FROM: &str = "SANDBOXD_CRASH_FROM";

/// The port calls with crash points: those that change state outside the process or depend on it.
const CALLS: [&str; 31] = [
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
        "{AT}: there is no boundary {0:?}; expected \"before\" or \"after\", one of {calls}, and perhaps \"#2\"",
        calls = CALLS.join(", ")
    )]
    Unknown(String),
    #[error("{LOG}: {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
}

/// The crash points of this process. Inactive unless the environment sets one of the variables.
#[derive(Debug, Default)]
pub struct CrashPoints {
    at: Option<CrashPoint>,
    log: Option<File>,
    from: Option<PathBuf>,
    counts: Mutex<BTreeMap<Boundary, u32>>,
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

    /// Wraps the engine and the journal, with boundaries around each call.
    pub fn wrap_dependencies<J: Journal>(
        self: &Arc<Self>,
        dependencies: Dependencies<J>,
    ) -> Dependencies<impl Journal + use<J>> {
        let Dependencies { engine, engine_guest, images, condition, engine_sockets, journal, listener } = dependencies;
        let (engine, journal) = (ports::engine(self, engine), ports::journal(self, journal));
        Dependencies { engine, engine_guest, images, condition, engine_sockets, journal, listener }
    }

    /// Wraps the other ports of the core, with boundaries around each call.
    pub fn wrap_world(self: &Arc<Self>, world: World) -> World {
        World {
            directories: ports::directories(self, world.directories),
            slots: ports::slots(self, world.slots),
            ..world
        }
    }

    fn reach(&self, side: Side, call: &'static str) {
        debug_assert!(CALLS.contains(&call), "{call} is not among the calls");
        if (self.at.is_none() && self.log.is_none()) || self.from.as_ref().is_some_and(|file| !file.exists()) {
            return;
        }
        // The lock is held to the end, so that no other boundary is reached meanwhile.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let boundary = Boundary { side, call };
        let times = counts.entry(boundary).or_default();
        *times += 1;
        let point = CrashPoint { boundary, times: *times };
        if let Some(mut log) = self.log.as_ref() {
            // One write, so that a line is complete or absent.
            let _ = log.write_all(format!("{point}\n").as_bytes());
        }
        if self.at == Some(point) {
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
    call: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CrashPoint {
    boundary: Boundary,
    /// Counted from 1.
    times: u32,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.boundary.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(f, "{side} {}#{}", self.boundary.call, self.times)
    }
}

impl FromStr for CrashPoint {
    type Err = InvalidCrashPoint;

    fn from_str(text: &str) -> Result<Self, InvalidCrashPoint> {
        let parse = || {
            let (boundary, times) = text.split_once('#').unwrap_or((text, "1"));
            let (side, call) = boundary.split_once(' ')?;
            let side = match side {
                "before" => Side::Before,
                "after" => Side::After,
                _ => return None,
            };
            let call = CALLS.into_iter().find(|known| *known == call)?;
            let times = times.parse().ok().filter(|times| *times > 0)?;
            Some(CrashPoint { boundary: Boundary { side, call }, times })
        };
        parse().ok_or_else(|| InvalidCrashPoint::Unknown(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_point_is_displayed_as_it_is_parsed() {
        for text in ["before engine.create#1", "after journal.commit#12"] {
            assert_eq!(text.parse::<CrashPoint>().unwrap().to_string(), text);
        }
        assert_eq!("after engine.remove".parse::<CrashPoint>().unwrap().to_string(), "after engine.remove#1");
    }

    #[test]
    fn an_unknown_boundary_is_refused_by_name() {
        for text in ["", "engine.create", "during engine.create", "after engine.explode", "after engine.start#0"] {
            let variables = [(AT.into(), text.into())];
            let error = CrashPoints::from_environment(variables).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("engine.create"), "{error}");
        }
    }

    #[test]
    fn crash_points_are_counted_from_the_given_moment() {
        let directory = tempfile::tempdir().unwrap();
        let (log, from) = (directory.path().join("log"), directory.path().join("from"));
        let variables = [(LOG.into(), log.clone().into()), (FROM.into(), from.clone().into())];
        let points = CrashPoints::from_environment(variables).unwrap();
        points.reach(Side::Before, "engine.start");
        std::fs::write(from, "").unwrap();
        for _ in 0..2 {
            points.reach(Side::Before, "engine.start");
        }
        points.reach(Side::After, "engine.start");
        let logged = std::fs::read_to_string(log).unwrap();
        assert_eq!(logged, "before engine.start#1\nbefore engine.start#2\nafter engine.start#1\n");
    }
}
