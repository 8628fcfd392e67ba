//! Memory as the protocol sees it: aligned 8-byte words and nothing larger.
//!
//! A word is the only unit of atomicity. Addresses are word indices (byte offset / 8) into one
//! space; [`crate::layout`] says what lies where. The table's writer and its readers, on mapped
//! segments and in the simulator, are written against these two traits.

/// A space of words that can be read while someone else writes it.
///
/// Callers check addresses against [`Memory::words`] first; an implementation panics on one
/// that is out of range, since that is a bug and never a matter of input.
pub trait Memory {
    /// Number of words in the space.
    fn words(&self) -> u64;
    /// Reads one word, with acquire ordering.
    fn load(&self, word: u64) -> u64;
    /// Copies words out, each sampled at a time of its own, in no order.
    /// `into.len()` is a multiple of 8; bytes are those of little-endian words.
    /// A [`Memory::load`] that comes later in program order is not moved before the copy.
    fn read(&self, word: u64, into: &mut [u8]);
    /// Hints that the cache lines of `bytes` bytes from `word` on will be read soon. Any address is allowed.
    fn prefetch(&self, _word: u64, _bytes: usize) {}
}

/// A space of words that its one owner, the server, writes.
pub trait MemoryMut: Memory {
    /// Writes one word, with release ordering.
    fn store(&self, word: u64, value: u64);
    /// Raises a word to at least `value`, atomically; returns what it was.
    fn fetch_max(&self, word: u64, value: u64) -> u64;
    /// Copies bytes into whole words, in no order; the rest of the last word becomes zero.
    fn write(&self, word: u64, from: &[u8]);
    /// Orders every earlier store before the first store into a reused extent.
    fn fence(&self);
    /// Makes the bytes `[word * 8, word * 8 + bytes)` usable (pages allocated), before anything
    /// in them is written. Fails where the storage is exhausted; never a signal later.
    fn allocate(&self, word: u64, bytes: u64) -> std::io::Result<()>;
    /// A segment is taken into use: makes it readable by the NICs of peers, if that is wanted and possible. Returns the
    /// address and the rkey by which they read it; an rkey of 0: they cannot.
    fn expose(&self, _word: u64, _bytes: u64) -> (u64, u32) {
        (0, 0)
    }
    /// A lock is held by another writer. True: try it again; false: wait for it. Only where writers are simulated
    /// threads that take turns does something happen here.
    fn yield_turn(&self) -> bool {
        false
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn words(&self) -> u64 {
        (**self).words()
    }
    fn load(&self, word: u64) -> u64 {
        (**self).load(word)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        (**self).read(word, into);
    }
    fn prefetch(&self, word: u64, bytes: usize) {
        (**self).prefetch(word, bytes);
    }
}

impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn words(&self) -> u64 {
        (**self).words()
    }
    fn load(&self, word: u64) -> u64 {
        (**self).load(word)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        (**self).read(word, into);
    }
    fn prefetch(&self, word: u64, bytes: usize) {
        (**self).prefetch(word, bytes);
    }
}

impl<M: MemoryMut + ?Sized> MemoryMut for std::sync::Arc<M> {
    fn store(&self, word: u64, value: u64) {
        (**self).store(word, value);
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        (**self).fetch_max(word, value)
    }
    fn write(&self, word: u64, from: &[u8]) {
        (**self).write(word, from);
    }
    fn fence(&self) {
        (**self).fence();
    }
    fn allocate(&self, word: u64, bytes: u64) -> std::io::Result<()> {
        (**self).allocate(word, bytes)
    }
    fn expose(&self, word: u64, bytes: u64) -> (u64, u32) {
        (**self).expose(word, bytes)
    }
    fn yield_turn(&self) -> bool {
        (**self).yield_turn()
    }
}
