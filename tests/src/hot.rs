//! Keys that are read all the time beside writes of more than fits: what a server that evicts keeps of them.

use sidestep_client::Session;

/// A load for a server that evicts.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Keys that are read again and again; as many that nobody reads are written beside them.
    pub hot: u64,
    /// Keys that are written afterwards, several times what fits.
    pub written: u64,
    /// Of these, how many are written between two rounds of reads.
    pub between: usize,
    /// Times that each hot key is read in such a round.
    pub reads: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// What is there in the end. Some hot keys go as well: with the slab that they are in, when that is emptied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of the keys that were read.
    pub hot: u64,
    /// Of as many that were not.
    pub cold: u64,
}

impl Load {
    fn put(&self, writer: &mut Session, keys: impl Iterator<Item = u64>) {
        let pairs: Vec<([u8; 8], Vec<u8>)> =
            keys.map(|key| (key.to_le_bytes(), vec![key as u8; self.value_bytes])).collect();
        for written in writer.multi_put(&pairs).expect("keys and values of right lengths") {
            written.expect("a server that evicts takes every write");
        }
    }

    /// Runs it. One after the other, so that it is the same on any machine: so many reads to so many writes.
    pub fn run(&self, reader: &mut Session, writer: &mut Session) -> Kept {
        let (hot, cold) = (0..self.hot, self.hot..2 * self.hot);
        self.put(writer, hot.clone().chain(cold.clone()));
        let keys: Vec<[u8; 8]> = hot.clone().map(u64::to_le_bytes).collect();
        let all: Vec<u64> = (2 * self.hot..2 * self.hot + self.written).collect();
        for some in all.chunks(self.between) {
            for _ in 0..self.reads {
                reader.multi_get_with(&keys, |_, _| ()).expect("reads");
            }
            self.put(writer, some.iter().copied());
        }
        let mut count = |keys: std::ops::Range<u64>| {
            let keys: Vec<[u8; 8]> = keys.map(u64::to_le_bytes).collect();
            writer.multi_get(&keys).expect("reads").iter().flatten().count() as u64
        };
        Kept { hot: count(hot), cold: count(cold) }
    }
}
