//! A client that reads whatever it likes: the handshake, a queue pair, and no store behind it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use sidestep_core::handshake::{
    Challenge, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, QueuePairEnd, QueuePairReply, QueuePairRequest, Role,
    Welcome, decode, decode_body, encode, encode_body, prove,
};
use sidestep_core::message::{Op, REPLY_BYTES, ReplyHeader, RequestHeader, Status};
use sidestep_fabric::rdma::{
    BufferPool, DeviceChoice, Domain, Port, RdmaError, Reads, RemoteRange, Unconnected, Waiting,
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

impl Raw {
    pub(crate) fn connect(server: &str) -> Self {
        Self::connect_with(server, b"")
    }

    pub(crate) fn connect_with(server: &str, token: &[u8]) -> Self {
        let mut stream = TcpStream::connect(server).expect("a server");
        let nonce = [7; 32];
        say(&mut stream, &Hello { nonce, client_id: rand::random(), resume_boot_id: 0 });
        let challenge: Challenge = hear(&mut stream);
        say(&mut stream, &Proof { mac: prove(token, Role::Client, &nonce, &challenge.nonce) });
        let _: Welcome = hear(&mut stream);
        let port = Port::find(&DeviceChoice::Auto, stream.local_addr().unwrap().ip()).expect("a device");
        let domain = Domain::new(port.device()).unwrap();
        let unconnected = Unconnected::new(&domain, &port, 8).unwrap();
        let reply = ask_for_reads(&mut stream, unconnected.end()).reads.expect("what was asked for");
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

fn ask_for_reads(stream: &mut TcpStream, ours: QueuePairEnd) -> QueuePairReply {
    let body = encode_body(&QueuePairRequest { reads: Some(ours), messages: None }).unwrap();
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

/// The status of a READ that must have been refused.
pub(crate) fn status_of(read: Result<Vec<u8>, RdmaError>) -> u32 {
    match read {
        Err(RdmaError::Completion { status, .. }) => status,
        other => panic!("expected an error completion, found {other:?}"),
    }
}
