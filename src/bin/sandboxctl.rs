//! `sandboxctl`, the command line client. The code is in [`sandboxd::cli`].

use std::process::ExitCode;

use clap::Parser;
use sandboxd::cli::{self, Arguments};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    cli::run(Arguments::parse()).await
}
