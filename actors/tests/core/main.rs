//! The core as a whole, from its callers' side, on an engine in memory: for the faults, the races and the hours that a
//! real engine cannot show.

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
