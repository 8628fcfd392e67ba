//! Opening a connection: who speaks, which versions, may it enter, what does it get.
//!
//! Every handshake message is a [`Preamble`] and a bincode body of at most
//! [`MAX_CONTROL_BYTES`]:
//!
//! ```text
//!     client -> server  Hello
//!     server -> client  Challenge        or Refusal
//!     client -> server  Proof
//!     server -> client  Welcome          or Refusal
//! ```
//!
//! After Welcome the connection carries [`crate::message`] frames. Magic and versions are checked
//! before the body is read. Nothing that grants access (ticket, rkey, queue pair) leaves the
//! server before the proof is checked.

use bincode::{Decode, Encode};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::MAX_CONTROL_BYTES;

/// First bytes of every handshake message.
pub const MAGIC: [u8; 8] = *b"SIDESTEP";
/// Version of the wire protocol.
pub const WIRE_VERSION: u16 = 5;

/// Fixed head of a handshake message, 16 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Preamble {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`WIRE_VERSION`] of the sender.
    pub wire_version: U16,
    /// A [`Kind`].
    pub kind: U16,
    /// Length of the bincode body.
    pub body_bytes: U32,
}

/// Bytes of a [`Preamble`].
pub const PREAMBLE_BYTES: usize = size_of::<Preamble>();
const _: () = assert!(PREAMBLE_BYTES == 16);

/// Which handshake message follows a preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// [`Hello`].
    Hello = 1,
    /// [`Challenge`].
    Challenge = 2,
    /// [`Proof`].
    Proof = 3,
    /// [`Welcome`].
    Welcome = 4,
    /// [`Refusal`].
    Refusal = 5,
}

/// A body that travels behind a preamble of its kind.
pub trait Message: Encode + Decode<()> {
    /// The kind in the preamble.
    const KIND: Kind;
}

/// A new 32-byte nonce and who the client is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// Random; part of both proofs.
    pub nonce: [u8; 32],
    /// Random, kept by the client over reconnects: names its session (one per connection).
    pub client_id: u64,
    /// Boot id of the session that the client wants to go on with; 0 = a new one.
    pub resume_boot_id: u64,
}

/// The server's nonce and whether it has a token.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Challenge {
    /// Random; part of both proofs.
    pub nonce: [u8; 32],
    /// Whether the proof is checked. Without a token on the server any proof will do.
    pub token_required: bool,
}

/// HMAC-SHA256 of the shared token; see [`prove`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Proof {
    /// Of [`Role::Client`].
    pub mac: [u8; 32],
}

/// What the client is let into.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// Of [`Role::Server`]: the server knows the token too.
    pub mac: [u8; 32],
    /// The table, for ever; seed of both hashes.
    pub table_id: u64,
    /// This start of the server.
    pub boot_id: u64,
    /// Whether the session asked for in [`Hello::resume_boot_id`] goes on, with its remembered replies.
    pub resumed: bool,
    /// Bytes of the whole address space (`--memory`).
    pub memory_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Largest value that this server takes.
    pub max_value_bytes: u32,
    /// Whether the table outlives the server's process (`--data`).
    pub durable: bool,
    /// The server's process id, for accounting on the same host.
    pub pid: u32,
    /// Of the keys that a client finds without the server's CPU it is to report one in so many, by
    /// [`Op::Touch`](crate::message::Op::Touch). 0: none, the server does not evict.
    pub report_one_in: u32,
    /// Shared memory, or why not.
    pub shm: Result<ShmOffer, String>,
    /// RDMA, or why not.
    pub rdma: Result<RdmaOffer, String>,
}

/// How to ask for the segments on the same host.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShmOffer {
    /// Name in the abstract namespace of Unix sockets.
    pub socket_name: Vec<u8>,
    /// To be presented there; good for this session.
    pub ticket: [u8; 16],
    /// `/proc/sys/kernel/random/boot_id` of the server's host: the same host has the same.
    pub host_boot_id: String,
}

/// That the server takes [`Op::Connect`](crate::message::Op::Connect). No key is told before.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RdmaOffer {
    /// Its device, port and address, for a person.
    pub port: String,
}

/// One end of a reliable connection, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct QueuePairEnd {
    /// Number of the queue pair, 24 bits.
    pub number: u32,
    /// First packet sequence number that it sends, 24 bits.
    pub first_packet: u32,
    /// GID of its port, in network order.
    pub gid: [u8; 16],
    /// LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// Path MTU, as `ibv_mtu` counts: 1 = 256 to 5 = 4096 bytes.
    pub mtu: u8,
    /// READs that it serves at once.
    pub reads_served: u8,
    /// READs that it issues at once.
    pub reads_issued: u8,
}

/// The end of a message channel: a reliable connection that carries the frames of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MessagesEnd {
    /// Its queue pair.
    pub end: QueuePairEnd,
    /// Messages that it has room for: the credits that the other begins with.
    pub receives: u16,
}

/// The value of an [`Op::Connect`](crate::message::Op::Connect): connects queue pairs of the client's to new ones of the
/// server's, which live as long as the control connection, that for READs also no longer than until the next one.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct QueuePairRequest {
    /// For one-sided READs.
    pub reads: Option<QueuePairEnd>,
    /// To carry all further frames. Nothing else may be asked until the reply is there, which comes the old way. Once
    /// for each connection.
    pub messages: Option<MessagesEnd>,
}

/// The server's end for READs, and what is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadsReply {
    /// Of the server.
    pub end: QueuePairEnd,
    /// Remote address of segment 0, where the root and the table of the other segments are.
    pub root_address: u64,
    /// Its rkey.
    pub root_rkey: u32,
}

