//! What libFuzzer drives: the target that `SIDESTEP_FUZZ_TARGET` names. `scripts/fuzz` builds and starts it.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sidestep_fuzz::{TARGETS, Target};

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("SIDESTEP_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names = TARGETS.map(|target| target.name).join(", ");
        panic!("SIDESTEP_FUZZ_TARGET: expected one of {names}, found {name:?}")
    })
}

fuzz_target!(|bytes: &[u8]| TARGET.get_or_init(chosen).check(bytes));
