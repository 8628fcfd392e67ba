//! The server's side of the handshake, without input or output.

use std::net::IpAddr;

use sidestep_core::handshake::{
    self, Challenge, HandshakeError, Hello, MAGIC, PREAMBLE_BYTES, Preamble, Proof, Refusal, Welcome,
};
use zerocopy::FromBytes;

use crate::access::{Access, Attempt, Pass};
use crate::connection::HANDSHAKE_RECORD;
use crate::sessions::Attached;

/// What the handshake needs to know of the server.
pub(crate) trait Gate {
    /// Who may enter.
    fn access(&self) -> &Access;
    /// Finds or makes the session of a client that is let in, and what it is told. Its MAC is filled in here.
    fn admit(&self, hello: &Hello, pass: Pass) -> Result<(Attached, Welcome), String>;
}

/// Where a connection is in the handshake.
#[derive(Debug)]
pub(crate) enum Handshake {
    /// Nothing has come yet.
    Hello {
        /// The client's address.
        from: IpAddr,
    },
    /// The challenge is out.
    Proof {
        /// The client's address.
        from: IpAddr,
        /// Of the client.
        hello: Hello,
        /// Ours.
        nonce: [u8; 32],
    },
}

/// What to do after a message.
#[derive(Debug)]
pub(crate) enum Step {
    /// Wait for more bytes.
    More,
    /// Send the message; the handshake goes on.
    Send(Vec<u8>),
    /// Send the message; the client is in.
    Admit(Vec<u8>, Attached),
    /// Say why and close.
    Refuse(String),
}

impl Handshake {
    /// Takes the next message if it is there whole. Returns what to do and how many bytes were used.
    pub(crate) fn advance(&mut self, input: &[u8], gate: &impl Gate) -> (Step, usize) {
        match self.take(input, gate) {
            Ok(taken) => taken,
            Err(reason) => (Step::Refuse(reason), input.len()),
        }
    }

    fn from(&self) -> IpAddr {
        match self {
            Self::Hello { from } | Self::Proof { from, .. } => *from,
        }
    }

    fn take(&mut self, input: &[u8], gate: &impl Gate) -> Result<(Step, usize), String> {
        if input.first() == Some(&HANDSHAKE_RECORD) {
            tracing::info!(from = %self.from(), "a client with TLS was refused: this server has none");
            return Err("expected a client without TLS, found one with it: this server has no certificate".to_owned());
        }
        let Ok((preamble, rest)) = Preamble::ref_from_prefix(input) else {
            // Whoever speaks another protocol learns so at once, however little was said.
            if !MAGIC.starts_with(&input[..input.len().min(MAGIC.len())]) {
                let mut found = [0; MAGIC.len()];
                let n = input.len().min(found.len());
                found[..n].copy_from_slice(&input[..n]);
                return Err(HandshakeError::Magic(found).to_string());
            }
            return Ok((Step::More, 0));
        };
        let (kind, body_bytes) = preamble.check().map_err(|e| e.to_string())?;
        let Some(body) = rest.get(..body_bytes) else { return Ok((Step::More, 0)) };
        let step = match self {
            Self::Hello { from } => {
                let hello: Hello = handshake::decode(kind, body).map_err(|e| e.to_string())?;
                let nonce = random()?;
                let challenge = Challenge { nonce, token_required: gate.access().asks_for_token() };
                let message = handshake::encode(&challenge).map_err(|e| e.to_string())?;
                *self = Self::Proof { from: *from, hello, nonce };
                Step::Send(message)
            }
            Self::Proof { from, hello, nonce } => {
                let proof: Proof = handshake::decode(kind, body).map_err(|e| e.to_string())?;
                let attempt = Attempt { from: *from, client_nonce: &hello.nonce, server_nonce: nonce, mac: &proof.mac };
                let (pass, mac) = gate.access().check(attempt)?;
                let (session, mut welcome) = gate.admit(hello, pass)?;
                welcome.mac = mac;
                Step::Admit(handshake::encode(&welcome).map_err(|e| e.to_string())?, session)
            }
        };
        Ok((step, PREAMBLE_BYTES + body_bytes))
    }
}

