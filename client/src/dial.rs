//! Getting a connection: resolve, connect, handshake, all within one deadline.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use sidestep_core::handshake::{
    Challenge, HandshakeError, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, Role, Welcome, decode, encode, prove,
    verify,
};
use sidestep_core::limits::DEFAULT_PORT;
use zerocopy::FromBytes;

use crate::error::ConnectError;
use crate::options::Options;

/// Who asks to be let in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) client_id: u64,
    /// Boot id of the session to go on with; 0 = a new one.
    pub(crate) resume_boot_id: u64,
}

/// A connection after its handshakes.
#[derive(Debug)]
pub(crate) struct Dialled {
    /// Its read timeout is that of requests.
    pub(crate) stream: TcpStream,
    /// Where there is TLS: the end of it that belongs to the stream.
    pub(crate) tls: Option<Box<ClientConnection>>,
}

/// Connects to the first address that answers and shakes hands.
pub(crate) fn dial(
    server: &str,
    identity: Identity,
    options: &Options,
    within: Duration,
) -> Result<(Dialled, Welcome), ConnectError> {
    let deadline = Instant::now() + within;
    let stream = connect(server, deadline)?;
    stream.set_nodelay(true)?;
    let mut timed = Timed { stream: &stream, deadline };
    let (tls, welcome) = match &options.tls {
        None => (None, shake_hands(&mut timed, identity, &options.token)?),
        Some(tls) => {
            let mut session = Box::new(tls.open(host(server))?);
            // First by itself: what fails here is TLS.
            session.complete_io(&mut timed).map_err(tls_error)?;
            let mut over = rustls::Stream::new(&mut *session, &mut timed);
            let welcome = shake_hands(&mut over, identity, &options.token)?;
            (Some(session), welcome)
        }
    };
    stream.set_read_timeout(Some(at_least_1_ms(options.request_timeout)))?;
    stream.set_write_timeout(None)?;
    Ok((Dialled { stream, tls }, welcome))
}

/// What of an address is the server's name.
fn host(server: &str) -> &str {
    let is_bare_v6 = server.parse::<std::net::Ipv6Addr>().is_ok();
    let host = match server.rsplit_once(':') {
        Some((host, port)) if !is_bare_v6 && !port.ends_with(']') => host,
        _ => server,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The reason that rustls gives, in words, if it is one of TLS.
fn tls_error(error: io::Error) -> ConnectError {
    use rustls::{Error, InvalidMessage};
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            ConnectError::Tls("expected TLS, found a server that does not speak it".to_owned())
        }
        Some(Error::AlertReceived(alert)) => ConnectError::Tls(format!("the server ended TLS: {alert:?}")),
        Some(error) => ConnectError::Tls(error.to_string()),
        None => ConnectError::Io(error),
    }
}

fn connect(server: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = None;
    for address in with_port(server).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, remaining(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// Adds the default port where none is named. An IPv6 address needs its brackets to have a port.
fn with_port(server: &str) -> String {
    let bare_v6 = server.parse::<std::net::Ipv6Addr>().is_ok();
    if bare_v6 {
        format!("[{server}]:{DEFAULT_PORT}")
    } else if server.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']')) {
        server.to_owned()
    } else {
        format!("{server}:{DEFAULT_PORT}")
    }
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(io::Error::new(io::ErrorKind::TimedOut, "the connect timeout passed")),
    }
}

/// A socket timeout of zero would mean none.
fn at_least_1_ms(timeout: Duration) -> Duration {
    timeout.max(Duration::from_millis(1))
}

/// A socket in a handshake. The deadline holds for the whole, not for each read: a peer that drips bytes gains nothing.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(at_least_1_ms(remaining(self.deadline)?)))?;
        self.stream.read(into).map_err(too_long)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(at_least_1_ms(remaining(self.deadline)?)))?;
        self.stream.write(bytes).map_err(too_long)
    }

    /// An alert behind other records is sent by one call or not at all.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(at_least_1_ms(remaining(self.deadline)?)))?;
        self.stream.write_vectored(parts).map_err(too_long)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_long(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"),
        _ => error,
    }
}

