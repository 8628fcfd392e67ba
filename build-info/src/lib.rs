//! Which build this is: version, commit, compiler, features. Said once, by `--version`, the statistics and the metrics.

#![forbid(unsafe_code)]

/// Version of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The git commit that was checked out, with `-dirty` if files differed from it; `unknown` in a debug build, or outside
/// of a repository unless `SIDESTEP_COMMIT` was set when it was built.
pub const COMMIT: &str = env!("SIDESTEP_COMMIT");
/// Version of the compiler.
pub const RUSTC: &str = env!("SIDESTEP_RUSTC");

macro_rules! line {
    ($features:literal) => {
        concat!(
            env!("CARGO_PKG_VERSION"),
            " (commit ",
            env!("SIDESTEP_COMMIT"),
            ", rustc ",
            env!("SIDESTEP_RUSTC"),
            ", features: ",
            $features,
            ")"
        )
    };
}

/// Features by which builds of a program differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The RDMA paths.
    pub rdma: bool,
}

impl Features {
    /// Their names, separated by commas; `none`.
    pub const fn names(self) -> &'static str {
        if self.rdma { "rdma" } else { "none" }
    }

    /// One line for `--version`.
    pub const fn line(self) -> &'static str {
        if self.rdma { line!("rdma") } else { line!("none") }
    }

    /// The same in parts, by name.
    pub const fn facts(self) -> [(&'static str, &'static str); 4] {
        [("version", VERSION), ("commit", COMMIT), ("rustc", RUSTC), ("features", self.names())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_every_fact() {
        for features in [Features { rdma: true }, Features { rdma: false }] {
            for (name, fact) in features.facts() {
                assert!(!fact.is_empty() && features.line().contains(fact), "{name}");
            }
        }
        assert!(RUSTC.starts_with("1."), "{RUSTC}");
    }
}