/// The message that refuses a client; empty in the case that it cannot be encoded.
pub(crate) fn refusal(reason: &str) -> Vec<u8> {
    handshake::encode(&Refusal { reason: reason.to_owned() }).unwrap_or_default()
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| format!("no random numbers from the system: {e}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use sidestep_core::handshake::Role;

    use super::*;
    use crate::access::Tokens;
    use crate::sessions::Sessions;

    struct Door {
        access: Access,
        sessions: Sessions,
    }

    impl Gate for Door {
        fn access(&self) -> &Access {
            &self.access
        }
        fn admit(&self, hello: &Hello, pass: Pass) -> Result<(Attached, Welcome), String> {
            let (session, resumed) = self.sessions.attach(hello.client_id, false, [0; 16], pass)?;
            let welcome = Welcome {
                mac: [0; 32],
                table_id: 1,
                boot_id: 2,
                resumed,
                memory_bytes: 0,
                segment_bytes: 0,
                max_value_bytes: 0,
                durable: false,
                pid: 0,
                report_one_in: 0,
                shm: Err(String::new()),
                rdma: Err(String::new()),
            };
            Ok((session, welcome))
        }
    }

    fn door(token: Option<&'static [u8]>) -> Door {
        Door { access: Access::new(token.map(Tokens::bare)), sessions: Sessions::new(Duration::from_secs(1)) }
    }

    fn open<M: handshake::Message>(message: &[u8]) -> Result<M, HandshakeError> {
        let (preamble, body) = Preamble::ref_from_prefix(message).unwrap();
        handshake::decode(preamble.check()?.0, body)
    }

    fn begin() -> Handshake {
        Handshake::Hello { from: Ipv4Addr::LOCALHOST.into() }
    }

    fn hello() -> Hello {
        Hello { nonce: [5; 32], client_id: 9, resume_boot_id: 0 }
    }

    fn run(door: &Door, token: &[u8]) -> (Handshake, Step) {
        let mut server = begin();
        let message = handshake::encode(&hello()).unwrap();
        let (step, used) = server.advance(&message, door);
        assert_eq!(used, message.len());
        let Step::Send(challenge) = step else { panic!("{step:?}") };
        let challenge: Challenge = open(&challenge).unwrap();
        assert_eq!(challenge.token_required, door.access.asks_for_token());
        let mac = handshake::prove(token, Role::Client, &hello().nonce, &challenge.nonce);
        let (step, _) = server.advance(&handshake::encode(&Proof { mac }).unwrap(), door);
        if let Step::Admit(message, _) = &step {
            let welcome: Welcome = open(message).unwrap();
            assert!(handshake::verify(token, Role::Server, &hello().nonce, &challenge.nonce, &welcome.mac));
        }
        (server, step)
    }

    #[test]
    fn the_right_token_and_any_without_one_are_let_in() {
        assert!(matches!(run(&door(Some(b"secret")), b"secret").1, Step::Admit(..)));
        assert!(matches!(run(&door(None), b"").1, Step::Admit(..)));
    }

    #[test]
    fn a_wrong_token_makes_no_session() {
        let door = door(Some(b"secret"));
        let (_, step) = run(&door, b"guess");
        assert!(matches!(step, Step::Refuse(reason) if reason.contains("token")));
        assert_eq!(door.sessions.len(), 0);
    }

    #[test]
    fn a_message_in_pieces_waits_for_the_last() {
        let door = door(None);
        let message = handshake::encode(&hello()).unwrap();
        for part in 0..message.len() {
            assert!(matches!(begin().advance(&message[..part], &door), (Step::More, 0)), "{part}");
        }
    }

    #[test]
    fn garbage_old_versions_and_huge_lengths_are_refused_with_the_reason() {
        let door = door(None);
        let good = handshake::encode(&hello()).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (bytes, why) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "magic"),
            (b"x".to_vec(), "magic"),
            (with(8, 9), "wire version"),
            (with(15, 0xff), "at most"),
            (with(10, 3), "Hello"),
            ([with(12, good[12] + 1), vec![0]].concat(), "left over"),
        ] {
            match begin().advance(&bytes, &door) {
                (Step::Refuse(reason), _) => {
                    assert!(reason.contains(why), "{reason}");
                    let told = open::<Challenge>(&refusal(&reason));
                    assert!(matches!(told, Err(HandshakeError::Refused(told)) if told == reason));
                }
                (step, _) => panic!("{step:?} for {bytes:?}"),
            }
        }
    }
}
