//! One HTTP/1.1 request and its reply, after which the connection is closed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// For the whole of a request and its reply: whoever is slower keeps others waiting no longer than this.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);
/// Longest head of a request.
const HEAD_BYTES: usize = 8 << 10;
/// Most header lines of a request.
const HEADERS: usize = 64;

pub(super) const OK: &str = "200 OK";
const BAD_REQUEST: &str = "400 Bad Request";
pub(super) const NOT_FOUND: &str = "404 Not Found";
const METHOD: &str = "405 Method Not Allowed";
const TOO_LARGE: &str = "431 Request Header Fields Too Large";
pub(super) const INTERNAL: &str = "500 Internal Server Error";
pub(super) const UNAVAILABLE: &str = "503 Service Unavailable";

/// What is sent back.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

impl Page {
    pub(super) fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// What was asked, as far as it matters.
pub(super) enum Asked {
    More,
    Get(String),
    Head(String),
    Wrong(Page),
}

/// Reads one request from a connection and answers it.
pub(super) fn answer(mut stream: TcpStream, page: impl Fn(&str) -> Page) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    stream.set_nonblocking(false)?;
    let mut head = Vec::new();
    let (page, with_body) = loop {
        match parse(&head) {
            Asked::More if head.len() >= HEAD_BYTES => {
                break (Page::text(TOO_LARGE, "the request is too long\n"), true);
            }
            Asked::More => {}
            Asked::Get(path) => break (page(&path), true),
            Asked::Head(path) => break (page(&path), false),
            Asked::Wrong(page) => break (page, true),
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&part[..n]),
        }
    };
    let Page { status, content_type, body } = page;
    let allow = if status == METHOD { "Allow: GET, HEAD\r\n" } else { "" };
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    if with_body {
        reply.push_str(&body);
    }
    let mut rest = reply.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => rest = &rest[n..],
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

pub(super) fn parse(head: &[u8]) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => Asked::More,
        Err(httparse::Error::TooManyHeaders) => {
            Asked::Wrong(Page::text(TOO_LARGE, "the request has too many headers\n"))
        }
        Err(error) => Asked::Wrong(Page::text(BAD_REQUEST, format!("expected an HTTP request: {error}\n"))),
        Ok(httparse::Status::Complete(_)) => {
            // A path may carry a query, which says nothing here.
            let target = request.path.unwrap_or_default();
            let path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
            match request.method {
                Some("GET") => Asked::Get(path),
                Some("HEAD") => Asked::Head(path),
                _ => Asked::Wrong(Page::text(METHOD, "expected GET or HEAD\n")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn exchange(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(request).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let _ = answer(listener.accept().unwrap().0, |path| Page::text(OK, format!("page of {path}")));
        let mut reply = String::new();
        let _ = client.read_to_string(&mut reply);
        reply
    }

    #[test]
    fn requests_get_what_they_are_worth() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS + 1));
        let long = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(HEAD_BYTES));
        for (request, starts, ends) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 ", "\r\n\r\npage of /metrics"),
            ("GET /ready?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 ", "page of /ready"),
            ("HEAD /ready HTTP/1.1\r\n\r\n", "HTTP/1.1 200 ", "\r\n\r\n"),
            ("POST / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ", "expected GET or HEAD\n"),
            ("SIDESTEP\0\0", "HTTP/1.1 400 ", "\n"),
            (&many, "HTTP/1.1 431 ", "\n"),
            (&long, "HTTP/1.1 431 ", "\n"),
            ("GET / HTTP/1.1\r\n", "", ""),
        ] {
            let reply = exchange(request.as_bytes());
            assert!(reply.starts_with(starts) && reply.ends_with(ends), "{request:?}: {reply:?}");
            assert_eq!(reply.is_empty(), starts.is_empty());
        }
    }
}
