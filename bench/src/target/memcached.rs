//! memcached by its meta commands: `mg` and `ms`, many to a write.

use std::time::Duration;

use super::peer::{Peer, is_loopback};
use super::wire::{self, Parsed, Protocol, Wire};
use super::{Connection, RemoteStore, Route, Target, TargetError};

/// A memcached server.
#[derive(Debug)]
pub struct Memcached {
    peer: Peer,
    version: String,
}

impl Memcached {
    /// The server of `peer`.
    ///
    /// # Errors
    /// It cannot be reached or does not speak the protocol.
    pub fn new(mut peer: Peer) -> Result<Self, TargetError> {
        let stats = wire::ask(&peer.address, b"stats\r\n", b"END\r\n")?;
        let version = stat(&stats, "version")
            .ok_or_else(|| TargetError::new(format!("{}: not a memcached server", peer.address)))?
            .to_owned();
        let threads = stat(&stats, "threads").unwrap_or("?");
        let version = format!("memcached {version}, {threads} threads by its own count");
        peer.know_pid(stat(&stats, "pid").and_then(|pid| pid.parse().ok()));
        Ok(Self { peer, version })
    }
}

fn stat<'s>(stats: &'s str, name: &str) -> Option<&'s str> {
    stats.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
}

impl Target for Memcached {
    fn name(&self) -> &str {
        "memcached"
    }

    fn about(&self) -> String {
        format!("{} at {}, by mg and ms", self.version, self.peer.describe())
    }

    fn route(&self) -> Route {
        Route::Tcp
    }

    fn connect(&self, _depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        Ok(Box::new(Wire::<Meta>::connect(&self.peer.address)?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.peer.cpu().or_else(|| {
            let stats = wire::ask(&self.peer.address, b"stats\r\n", b"END\r\n").ok()?;
            let seconds = |name| stat(&stats, name)?.parse::<f64>().ok();
            Duration::try_from_secs_f64(seconds("rusage_user")? + seconds("rusage_system")?).ok()
        })
    }

    fn is_on_this_host(&self) -> bool {
        is_loopback(&self.peer.address)
    }

    fn remote(&self) -> Option<RemoteStore> {
        Some(RemoteStore::Memcached { address: self.peer.address.clone() })
    }

    fn memory_in_use(&self) -> Result<Option<u64>, TargetError> {
        let stats = wire::ask(&self.peer.address, b"stats\r\n", b"END\r\n")?;
        let bytes = |name| stat(&stats, name).and_then(|value| value.parse::<u64>().ok());
        Ok(bytes("bytes").zip(bytes("hash_bytes")).map(|(items, index)| items + index))
    }
}

/// The meta protocol.
struct Meta;

impl Protocol for Meta {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"mg ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" v\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        out.extend_from_slice(b"ms ");
        out.extend_from_slice(key);
        out.extend_from_slice(format!(" {}\r\n", value.len()).as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn parse(bytes: &[u8]) -> Parsed {
        let Some((end, next)) = wire::line_end(bytes) else {
            return Parsed::Partial { at_least: 0 };
        };
        let line = &bytes[..end];
        match line.get(..2) {
            Some(b"VA") => {
                let size = line.get(3..).and_then(|rest| rest.split(|&byte| byte == b' ').next());
                match size.and_then(wire::number) {
                    Some(value_bytes) => wire::value_at(bytes, next, value_bytes),
                    None => wire::refused(line),
                }
            }
            Some(b"EN") => Parsed::Absent { taken: next },
            Some(b"HD") => Parsed::Stored { taken: next },
            _ => wire::refused(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        assert!(matches!(Meta::parse(b"VA 5\r\nhello\r\nEN\r\n"), Parsed::Value { start: 6, end: 11, taken: 13 }));
        assert!(matches!(Meta::parse(b"VA 5 f0\r\nhello\r\n"), Parsed::Value { start: 9, end: 14, taken: 16 }));
        assert!(matches!(Meta::parse(b"VA 5\r\nhello\r"), Parsed::Partial { at_least: 13 }));
        assert!(matches!(Meta::parse(b"VA"), Parsed::Partial { .. }));
        assert!(matches!(Meta::parse(b"EN\r\n"), Parsed::Absent { taken: 4 }));
        assert!(matches!(Meta::parse(b"HD\r\n"), Parsed::Stored { taken: 4 }));
        assert!(matches!(Meta::parse(b"SERVER_ERROR out of memory\r\n"), Parsed::Refused { .. }));
        assert!(matches!(Meta::parse(b"VA x\r\n"), Parsed::Refused { .. }));
    }

    #[test]
    fn stats_are_found_by_name() {
        let stats = "STAT pid 12\r\nSTAT pid_extra 13\r\nSTAT rusage_user 1.5\r\nEND\r\n";
        assert_eq!(stat(stats, "pid"), Some("12"));
        assert_eq!(stat(stats, "rusage_user"), Some("1.5"));
        assert_eq!(stat(stats, "version"), None);
    }
}