/// The value of its reply: what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct QueuePairReply {
    /// For one-sided READs.
    pub reads: Option<ReadsReply>,
    /// For all further frames.
    pub messages: Option<MessagesEnd>,
}

/// Why a client is not let in, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Refusal {
    /// What was expected and what was found.
    pub reason: String,
}

/// Counters of a server, by name in a stable order: `(name, value)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Stats {
    /// Names are `snake_case` with units last.
    pub counters: Vec<(String, u64)>,
    /// Of the build: `version`, `commit`, `rustc`, `features`.
    pub facts: Vec<(String, String)>,
}

impl Message for Hello {
    const KIND: Kind = Kind::Hello;
}
impl Message for Challenge {
    const KIND: Kind = Kind::Challenge;
}
impl Message for Proof {
    const KIND: Kind = Kind::Proof;
}
impl Message for Welcome {
    const KIND: Kind = Kind::Welcome;
}
impl Message for Refusal {
    const KIND: Kind = Kind::Refusal;
}

/// Why bytes are not the handshake message that was expected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// Not our protocol.
    #[error("expected the magic {MAGIC:02x?}, found {0:02x?}: not a sidestep peer")]
    Magic([u8; 8]),
    /// Another version of it.
    #[error("expected wire version {WIRE_VERSION}, found {0}: use matching versions of client and server")]
    Version(u16),
    /// A body beyond the limit.
    #[error("expected a control message of at most {MAX_CONTROL_BYTES} bytes, found {0}")]
    TooLong(u32),
    /// Another message.
    #[error("expected handshake message {expected:?}, found kind {found}")]
    Kind {
        /// What was to come.
        expected: Kind,
        /// What came.
        found: u16,
    },
    /// The body does not decode.
    #[error("malformed {kind:?} message: {reason}")]
    Body {
        /// Of the preamble.
        kind: Kind,
        /// From bincode.
        reason: String,
    },
    /// The peer refused.
    #[error("refused: {0}")]
    Refused(String),
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<{ MAX_CONTROL_BYTES as usize }>()
}

impl Preamble {
    /// Checks magic, version and length, in this order. Returns the kind's number and the body's length.
    pub fn check(&self) -> Result<(u16, usize), HandshakeError> {
        if self.magic != MAGIC {
            return Err(HandshakeError::Magic(self.magic));
        }
        if self.wire_version.get() != WIRE_VERSION {
            return Err(HandshakeError::Version(self.wire_version.get()));
        }
        if self.body_bytes.get() > MAX_CONTROL_BYTES {
            return Err(HandshakeError::TooLong(self.body_bytes.get()));
        }
        Ok((self.kind.get(), self.body_bytes.get() as usize))
    }
}

/// Preamble and body of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, HandshakeError> {
    let body = encode_body(message).map_err(|reason| HandshakeError::Body { kind: M::KIND, reason })?;
    let body_bytes = u32::try_from(body.len()).map_err(|_| HandshakeError::TooLong(u32::MAX))?;
    let preamble = Preamble {
        magic: MAGIC,
        wire_version: WIRE_VERSION.into(),
        kind: (M::KIND as u16).into(),
        body_bytes: body_bytes.into(),
    };
    preamble.check()?;
    let mut bytes = preamble.as_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The message behind a checked preamble; a [`Refusal`] in its place is an error that says why.
pub fn decode<M: Message>(kind: u16, body: &[u8]) -> Result<M, HandshakeError> {
    if kind == Kind::Refusal as u16 && M::KIND != Kind::Refusal {
        let refusal: Refusal =
            decode_body(body).map_err(|reason| HandshakeError::Body { kind: Kind::Refusal, reason })?;
        return Err(HandshakeError::Refused(refusal.reason));
    }
    if kind != M::KIND as u16 {
        return Err(HandshakeError::Kind { expected: M::KIND, found: kind });
    }
    decode_body(body).map_err(|reason| HandshakeError::Body { kind: M::KIND, reason })
}

/// A bincode body alone, as in the reply to [`Op::Stats`](crate::message::Op::Stats).
pub fn encode_body<T: Encode>(value: &T) -> Result<Vec<u8>, String> {
    bincode::encode_to_vec(value, config()).map_err(|e| e.to_string())
}

/// The value of a bincode body, all of which must be used up.
pub fn decode_body<T: Decode<()>>(body: &[u8]) -> Result<T, String> {
    let (value, used) = bincode::decode_from_slice(body, config()).map_err(|e| e.to_string())?;
    if used != body.len() {
        return Err(format!("{} bytes left over", body.len() - used));
    }
    Ok(value)
}

/// Whose proof it is: the two differ, so that neither can be sent back as the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// In [`Proof`].
    Client,
    /// In [`Welcome`].
    Server,
}

fn mac_of(token: &[u8], role: Role, client_nonce: &[u8; 32], server_nonce: &[u8; 32]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token).expect("HMAC takes a key of any length");
    mac.update(match role {
        Role::Client => b"sidestep client v1",
        Role::Server => b"sidestep server v1",
    });
    mac.update(client_nonce);
    mac.update(server_nonce);
    mac
}

/// HMAC-SHA256 (RFC 2104) of role and nonces under the token. Without a token: under the empty one.
pub fn prove(token: &[u8], role: Role, client_nonce: &[u8; 32], server_nonce: &[u8; 32]) -> [u8; 32] {
    mac_of(token, role, client_nonce, server_nonce).finalize().into_bytes().into()
}

/// Whether a proof is right, in constant time.
pub fn verify(token: &[u8], role: Role, client_nonce: &[u8; 32], server_nonce: &[u8; 32], proof: &[u8; 32]) -> bool {
    mac_of(token, role, client_nonce, server_nonce).verify_slice(proof).is_ok()
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
