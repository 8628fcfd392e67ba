//! Finds out the commit and the compiler.
//!
//! `SIDESTEP_COMMIT` in the environment wins: a build from an archive or in a container has no repository. Otherwise only
//! a release build asks git: while code is worked on, each commit would have every crate above compiled again.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SIDESTEP_COMMIT");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = std::env::var("SIDESTEP_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| if is_release { of_git() } else { None });
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    println!("cargo::rustc-env=SIDESTEP_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=SIDESTEP_RUSTC={}", version(&compiler).as_deref().unwrap_or("unknown"));
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// `rustc 1.95.0 (hash date)` → `1.95.0`.
fn version(compiler: &str) -> Option<String> {
    output(compiler, &["--version"])?.split(' ').nth(1).map(str::to_owned)
}

/// The commit, and `-dirty` behind it where tracked files differ from it at this moment.
fn of_git() -> Option<String> {
    // Written at each commit, checkout and staging; paths in it count from this package.
    for path in ["logs/HEAD", "index"] {
        println!("cargo::rerun-if-changed={}", output("git", &["rev-parse", "--git-path", path])?);
    }
    output("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
}
