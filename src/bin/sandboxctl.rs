//! The client for people and scripts; everything is in the library.

use std::process::ExitCode;

use clap::Parser;
use sandboxd::cli::{self, Arguments};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    cli::run(Arguments::parse()).await
}
