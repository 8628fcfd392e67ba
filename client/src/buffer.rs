//! Memory of the caller's that values are read into.

use std::fmt;
use std::ops::Deref;

use crate::error::Error;
use crate::paths::Reader;
use crate::rdma::Registered;
use crate::session::{Session, check_key};
use crate::shm::Looked;
use crate::value::Meta;

/// Memory for one value after another, which the NIC writes straight into on `rdma`: for a tensor, say. Derefs to the
/// value that was read last.
///
/// Registered with the NIC by the first [`Session::get_registered`], and for as long as it lives; on `rdma` the value
/// begins a page. It may be used with any session; one of another client registers it anew.
#[derive(Default)]
pub struct RegisteredBuffer {
    capacity_bytes: usize,
    registered: Option<Registered>,
    /// The value, where it is not in the registered memory.
    copied: Option<Vec<u8>>,
}

impl RegisteredBuffer {
    /// For values of up to so many bytes. Longer ones are read too, and copied. Takes no memory yet.
    pub fn with_capacity(value_bytes: usize) -> Self {
        Self { capacity_bytes: value_bytes, registered: None, copied: None }
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match (&self.copied, &self.registered) {
            (Some(copied), _) => copied,
            (None, Some(registered)) => registered.value(),
            (None, None) => &[],
        }
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("capacity_bytes", &self.capacity_bytes)
            .field("value_bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Reads a value into the caller's registered memory: on `rdma` without a copy, elsewhere with one. After an error,
    /// and where the key is absent, it holds no value.
    pub fn get_registered(
        &mut self,
        key: impl AsRef<[u8]>,
        into: &mut RegisteredBuffer,
    ) -> Result<Option<Meta>, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.settle()?;
        let RegisteredBuffer { capacity_bytes, registered, copied } = into;
        *copied = Some(Vec::new());
        while let Some(Reader::Rdma(reader)) = self.paths.reader() {
            let mut is_elsewhere = false;
            let (looked, meta) = reader.look_into(key, registered, *capacity_bytes, &mut |bytes| {
                is_elsewhere = true;
                *copied = Some(bytes.to_vec());
            });
            match looked {
                Looked::Found => {
                    if !is_elsewhere {
                        *copied = None;
                    }
                    self.control.used(key);
                    return Ok(meta);
                }
                Looked::Absent => return Ok(None),
                Looked::Ask => break,
                Looked::Gone => self.settle_again()?,
            }
        }
        let mut found = None;
        self.get_with(key, &mut |bytes, meta| {
            *copied = Some(bytes.to_vec());
            found = Some(meta);
        })?;
        Ok(found)
    }
}
