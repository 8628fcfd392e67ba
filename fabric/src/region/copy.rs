//! Copies between shared words and private bytes, at the speed of a vector copy.
//!
//! A copy out of memory that someone else is writing is a data race unless it is made of atomic
//! loads, and the compiler never merges those into vectors: 1 KiB of cold words one by one takes
//! 2.5 times as long as memcpy. On x86-64 the loads are therefore vector instructions in inline
//! assembly. Why that is sound:
//! - An asm block may do what Rust code could do in its place. In place of each block here stands:
//!   a relaxed atomic load of each 8-byte word, then a plain store to the private buffer (or the
//!   reverse). The compiler sees neither the access nor its width and must assume that the block
//!   touches any memory, so it can draw no conclusion from a race and moves no access across it.
//! - The hardware keeps the promise of single words: an aligned 16-byte `movdqa` is one access on
//!   processors with AVX (Intel SDM vol. 3 §10.1.1, AMD APM vol. 2 §7.3.2) and at least whole
//!   aligned quadwords on those before. Wider and unaligned vectors have no such documented
//!   promise and are not used on the shared side; the private side may have any width.
//! - x86 does not reorder these loads with later loads, nor these stores with later stores.
//!
//! Elsewhere, and under Miri, loom and the sanitizers (`word_loops`), it is a loop of relaxed atomic words.

use std::sync::atomic::Ordering;

use super::atomic::AtomicU64;

const LINE_BYTES: usize = 64;
/// Most that one prefetch asks for: no more lines than a core can have in flight, and some.
const MAX_PREFETCH_BYTES: usize = 64 * LINE_BYTES;

/// One word out of shared memory.
///
/// # Safety
/// `from` is a mapped, aligned word that everyone accesses atomically; 8 bytes at `into` are the caller's own.
#[inline(always)]
unsafe fn word_out(from: *const AtomicU64, into: *mut u8) {
    // SAFETY: the caller's promise.
    let value = unsafe { &*from }.load(Ordering::Relaxed);
    // SAFETY: the caller's promise; the buffer may be unaligned.
    unsafe { into.cast::<u64>().write_unaligned(value) };
}

/// One word into shared memory.
///
/// # Safety
/// As [`word_out`], the other way round.
#[inline(always)]
unsafe fn word_into(from: *const u8, into: *const AtomicU64) {
    // SAFETY: the caller's promise; the buffer may be unaligned.
    let value = unsafe { from.cast::<u64>().read_unaligned() };
    // SAFETY: the caller's promise.
    unsafe { &*into }.store(value, Ordering::Relaxed);
}

/// Copies `count` words out, in no order.
///
/// # Safety
/// `count` words from `from` on are mapped, aligned, and accessed by others atomically;
/// `count * 8` bytes from `into` on are the caller's own.
#[cfg(any(miri, loom, word_loops, not(target_arch = "x86_64")))]
#[inline]
pub(super) unsafe fn out(from: *const AtomicU64, into: *mut u8, count: usize) {
    for i in 0..count {
        // SAFETY: `i` is below `count`.
        let (from, into) = unsafe { advance(from, into, i) };
        // SAFETY: inside both ranges.
        unsafe { word_out(from, into) };
    }
}

#[cfg(any(miri, loom, word_loops, not(target_arch = "x86_64")))]
unsafe fn advance(shared: *const AtomicU64, private: *mut u8, words: usize) -> (*const AtomicU64, *mut u8) {
    (shared.wrapping_add(words), private.wrapping_add(words * 8))
}

/// Copies `count` words in, in no order.
///
/// # Safety
/// As [`out`], the other way round, and the mapping is writable.
#[cfg(any(miri, loom, word_loops, not(target_arch = "x86_64")))]
#[inline]
pub(super) unsafe fn into(from: *const u8, into: *const AtomicU64, count: usize) {
    for i in 0..count {
        // SAFETY: `i` is below `count`, so both are inside their ranges.
        unsafe { word_into(from.wrapping_add(i * 8), into.wrapping_add(i)) };
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, word_loops))))]
pub(super) use x86_64::{into, out};

/// Asks for the lines of `bytes` bytes from `from` on. Never faults.
#[inline]
pub(super) fn prefetch(from: *const AtomicU64, bytes: usize) {
    let first = from.cast::<u8>();
    let bytes = bytes.min(MAX_PREFETCH_BYTES);
    // The last byte's line counts also where the first one begins in mid-line.
    let bytes = if bytes == 0 { 0 } else { bytes + first.addr() % LINE_BYTES };
    for offset in (0..bytes).step_by(LINE_BYTES) {
        prefetch_line(first.wrapping_add(offset));
    }
}

#[inline(always)]
fn prefetch_line(_at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, word_loops))))]
    // SAFETY: a prefetch is a hint and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(_at.cast());
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, word_loops))))]
mod x86_64 {
    use super::{AtomicU64, LINE_BYTES, word_into, word_out};
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    /// From here on a copy goes through 32-byte stores, which need a call and a look at the CPU's
    /// features. With 16-byte stores it is the store queue, full of lines that have not come yet,
    /// that limits the loads in flight.
    const WIDE_BYTES: usize = 256;

