//! Get, put, compare-and-put, delete. `cargo run --example basic [ADDR]`; without an address it starts a server itself.

use sidestep_client::{Client, Error, Options};
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

    let version = session.put("greeting", "hello")?;
    let value = session.get("greeting")?.ok_or("it was just written")?;
    println!("{} (version {}, by {})", String::from_utf8_lossy(&value), value.version(), value.path());

    let next = session.put_if("greeting", "hello again", version)?;
    match session.put_if("greeting", "too late", version) {
        Err(Error::VersionMismatch { found }) => println!("somebody was faster: version {found}, as expected {next}"),
        other => return Err(format!("expected a version mismatch, found {other:?}").into()),
    }

    println!("removed: {}", session.delete("greeting")?);
    println!("absent now: {}", session.get("greeting")?.is_none());
    Ok(())
}
