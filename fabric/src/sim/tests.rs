//! The simulator itself: that it is hostile enough, and the same again for the same seed.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sidestep_core::memory::{Memory, MemoryMut};

use super::*;

#[test]
fn without_threads_and_hooks_it_is_plain_memory() {
    let memory = SimMemory::new(16, 1);
    memory.store(1, 7);
    assert_eq!(memory.fetch_max(1, 5), 7);
    assert_eq!(memory.fetch_max(1, 9), 7);
    memory.write(2, b"nine bytes");
    let mut bytes = [0xff; 24];
    memory.read(1, &mut bytes);
    assert_eq!(&bytes, b"\x09\0\0\0\0\0\0\0nine bytes\0\0\0\0\0\0");
    assert_eq!((memory.stores(), memory.loads()), (4, 3));
}

#[test]
fn the_words_of_a_read_come_in_an_order_of_the_seed() {
    // The server stores a new round before every word that is sampled: the rounds tell the order.
    let order = |seed| {
        let memory = Arc::new(SimMemory::new(8, seed));
        let server = Arc::downgrade(&memory);
        memory.on_load(move |number| {
            let memory = server.upgrade().unwrap();
            (0..8).for_each(|word| memory.store(word, number));
        });
        let mut bytes = [0; 64];
        memory.read(0, &mut bytes);
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()
    };
    let orders: BTreeSet<_> = (0..50).map(order).collect();
    assert!(orders.len() > 40, "{} orders of 50", orders.len());
    assert!(orders.iter().all(|order| order.iter().collect::<BTreeSet<_>>().len() == 8));
    assert_eq!(order(3), order(3));
}

#[test]
fn a_hook_runs_before_every_store_and_may_read() {
    let memory = Arc::new(SimMemory::new(8, 1));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (reader, log) = (Arc::downgrade(&memory), Arc::clone(&seen));
    memory.on_store(move |number| {
        let memory = reader.upgrade().unwrap();
        log.lock().unwrap().push((number, memory.load(0)));
        // Its own stores run no hook.
        memory.store(7, number);
    });
    memory.store(0, 10);
    memory.fetch_max(0, 11);
    memory.write(0, &12u64.to_le_bytes());
    assert_eq!(*seen.lock().unwrap(), [(0, 0), (2, 10), (4, 11)]);
    memory.clear_hooks();
    memory.store(0, 13);
    assert_eq!(seen.lock().unwrap().len(), 3);
}

/// Stores while it is dropped, as a destructor of a server might.
struct Late<'a>(&'a SimMemory);

impl Drop for Late<'_> {
    fn drop(&mut self) {
        self.0.store(0, 99);
        self.0.write(0, &[99; 64]);
        self.0.fetch_max(0, u64::MAX);
    }
}

#[test]
fn a_kill_ends_the_server_at_any_store_and_nothing_comes_after() {
    for at in 0..=3 {
        let memory = SimMemory::new(8, at);
        memory.kill_at(at);
        let outcome = until_killed(|| {
            let late = Late(&memory);
            (0..3).for_each(|word| memory.store(word, word + 1));
            std::mem::forget(late);
        });
        assert_eq!(outcome, if at < 3 { Err(Killed) } else { Ok(()) });
        assert_eq!(memory.is_killed(), at < 3);
        for word in 0..3 {
            assert_eq!(memory.load(word), if word < at { word + 1 } else { 0 }, "killed at {at}");
        }
        if at < 3 {
            assert_eq!(until_killed(|| memory.store(5, 5)), Err(Killed), "another thread of the same server");
            memory.revive();
            memory.store(5, 5);
            assert_eq!(memory.load(5), 5);
        }
    }
}

#[test]
fn a_kill_leaves_any_part_of_a_write() {
    let mut parts = BTreeSet::new();
    for seed in 0..300 {
        let memory = SimMemory::new(4, seed);
        memory.kill_at(0);
        assert_eq!(until_killed(|| memory.write(0, &[0xff; 32])), Err(Killed));
        parts.insert((0..4).map(|word| memory.load(word) != 0).collect::<Vec<_>>());
    }
    assert_eq!(parts.len(), 16, "{parts:?}");
}

#[test]
fn other_panics_are_no_kills() {
    let caught = std::panic::catch_unwind(|| until_killed(|| std::panic::resume_unwind(Box::new("other"))));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"other"));
    assert_eq!(until_killed(|| kill()).map(|(): ()| ()), Err(Killed));
}

