//! Decoders of this crate under any bytes, for the fuzz targets: each returns, or panics over a fault.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sidestep_core::handshake::{self, Hello, PREAMBLE_BYTES, Preamble, Proof};
use sidestep_core::message::{FLAG_LENT, REPLY_BYTES, REQUEST_BYTES, ReplyHeader, Status};
use sidestep_fabric::region::Region;
use zerocopy::{FromBytes, IntoBytes};

use crate::connection::{Connection, Next, Turn};
use crate::durable::rebuild_any;
use crate::exporter;
use crate::frame::{self, Frame};
use crate::input::Input;
use crate::metrics::Carried;
use crate::rdma::Messages;
use crate::service::Service;
use crate::store::{Store, StoreOptions, check};

const MAX_VALUE_BYTES: u32 = 1 << 20;
const MEMORY_BYTES: u64 = 4 << 20;
const TURN_BYTES: usize = 1 << 20;
/// What a socket pair surely takes at once.
const CHUNK_BYTES: usize = 16 << 10;

/// A stream of requests, as far as it is one.
pub fn frames(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        match frame::next(rest, MAX_VALUE_BYTES) {
            Frame::Whole(request, used) => {
                let again = [request.header.as_bytes(), request.key, request.value].concat();
                assert_eq!(again, rest[..used], "a request is the bytes that it was read from");
                assert_eq!(request.lent().is_some(), request.header.flags & FLAG_LENT != 0);
                rest = &rest[used..];
            }
            Frame::Large(request) => {
                assert!(request.value.len() < request.header.value_bytes.get() as usize);
                return;
            }
            Frame::TooLarge(_, _, frame_bytes) => {
                assert!(frame_bytes >= REQUEST_BYTES as u64);
                return;
            }
            Frame::Partial | Frame::Malformed(..) => return,
        }
    }
}

/// The head of an HTTP request.
pub fn http(bytes: &[u8]) {
    exporter::parse_any(bytes);
}

/// A batch of the log. Whatever is in it, the table that takes it is sound, and has no more keys than there were records.
pub fn log(bytes: &[u8]) {
    let memory = Region::memfd(MEMORY_BYTES).expect("memory");
    let options = StoreOptions { segment_bytes: Some(1 << 20), version_floor: 1 << 40, ..StoreOptions::default() };
    let store = Store::create(memory, &options).expect("a table");
    let taken = rebuild_any(&store, bytes);
    assert!(store.keys() <= taken as u64);
    let report = check(store.memory());
    assert!(report.is_sound(), "{report:?}");
    store.put(b"key", b"value", None, 0).expect("room");
}

/// A whole connection: the first byte says whether its client is let in before, the second into what pieces the rest is
/// cut. Whatever it sends, what it is answered are whole replies, and when it has gone no extent is left that no key
/// has.
pub fn connection(bytes: &[u8]) {
    thread_local! {
        static SERVICE: Service = service();
        static CLIENTS: Cell<u64> = const { Cell::new(0) };
    }
    SERVICE.with(|service| {
        let [let_in, cut, rest @ ..] = bytes else { return };
        let Ok((server, client)) = UnixStream::pair() else { return };
        let mut talk = Talk::new(service, server, client);
        if let_in % 4 > 0 {
            let client_id = CLIENTS.get() + 1;
            CLIENTS.set(client_id);
            let hello = Hello { nonce: [0; 32], client_id, resume_boot_id: 0 };
            talk.send(&handshake::encode(&hello).expect("it is short"));
            talk.send(&handshake::encode(&Proof { mac: [0; 32] }).expect("it is short"));
        }
        let piece = usize::from(*cut) * 16 + 1;
        rest.chunks(piece.clamp(rest.len() / 64 + 1, CHUNK_BYTES)).for_each(|piece| talk.send(piece));
        replies(&talk.received);
        drop(talk);
        service.sessions.sweep(Instant::now() + service.timeouts.session * 2);
        let stats = service.store.stats();
        let stat = |name: &str| stats.iter().find(|stat| stat.0 == name).map_or(0, |stat| stat.1);
        assert_eq!(stat("extents") - stat("extents_held"), stat("keys"), "{stats:?}");
    });
}

fn service() -> Service {
    let memory = Region::memfd(MEMORY_BYTES).expect("memory");
    let options = StoreOptions { segment_bytes: Some(1 << 20), reuse_at_once: true, ..StoreOptions::default() };
    Service::alone(Store::create(memory, &options).expect("a table"), 1 << 20)
}

/// A connection and its client.
struct Talk<'s> {
    service: &'s Service,
    connection: Connection<UnixStream>,
    client: UnixStream,
    input: Input,
    spare: Vec<u8>,
    messages: Messages,
    received: Vec<u8>,
    is_over: bool,
}

impl<'s> Talk<'s> {
    fn new(service: &'s Service, server: UnixStream, client: UnixStream) -> Self {
        for stream in [&server, &client] {
            stream.set_nonblocking(true).expect("a socket");
        }
        let handshake = service.timeouts.handshake;
        Self {
            service,
            connection: Connection::new(server, Ipv4Addr::LOCALHOST.into(), None, Instant::now(), handshake),
            client,
            input: Input::new(),
            spare: Vec::new(),
            messages: Messages::default(),
            received: Vec::new(),
            is_over: false,
        }
    }

    /// Sends bytes, lets the server answer all of them, and takes the answers.
    fn send(&mut self, bytes: &[u8]) {
        if self.is_over || self.client.write_all(bytes).is_err() {
            return;
        }
        self.connection.ready(true, true, false);
        let mut next = Next::Again;
        while next == Next::Again {
            next = self.turn();
            // It ends with "none yet", or with the end of the connection.
            let _ = self.client.read_to_end(&mut self.received);
            self.connection.ready(false, true, false);
        }
        self.is_over = next == Next::Close;
    }

    fn turn(&mut self) -> Next {
        let mut guard = crossbeam_epoch::pin();
        self.connection.turn(&mut Turn {
            service: self.service,
            metrics: self.service.metrics.worker(0, Carried::Socket),
            guard: &mut guard,
            input: &mut self.input,
            spare: &mut self.spare,
            messages: &mut self.messages,
            seat: 0,
            now: Instant::now(),
            budget: TURN_BYTES,
            stopping: false,
        })
    }
}

/// Messages of the handshake, then replies.
fn replies(mut rest: &[u8]) {
    while rest.starts_with(&handshake::MAGIC) {
        let (preamble, body) = Preamble::read_from_prefix(rest).expect("a whole preamble");
        let (_, body_bytes) = preamble.check().expect("a good preamble");
        assert!(body.len() >= body_bytes, "a whole message");
        rest = &rest[PREAMBLE_BYTES + body_bytes..];
    }
    while !rest.is_empty() {
        let (header, body) = ReplyHeader::read_from_prefix(rest).expect("a whole header");
        let value_bytes = header.value_bytes.get() as usize;
        assert!(Status::from_wire(header.status).is_some() && header.flags == 0, "{header:?}");
        assert!(body.len() >= value_bytes, "a whole reply: {header:?}");
        rest = &rest[REPLY_BYTES + value_bytes..];
    }
}
