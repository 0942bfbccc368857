//! sandbox-init: the first process of a sandbox.
//!
//! `sandbox-init [PROGRAM [ARGUMENT...]]` starts the image's own program, forwards signals to it, reaps orphans, and
//! exits as the program does. With [`WAIT_VARIABLE`] set, init starts the program only once the sandbox is bound.
//! Beside the program, init serves the requests of the service: see [`sandbox_init::wire`]. Without a program, it only
//! serves requests.
//!
//! Init has one thread and one `epoll`. A request that needs no new process therefore works even when the sandbox has
//! used up its process limit. Init trusts the service. It trusts no other process of the sandbox: no such process can
//! read init's memory, and none can kill init, because init is pid 1.

mod budget;
mod command;
mod event_loop;
mod files;
mod link;
mod moving;
mod output_buffer;
mod poll;
mod process_tree;
mod program;
mod signals;
mod stream;
mod stream_socket;
mod terminal;
mod trees;
mod usage;

use std::process::ExitCode;

use program::Program;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sandbox_init::own_process;
use sandbox_init::wire::{SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE};

fn main() -> ExitCode {
    let address = link::Address::from_environment();
    if let Err(error) = own_process::wipe_variable(SECRET_VARIABLE) {
        eprintln!("sandbox-init: cannot remove the secret from the environment of this process: {error}");
    }
    // No other process of the sandbox may trace this process, or read its memory or descriptors.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let waits = std::env::var_os(WAIT_VARIABLE).is_some();
    let program = Program::new(std::env::args_os().skip(1).collect(), waits);
    match event_loop::run(address, program) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sandbox-init: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// The environment variables that only init may see.
pub(crate) const OWN_VARIABLES: [&str; 3] = [SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE];
