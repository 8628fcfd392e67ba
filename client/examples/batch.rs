//! Many keys at once, three ways. `cargo run --example batch [ADDR]`; without an address it starts a server itself.

use sidestep_client::{Answer, Client, Options};
use sidestep_server::{Config, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(address) = std::env::args().nth(1) {
        return run(&address);
    }
    let server = Server::start(Config { listen: "127.0.0.1:0".to_owned(), ..Config::default() })?;
    run(&server.local_addr().to_string())
}

/// The example, against the server at an address.
pub fn run(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(address, Options::default())?;
    let mut session = client.session()?;

    let pairs: Vec<(String, String)> = (0..1000).map(|i| (format!("user{i}"), format!("name {i}"))).collect();
    let failed = session.multi_put(&pairs)?.into_iter().filter(Result::is_err).count();
    println!("{} written, {failed} failed", pairs.len() - failed);

    // One value for each key, in memory of their own.
    let values = session.multi_get(&["user1", "user2", "nobody"])?;
    println!("{} of 3 found", values.iter().flatten().count());

    // The same without an allocation for each key: the bytes are lent where they were received.
    let keys: Vec<&str> = pairs.iter().map(|(key, _)| key.as_str()).collect();
    let mut bytes = 0;
    session.multi_get_with(&keys, |_, found| bytes += found.map_or(0, |(value, _)| value.len()))?;
    println!("{bytes} bytes of values");

    // Requests in flight while this thread does something else.
    for key in &keys[..16] {
        session.submit_get(key)?;
    }
    let mut found = 0;
    while session.in_flight() > 0 {
        session.poll(|done| found += usize::from(matches!(done.answer, Ok(Answer::Value(..)))));
    }
    println!("{found} of 16 found");
    Ok(())
}
