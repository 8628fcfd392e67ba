//! What can be seen on the wire.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes one connection on after the other, and keeps what was said: by the client, by the server.
#[derive(Debug)]
pub struct Tap {
    address: String,
    heard: Arc<Mutex<Vec<[Vec<u8>; 2]>>>,
}

impl Tap {
    /// Begins to listen.
    pub fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, server) = (listener.local_addr().unwrap().to_string(), server.to_owned());
        let heard = Arc::<Mutex<Vec<[Vec<u8>; 2]>>>::default();
        let keep = heard.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                let number = {
                    let mut heard = keep.lock().unwrap();
                    heard.push(Default::default());
                    heard.len() - 1
                };
                for (side, from, to) in [(0, &client, &server), (1, &server, &client)] {
                    let (from, to, keep) = (from.try_clone().unwrap(), to.try_clone().unwrap(), keep.clone());
                    thread::spawn(move || pass(from, to, |bytes| keep.lock().unwrap()[number][side].extend(bytes)));
                }
            }
        });
        Self { address, heard }
    }

    /// Where clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Of each connection so far.
    pub fn heard(&self) -> Vec<[Vec<u8>; 2]> {
        self.heard.lock().unwrap().clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, keep: impl Fn(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        keep(&buffer[..bytes]);
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    // Whoever is gone already needs no end.
    let _ = to.shutdown(Shutdown::Write);
}

/// Whether all that a side said is TLS: one ClientHello or ServerHello in the clear, a change of ciphers that says nothing,
/// encrypted records.
pub fn has_only_records(mut said: &[u8]) -> bool {
    let mut types = Vec::new();
    while let Some(header) = said.first_chunk::<5>() {
        let end = 5 + usize::from(u16::from_be_bytes([header[3], header[4]]));
        types.push(header[0]);
        // What is under way yet is encrypted like the rest of its record.
        said = &said[end.min(said.len())..];
    }
    types.first() == Some(&22) && types[1..].iter().all(|kind| matches!(kind, 20 | 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_is_told_from_records() {
        let hello = [22, 3, 1, 0, 2, 1, 1];
        let sealed = [23, 3, 3, 0, 1, 9];
        assert!(has_only_records(&[&hello[..], &sealed, &sealed].concat()));
        assert!(!has_only_records(&[&hello[..], &hello].concat()), "a second hello in the clear");
        assert!(!has_only_records(b"SIDESTEP\x03\x00"));
        assert!(!has_only_records(&[&hello[..], b"SIDESTEP"].concat()));
    }
}
