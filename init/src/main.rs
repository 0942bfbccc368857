//! sandbox-init: the first process of a sandbox.
//!
//! `sandbox-init [PROGRAM [ARGUMENT...]]` starts the image's own program, hands on the signals it gets, reaps what nobody
//! else waits for, and exits as the program does. Told to wait, it starts the program once it is bound. Beside it, it does what the service asks for: see
//! [`sandbox_init::wire`]. Without a program it only does that.
//!
//! One thread, one `epoll`: however many processes the sandbox has used up, what needs no new one still works. The service
//! is trusted; everything else in the sandbox is not, and can neither read this process nor, as it is the first, kill it.

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
        eprintln!("sandbox-init: the secret stays in the environment of this process: {error}");
    }
    // No other process of the sandbox reads the memory or the descriptors of this process, or traces it.
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

/// What this process was told in its environment and nobody else is.
pub(crate) const OWN_VARIABLES: [&str; 3] = [SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE];
