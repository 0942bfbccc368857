//! Builds sandbox-init as a static program, so that it runs in any image, for embedding into the service.
//!
//! Cargo cannot yet depend on a package's program, so this script runs a second cargo with a separate target directory.

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
        // The settings of this build do not apply to the second one.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the build of sandbox-init failed");

    let program = out.join("init").join(&target).join("init/sandbox-init");
    assert!(is_static(&program), "{} is not static: an image may lack its loader or libraries", program.display());
    println!("cargo::rustc-env=SANDBOX_INIT={}", program.display());
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Returns whether the program has no loader: none of its program headers has the type `PT_INTERP`.
fn is_static(program: &Path) -> bool {
    let bytes = std::fs::read(program).expect("the program was just built");
    let number = |at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (table, entry, entries) = (number(32, 8), number(54, 2), number(56, 2));
    (0..entries).all(|index| number(table + index * entry, 4) != 3)
}
