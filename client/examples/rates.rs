//! A first look at the rates of each path. `cargo run --release --example rates [KEYS]`; the bench measures properly.

use std::time::Instant;

use sidestep_client::{Client, Options, Path, PathMode};
use sidestep_server::{Config, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(100_000), |keys| keys.parse())?;
    let server = Server::start(Config { listen: "127.0.0.1:0".to_owned(), ..Config::default() })?;
    let address = server.local_addr().to_string();
    let names: Vec<String> = (0..keys).map(|i| format!("user{i:020}")).collect();
    let pairs: Vec<(&str, [u8; 64])> = names.iter().map(|name| (name.as_str(), [7; 64])).collect();
    let mut loader = Client::connect(&address, Options::default())?.session()?;
    let started = Instant::now();
    loader.multi_put(&pairs)?;
    report("tcp multi_put", keys, started);
    let picks: Vec<usize> = (0..keys).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys) as usize).collect();
    for (path, cache) in [(Path::Shm, 0), (Path::Shm, 1 << 21), (Path::Tcp, 0)] {
        let options = Options::default().path(PathMode::Require(path)).location_cache(cache);
        let mut session = Client::connect(&address, options)?.session()?;
        let mut buffer = Vec::new();
        let count = if path == Path::Tcp { keys / 10 } else { keys };
        for _ in 0..2 {
            let started = Instant::now();
            for pick in &picks[..count as usize] {
                session.get_into(&names[*pick], &mut buffer)?;
            }
            report(&format!("{path} get, cache {cache}"), count, started);
        }
        let picked: Vec<&str> = picks.iter().map(|pick| names[*pick].as_str()).collect();
        let started = Instant::now();
        for batch in picked.chunks(64) {
            session.multi_get_with(batch, |_, _| {})?;
        }
        report(&format!("{path} multi_get of 64"), keys, started);
        let started = Instant::now();
        let mut next = picked.iter();
        let mut ended = 0;
        while ended < keys {
            while session.in_flight() < 16
                && let Some(key) = next.next()
            {
                session.submit_get(key)?;
            }
            ended += session.poll(|_| {}) as u64;
        }
        report(&format!("{path} 16 in flight"), keys, started);
    }
    Ok(())
}

fn report(what: &str, count: u64, started: Instant) {
    let elapsed = started.elapsed().as_secs_f64();
    println!("{what:28} {:8.1} ns each, {:6.2} M/s", elapsed * 1e9 / count as f64, count as f64 / elapsed / 1e6);
}
