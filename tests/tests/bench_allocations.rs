//! The bench makes no allocation per operation: a run of twice as many operations makes no more of them. The server is
//! another process, so that driver, verification and client are all that counts.

use std::alloc::System;
use std::time::Duration;

use sidestep_bench::driver::{Arrivals, Drive, Plan, load, run};
use sidestep_bench::target::{ServerAddress, Sidestep, Target};
use sidestep_bench::workload::Workload;
use sidestep_tests::process::ServerProcess;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Operations of the shorter run. Buffers have their final size by then.
const OPERATIONS: u64 = 10_000;
/// Allocations by which two runs of the same kind may differ: names, threads, what the standard library keeps.
const SLACK: u64 = 200;

/// Allocations of a run of so many operations, of all threads.
fn allocations(target: &dyn Target, workload: &Workload, drive: Drive, operations: u64) -> u64 {
    let plan = Plan {
        drive,
        warm_up: Duration::ZERO,
        measure: Duration::from_secs(60),
        operations: Some(operations),
        rate: None,
        arrivals: Arrivals::Poisson,
        seed: 1,
        companion: None,
    };
    let region = Region::new(ALLOCATOR);
    let run = run(target, workload, &plan).expect("every value is right");
    assert!(run.tally.operations >= operations);
    let change = region.change();
    (change.allocations + change.reallocations) as u64
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn no_allocation_per_operation() {
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB"]);
    let address = ServerAddress { address: server.address().to_owned(), ..ServerAddress::default() };
    let window = Drive { threads: 1, connections: 4, depth: 16, batch: 1 };
    for name in ["kv64", "c", "b", "f"] {
        let workload = Workload { records: 2000, ..Workload::preset(name).expect("a preset") };
        for path in ["shm", "tcp"] {
            let target = Sidestep::connect(&address, path).expect("it is offered");
            load(&target, &workload, 0..workload.records, 1, &|_| ()).expect("loaded");
            for drive in [Drive::calls(1), Drive::calls(2), Drive { batch: 64, ..Drive::calls(1) }, window] {
                let once = allocations(&target, &workload, drive, OPERATIONS);
                let twice = allocations(&target, &workload, drive, 2 * OPERATIONS);
                println!("{name}, {path}, {}: {once}, {twice}", drive.label());
                assert!(twice <= once + SLACK, "{name}, {path}, {}: {once}, then {twice}", drive.label());
            }
        }
    }
}
