//! Tests of the whole core through its API, on an engine in memory: faults, races and long times that a real engine
//! cannot show.

mod adoption;
mod clock_steps;
mod concurrency;
mod creating;
mod crowding;
mod deleting;
mod failing_engine;
mod hanging_engine;
mod limits;
mod listing;
mod pausing;
mod pools;
mod purging;
mod races;
mod readiness;
mod shutdown;
mod supervision;
mod support;
mod taken_name;
