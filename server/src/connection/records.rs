//! Where in a TLS record the bytes that came have ended.

/// Type, version, length (RFC 8446 §5.1).
const HEADER_BYTES: usize = 5;

/// Follows a stream of TLS records by their headers.
#[derive(Debug, Default)]
pub(super) struct Records {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that have come.
    known: usize,
    /// Bytes of the record behind its header that have not come.
    left: usize,
}

impl Records {
    /// These bytes came next.
    pub(super) fn note(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.known == HEADER_BYTES {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
            } else {
                self.header[self.known] = bytes[0];
                self.known += 1;
                bytes = &bytes[1..];
                self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            }
            if self.known == HEADER_BYTES && self.left == 0 {
                self.known = 0;
            }
        }
    }

    /// Whether a record has begun and is not whole.
    pub(super) fn is_partial(&self) -> bool {
        self.known > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_end_of_each_record_is_found_however_the_bytes_are_cut(
            lengths in proptest::collection::vec(0usize..3000, 1..8),
            cut in 1usize..700,
        ) {
            let (mut stream, mut ends) = (Vec::new(), vec![0]);
            for length in lengths {
                let [high, low] = u16::try_from(length).unwrap().to_be_bytes();
                stream.extend([23, 3, 3, high, low]);
                stream.resize(stream.len() + length, 9);
                ends.push(stream.len());
            }
            let (mut records, mut come) = (Records::default(), 0);
            for piece in stream.chunks(cut) {
                records.note(piece);
                come += piece.len();
                prop_assert_eq!(records.is_partial(), !ends.contains(&come));
            }
        }
    }
}
