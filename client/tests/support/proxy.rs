//! A man in the middle of a TCP connection, who can lose replies and cut connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) struct Proxy {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<String>,
    lose_replies: AtomicBool,
    lost: AtomicUsize,
    /// Bytes after which each direction of a connection is cut; 0 = never.
    cut_after: AtomicUsize,
    connections: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(crate) fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            lose_replies: AtomicBool::new(false),
            lost: AtomicUsize::new(0),
            cut_after: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            streams: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let target = accepting.target.lock().unwrap().clone();
                // A target that is gone is a client that is dropped.
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) {
                    join(&accepting, client, server);
                }
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where connections go from now on.
    pub(crate) fn aim(&self, target: String) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// From now on replies vanish (or no longer do).
    pub(crate) fn lose_replies(&self, lose: bool) {
        self.shared.lose_replies.store(lose, Ordering::SeqCst);
    }

    /// From now on each connection is cut after so many bytes in one direction, and a bit more each time.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.shared.cut_after.store(bytes, Ordering::SeqCst);
    }

    /// Chunks of replies that have vanished.
    pub(crate) fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Closes every connection.
    pub(crate) fn cut(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn join(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let mut streams = shared.streams.lock().unwrap();
    for stream in [&client, &server] {
        streams.push(stream.try_clone().unwrap());
    }
    let (requests, replies) = (shared.clone(), shared.clone());
    let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || copy(&requests, from_client, to_server, false));
    std::thread::spawn(move || copy(&replies, server, client, true));
}

fn copy(shared: &Shared, mut from: TcpStream, mut to: TcpStream, is_reply: bool) {
    let mut buffer = vec![0; 64 << 10];
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let mut forwarded = 0;
    while let Ok(mut n @ 1..) = from.read(&mut buffer) {
        let most = shared.cut_after.load(Ordering::SeqCst);
        if most > 0 && forwarded + n > most + number % 97 {
            n = (most + number % 97).saturating_sub(forwarded).min(n);
            let _ = to.write_all(&buffer[..n]);
            if is_reply {
                break;
            }
            // What the server got it answers, and closes: every connection gets some requests done, also where this
            // thread is quicker than the server.
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        forwarded += n;
        if is_reply && shared.lose_replies.load(Ordering::SeqCst) {
            shared.lost.fetch_add(1, Ordering::SeqCst);
        } else if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
