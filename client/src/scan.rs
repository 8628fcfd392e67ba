//! A whole table: all keys page by page, written back with their expiry, or removed.

use std::time::{SystemTime, UNIX_EPOCH};

use sidestep_core::message::Op;
use sidestep_core::scan::{
    FLUSH_REQUEST_BYTES, Flushed, PAGE_HEADER_BYTES, PAGE_LIMIT_BYTES, PageHeader, Record, ScanRequest, records,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::Error;
use crate::options::PutOptions;
use crate::pipeline::Request;
use crate::session::Session;
use crate::value::Answer;

/// How far a scan has come. It lives here alone: the server remembers nothing, so a scan may pause, and goes on over
/// a connection that was lost and got back, or another session.
#[derive(Clone, Debug, Default)]
pub struct ScanCursor {
    from: u64,
    /// The last key that was met.
    after: Vec<u8>,
    is_done: bool,
    table_id: Option<u64>,
}

impl ScanCursor {
    /// At the beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether all keys have been met.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// What part of the keys is behind it, from 0 to 1. Keys are spread evenly, so this is exact but for chance.
    pub fn progress(&self) -> f64 {
        if self.is_done { 1.0 } else { part(self.from) }
    }
}

fn part(hash: u64) -> f64 {
    hash as f64 / 2f64.powi(64)
}

impl Session {
    /// Reads the next page of a scan of all keys, in no order that means anything: `each` is called with every record.
    ///
    /// A key that is there from the first page to the last is met exactly once; one that comes or goes meanwhile once or
    /// not at all, whatever is split. Each record is what its key had at some moment during the call; the scan is no
    /// snapshot of the table. One request, of some 128 KiB or one larger value, by the server's CPU.
    ///
    /// ```
    /// # use sidestep_client::{Client, Options, ScanCursor};
    /// # let server = sidestep_server::Server::start(sidestep_server::Config {
    /// #     listen: "127.0.0.1:0".to_owned(), ..Default::default() })?;
    /// # let mut session = Client::connect(server.local_addr().to_string(), Options::default())?.session()?;
    /// session.put("key", "value")?;
    /// let (mut cursor, mut keys) = (ScanCursor::new(), Vec::new());
    /// while !cursor.is_done() {
    ///     session.scan(&mut cursor, |record| keys.push(record.key.to_vec()))?;
    /// }
    /// assert_eq!(keys, [b"key"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(&mut self, cursor: &mut ScanCursor, mut each: impl FnMut(Record<'_>)) -> Result<(), Error> {
        if cursor.is_done {
            return Ok(());
        }
        let ask =
            ScanRequest { from: cursor.from.into(), limit_bytes: PAGE_LIMIT_BYTES.into(), ..ScanRequest::default() };
        let request = Request { op: Op::Scan, value: ask.as_bytes(), ..Request::get(&cursor.after) };
        let mut result = Err("expected a page, found no answer".to_owned());
        let mut last = Vec::new();
        self.call(&request, |answer| {
            if let Answer::Echo(body) = answer {
                result = page(body, |record| {
                    last.clear();
                    last.extend_from_slice(record.key);
                    each(record);
                });
            }
        })?;
        let nonsense = |reason| Error::Protocol { server: self.shared.server().to_owned(), reason };
        let header = result.map_err(nonsense)?;
        // The hashes of another table are others.
        let table_id = self.control.welcome().table_id;
        if *cursor.table_id.get_or_insert(table_id) != table_id {
            return Err(nonsense("the server has another table now: begin the scan again".to_owned()));
        }
        if header.is_last == 0 && header.next.get() <= cursor.from && last.is_empty() {
            return Err(nonsense("expected a page that goes on, found one that goes back".to_owned()));
        }
        (cursor.from, cursor.is_done) = (header.next.get(), header.is_last != 0);
        if !last.is_empty() {
            cursor.after = last;
        }
        Ok(())
    }

    /// Writes many values, each with the time at which it expires, in milliseconds since the Unix epoch (0 = never). Else
    /// as [`Session::multi_put`]. What is left until then is told by this machine's clock, and counted from then on by the
    /// server's; one that is in the past makes a key that is absent a millisecond later.
    pub fn multi_put_until<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: &[(K, V, u64)],
    ) -> Result<Vec<Result<u64, Error>>, Error> {
        for (key, value, _) in entries {
            self.put_request(key.as_ref(), value.as_ref(), PutOptions::default())?;
        }
        self.settle_request()?;
        let mut versions = vec![Ok(0); entries.len()];
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        let request = |i: usize| {
            let (key, value, expires_ms): &(K, V, u64) = &entries[i];
            let ttl_ms = if *expires_ms == 0 { 0 } else { expires_ms.saturating_sub(now_ms).max(1) };
            Request { ttl_ms, ..Request::put(key.as_ref(), value.as_ref()) }
        };
        self.stream(entries.len(), request, &mut |i, answer| {
            versions[i] = answer.map(|answer| match answer {
                Answer::Written { version } => version,
                _ => 0,
            });
        });
        Ok(versions)
    }

    /// Removes all keys, in steps that hold up nobody for long. Every key that was there at the beginning and is not
    /// written meanwhile is gone; each removal is that of [`Session::delete`]. `progress` is told from 0 to 1 how far it
    /// has come. Returns how many keys are gone.
    ///
    /// After [`Error::OutcomeUnknown`] some keys are gone: call it again.
    pub fn flush(&mut self, mut progress: impl FnMut(f64)) -> Result<u64, Error> {
        let (mut next, mut removed) = (Some(0u64), 0);
        while let Some(from) = next {
            progress(part(from));
            let value: [u8; FLUSH_REQUEST_BYTES] = from.to_le_bytes();
            let mut flushed = Flushed::new(None, 0);
            self.call(&Request { op: Op::Flush, value: &value, ..Request::get(&[]) }, |answer| {
                if let Answer::Written { version } = answer {
                    flushed = Flushed(version);
                }
            })?;
            removed += flushed.removed();
            next = flushed.next();
            if next.is_some_and(|next| next <= from) {
                let reason = "expected a flush that goes on, found one that goes back".to_owned();
                return Err(Error::Protocol { server: self.shared.server().to_owned(), reason });
            }
        }
        progress(1.0);
        Ok(removed)
    }
}

pub(crate) fn page(body: &[u8], each: impl FnMut(Record<'_>)) -> Result<PageHeader, String> {
    let (header, rest) = PageHeader::read_from_prefix(body)
        .map_err(|_| format!("expected a page of at least {PAGE_HEADER_BYTES} bytes, found {}", body.len()))?;
    records(rest, header.records.get()).map_err(|error| error.to_string())?.into_iter().for_each(each);
    Ok(header)
}
