//! On real verbs: both ends in this process. Needs a device: `scripts/guest`.

mod not_ready;
mod pull;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::memory::{Memory, MemoryMut};

use super::super::DeviceChoice;
use super::*;

fn port() -> Port {
    Port::find(&DeviceChoice::Auto, IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a device")
}

fn exchange(port: &Port, channels: u32, receives: u16) -> Exchange {
    let domain = Domain::new(port.device()).unwrap();
    Exchange::new(&domain, port, channels, receives).unwrap()
}

/// A channel between two exchanges, each end with a tag.
fn connect(a: &mut Exchange, b: &mut Exchange, tags: (usize, usize)) -> (Channel, Channel) {
    let (of_a, end_a) = a.open(tags.0, false).unwrap();
    let (of_b, end_b) = b.open(tags.1, false).unwrap();
    a.connect(&of_a, &end_b).unwrap();
    b.connect(&of_b, &end_a).unwrap();
    (of_a, of_b)
}

/// Does something until it is done.
fn until(what: &str, mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_done() {
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::yield_now();
    }
}

/// One side of a random conversation.
struct Side {
    exchange: Exchange,
    channel: Channel,
    bytes: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
}

impl Side {
    fn step(&mut self, random: &mut Xoshiro256PlusPlus) {
        self.exchange.poll(|tag| assert_eq!(tag, 7)).unwrap();
        if self.sent < self.bytes.len() {
            let longest = [1, 100, 220, 221, 4000, 100_000][random.random_range(0..6usize)];
            let end = (self.sent + random.random_range(1..=longest)).min(self.bytes.len());
            self.sent += self.exchange.send(&self.channel, &self.bytes[self.sent..end]).unwrap();
        }
        if random.random_bool(0.7) {
            let mut room = vec![0; random.random_range(1..20_000)];
            let received = self.exchange.receive(&self.channel, &mut room).unwrap();
            self.received.extend_from_slice(&room[..received]);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn streams_both_ways_are_what_was_sent() {
    let port = port();
    for (seed, receives) in [(1, (3, 3)), (2, (32, 16)), (3, (4, 32))] {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut exchanges = (exchange(&port, 1, receives.0), exchange(&port, 1, receives.1));
        let channels = connect(&mut exchanges.0, &mut exchanges.1, (7, 7));
        let mut side = |exchange, channel| {
            let bytes = (0..300_000).map(|_| random.random()).collect();
            Side { exchange, channel, bytes, sent: 0, received: Vec::new() }
        };
        let (mut a, mut b) = (side(exchanges.0, channels.0), side(exchanges.1, channels.1));
        until("all bytes both ways", || {
            a.step(&mut random);
            b.step(&mut random);
            a.received.len() == b.bytes.len() && b.received.len() == a.bytes.len()
        });
        assert!(a.received == b.bytes && b.received == a.bytes, "seed {seed}");
        until("everything is delivered", || {
            a.step(&mut random);
            b.step(&mut random);
            a.exchange.is_delivered(&a.channel) && b.exchange.is_delivered(&b.channel)
        });
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn credits_run_out_both_ways_and_come_back() {
    let port = port();
    let (mut a, mut b) = (exchange(&port, 1, 4), exchange(&port, 1, 4));
    let (of_a, of_b) = connect(&mut a, &mut b, (0, 0));
    for round in 0..20u8 {
        let mut sent = 0;
        while a.send(&of_a, &[round; 10]).unwrap() > 0 {
            assert_eq!(b.send(&of_b, &[round; 10]).unwrap(), 10, "both have as many");
            sent += 1;
        }
        assert!((1..=3).contains(&sent), "one credit is kept, {sent} were spent");
        assert_eq!(b.send(&of_b, &[round; 10]).unwrap(), 0);
        let (mut got_a, mut got_b) = (Vec::new(), Vec::new());
        let mut room = [0; 64];
        until("what was sent", || {
            a.poll(|_| ()).unwrap();
            b.poll(|_| ()).unwrap();
            let received = a.receive(&of_a, &mut room).unwrap();
            got_a.extend_from_slice(&room[..received]);
            let received = b.receive(&of_b, &mut room).unwrap();
            got_b.extend_from_slice(&room[..received]);
            got_a.len() == sent * 10 && got_b.len() == sent * 10
        });
        assert!(got_a.iter().chain(&got_b).all(|byte| *byte == round));
        // Half of the credits come back by themselves.
        until("credits", || {
            a.poll(|_| ()).unwrap();
            b.poll(|_| ()).unwrap();
            let Some(a) = a.ends[0].as_ref() else { return false };
            let Some(b) = b.ends[0].as_ref() else { return false };
            a.can_send() && b.can_send()
        });
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn values_of_the_table_travel_whole_from_and_to_any_offset() {
    let port = port();
    let (mut a, mut b) = (exchange(&port, 1, 16), exchange(&port, 1, 16));
    let (of_a, of_b) = connect(&mut a, &mut b, (0, 0));
    let (from, into) = (Region::memfd(1 << 20).unwrap(), Region::memfd(1 << 20).unwrap());
    for region in [&from, &into] {
        region.allocate(0, 1 << 20).unwrap();
    }
    (0..1u64 << 17).for_each(|word| from.store(word, word.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for (prefix_bytes, bytes) in [(0, 100_000), (24, 1), (24, 8161), (5, 8187), (8180, 77), (9000, 20_001)] {
        let prefix = vec![3; prefix_bytes];
        let (mut sent, mut head, mut got) = (0, vec![0; prefix_bytes], 0);
        let mut got_head = 0;
        until("a value", || {
            a.poll(|_| ()).unwrap();
            b.poll(|_| ()).unwrap();
            if sent < prefix_bytes + bytes {
                let (rest, of_value) = (&prefix[sent.min(prefix_bytes)..], sent.saturating_sub(prefix_bytes));
                sent += a.send_from(&of_a, rest, &from, (64 + of_value as u64, bytes - of_value)).unwrap();
            }
            if got_head < prefix_bytes {
                got_head += b.receive(&of_b, &mut head[got_head..]).unwrap();
            } else if got < bytes {
                got += b.receive_into(&of_b, &into, (128 + got as u64, bytes - got)).unwrap();
            }
            got == bytes
        });
        assert!(head.iter().all(|byte| *byte == 3));
        let read = |region: &Region, offset: u64| {
            let mut copy = vec![0; bytes.next_multiple_of(8)];
            region.read(offset / 8, &mut copy);
            copy.truncate(bytes);
            copy
        };
        assert!(read(&from, 64) == read(&into, 128), "{bytes} bytes behind {prefix_bytes}");
    }
}

/// Whoever breaks the rules loses its channel, even one that has taken every receive buffer there was; the channel beside
/// it brings its bytes.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn who_breaks_the_rules_is_cut_off_and_others_go_on() {
    let port = port();
    type Wrong = fn(&mut End, &BufferPool);
    let wrongs: [(&str, Wrong); 3] = [
        ("an overrun", |end, pool| {
            end.take_credits(100);
            for _ in 0..20 {
                assert_eq!(end.send(b"too many", pool).unwrap(), 8);
            }
        }),
        ("a long message", |end, pool| end.send_long(MESSAGE_BYTES + 1, pool)),
        ("credits from nowhere", |end, pool| {
            end.owe(1);
            assert_eq!(end.send(b"generous", pool).unwrap(), 8);
        }),
    ];
    for (what, wrong) in wrongs {
        let mut server = exchange(&port, 4, 4);
        let (mut bad, mut good) = (exchange(&port, 1, 4), exchange(&port, 1, 4));
        let (of_bad, at_server_bad) = connect(&mut bad, &mut server, (0, 1));
        let (of_good, at_server_good) = connect(&mut good, &mut server, (0, 2));
        let pool = bad.pool.clone();
        wrong(open(&mut bad.ends, &of_bad).unwrap(), &pool);
        assert_eq!(good.send(&of_good, b"all well").unwrap(), 8);
        let (mut room, mut is_cut_off, mut got) = ([0; 8], false, 0);
        let mut at_server_bad = Some(at_server_bad);
        until(what, || {
            server.poll(|_| ()).unwrap();
            if let Some(channel) = at_server_bad.take() {
                match server.receive(&channel, &mut [0; 8]) {
                    Ok(_) => at_server_bad = Some(channel),
                    Err(_) => {
                        server.close(channel);
                        is_cut_off = true;
                    }
                }
            }
            got += server.receive(&at_server_good, &mut room[got..]).unwrap();
            is_cut_off && got == 8
        });
        assert_eq!((&room, server.channels()), (b"all well", 1), "{what}");
        until("the peer notices", || {
            bad.poll(|_| ()).unwrap();
            let _ = bad.send(&of_bad, b"?");
            open(&mut bad.ends, &of_bad).unwrap().has_failed()
        });
        // And a new channel has all that it needs.
        bad.close(of_bad);
        let (of_new, at_server_new) = connect(&mut bad, &mut server, (0, 3));
        let mut got = Vec::new();
        let mut left = 50;
        until("a new channel", || {
            server.poll(|_| ()).unwrap();
            bad.poll(|_| ()).unwrap();
            if left > 0 && bad.send(&of_new, b"12345678").unwrap() > 0 {
                left -= 1;
            }
            let received = server.receive(&at_server_new, &mut room).unwrap();
            got.extend_from_slice(&room[..received]);
            got.len() == 400
        });
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_peer_that_is_gone_is_noticed() {
    let port = port();
    let (mut a, mut b) = (exchange(&port, 1, 8), exchange(&port, 1, 8));
    let (of_a, _of_b) = connect(&mut a, &mut b, (0, 0));
    drop(b);
    assert_eq!(a.send(&of_a, &[1; 1000]).unwrap(), 1000);
    until("an error", || {
        a.poll(|_| ()).unwrap();
        a.is_delivered(&of_a) && a.receive(&of_a, &mut [0]).is_err()
    });
    assert!(a.send(&of_a, &[1]).is_err() && a.receive(&of_a, &mut [0]).is_err(), "it stays so");
    a.close(of_a);
    assert_eq!(a.channels(), 0);
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn there_are_as_many_channels_as_there_may_be() {
    let port = port();
    let mut a = exchange(&port, 2, 4);
    let (first, _) = a.open(0, false).unwrap();
    let _second = a.open(1, false).unwrap();
    let error = a.open(2, false).unwrap_err().to_string();
    assert!(error.contains("as many as there may be"), "{error}");
    a.close(first);
    a.open(3, false).unwrap();
}

/// The other order of ends would be a use after free in libibverbs.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn exchanges_may_be_dropped_with_messages_under_way() {
    let port = port();
    for order in 0..4 {
        let (mut a, mut b) = (exchange(&port, 2, 4), exchange(&port, 2, 4));
        let (of_a, of_b) = connect(&mut a, &mut b, (0, 0));
        for _ in 0..2 {
            a.send(&of_a, &[1; 5000]).unwrap();
            b.send(&of_b, &[1; 5]).unwrap();
        }
        if order % 2 == 0 {
            a.close(of_a);
        }
        let mut both = [Some(a), Some(b)];
        drop(both[order / 2].take());
        drop(both);
    }
}
