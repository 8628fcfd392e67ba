//! A client of bare sockets: nothing between a test and the bytes.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sidestep_core::handshake::{
    self, Challenge, HandshakeError, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, Role, Stats, Welcome,
};
use sidestep_core::message::{FLAG_CONDITIONAL, Op, REPLY_BYTES, ReplyHeader, RequestHeader, Status};
use sidestep_server::config::Timeouts;
use sidestep_server::{Config, Server};
use zerocopy::{FromBytes, IntoBytes};

/// Long enough for any machine; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn config() -> Config {
    Config { listen: "127.0.0.1:0".into(), memory_bytes: Some(128 << 20), workers: 2, ..Config::default() }
}

pub(crate) fn impatient(timeouts: Timeouts) -> Timeouts {
    Timeouts { handshake: Duration::from_millis(300), frame: Duration::from_millis(300), ..timeouts }
}

pub(crate) fn start(config: Config) -> Server {
    Server::start(config).expect("the server starts")
}

pub(crate) fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The next handshake message.
pub(crate) fn receive<M: Message>(stream: &mut TcpStream) -> Result<M, HandshakeError> {
    let mut head = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut head).expect("a preamble");
    let (kind, body_bytes) = Preamble::read_from_bytes(&head).unwrap().check()?;
    let mut body = vec![0; body_bytes];
    stream.read_exact(&mut body).expect("a body");
    handshake::decode(kind, &body)
}

/// The reason why the server refuses, after which it must close.
pub(crate) fn refusal(stream: &mut TcpStream) -> String {
    let reason = match receive::<Challenge>(stream) {
        Err(HandshakeError::Refused(reason)) => reason,
        other => panic!("expected a refusal, found {other:?}"),
    };
    assert_closed(stream);
    reason
}

pub(crate) fn assert_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("a proper end");
    assert!(rest.is_empty(), "expected the end, found {} bytes", rest.len());
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) version: u64,
    pub(crate) value: Vec<u8>,
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) welcome: Welcome,
    pub(crate) sequence: u64,
    id: u64,
}

/// A request as it goes out.
pub(crate) fn frame(header: RequestHeader, key: &[u8], value: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        key_bytes: u16::try_from(key.len()).unwrap().into(),
        value_bytes: u32::try_from(value.len()).unwrap().into(),
        ..header
    };
    [header.as_bytes(), key, value].concat()
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let client_id = u64::from(open(address).local_addr().unwrap().port()) << 32;
        Self::try_connect(address, b"", client_id, 0).expect("the server lets in")
    }

    pub(crate) fn resume(&self, client_id: u64) -> Self {
        let address = self.stream.peer_addr().unwrap();
        Self::try_connect(address, b"", client_id, self.welcome.boot_id).expect("the server lets in")
    }

    pub(crate) fn try_connect(
        address: SocketAddr,
        token: &[u8],
        client_id: u64,
        resume_boot_id: u64,
    ) -> Result<Self, HandshakeError> {
        let mut stream = open(address);
        let nonce = [7; 32];
        stream.write_all(&handshake::encode(&Hello { nonce, client_id, resume_boot_id })?).unwrap();
        let challenge: Challenge = receive(&mut stream)?;
        let mac = handshake::prove(token, Role::Client, &nonce, &challenge.nonce);
        stream.write_all(&handshake::encode(&Proof { mac })?).unwrap();
        let welcome: Welcome = receive(&mut stream)?;
        assert!(handshake::verify(token, Role::Server, &nonce, &challenge.nonce, &welcome.mac));
        Ok(Self { stream, welcome, sequence: 0, id: 0 })
    }

    pub(crate) fn get_frame(&mut self, key: &[u8]) -> Vec<u8> {
        self.frame(Op::Get, 0, None, key, b"")
    }

    pub(crate) fn put_frame(&mut self, key: &[u8], value: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        self.frame(Op::Put, self.sequence, None, key, value)
    }

    pub(crate) fn frame(&mut self, op: Op, sequence: u64, expect: Option<u64>, key: &[u8], value: &[u8]) -> Vec<u8> {
        self.id += 1;
        let header = RequestHeader {
            op: op as u8,
            flags: if expect.is_some() { FLAG_CONDITIONAL } else { 0 },
            id: self.id.into(),
            sequence: sequence.into(),
            expect_version: expect.unwrap_or(0).into(),
            ..RequestHeader::default()
        };
        frame(header, key, value)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server receives");
    }

    pub(crate) fn try_reply(&mut self) -> io::Result<Reply> {
        let mut head = [0; REPLY_BYTES];
        self.stream.read_exact(&mut head)?;
        let header = ReplyHeader::read_from_bytes(&head).unwrap();
        let mut value = vec![0; header.value_bytes.get() as usize];
        self.stream.read_exact(&mut value)?;
        let status = Status::from_wire(header.status).expect("a known status");
        Ok(Reply { id: header.id.get(), status, version: header.version.get(), value })
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply")
    }

    pub(crate) fn call(&mut self, bytes: &[u8]) -> Reply {
        self.send(bytes);
        let reply = self.reply();
        assert_eq!(reply.id, self.id);
        reply
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Reply {
        let bytes = self.get_frame(key);
        self.call(&bytes)
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Reply {
        let bytes = self.put_frame(key, value);
        self.call(&bytes)
    }

    pub(crate) fn put_if(&mut self, key: &[u8], value: &[u8], expect: u64) -> Reply {
        self.sequence += 1;
        let bytes = self.frame(Op::Put, self.sequence, Some(expect), key, value);
        self.call(&bytes)
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> Reply {
        self.sequence += 1;
        let bytes = self.frame(Op::Delete, self.sequence, None, key, b"");
        self.call(&bytes)
    }

    pub(crate) fn ping(&mut self, value: &[u8]) -> Reply {
        let bytes = self.frame(Op::Ping, 0, None, b"", value);
        self.call(&bytes)
    }

    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        let bytes = self.frame(Op::Stats, 0, None, b"", b"");
        let stats: Stats = handshake::decode_body(&self.call(&bytes).value).expect("statistics");
        stats.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value)
    }
}

/// Bytes that differ with position and seed.
pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed) ^ (i >> 8)) as u8).collect()
}