fn shake_hands(stream: &mut (impl Read + Write), identity: Identity, token: &[u8]) -> Result<Welcome, ConnectError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::from)?;
    let Identity { client_id, resume_boot_id } = identity;
    send(stream, &Hello { nonce, client_id, resume_boot_id })?;
    let challenge: Challenge = receive(stream)?;
    if challenge.token_required && token.is_empty() {
        return Err(HandshakeError::Refused("the server requires a token and none was given".to_owned()).into());
    }
    send(stream, &Proof { mac: prove(token, Role::Client, &nonce, &challenge.nonce) })?;
    let welcome: Welcome = receive(stream)?;
    // Someone with a token means to talk to its server and to no other.
    if !token.is_empty() && !verify(token, Role::Server, &nonce, &challenge.nonce, &welcome.mac) {
        let reason = "a token was given, and the server does not know it: not the server that was meant";
        return Err(HandshakeError::Refused(reason.to_owned()).into());
    }
    Ok(welcome)
}

fn send<M: Message>(stream: &mut impl Write, message: &M) -> Result<(), ConnectError> {
    stream.write_all(&encode(message)?).map_err(tls_error)
}

fn receive<M: Message>(stream: &mut impl Read) -> Result<M, ConnectError> {
    let mut head = [0; PREAMBLE_BYTES];
    read_exact(stream, &mut head)?;
    let preamble = Preamble::read_from_bytes(&head).map_err(|e| io::Error::other(e.to_string()))?;
    let (kind, body_bytes) = preamble.check()?;
    let mut body = vec![0; body_bytes];
    read_exact(stream, &mut body)?;
    Ok(decode(kind, &body)?)
}

fn read_exact(stream: &mut impl Read, into: &mut [u8]) -> Result<(), ConnectError> {
    stream.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed in the handshake").into()
        }
        _ => tls_error(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_port_is_added() {
        assert_eq!(with_port("localhost"), "localhost:7411");
        assert_eq!(with_port("localhost:1"), "localhost:1");
        assert_eq!(with_port("::1"), "[::1]:7411");
        assert_eq!(with_port("[::1]"), "[::1]:7411");
        assert_eq!(with_port("[::1]:2"), "[::1]:2");
    }

    #[test]
    fn the_host_of_an_address_is_the_name() {
        for (address, name) in [
            ("localhost", "localhost"),
            ("db.example:1", "db.example"),
            ("10.0.0.1:7411", "10.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[::1]:2", "::1"),
        ] {
            assert_eq!(host(address), name);
        }
    }

    fn against(reply: &'static [u8]) -> ConnectError {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(reply).unwrap();
            // Read until the client gives up, so that nothing is reset under it.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let identity = Identity { client_id: 1, resume_boot_id: 0 };
        let error = dial(&address, identity, &Options::default(), Duration::from_millis(200)).unwrap_err();
        peer.join().unwrap();
        error
    }

    #[test]
    fn strangers_are_told_apart() {
        assert!(matches!(
            against(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            ConnectError::Handshake(HandshakeError::Magic(_))
        ));
        assert!(matches!(
            against(b"SIDESTEP\x09\x00\x02\x00\x00\x00\x00\x00"),
            ConnectError::Handshake(HandshakeError::Version(9))
        ));
        assert!(matches!(
            against(b"SIDESTEP\x05\x00\x02\x00\xff\xff\xff\xff"),
            ConnectError::Handshake(HandshakeError::TooLong(_))
        ));
    }

    #[test]
    fn a_silent_peer_costs_the_connect_timeout() {
        let started = Instant::now();
        assert!(matches!(against(b""), ConnectError::Io(error) if error.kind() == io::ErrorKind::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
