//! A mapped space as atomic words: every access to shared memory goes through here.

use std::sync::atomic::Ordering;

use super::atomic::{AtomicU64, fence};
use super::copy;

// The format is little-endian and words are loaded as they lie.
#[cfg(not(target_endian = "little"))]
compile_error!("sidestep maps little-endian words and needs a little-endian machine");

/// Start and length of a mapping. Whoever made it keeps the mapping alive for as long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    base: *mut AtomicU64,
    words: u64,
}

// SAFETY: the memory behind `base` is reached only by atomic accesses (or copies that behave as
// such, see `copy`), from any thread; the pointer itself is plain data.
unsafe impl Send for Words {}
// SAFETY: as above; no method hands out a reference to the memory.
unsafe impl Sync for Words {}

#[cold]
#[inline(never)]
fn out_of_range(word: u64, count: u64, words: u64) -> ! {
    panic!("words {word:#x}..+{count:#x} lie outside the {words:#x} mapped ones: an address was not checked")
}

impl Words {
    /// # Safety
    /// `base` is aligned to 8; `words` words from it on stay mapped for as long as the result or a
    /// copy of it is used, readable, and writable if a writing method is called. All this memory
    /// is accessed through `Words` or by other processes and the kernel only.
    pub(super) unsafe fn new(base: *mut u8, words: u64) -> Self {
        Self { base: base.cast(), words }
    }

    #[inline]
    pub(super) fn words(&self) -> u64 {
        self.words
    }

    /// Pointer to `count` words from `word` on, all of them inside.
    #[inline]
    fn at(&self, word: u64, count: u64) -> *mut AtomicU64 {
        // One comparison would do if the sum could not wrap.
        if word > self.words || count > self.words - word {
            out_of_range(word, count, self.words);
        }
        // SAFETY: `word` is at most the number of mapped words, whose bytes fit an isize.
        unsafe { self.base.add(word as usize) }
    }

    #[inline]
    fn atomic(&self, word: u64) -> &AtomicU64 {
        if word >= self.words {
            out_of_range(word, 1, self.words);
        }
        // SAFETY: below the number of mapped words, whose bytes fit an isize.
        let pointer = unsafe { self.base.add(word as usize) };
        // SAFETY: mapped and aligned (`new`), and accessed atomically by everyone. A load of 8
        // bytes with acquire ordering is allowed on read-only pages too (std::sync::atomic,
        // "Atomic accesses to read-only memory").
        unsafe { &*pointer }
    }

    #[inline]
    pub(super) fn load(&self, word: u64) -> u64 {
        self.atomic(word).load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn store(&self, word: u64, value: u64) {
        self.atomic(word).store(value, Ordering::Release);
    }

    #[inline]
    pub(super) fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.atomic(word).fetch_max(value, Ordering::AcqRel)
    }

    #[inline]
    pub(super) fn read(&self, word: u64, into: &mut [u8]) {
        assert!(into.len().is_multiple_of(8), "a read takes whole words");
        let count = into.len() / 8;
        let from = self.at(word, count as u64);
        // SAFETY: `count` words from `from` on are mapped, and `into` has room for as many.
        unsafe { copy::out(from, into.as_mut_ptr(), count) };
        // Later loads stay behind the copy. No instruction on x86.
        fence(Ordering::Acquire);
    }

    #[inline]
    pub(super) fn write(&self, word: u64, from: &[u8]) {
        let into = self.at(word, from.len().div_ceil(8) as u64);
        let whole = from.len() / 8;
        // SAFETY: `whole` words from `into` on are mapped, and `from` has as many.
        unsafe { copy::into(from.as_ptr(), into, whole) };
        let tail = &from[whole * 8..];
        if !tail.is_empty() {
            let mut last = [0; 8];
            last[..tail.len()].copy_from_slice(tail);
            self.atomic(word + whole as u64).store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn fence(&self) {
        // Release is enough: what comes before is ordered before every store that comes after.
        fence(Ordering::Release);
    }

    #[inline]
    pub(super) fn prefetch(&self, word: u64, bytes: usize) {
        if word < self.words {
            let mapped_bytes = (self.words - word).saturating_mul(8);
            // SAFETY: `word` is below the number of mapped words, whose bytes fit an isize.
            let from = unsafe { self.base.add(word as usize) };
            copy::prefetch(from, (bytes as u64).min(mapped_bytes) as usize);
        }
    }

    /// Where `bytes` bytes from byte `offset` on lie, for system calls; None if not all are mapped.
    pub(super) fn bytes_at(&self, offset: u64, bytes: usize) -> Option<*mut u8> {
        let end = offset.checked_add(bytes as u64)?;
        if end > self.words * 8 {
            return None;
        }
        // SAFETY: `offset` is at most the mapped length, which fits an isize.
        Some(unsafe { self.base.cast::<u8>().add(offset as usize) })
    }
}

/// Under Miri too, which the mapped memory is not: the pointers and the atomics, on the plain copies.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(memory: &[AtomicU64]) -> Words {
        // SAFETY: aligned; the slice outlives the test's use of it, and its words are atomic.
        unsafe { Words::new(memory.as_ptr().cast_mut().cast(), memory.len() as u64) }
    }

    #[test]
    fn every_length_and_alignment_is_copied_both_ways() {
        let memory: Vec<_> = (0..64).map(AtomicU64::new).collect();
        let words = words(&memory);
        for start in 0..4 {
            for count in 0..(64 - start as usize) {
                let mut bytes = vec![0xff; count * 8 + 1];
                words.read(start, &mut bytes[1..]);
                let expected: Vec<u8> = (start..start + count as u64).flat_map(u64::to_le_bytes).collect();
                assert_eq!(bytes[1..], expected);
                words.write(start, &expected);
            }
        }
        words.write(1, b"odd");
        assert_eq!(words.load(1), u64::from_le_bytes(*b"odd\0\0\0\0\0"));
        words.prefetch(60, 4096);
    }

    #[test]
    fn readers_and_a_writer_do_not_race() {
        let memory: Vec<_> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let words = words(&memory);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 1..20u8 {
                    words.write(1, &[round; 100]);
                    words.fence();
                    words.store(0, u64::from(round));
                    words.fetch_max(15, u64::from(round));
                }
            });
            let mut last = 0;
            while last < 19 {
                let published = words.load(0);
                let mut bytes = [0; 104];
                words.read(1, &mut bytes);
                assert!(published >= last && bytes[..96].iter().all(|byte| u64::from(*byte) >= published));
                last = published;
            }
        });
        assert_eq!(words.load(15), 19);
    }
}
