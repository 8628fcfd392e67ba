//! Logical threads that take turns: real ones, of which one at a time holds the baton.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// What a logical thread does.
pub type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

/// What a run was like; the same for the same seed and tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Points at which the baton could change hands.
    pub steps: u64,
    /// Digest of who held the baton when.
    pub schedule: u64,
}

/// A thread that holds the baton so long without a step waits for something that only another could do.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Unwinds the other threads once one has panicked.
struct Abandoned;

struct State {
    /// Who holds the baton; the number of threads when nobody is left.
    turn: usize,
    alive: Vec<bool>,
    /// Of being next; 0 = paused for now, whatever others do meanwhile.
    weights: Vec<u32>,
    redraw_in: u32,
    random: Xoshiro256PlusPlus,
    report: Report,
    failure: Option<(usize, u64, Box<dyn Any + Send>)>,
}

struct Baton {
    state: Mutex<State>,
    changed: Vec<Condvar>,
}

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Baton>, usize)>> = const { RefCell::new(None) };
}

/// Runs the tasks as logical threads until all are done, switching at every [`step`] as the seed has it.
///
/// Threads must not wait for one another in any other way than by looping over [`step`]: the one that is waited
/// for does not run meanwhile. (A lock that several of them contend for is taken with a
/// try-lock and a step.)
///
/// # Panics
/// When a task panics, the others are unwound at their next step and this panics with seed, thread and step.
pub fn run(seed: u64, tasks: Vec<Task<'_>>) -> Report {
    let count = tasks.len();
    let baton = Arc::new(Baton {
        state: Mutex::new(State {
            turn: count,
            alive: vec![true; count],
            weights: vec![1; count],
            redraw_in: 0,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            report: Report { steps: 0, schedule: 0 },
            failure: None,
        }),
        changed: (0..count).map(|_| Condvar::new()).collect(),
    });
    baton.lock().pick();
    std::thread::scope(|scope| {
        for (id, task) in tasks.into_iter().enumerate() {
            let baton = Arc::clone(&baton);
            scope.spawn(move || baton.live(id, task));
        }
    });
    let mut state = baton.lock();
    if let Some((id, step, payload)) = state.failure.take() {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        match text.or_else(|| payload.downcast_ref::<String>().cloned()) {
            Some(text) => panic!("seed {seed}, logical thread {id}, step {step}: {text}"),
            None => resume_unwind(payload),
        }
    }
    state.report
}

/// A point at which another logical thread may go on. Nothing on a thread that is none, or is unwinding.
pub fn step() {
    if std::thread::panicking() {
        return;
    }
    let current = CURRENT.with_borrow(Clone::clone);
    if let Some((baton, id)) = current {
        baton.step(id);
    }
}

impl State {
    /// Gives the baton to one of the living.
    fn pick(&mut self) {
        if self.redraw_in == 0 {
            // Uniform turns alone would never leave one thread far behind the others.
            for weight in &mut self.weights {
                *weight = [0, 1, 4, 32][self.random.random_range(0..4)];
            }
            self.redraw_in = 1 << self.random.random_range(2..9);
        }
        self.redraw_in -= 1;
        let living = || (0..self.alive.len()).filter(|id| self.alive[*id]);
        let total: u32 = living().map(|id| self.weights[id]).sum();
        let next = if total == 0 {
            let nth = self.random.random_range(0..living().count().max(1));
            living().nth(nth)
        } else {
            let mut ticket = self.random.random_range(0..total);
            living().find(|id| {
                let mine = ticket < self.weights[*id];
                ticket = ticket.saturating_sub(self.weights[*id]);
                mine
            })
        };
        self.turn = next.unwrap_or(self.alive.len());
        self.report.schedule =
            (self.report.schedule ^ self.turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(self: Arc<Self>, id: usize, task: Task<'_>) {
        CURRENT.set(Some((Arc::clone(&self), id)));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.wait(id, self.lock());
            task();
        }));
        CURRENT.set(None);
        let mut state = self.lock();
        state.alive[id] = false;
        if let Err(payload) = outcome
            && !payload.is::<Abandoned>()
            && state.failure.is_none()
        {
            let step = state.report.steps;
            state.failure = Some((id, step, payload));
        }
        self.pass(&mut state);
    }

    fn pass(&self, state: &mut State) {
        state.pick();
        if let Some(next) = self.changed.get(state.turn) {
            next.notify_one();
        }
    }

    fn step(&self, id: usize) {
        let mut state = self.lock();
        state.report.steps += 1;
        self.pass(&mut state);
        self.wait(id, state);
    }

    /// Until it is this thread's turn.
    fn wait(&self, id: usize, mut state: MutexGuard<'_, State>) {
        while state.turn != id {
            let (holder, steps) = (state.turn, state.report.steps);
            let (woken, timeout) =
                self.changed[id].wait_timeout(state, STUCK_AFTER).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            let stuck = timeout.timed_out() && (state.turn, state.report.steps) == (holder, steps);
            assert!(!stuck, "logical thread {holder} is stuck: it waits for a thread that is not running");
        }
        if state.failure.is_some() {
            drop(state);
            resume_unwind(Box::new(Abandoned));
        }
    }
}
