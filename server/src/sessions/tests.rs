//! Who has a session, and what a repeat of a write gets.

use super::*;
use crate::access::Tokens;

const DONE: Outcome = Outcome { status: Status::Ok, version: 7 };

fn sessions() -> Sessions {
    Sessions::new(Duration::from_secs(60))
}

fn pass(secret: &str) -> Pass {
    Pass::of(format!("{secret} read-write {secret}").parse::<Tokens>().unwrap().iter().next())
}

/// Client 1, without a token.
fn attach(sessions: &Sessions, resume: bool, ticket: [u8; 16]) -> (Attached, bool) {
    sessions.attach(1, resume, ticket, Pass::of(None)).unwrap()
}

#[test]
fn a_session_goes_on_with_its_holder_alone() {
    let sessions = sessions();
    let (session, _) = sessions.attach(1, false, [1; 16], pass("a")).unwrap();
    for resume in [true, false] {
        assert!(sessions.attach(1, resume, [2; 16], pass("b")).unwrap_err().contains("another token"));
        assert!(sessions.attach(1, resume, [2; 16], Pass::of(None)).is_err());
    }
    assert_eq!(session.apply(1, || DONE), Applied::Now(DONE), "it is not disturbed");
    assert_eq!(sessions.pass_of(&[1; 16]).unwrap().name(), "a");
    assert!(sessions.pass_of(&[2; 16]).is_none());
    let (_again, resumed) = sessions.attach(1, true, [3; 16], pass("a")).unwrap();
    assert!(resumed);
}

#[test]
fn a_repeat_is_applied_once() {
    let sessions = sessions();
    let (session, resumed) = attach(&sessions, false, [1; 16]);
    assert!(!resumed);
    assert_eq!(session.apply(1, || DONE), Applied::Now(DONE));
    assert_eq!(session.apply(1, || unreachable!()), Applied::Before(DONE));
    assert_eq!(session.seen(1), Some(Applied::Before(DONE)));
    assert_eq!(session.seen(2), None);
}

#[test]
fn gaps_in_the_window_are_still_open_and_what_is_older_is_unknown() {
    let sessions = sessions();
    let (session, _) = attach(&sessions, false, [1; 16]);
    session.apply(300, || DONE);
    assert_eq!(session.apply(44, || DONE), Applied::Unknown);
    assert_eq!(session.apply(45, || DONE), Applied::Now(DONE));
    assert_eq!(session.apply(301, || DONE), Applied::Now(DONE));
    assert_eq!(session.apply(45, || DONE), Applied::Unknown);
    assert_eq!(session.apply(u64::MAX, || DONE), Applied::Now(DONE));
    assert_eq!(session.apply(u64::MAX, || DONE), Applied::Before(DONE));
}

#[test]
fn the_window_is_bounded_in_any_order_of_sequences() {
    let mut window = Window::default();
    let mut state = 1_u64;
    for step in 1..20_000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sequence = step.saturating_sub(state >> 56).max(1);
        if window.seen(sequence).is_none() {
            window.remember(sequence, DONE);
            assert_eq!(window.seen(sequence), Some(Applied::Before(DONE)));
        }
        assert!(window.outcomes.len() <= 2 * MAX_WRITES_IN_FLIGHT);
    }
}

#[test]
fn a_resumed_session_keeps_its_window_and_leaves_its_old_connection() {
    let sessions = sessions();
    let (old, _) = attach(&sessions, false, [1; 16]);
    old.apply(1, || DONE);
    let (new, resumed) = attach(&sessions, true, [2; 16]);
    assert!(resumed);
    assert_eq!(new.ticket(), [1; 16]);
    assert_eq!(old.apply(2, || unreachable!()), Applied::Superseded);
    drop(old);
    sessions.sweep(Instant::now() + Duration::from_secs(61));
    assert_eq!(new.apply(1, || unreachable!()), Applied::Before(DONE));
    assert_eq!(sessions.len(), 1);
}

#[test]
fn a_session_without_a_connection_ends_with_its_ticket() {
    let sessions = sessions();
    let (session, _) = attach(&sessions, false, [1; 16]);
    assert!(!sessions.needs_sweep());
    drop(session);
    sessions.sweep(Instant::now() + Duration::from_secs(59));
    assert!(sessions.pass_of(&[1; 16]).is_some() && sessions.needs_sweep());
    sessions.sweep(Instant::now() + Duration::from_secs(61));
    assert!(sessions.pass_of(&[1; 16]).is_none() && !sessions.needs_sweep());
    assert_eq!(sessions.len(), 0);
    let (_again, resumed) = attach(&sessions, true, [3; 16]);
    assert!(!resumed);
}

#[test]
fn a_new_session_of_the_same_client_forgets_the_old_one() {
    let sessions = sessions();
    let (old, _) = attach(&sessions, false, [1; 16]);
    old.apply(1, || DONE);
    let (new, resumed) = attach(&sessions, false, [2; 16]);
    assert!(!resumed && sessions.pass_of(&[1; 16]).is_none());
    assert_eq!(new.apply(1, || DONE), Applied::Now(DONE));
}

#[test]
fn a_repeat_of_a_write_in_progress_waits_for_it() {
    let sessions = sessions();
    let (old, _) = attach(&sessions, false, [1; 16]);
    let (started, wait) = std::sync::mpsc::channel();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            old.apply(1, || {
                started.send(()).unwrap();
                gate.recv().unwrap();
                DONE
            })
        });
        wait.recv().unwrap();
        let repeat = scope.spawn(|| {
            let (new, _) = attach(&sessions, true, [2; 16]);
            new.apply(1, || unreachable!())
        });
        go_on.send(()).unwrap();
        assert_eq!(repeat.join().unwrap(), Applied::Before(DONE));
    });
}
