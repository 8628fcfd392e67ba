//! A client of our own: its bytes, its moment to stop.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sidestep_core::handshake::{
    Challenge, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, Role, Welcome, decode, encode, prove,
};
use sidestep_core::message::{Op, REPLY_BYTES, ReplyHeader, RequestHeader, Status};
use sidestep_tests::certificates::Authority;
use zerocopy::{FromBytes, IntoBytes};

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

pub(crate) struct Raw {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
}

fn session(authority: &Authority) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).expect("a CA")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a session")
}

/// A ClientHello as it is sent.
pub(crate) fn hello(authority: &Authority) -> Vec<u8> {
    let mut hello = Vec::new();
    session(authority).write_tls(&mut hello).expect("a hello");
    hello
}

impl Raw {
    /// Over TLS, and no further.
    pub(crate) fn connect(address: &str, authority: &Authority) -> Self {
        let mut session = session(authority);
        let mut stream = connect(address);
        while session.is_handshaking() {
            session.complete_io(&mut stream).expect("a handshake");
        }
        Self { stream: StreamOwned::new(session, stream) }
    }

    /// Lets it in, without a token.
    pub(crate) fn enter(address: &str, authority: &Authority) -> Self {
        let mut raw = Self::connect(address, authority);
        let nonce = [3; 32];
        raw.say(&Hello { nonce, client_id: 77, resume_boot_id: 0 });
        let challenge: Challenge = raw.hear();
        raw.say(&Proof { mac: prove(b"", Role::Client, &nonce, &challenge.nonce) });
        let _: Welcome = raw.hear();
        raw
    }

    fn say<M: Message>(&mut self, message: &M) {
        self.send(&encode(message).expect("a message"));
    }

    fn hear<M: Message>(&mut self) -> M {
        let mut head = [0; PREAMBLE_BYTES];
        self.stream.read_exact(&mut head).expect("a message");
        let (kind, bytes) = Preamble::read_from_bytes(&head).expect("its length").check().expect("a preamble");
        let mut body = vec![0; bytes];
        self.stream.read_exact(&mut body).expect("a message");
        decode(kind, &body).expect("the message")
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it is taken");
    }

    pub(crate) fn reply(&mut self) -> (u64, Option<Status>, Vec<u8>) {
        let mut head = [0; REPLY_BYTES];
        self.stream.read_exact(&mut head).expect("a reply");
        let header = ReplyHeader::read_from_bytes(&head).expect("its length");
        let mut value = vec![0; header.value_bytes.get() as usize];
        self.stream.read_exact(&mut value).expect("its value");
        (header.id.get(), Status::from_wire(header.status), value)
    }

    /// Shuts our side of the socket, told by TLS or cut off.
    pub(crate) fn shut(&mut self, is_told: bool) {
        if is_told {
            self.stream.conn.send_close_notify();
            while self.stream.conn.wants_write() {
                self.stream.conn.write_tls(&mut self.stream.sock).expect("it is taken");
            }
        }
        self.stream.sock.shutdown(Shutdown::Write).expect("it is open");
    }

    /// What else comes until the server closes, and whether it says so by TLS.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut rest = Vec::new();
        let is_told = match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => false,
            Err(error) => panic!("expected the end of the stream, found {error}"),
        };
        (rest, is_told)
    }
}

pub(crate) fn request(op: Op, id: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        op: op as u8,
        key_bytes: u16::try_from(key.len()).expect("a short key").into(),
        value_bytes: u32::try_from(value.len()).expect("a short value").into(),
        id: id.into(),
        sequence: if op.is_write() { id } else { 0 }.into(),
        ..RequestHeader::default()
    };
    [header.as_bytes(), key, value].concat()
}