    /// `$load` from `$from`, `$store` to `$into`: four vectors of 16 bytes.
    macro_rules! copy_64 {
        ($load:literal, $store:literal, $from:expr, $into:expr) => {
            asm!(
                concat!($load, " {a}, [{from}]"),
                concat!($load, " {b}, [{from} + 16]"),
                concat!($load, " {c}, [{from} + 32]"),
                concat!($load, " {d}, [{from} + 48]"),
                concat!($store, " [{into}], {a}"),
                concat!($store, " [{into} + 16], {b}"),
                concat!($store, " [{into} + 32], {c}"),
                concat!($store, " [{into} + 48], {d}"),
                from = in(reg) $from,
                into = in(reg) $into,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            )
        };
    }

    /// Copies `count` words out, in no order.
    ///
    /// # Safety
    /// `count` words from `from` on are mapped, aligned, and accessed by others atomically;
    /// `count * 8` bytes from `into` on are the caller's own.
    #[inline]
    pub(in super::super) unsafe fn out(from: *const AtomicU64, into: *mut u8, count: usize) {
        let (mut from, mut into, mut left) = (from, into, count * 8);
        // To where vectors are aligned. (Blocks are: nearly every copy starts there.)
        if left >= 8 && !from.addr().is_multiple_of(size_of::<__m128i>()) {
            // SAFETY: one word is left in both.
            unsafe { word_out(from, into) };
            (from, into, left) = (from.wrapping_add(1), into.wrapping_add(8), left - 8);
        }
        if left >= WIDE_BYTES && std::arch::is_x86_feature_detected!("avx") {
            let bytes = left - left % LINE_BYTES;
            // SAFETY: so many bytes are left in both, `from` is aligned to 16, the CPU has AVX.
            unsafe { lines_out(from.cast(), into, bytes) };
            (from, into, left) = (from.wrapping_add(bytes / 8), into.wrapping_add(bytes), left - bytes);
        }
        while left >= LINE_BYTES {
            // SAFETY: 64 bytes are left in both, `from` is aligned to 16; see the top of the file.
            unsafe { copy_64!("movdqa", "movdqu", from, into) };
            (from, into, left) = (from.wrapping_add(8), into.wrapping_add(64), left - 64);
        }
        while left >= 8 {
            // SAFETY: one word is left in both.
            unsafe { word_out(from, into) };
            (from, into, left) = (from.wrapping_add(1), into.wrapping_add(8), left - 8);
        }
    }

    /// Copies whole lines out: aligned 16-byte loads, joined to 32-byte stores.
    ///
    /// # Safety
    /// As [`out`]; `bytes` is a multiple of 64 and not 0, `from` is aligned to 16.
    #[target_feature(enable = "avx")]
    unsafe fn lines_out(from: *const u8, into: *mut u8, bytes: usize) {
        // SAFETY: reads and writes the two ranges alone, per line as `out` does; see the top of
        // the file. Both pointers are offset from their ends by a negative count up to zero.
        unsafe {
            asm!(
                "2:",
                "vmovdqa xmm0, [{from} + rcx]",
                "vmovdqa xmm1, [{from} + rcx + 16]",
                "vmovdqa xmm2, [{from} + rcx + 32]",
                "vmovdqa xmm3, [{from} + rcx + 48]",
                "vinsertf128 ymm0, ymm0, xmm1, 1",
                "vinsertf128 ymm2, ymm2, xmm3, 1",
                "vmovdqu [{into} + rcx], ymm0",
                "vmovdqu [{into} + rcx + 32], ymm2",
                "add rcx, 64",
                "jnz 2b",
                // Code compiled for SSE may follow.
                "vzeroupper",
                from = in(reg) from.wrapping_add(bytes),
                into = in(reg) into.wrapping_add(bytes),
                inout("rcx") bytes.wrapping_neg() => _,
                // vzeroupper changes all vector registers.
                clobber_abi("sysv64"),
                options(nostack)
            );
        }
    }

    /// Copies `count` words in, in no order.
    ///
    /// # Safety
    /// As [`out`], the other way round, and the mapping is writable.
    #[inline]
    pub(in super::super) unsafe fn into(from: *const u8, into: *const AtomicU64, count: usize) {
        let (mut from, mut into, mut left) = (from, into, count * 8);
        if left >= 8 && !into.addr().is_multiple_of(size_of::<__m128i>()) {
            // SAFETY: one word is left in both.
            unsafe { word_into(from, into) };
            (from, into, left) = (from.wrapping_add(8), into.wrapping_add(1), left - 8);
        }
        while left >= LINE_BYTES {
            // SAFETY: 64 bytes are left in both, `into` is aligned to 16; see the top of the file.
            unsafe { copy_64!("movdqu", "movdqa", from, into) };
            (from, into, left) = (from.wrapping_add(64), into.wrapping_add(8), left - 64);
        }
        while left >= 8 {
            // SAFETY: one word is left in both.
            unsafe { word_into(from, into) };
            (from, into, left) = (from.wrapping_add(8), into.wrapping_add(1), left - 8);
        }
    }
}
