//! Many keys in one call: on `shm` and `rdma` one round for each READ step of all keys, on `tcp` one stream of
//! pipelined requests.

use crate::control::Control;
use crate::error::Error;
use crate::options::PutOptions;
use crate::paths::Reader;
use crate::pipeline::Request;
use crate::rdma::Item;
use crate::session::{Session, check_key};
use crate::submit::KeptAnswer;
use crate::value::{Answer, Meta, Value};

/// Requests of one batch in flight at once.
const MOST_IN_FLIGHT: usize = 1024;
/// Bytes that are gathered before they are sent.
const MOST_UNSENT_BYTES: usize = 256 << 10;

/// A value where it was received.
enum Found<'a> {
    Bytes(&'a [u8], Meta),
    /// In a buffer that may be kept.
    Item(Item),
}

impl<'a> Found<'a> {
    fn bytes((bytes, meta): (&'a [u8], Meta)) -> Self {
        Self::Bytes(bytes, meta)
    }
}

/// Whether to stop pushing and to hand out answers first.
fn is_enough(control: &Control) -> bool {
    control.waiting() >= MOST_IN_FLIGHT || control.unsent_bytes() >= MOST_UNSENT_BYTES
}

impl Session {
    /// Reads many keys; the result has one entry for each, in their order.
    pub fn multi_get<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Value>>, Error> {
        let mut values = vec![None; keys.len()];
        self.multi_get_found(keys, |i, found| {
            values[i] = found.map(|found| match found {
                Found::Bytes(bytes, meta) => Value::copied(bytes, meta),
                Found::Item(item) => Value::received(item),
            });
        })?;
        Ok(values)
    }

    /// Reads many keys without allocating for each: `each` is called once for every key, with its index and its
    /// value where it was received, in no order.
    ///
    /// Each key is read at some moment during the call; the batch is no snapshot. After an error some keys have
    /// not been handed over.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<(&[u8], Meta)>),
    ) -> Result<(), Error> {
        self.multi_get_found(keys, |i, found| match &found {
            Some(Found::Bytes(bytes, meta)) => each(i, Some((bytes, *meta))),
            Some(Found::Item(item)) => each(i, Some((item.bytes(), item.meta()))),
            None => each(i, None),
        })
    }

    fn multi_get_found<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<Found<'_>>),
    ) -> Result<(), Error> {
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        self.settle()?;
        let mut again = std::mem::take(&mut self.again);
        let Self { paths, control, .. } = self;
        let mut look = |i: usize, found: Option<Found<'_>>| {
            if found.is_some() {
                control.used(keys[i].as_ref());
            }
            each(i, found);
        };
        match paths.reader() {
            None => {
                self.again = again;
                return self.multi_get_over_tcp(keys, &mut |i, found| each(i, found.map(Found::bytes)));
            }
            Some(Reader::Shm(reader)) => {
                reader.look_batch(keys, &mut again, &mut |i, found| look(i, found.map(Found::bytes)));
            }
            Some(Reader::Rdma(reader)) => {
                reader.look_batch(keys, &mut again, &mut |i, item: Option<Item>| look(i, item.map(Found::Item)));
            }
        }
        let mut result = Ok(());
        for i in again.drain(..) {
            let mut is_found = false;
            result = self.get_with(keys[i].as_ref(), &mut |bytes, meta| {
                is_found = true;
                each(i, Some(Found::Bytes(bytes, meta)));
            });
            if result.is_err() {
                break;
            }
            if !is_found {
                each(i, None);
            }
        }
        self.again = again;
        result
    }

    fn multi_get_over_tcp<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: &mut impl FnMut(usize, Option<(&[u8], Meta)>),
    ) -> Result<(), Error> {
        let mut failed = None;
        self.stream(keys.len(), |i| Request::get(keys[i].as_ref()), &mut |i, answer| match answer {
            Ok(Answer::Value(bytes, meta)) => each(i, Some((bytes, meta))),
            Ok(_) => each(i, None),
            Err(error) => {
                failed.get_or_insert(error);
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Writes many values, pipelined. The result has one entry for each pair, in their order: the version, or why
    /// that one failed. Pairs are applied one by one, each as by [`Session::put`]; two with the same key in their order.
    ///
    /// Nothing is written if a key or value is beyond the limits.
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<u64, Error>>, Error> {
        for (key, value) in pairs {
            self.put_request(key.as_ref(), value.as_ref(), PutOptions::default())?;
        }
        self.settle_request()?;
        let mut versions = vec![Ok(0); pairs.len()];
        self.stream(pairs.len(), |i| Request::put(pairs[i].0.as_ref(), pairs[i].1.as_ref()), &mut |i, answer| {
            versions[i] = answer.map(|answer| match answer {
                Answer::Written { version } => version,
                _ => 0,
            });
        });
        Ok(versions)
    }

    /// Pushes `count` requests, sending and handing out answers as it goes, until all have ended.
    pub(crate) fn stream<'a>(
        &mut self,
        count: usize,
        request: impl Fn(usize) -> Request<'a>,
        each: &mut dyn FnMut(usize, Result<Answer<'_>, Error>),
    ) {
        let Self { control, kept, .. } = self;
        let (mut pushed, mut ended, mut lost) = (0, 0, None);
        // Ids are consecutive for as long as nothing else is pushed.
        let first_id = control.next_id();
        while ended < count {
            while pushed < count && !is_enough(control) {
                let request = request(pushed);
                if request.is_write() && control.writes_are_full() {
                    break;
                }
                control.push(&request);
                pushed += 1;
            }
            control.drive(true, &mut |id, answer| {
                if id < first_id {
                    kept.push_back((id, answer.map(KeptAnswer::from)));
                    return;
                }
                if let Err(error) = &answer
                    && error.is_of_connection()
                {
                    lost = Some(error.clone());
                }
                ended += 1;
                each((id - first_id) as usize, answer);
            });
            // A server that could not be reached for the first of them is not tried for each of the rest.
            if let Some(error) = &lost {
                (pushed..count).for_each(|i| each(i, Err(error.clone())));
                ended += count - pushed;
                pushed = count;
            }
        }
    }
}
