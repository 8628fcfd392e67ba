//! Tickets, users, silent clients, descriptors across threads and processes.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;

use sidestep_core::memory::{Memory, MemoryMut};

use super::*;
use crate::region::{ReadOnlyRegion, Region};

const TICKET: [u8; TICKET_BYTES] = *b"a good ticket...";
const WAIT: Duration = Duration::from_secs(20);

fn serve(region: &Region, options: FdServerOptions) -> FdServer {
    FdServer::start(region.read_only_fd().unwrap(), options, |ticket| *ticket == TICKET).unwrap()
}

fn connect(server: &FdServer) -> UnixStream {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(server.socket_name()).unwrap()).unwrap()
}

#[test]
fn a_good_ticket_gets_memory_that_is_shared_and_read_only() {
    let region = Region::memfd(4096).unwrap();
    let server = serve(&region, FdServerOptions::default());
    let fd = fetch_fd(server.socket_name(), TICKET, WAIT).unwrap();
    assert!(memmap2::MmapOptions::new().map_raw(&std::fs::File::from(fd.try_clone().unwrap())).is_err());
    let reader = ReadOnlyRegion::map(fd, 4096).unwrap();
    region.store(3, 42);
    assert_eq!(reader.load(3), 42);
}

#[test]
fn a_bad_ticket_is_refused_and_others_are_served_on() {
    let region = Region::memfd(4096).unwrap();
    let server = serve(&region, FdServerOptions::default());
    let error = fetch_fd(server.socket_name(), [0; TICKET_BYTES], WAIT).unwrap_err();
    assert!(matches!(error, ShmError::TicketRefused), "{error}");
    fetch_fd(server.socket_name(), TICKET, WAIT).unwrap();
}

#[test]
fn silent_clients_block_nobody_and_are_dropped_at_their_deadline() {
    let region = Region::memfd(4096).unwrap();
    let server = serve(&region, FdServerOptions { deadline: Duration::from_millis(200), ..Default::default() });
    // More than may be pending at once, some with half a ticket.
    let mut silent: Vec<_> = (0..300).map(|_| connect(&server)).collect();
    for client in &mut silent[10..] {
        // On a busy host the first may have been dropped by now.
        let said = client.write_all(&TICKET[..8]).map_err(|error| error.kind());
        assert!(matches!(said, Ok(()) | Err(ErrorKind::BrokenPipe)), "{said:?}");
    }
    for _ in 0..20 {
        fetch_fd(server.socket_name(), TICKET, WAIT).unwrap();
    }
    for mut client in silent {
        client.set_read_timeout(Some(WAIT)).unwrap();
        assert!(!matches!(client.read(&mut [0]), Ok(1)), "nothing is given to a silent client");
    }
}

#[test]
fn a_ticket_may_come_in_pieces_and_be_followed_by_garbage() {
    let region = Region::memfd(4096).unwrap();
    let server = serve(&region, FdServerOptions::default());
    let mut client = connect(&server);
    for byte in TICKET.iter().chain(b"garbage") {
        client.write_all(&[*byte]).unwrap_or(());
    }
    let mut answer = [9];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [GRANTED]);
}

#[test]
fn a_stopped_server_is_gone_at_once() {
    let region = Region::memfd(4096).unwrap();
    let server = serve(&region, FdServerOptions::default());
    let name = server.socket_name().to_vec();
    let mut silent = connect(&server);
    server.stop();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    assert!(matches!(fetch_fd(&name, TICKET, WAIT).unwrap_err(), ShmError::Connect(_)));
    assert!(matches!(fetch_fd(&[b'x'; 200], TICKET, WAIT).unwrap_err(), ShmError::Connect(_)));
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let name = format!("sidestep-test-{:032x}", rand::random::<u128>()).into_bytes();
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let error = fetch_fd(&name, TICKET, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, ShmError::Timeout(_)), "{error}");
}

#[test]
fn an_answer_without_a_descriptor_is_an_error() {
    for (answer, expected) in [(&[GRANTED][..], "without"), (&[7], "0x07"), (&[], "end of the connection")] {
        let name = format!("sidestep-test-{:032x}", rand::random::<u128>()).into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = listener.accept().unwrap().0;
                client.read_exact(&mut [0; TICKET_BYTES]).unwrap();
                client.write_all(answer).unwrap();
            });
            fetch_fd(&name, TICKET, WAIT).unwrap_err()
        });
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_host_has_a_boot_id() {
    let id = host_boot_id().unwrap();
    assert_eq!((id.len(), id.clone()), (36, host_boot_id().unwrap()));
}

/// Set in the children of the tests below: the name of the parent's socket.
const SOCKET: &str = "SIDESTEP_TEST_SOCKET";

fn child(test: &str, server: &FdServer) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("shm::tests::{test}"), "--nocapture"]);
    command.env(SOCKET, std::str::from_utf8(server.socket_name()).unwrap());
    command
}

#[test]
fn another_process_reads_the_same_memory() {
    if let Ok(name) = std::env::var(SOCKET) {
        let fd = fetch_fd(name.as_bytes(), TICKET, WAIT).unwrap();
        let reader = ReadOnlyRegion::map(fd, 4096).unwrap();
        assert_eq!(reader.load(511), 0x5151);
        return;
    }
    let region = Region::memfd(4096).unwrap();
    region.store(511, 0x5151);
    let server = serve(&region, FdServerOptions::default());
    let run = child("another_process_reads_the_same_memory", &server).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Needs a second user, so it runs where the tests run as root, and is a plain check of the other outcome elsewhere.
#[test]
fn another_user_is_refused_unless_allowed() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    if let Ok(name) = std::env::var(SOCKET) {
        match fetch_fd(name.as_bytes(), TICKET, WAIT) {
            Ok(_) => println!("outcome: granted"),
            Err(error) => println!("outcome: {error}"),
        }
        return;
    }
    let region = Region::memfd(4096).unwrap();
    let root = rustix::process::geteuid().is_root();
    for (allowed_uids, expected) in [(vec![], "refuses its memory to this user"), (vec![NOBODY], "granted")] {
        let server = serve(&region, FdServerOptions { allowed_uids, ..Default::default() });
        let mut command = child("another_user_is_refused_unless_allowed", &server);
        if root {
            command.uid(NOBODY);
        }
        // The folder of the test binary may be closed to that user.
        let Ok(run) = command.output() else { return eprintln!("skipped: cannot run as another user") };
        let output = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(output.contains(if root { expected } else { "granted" }), "{output}");
    }
}
