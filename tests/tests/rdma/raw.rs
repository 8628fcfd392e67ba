//! Clients that read and lend whatever they like: the handshake, a queue pair, and no store behind it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use sidestep_core::handshake::{
    Challenge, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, QueuePairReply, QueuePairRequest, Role, Welcome,
    decode, decode_body, encode, encode_body, prove,
};
use sidestep_core::message::{FLAG_LENT, LENT_BYTES, LentValue, Op, REPLY_BYTES, ReplyHeader, RequestHeader, Status};
use sidestep_fabric::rdma::{
    Buffer, BufferPool, Channel, DeviceChoice, Domain, Exchange, Port, RdmaError, Reads, RemoteRange, Unconnected,
    Waiting,
};
use zerocopy::{FromBytes, IntoBytes};

/// A connection and its queue pair.
pub(crate) struct Raw {
    stream: TcpStream,
    reads: Reads,
    pool: BufferPool,
    root: (u64, u32),
}

fn say<M: Message>(stream: &mut TcpStream, message: &M) {
    stream.write_all(&encode(message).unwrap()).unwrap();
}

fn hear<M: Message>(stream: &mut TcpStream) -> M {
    let mut head = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut head).unwrap();
    let (kind, bytes) = Preamble::read_from_bytes(&head).unwrap().check().unwrap();
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).unwrap();
    decode(kind, &body).unwrap()
}

/// Lets itself in. `resume`: the session of this client at this start of the server.
fn let_in(server: &str, token: &[u8], client_id: u64, resume_boot_id: u64) -> (TcpStream, Welcome, Port, Domain) {
    let mut stream = TcpStream::connect(server).expect("a server");
    let nonce = [7; 32];
    say(&mut stream, &Hello { nonce, client_id, resume_boot_id });
    let challenge: Challenge = hear(&mut stream);
    say(&mut stream, &Proof { mac: prove(token, Role::Client, &nonce, &challenge.nonce) });
    let welcome: Welcome = hear(&mut stream);
    let port = Port::find(&DeviceChoice::Auto, stream.local_addr().unwrap().ip()).expect("a device");
    let domain = Domain::new(port.device()).unwrap();
    (stream, welcome, port, domain)
}

impl Raw {
    pub(crate) fn connect(server: &str) -> Self {
        Self::connect_with(server, b"")
    }

    pub(crate) fn connect_with(server: &str, token: &[u8]) -> Self {
        let (mut stream, _, port, domain) = let_in(server, token, rand::random(), 0);
        let unconnected = Unconnected::new(&domain, &port, 8).unwrap();
        let ask = QueuePairRequest { reads: Some(unconnected.end()), messages: None };
        let reply = connect(&mut stream, &ask).reads.expect("what was asked for");
        let waiting = Waiting { spin: Duration::from_micros(50), most: Duration::from_secs(60) };
        let reads = unconnected.connect(&reply.end, waiting).unwrap();
        let pool = BufferPool::new(&domain, 1 << 20);
        Self { stream, reads, pool, root: (reply.root_address, reply.root_rkey) }
    }

    /// Ends the control connection and keeps all else.
    pub(crate) fn hang_up(&mut self) {
        self.stream.shutdown(Shutdown::Both).expect("it stands");
    }

    /// Address and rkey of segment 0.
    pub(crate) fn root(&self) -> (u64, u32) {
        self.root
    }

    pub(crate) fn read(&mut self, address: u64, rkey: u32, bytes: usize) -> Result<Vec<u8>, RdmaError> {
        let buffer = self.pool.take(bytes)?;
        self.reads.push(0, buffer, 0, RemoteRange { address, rkey, bytes })?;
        Ok(self.reads.wait()?.expect("what was pushed").1[..bytes].to_vec())
    }
}

fn connect(stream: &mut TcpStream, ask: &QueuePairRequest) -> QueuePairReply {
    let body = encode_body(ask).unwrap();
    let header = RequestHeader {
        op: Op::Connect as u8,
        value_bytes: u32::try_from(body.len()).unwrap().into(),
        id: 1.into(),
        ..RequestHeader::default()
    };
    stream.write_all(&[header.as_bytes(), &body].concat()).unwrap();
    let mut head = [0; REPLY_BYTES];
    stream.read_exact(&mut head).unwrap();
    let reply = ReplyHeader::read_from_bytes(&head).unwrap();
    let mut body = vec![0; reply.value_bytes.get() as usize];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(Status::from_wire(reply.status), Some(Status::Ok), "{}", String::from_utf8_lossy(&body));
    decode_body(&body).unwrap()
}

