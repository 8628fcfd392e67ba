//! The checker against histories that are known to be good or broken, and against a search without any cleverness.

use proptest::prelude::*;

use super::checker::check;
use super::operation::{Did, MALFORMED, Operation};
use super::register::{State, Vanishing};

fn at(client: u32, start: u64, end: u64, did: Did) -> Operation {
    Operation { client, key: 7, start, end, did, ttl: None }
}

fn put(version: u64) -> Did {
    Did::Put { value: version * 100, expect: None, version }
}

fn swap(expect: u64, version: u64, value: u64) -> Did {
    Did::Put { value, expect: Some(expect), version }
}

fn found(version: u64) -> Did {
    Did::Found { version, value: version * 100 }
}

const GONE: Did = Did::Deleted { expect: None };

/// Not linearizable, and each with the last operation as the culprit.
fn broken() -> Vec<(&'static str, Vec<Operation>)> {
    let one = at(0, 10, 20, put(1));
    let two = at(0, 30, 40, put(2));
    vec![
        ("a stale read", vec![one, two, at(1, 50, 60, found(1))]),
        ("a stale absence", vec![one, at(1, 30, 40, Did::Absent)]),
        (
            "a lost acknowledged insert",
            vec![one, at(0, 30, 40, GONE), at(0, 50, 60, put(5)), at(1, 70, 80, Did::Absent)],
        ),
        ("a lost update", vec![one, at(1, 30, 40, swap(1, 2, 7)), at(2, 50, 60, swap(1, 2, 8))]),
        ("a value that nobody wrote", vec![one, at(1, 30, 40, Did::Found { version: 1, value: 101 })]),
        ("torn bytes", vec![one, at(1, 30, 40, Did::Found { version: 1, value: MALFORMED })]),
        ("a read from the future", vec![at(1, 1, 5, found(1)), one]),
        (
            "new, then old, between two readers",
            vec![one, at(0, 30, 90, put(2)), at(1, 40, 50, found(2)), at(2, 60, 70, found(1))],
        ),
        ("there, then not yet", vec![at(0, 10, 90, put(1)), at(1, 20, 30, found(1)), at(2, 40, 50, Did::Absent)]),
        (
            "a compare-and-put that succeeds twice",
            vec![one, at(1, 30, 60, swap(1, 2, 7)), at(2, 35, 70, swap(1, 2, 8))],
        ),
        ("two inserts that both found it absent", vec![at(1, 10, 40, swap(0, 1, 7)), at(2, 15, 50, swap(0, 2, 8))]),
        ("a deleted value that comes back", vec![one, at(0, 30, 40, GONE), at(1, 50, 60, found(1))]),
        (
            "a delete that is undone and then done",
            vec![one, at(0, 30, 90, GONE), at(1, 40, 50, Did::Absent), at(2, 60, 70, found(1))],
        ),
        ("two deletes of one item", vec![one, at(1, 30, 60, GONE), at(2, 35, 70, GONE)]),
        ("a version given twice", vec![one, at(0, 30, 40, GONE), at(0, 50, 60, put(1))]),
        ("a version that goes back", vec![at(0, 10, 20, put(5)), at(0, 30, 40, GONE), at(0, 50, 60, put(4))]),
        ("a write applied twice", vec![one, at(0, 30, 40, put(3))]),
        ("a refusal of the version that is there", vec![one, at(1, 30, 40, Did::Mismatch { expect: 1, found: 1 })]),
        ("a refusal that names an old version", vec![one, two, at(1, 50, 60, Did::Mismatch { expect: 9, found: 1 })]),
        ("a delete that found nothing", vec![one, at(1, 30, 40, Did::DeletedNothing)]),
        (
            "an unknown write seen before it began",
            vec![
                at(1, 1, 5, Did::Found { version: 1, value: 9 }),
                at(0, 10, 20, Did::PutUnknown { value: 9, expect: None }),
            ],
        ),
        (
            "an unknown write that took effect twice",
            vec![
                at(0, 10, 20, Did::PutUnknown { value: 9, expect: None }),
                at(1, 30, 40, Did::Found { version: 1, value: 9 }),
                at(1, 50, 60, GONE),
                at(1, 70, 80, Did::Found { version: 1, value: 9 }),
            ],
        ),
        (
            "an unknown delete that took effect twice",
            vec![
                one,
                at(0, 30, 40, Did::DeleteUnknown { expect: None }),
                at(1, 50, 60, Did::Absent),
                at(1, 70, 80, put(4)),
                at(1, 90, 99, Did::Absent),
            ],
        ),
    ]
}

