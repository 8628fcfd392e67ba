//! A server of the Redis protocol: GET and SET, pipelined.

use std::time::Duration;

use super::peer::{Peer, is_loopback};
use super::wire::{self, Parsed, Protocol, Wire};
use super::{Connection, RemoteStore, Route, Target, TargetError};

/// A Redis server.
#[derive(Debug)]
pub struct Redis {
    peer: Peer,
    version: String,
}

impl Redis {
    /// The server of `peer`.
    ///
    /// # Errors
    /// It cannot be reached or does not speak the protocol.
    pub fn new(mut peer: Peer) -> Result<Self, TargetError> {
        let info = info(&peer.address)?;
        let version = field(&info, "redis_version")
            .ok_or_else(|| TargetError::new(format!("{}: not a server of the Redis protocol", peer.address)))?;
        let version = format!("redis {version}");
        peer.know_pid(field(&info, "process_id").and_then(|pid| pid.parse().ok()));
        Ok(Self { peer, version })
    }
}

fn info(address: &str) -> Result<String, TargetError> {
    wire::ask(address, b"INFO\r\nPING\r\n", b"+PONG\r\n")
}

fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

impl Target for Redis {
    fn name(&self) -> &str {
        "redis"
    }

    fn about(&self) -> String {
        format!("{} at {}, by GET and SET", self.version, self.peer.describe())
    }

    fn route(&self) -> Route {
        Route::Tcp
    }

    fn connect(&self, _depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        Ok(Box::new(Wire::<Resp>::connect(&self.peer.address)?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.peer.cpu().or_else(|| {
            let info = info(&self.peer.address).ok()?;
            let seconds = |name| field(&info, name)?.parse::<f64>().ok();
            Duration::try_from_secs_f64(seconds("used_cpu_user")? + seconds("used_cpu_sys")?).ok()
        })
    }

    fn is_on_this_host(&self) -> bool {
        is_loopback(&self.peer.address)
    }

    fn remote(&self) -> Option<RemoteStore> {
        Some(RemoteStore::Redis { address: self.peer.address.clone() })
    }

    fn memory_in_use(&self) -> Result<Option<u64>, TargetError> {
        Ok(field(&info(&self.peer.address)?, "used_memory").and_then(|bytes| bytes.parse().ok()))
    }
}

/// The serialization protocol.
struct Resp;

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

impl Protocol for Resp {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        bulk(out, key);
    }

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        bulk(out, key);
        bulk(out, value);
    }

    fn parse(bytes: &[u8]) -> Parsed {
        let Some((end, next)) = wire::line_end(bytes) else {
            return Parsed::Partial { at_least: 0 };
        };
        let line = &bytes[..end];
        match line.split_first() {
            Some((b'$', b"-1")) => Parsed::Absent { taken: next },
            Some((b'$', size)) => match wire::number(size) {
                Some(value_bytes) => wire::value_at(bytes, next, value_bytes),
                None => wire::refused(line),
            },
            Some((b'+', _)) => Parsed::Stored { taken: next },
            _ => wire::refused(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        assert!(matches!(Resp::parse(b"$5\r\nhello\r\n$-1\r\n"), Parsed::Value { start: 4, end: 9, taken: 11 }));
        assert!(matches!(Resp::parse(b"$5\r\nhel"), Parsed::Partial { at_least: 11 }));
        assert!(matches!(Resp::parse(b"$-1\r\n"), Parsed::Absent { taken: 5 }));
        assert!(matches!(Resp::parse(b"+OK\r\n"), Parsed::Stored { taken: 5 }));
        assert!(matches!(Resp::parse(b"-OOM command not allowed\r\n"), Parsed::Refused { .. }));
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        Resp::get(&mut out, b"k1");
        Resp::set(&mut out, b"k", b"v");
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\nk1\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n");
    }
}
