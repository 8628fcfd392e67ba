//! Values read into memory that the caller keeps.

use std::ops::Range;

use sidestep_core::layout::item;
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_fabric::rdma::{Buffer, RdmaError};

use super::reader::RdmaReader;
use super::remote::Wanted;
use crate::shm::Looked;
use crate::value::Meta;

/// Room before the value for what precedes it in an item (at most 4136 bytes), of whole pages, so that the value begins
/// a page.
const FRONT_BYTES: usize = 8192;

/// Registered memory of a caller, and the value in it.
#[derive(Debug)]
pub(crate) struct Registered {
    buffer: Buffer,
    value: Range<usize>,
}

impl Registered {
    pub(crate) fn value(&self) -> &[u8] {
        &self.buffer[self.value.clone()]
    }
}

impl RdmaReader {
    /// Looks a key up, its value read into `into`, which is registered here if it is not yet. Where the value turns
    /// out to be elsewhere (it was being replaced, or is longer than `capacity_bytes`) it is handed to `otherwise`.
    pub(crate) fn look_into(
        &mut self,
        key: &[u8],
        into: &mut Option<Registered>,
        capacity_bytes: usize,
        otherwise: &mut dyn FnMut(&[u8]),
    ) -> (Looked, Option<Meta>) {
        let buffer = match self.registered(into.take(), capacity_bytes) {
            Ok(buffer) => buffer,
            Err(error) => {
                self.break_off(error);
                return (Looked::Gone, None);
            }
        };
        let mut wanted = Some(Wanted { buffer, at: FRONT_BYTES - item::value_offset(key.len()) });
        let mut found = None;
        let looked = self.find_into(key, &mut found, &mut wanted);
        let meta = found.as_ref().map(|item| item.meta());
        match (wanted, found) {
            // It was taken, and the value is in it.
            (None, Some(item)) if item.meta().value_bytes <= capacity_bytes => {
                let (buffer, value) = item.into_parts();
                if value.start == FRONT_BYTES {
                    *into = Some(Registered { buffer, value });
                } else {
                    otherwise(&buffer[value]);
                }
            }
            (wanted, found) => {
                if let Some(item) = found {
                    otherwise(item.bytes());
                }
                *into = wanted.map(|Wanted { buffer, .. }| Registered { buffer, value: 0..0 });
            }
        }
        (looked, meta)
    }

    fn registered(&self, into: Option<Registered>, capacity_bytes: usize) -> Result<Buffer, RdmaError> {
        let pool = self.remote.pool();
        match into {
            Some(Registered { buffer, .. }) if pool.has_domain_of(&buffer) => Ok(buffer),
            // Items end with a whole block.
            _ => pool.take_alone(FRONT_BYTES + capacity_bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES),
        }
    }
}
