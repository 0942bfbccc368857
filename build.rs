//! Builds sandbox-init as a static program, so that it runs in any image, and leaves it where it can be embedded.
//!
//! Cargo cannot yet make a package's program a dependency, so it is asked a second time, with a directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = variable("TARGET");
    for path in ["init/src", "init/Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }

    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--package=sandbox-init",
            "--bin=sandbox-init",
            "--profile=init",
            "--locked",
            "--target",
            &target,
        ])
        .arg("--target-dir")
        .arg(out.join("init"))
        // What this build was told about itself does not concern that one.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    let status = cargo.status().expect("cargo, which has just started this, can be started");
    assert!(status.success(), "sandbox-init was not built");

    let program = out.join("init").join(&target).join("init/sandbox-init");
    assert!(is_static(&program), "{} needs a loader or libraries that an image may not have", program.display());
    println!("cargo::rustc-env=SANDBOX_INIT={}", program.display());
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Whether the program names no loader: no header of its is of the type `PT_INTERP`.
fn is_static(program: &Path) -> bool {
    let bytes = std::fs::read(program).expect("the program was just built");
    let number = |at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (table, entry, entries) = (number(32, 8), number(54, 2), number(56, 2));
    (0..entries).all(|index| number(table + index * entry, 4) != 3)
}