/// Linearizable, if only just.
fn good() -> Vec<(&'static str, Vec<Operation>)> {
    let one = at(0, 10, 20, put(1));
    vec![
        ("nothing", vec![]),
        ("a read beside a write: old", vec![one, at(0, 30, 90, put(2)), at(1, 40, 50, found(1))]),
        ("a read beside a write: new", vec![one, at(0, 30, 90, put(2)), at(1, 40, 50, found(2))]),
        (
            "two readers, each of which began before the other ended",
            vec![one, at(0, 30, 90, put(2)), at(1, 40, 65, found(2)), at(2, 60, 70, found(1))],
        ),
        (
            "a delete and an insert beside each other",
            vec![one, at(1, 30, 90, GONE), at(2, 30, 90, put(5)), at(3, 40, 50, Did::Absent), at(3, 60, 70, found(5))],
        ),
        (
            "a delete beside an update, either order",
            vec![one, at(1, 30, 90, GONE), at(2, 30, 90, put(2)), at(3, 95, 99, Did::Absent)],
        ),
        (
            "an unknown write that was never done",
            vec![one, at(0, 30, 40, Did::PutUnknown { value: 9, expect: None }), at(1, 50, 60, found(1))],
        ),
        (
            "an unknown write that is done much later",
            vec![
                one,
                at(0, 30, 40, Did::PutUnknown { value: 9, expect: None }),
                at(1, 50, 60, found(1)),
                at(1, 70, 80, Did::Found { version: 2, value: 9 }),
            ],
        ),
        (
            "an unknown insert whose version another write tells",
            vec![
                at(0, 10, 20, Did::PutUnknown { value: 9, expect: Some(0) }),
                at(1, 30, 40, Did::Mismatch { expect: 3, found: 12 }),
                at(1, 50, 60, put(13)),
            ],
        ),
        (
            "an unknown delete between two writes",
            vec![
                one,
                at(0, 30, 40, Did::DeleteUnknown { expect: Some(1) }),
                at(1, 50, 60, found(1)),
                at(1, 70, 80, swap(0, 9, 7)),
            ],
        ),
        (
            "a refusal of what was there a moment ago",
            vec![
                one,
                at(0, 30, 90, put(2)),
                at(1, 35, 60, Did::Mismatch { expect: 2, found: 1 }),
                at(2, 55, 80, Did::Mismatch { expect: 1, found: 2 }),
            ],
        ),
    ]
}

#[test]
fn broken_histories_are_found() {
    for (what, history) in broken() {
        let violations = check(&history).expect_err(what);
        assert_eq!(violations.len(), 1, "{what}");
        let violation = &violations[0];
        assert!(!violation.gave_up && violation.window.contains(&violation.culprit), "{what}: {violation}");
        assert!(check(&violation.window).is_err() || violation.window.len() < history.len(), "{what}: {violation}");
    }
}

#[test]
fn good_histories_pass() {
    for (what, history) in good() {
        check(&history).unwrap_or_else(|violations| panic!("{what}: {}", violations[0]));
    }
}

