//! The examples do what they say.

mod support;

#[path = "../examples/basic.rs"]
#[allow(dead_code, unreachable_pub, reason = "its main is not called here")]
mod basic;
#[path = "../examples/batch.rs"]
#[allow(dead_code, unreachable_pub, reason = "its main is not called here")]
mod batch;

#[test]
fn basic_runs() {
    basic::run(&support::address(&support::start())).unwrap();
}

#[test]
fn batch_runs() {
    batch::run(&support::address(&support::start())).unwrap();
}