#[test]
fn storage_runs_out_and_unallocated_pages_are_found() {
    let memory = SimMemory::new(4 * 512, 1).with_storage(2 * 4096);
    memory.allocate(0, 4096).unwrap();
    memory.allocate(8, 8).unwrap();
    memory.store(511, 1);
    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| memory.store(512, 1)));
    assert!(panics(&|| memory.write(511, &[1; 16])));
    memory.allocate(3 * 512, 4096).unwrap();
    assert_eq!(memory.allocate(512, 8).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(memory.allocate(512, u64::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let copy = memory.copy(2);
    assert_eq!(copy.load(511), 1);
    copy.store(3 * 512, 1);
    assert!(panics(&|| copy.store(512, 1)));
    assert!(panics(&|| _ = memory.load(4 * 512)));
    assert!(panics(&|| memory.read(4 * 512 - 1, &mut [0; 16])));
}

/// One writer that fills 8 words, two readers; returns the run and what the readers saw.
fn writer_and_readers(seed: u64) -> (Report, Vec<Vec<u64>>) {
    let memory = SimMemory::new(8, seed);
    let seen = Mutex::new(Vec::new());
    let reader = || {
        for _ in 0..4 {
            let mut bytes = [0; 64];
            memory.read(0, &mut bytes);
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            seen.lock().unwrap().push(words);
        }
    };
    let report = run(
        seed,
        vec![
            Box::new(|| (1..9u64).for_each(|round| memory.write(0, &[round as u8; 64]))),
            Box::new(reader),
            Box::new(reader),
        ],
    );
    (report, seen.into_inner().unwrap())
}

#[test]
fn a_run_is_the_same_for_the_same_seed() {
    let runs: Vec<_> = (0..40).map(writer_and_readers).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, writer_and_readers(seed as u64), "seed {seed}");
    }
    let schedules: BTreeSet<_> = runs.iter().map(|(report, _)| report.schedule).collect();
    assert_eq!(schedules.len(), runs.len());
    let torn = runs.iter().flat_map(|(_, seen)| seen).filter(|words| words.iter().any(|word| *word != words[0]));
    assert!(torn.count() > 40, "reads must be torn by the writer");
}

#[test]
fn readers_fall_far_behind_and_get_far_ahead() {
    let (mut most, mut whole) = (0, 0);
    for seed in 0..200 {
        for words in writer_and_readers(seed).1 {
            let rounds = |word: &u64| word & 0xff;
            let low = words.iter().map(rounds).min().unwrap();
            most = most.max(words.iter().map(rounds).max().unwrap() - low);
            whole += u64::from(words.iter().all(|word| *word == words[0]));
        }
    }
    assert!(most >= 7, "one read saw at most {most} writes apart");
    assert!(whole > 50, "{whole} reads were whole");
}

#[test]
fn a_panic_names_the_seed_and_ends_the_others() {
    let stopped = AtomicU64::new(0);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(
            77,
            vec![
                Box::new(|| {
                    (0..10).for_each(|_| step());
                    panic!("found it");
                }),
                // Would go on for ever.
                Box::new(|| {
                    loop {
                        step();
                        stopped.fetch_add(1, Ordering::Relaxed);
                    }
                }),
            ],
        )
    }));
    let text = caught.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("seed 77, logical thread 0") && text.ends_with("found it"), "{text}");
}

#[test]
fn a_thread_killed_in_a_run_leaves_the_readers_running() {
    for seed in 0..50 {
        let memory = SimMemory::new(8, seed);
        memory.kill_at(5);
        let last = AtomicU64::new(0);
        run(
            seed,
            vec![
                Box::new(|| _ = until_killed(|| (1..100).for_each(|round| memory.store(0, round)))),
                Box::new(|| (0..50).for_each(|_| last.store(memory.load(0), Ordering::Relaxed))),
            ],
        );
        assert!(memory.is_killed() && memory.load(0) == 5 && last.load(Ordering::Relaxed) <= 5);
    }
}

#[test]
fn runs_of_none_and_steps_outside_are_nothing() {
    step();
    assert_eq!(run(1, Vec::new()).steps, 0);
}

proptest! {
    #[test]
    fn copies_agree_with_a_plain_model(
        seed in any::<u64>(),
        steps in prop::collection::vec((0u64..60, prop::collection::vec(any::<u8>(), 0..200), 0u64..60, 0usize..30), 1..20)
    ) {
        let memory = SimMemory::new(100, seed);
        let mut model = [0u8; 800];
        for (word, bytes, from, words) in steps {
            memory.write(word, &bytes);
            let start = word as usize * 8;
            model[start..start + bytes.len()].copy_from_slice(&bytes);
            model[start + bytes.len()..start + bytes.len().next_multiple_of(8)].fill(0);
            let mut got = vec![0; words * 8];
            memory.read(from, &mut got);
            prop_assert_eq!(&got[..], &model[from as usize * 8..][..words * 8]);
        }
    }
}
