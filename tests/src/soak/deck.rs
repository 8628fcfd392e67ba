//! What happens to a server and its clients.

use std::time::Duration;

use rand::Rng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A client process is killed, and another one started.
    ClientKilled,
    /// The server is stopped for so long.
    ServerStopped(Duration),
    /// The server is killed and started again.
    ServerKilled,
    /// The server is asked to end and started again.
    ServerRestarted,
}

/// The events of a round in their order.
pub(super) fn shuffled(random: &mut Xoshiro256PlusPlus) -> Vec<Event> {
    let mut deck = vec![Event::ClientKilled; 3];
    deck.extend((0..2).map(|_| Event::ServerStopped(Duration::from_millis(random.random_range(10..500)))));
    deck.extend([Event::ServerKilled, Event::ServerKilled]);
    if random.random() {
        deck.push(Event::ServerRestarted);
    }
    deck.shuffle(random);
    deck
}