/// One broken key among good ones, far into a history: found, named, and shown in a small window.
#[test]
fn the_window_is_small() {
    let mut history = Vec::new();
    for key in 0..20 {
        for i in 0..500u64 {
            let mut add = |client, start, end, did| history.push(Operation { client, key, start, end, did, ttl: None });
            add(0, i * 10, i * 10 + 5, put(i + 1));
            add(1, i * 10 + 3, i * 10 + 8, found(i + 1));
            add(2, i * 10 + 6, i * 10 + 9, Did::Mismatch { expect: 999_999, found: i + 1 });
        }
    }
    check(&history).unwrap();
    let broken = Operation { client: 3, key: 13, start: 2507, end: 2510, did: found(249), ttl: None };
    history.push(broken);
    let violations = check(&history).unwrap_err();
    assert_eq!((violations.len(), violations[0].key, violations[0].culprit), (1, 13, broken));
    assert!(violations[0].window.len() <= 3, "{}", violations[0]);
}

/// Whether some order of these operations explains them, by trying all.
fn brute(left: &[Operation], state: State) -> bool {
    let must = |operation: &&Operation| operation.did.is_certain();
    let Some(first_end) = left.iter().filter(must).map(|operation| operation.end).min() else { return true };
    (0..left.len()).any(|i| {
        let others: Vec<Operation> = left.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, o)| *o).collect();
        let may_be_first = left[i].start <= first_end;
        may_be_first && state.after(&left[i]).is_some_and(|after| brute(&others, after))
    })
}

fn did() -> impl Strategy<Value = Did> {
    let expect = || prop_oneof![3 => Just(None), 1 => (0u64..4).prop_map(Some)];
    prop_oneof![
        3 => (1u64..5, 0u64..3).prop_map(|(version, value)| Did::Found { version, value }),
        2 => Just(Did::Absent),
        5 => (0u64..3, expect(), 1u64..5).prop_map(|(value, expect, version)| Did::Put { value, expect, version }),
        1 => (0u64..3, expect()).prop_map(|(value, expect)| Did::PutUnknown { value, expect }),
        1 => (0u64..4, 0u64..4).prop_map(|(expect, found)| Did::Mismatch { expect, found }),
        2 => expect().prop_map(|expect| Did::Deleted { expect }),
        1 => Just(Did::DeletedNothing),
        1 => expect().prop_map(|expect| Did::DeleteUnknown { expect }),
    ]
}

fn histories() -> impl Strategy<Value = Vec<Operation>> {
    let operation = (did(), 0u64..20, 0u64..20).prop_map(|(did, start, length)| at(0, start, start + length, did));
    proptest::collection::vec(operation, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn the_search_agrees_with_trying_all(history in histories()) {
        prop_assert_eq!(check(&history).is_ok(), brute(&history, State::new(Vanishing::default())));
    }

    /// Histories that come from a register, each operation done at a moment of its own: all good.
    #[test]
    fn what_a_register_does_is_linearizable(
        steps in proptest::collection::vec((0u8..6, 0u64..4, 0u64..30, 0u64..30, any::<bool>()), 1..80)
    ) {
        let (mut version, mut newest, mut value) = (0, 0, 0);
        let mut history = Vec::new();
        for (i, (what, guess, before, after, answered)) in steps.into_iter().enumerate() {
            let number = i as u64;
            let expect = (what == 2).then_some(guess);
            let did = match what {
                2 if guess != version => Did::Mismatch { expect: guess, found: version },
                0..=2 => {
                    version = if version == 0 { newest + 1 } else { version + 1 };
                    (newest, value) = (version, number);
                    if answered { Did::Put { value, expect, version } } else { Did::PutUnknown { value, expect } }
                }
                3 if version == 0 => Did::DeletedNothing,
                3 => {
                    version = 0;
                    if answered { Did::Deleted { expect: None } } else { Did::DeleteUnknown { expect: None } }
                }
                _ if version == 0 => Did::Absent,
                _ => Did::Found { version, value },
            };
            let moment = 30 + number * 10;
            history.push(at(0, moment - before, moment + after, did));
        }
        prop_assert!(check(&history).is_ok());
    }
}