/// A client that says where values are, true or not.
pub(crate) struct Lender {
    stream: TcpStream,
    exchange: Exchange,
    channel: Channel,
    pool: BufferPool,
    received: Vec<u8>,
    pub(crate) boot_id: u64,
}

impl Lender {
    /// Over a message channel.
    pub(crate) fn connect(server: &str, client_id: u64, resume_boot_id: u64) -> Self {
        let (mut stream, welcome, port, domain) = let_in(server, b"", client_id, resume_boot_id);
        assert_eq!(welcome.resumed, resume_boot_id != 0);
        let mut exchange = Exchange::new(&domain, &port, 1, 32).unwrap();
        let (channel, end) = exchange.open(0, true).unwrap();
        let reply = connect(&mut stream, &QueuePairRequest { reads: None, messages: Some(end) });
        exchange.connect(&channel, &reply.messages.expect("what was asked for")).unwrap();
        let pool = BufferPool::lent(&domain, 4 << 20);
        Self { stream, exchange, channel, pool, received: Vec::new(), boot_id: welcome.boot_id }
    }

    /// A value that the server may read, for as long as this lives.
    pub(crate) fn lend(&self, value: &[u8]) -> (Buffer, LentValue) {
        let mut buffer = self.pool.take(value.len()).unwrap();
        buffer[..value.len()].copy_from_slice(value);
        let (address, rkey) = buffer.lent_at().expect("a pool of what is lent");
        let value_bytes = u32::try_from(value.len()).unwrap().into();
        (buffer, LentValue { address: address.into(), rkey: rkey.into(), value_bytes })
    }

    /// Asks for a put.
    pub(crate) fn send(&mut self, sequence: u64, key: &[u8], lent: &LentValue) {
        let frame = put_of(sequence, key, lent);
        let mut sent = 0;
        while sent < frame.len() {
            self.exchange.poll(|_| ()).unwrap();
            sent += self.exchange.send(&self.channel, &frame[sent..]).unwrap();
        }
    }

    /// The next reply: status, version and text. None: the server has ended the connection.
    pub(crate) fn hear(&mut self) -> Option<(Status, u64, String)> {
        self.stream.set_nonblocking(true).unwrap();
        loop {
            self.exchange.poll(|_| ()).ok()?;
            let mut room = [0; 4096];
            match self.exchange.receive(&self.channel, &mut room) {
                Ok(bytes) => self.received.extend_from_slice(&room[..bytes]),
                Err(_) => return None,
            }
            if let Some(reply) = take_reply(&mut self.received) {
                return Some(reply);
            }
            if matches!(self.stream.read(&mut room), Ok(0)) {
                return None;
            }
            std::thread::yield_now();
        }
    }
}

/// The frame of a put whose value is lent.
fn put_of(sequence: u64, key: &[u8], lent: &LentValue) -> Vec<u8> {
    let header = RequestHeader {
        op: Op::Put as u8,
        flags: FLAG_LENT,
        key_bytes: u16::try_from(key.len()).unwrap().into(),
        value_bytes: u32::try_from(LENT_BYTES).unwrap().into(),
        id: sequence.into(),
        sequence: sequence.into(),
        ..RequestHeader::default()
    };
    [header.as_bytes(), key, lent.as_bytes()].concat()
}

fn take_reply(received: &mut Vec<u8>) -> Option<(Status, u64, String)> {
    let (header, rest) = ReplyHeader::read_from_prefix(received).ok()?;
    let text = String::from_utf8_lossy(rest.get(..header.value_bytes.get() as usize)?).into_owned();
    received.drain(..REPLY_BYTES + text.len());
    Some((Status::from_wire(header.status).expect("a status"), header.version.get(), text))
}

/// What a server says to one who lends a value over the socket.
pub(crate) fn lend_over_the_socket(server: &str, lent: &LentValue) -> (Status, u64, String) {
    let (mut stream, ..) = let_in(server, b"", rand::random(), 0);
    stream.write_all(&put_of(1, b"key", lent)).unwrap();
    let mut received = Vec::new();
    loop {
        let mut room = [0; 512];
        let bytes = stream.read(&mut room).unwrap();
        assert!(bytes > 0, "no reply");
        received.extend_from_slice(&room[..bytes]);
        if let Some(reply) = take_reply(&mut received) {
            return reply;
        }
    }
}

/// The status of a READ that must have been refused.
pub(crate) fn status_of(read: Result<Vec<u8>, RdmaError>) -> u32 {
    match read {
        Err(RdmaError::Completion { status, .. }) => status,
        other => panic!("expected an error completion, found {other:?}"),
    }
}
