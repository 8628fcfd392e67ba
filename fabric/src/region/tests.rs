//! Mappings, seals, locks and copies, on real memory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use memmap2::MmapOptions;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use sidestep_core::memory::{Memory, MemoryMut};

use super::*;

const PAGE: u64 = 4096;

fn reopen(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags | OFlags::CLOEXEC, Mode::empty())
}

#[test]
fn a_reader_sees_what_the_server_writes() {
    let region = Region::memfd(16 * PAGE).unwrap();
    region.store(9, 0x0102_0304_0506_0708);
    let reader = ReadOnlyRegion::map(region.read_only_fd().unwrap(), region.bytes()).unwrap();
    assert_eq!(reader.words(), 16 * PAGE / 8);
    assert_eq!(reader.load(9), 0x0102_0304_0506_0708);
    region.write(10, b"ten bytes!");
    let mut bytes = [0xaa; 24];
    reader.read(9, &mut bytes);
    assert_eq!(&bytes[..8], &[8, 7, 6, 5, 4, 3, 2, 1], "words lie in little-endian order");
    assert_eq!(&bytes[8..], b"ten bytes!\0\0\0\0\0\0", "the rest of the last word is zero");
    assert_eq!(region.fetch_max(9, 5), 0x0102_0304_0506_0708);
    assert_eq!(region.fetch_max(9, u64::MAX), 0x0102_0304_0506_0708);
    assert_eq!(reader.load(9), u64::MAX);
}

#[test]
fn nobody_else_can_write_to_a_memfd() {
    let region = Region::memfd(PAGE).unwrap();
    let fd = region.read_only_fd().unwrap();
    assert!(MmapOptions::new().map_raw(&File::from(fd.try_clone().unwrap())).is_err(), "a reader's descriptor");
    // The mode refuses it to other users at once; the seals refuse what an owner gets that far with.
    let Ok(reopened) = reopen(&fd, OFlags::RDWR) else { return };
    let mut file = File::from(reopened);
    assert!(MmapOptions::new().map_raw(&file).is_err(), "mapping a reopened descriptor for writing");
    assert_eq!(file.write(b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(file.set_len(0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(file.set_len(2 * PAGE).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&file, punch, 0, PAGE), Err(Errno::PERM));
    // A mapping for reading is no way in either: it cannot be made writable later.
    let map = MmapOptions::new().map_raw_read_only(&file).unwrap();
    // SAFETY: changes the protection of whole pages that only this test uses, to one that is refused.
    let made_writable =
        unsafe { rustix::mm::mprotect(map.as_mut_ptr().cast(), map.len(), rustix::mm::MprotectFlags::WRITE) };
    assert_eq!(made_writable, Err(Errno::ACCESS));
    region.allocate(0, PAGE).unwrap();
    region.store(0, 1);
}

#[test]
fn a_memfd_has_the_owner_s_mode_alone() {
    let region = Region::memfd(PAGE).unwrap();
    let mode = rustix::fs::fstat(region.fd()).unwrap().st_mode;
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn sizes_that_no_table_has_are_refused() {
    for bytes in [0, 1, 63, 65, MAX_REGION_BYTES + 64, u64::MAX] {
        assert!(matches!(Region::memfd(bytes), Err(RegionError::Size { .. })), "{bytes}");
    }
    let region = Region::memfd(PAGE).unwrap();
    let error = ReadOnlyRegion::map(region.read_only_fd().unwrap(), 2 * PAGE).unwrap_err();
    assert!(matches!(error, RegionError::TooShort { expected: 8192, found: 4096 }), "{error}");
}

#[test]
fn a_file_keeps_its_words_and_has_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let (temporary, path) = (folder.path().join("new"), folder.path().join("table"));
    let region = Region::create_file(&temporary, 4 * PAGE).unwrap();
    assert_eq!(std::fs::metadata(&temporary).unwrap().permissions().mode() & 0o777, 0o600);
    region.store(511, 7);
    std::fs::rename(&temporary, &path).unwrap();
    assert!(matches!(Region::open_file(&path), Err(RegionError::InUse { .. })));
    assert!(matches!(Region::create_file(&path, PAGE), Err(RegionError::InUse { .. })));
    // A reader's descriptor is another open file: it neither keeps nor gives up the lock.
    let fd = region.read_only_fd().unwrap();
    // Nor does a child process that was forked and has not come to its exec.
    let _forked = region.fd().try_clone_to_owned().unwrap();
    drop(region);
    let region = Region::open_file(&path).unwrap();
    assert_eq!((region.bytes(), region.load(511)), (4 * PAGE, 7));
    let reader = ReadOnlyRegion::map(fd, 4 * PAGE).unwrap();
    assert!(matches!(Region::open_file(&path), Err(RegionError::InUse { .. })));
    region.store(511, 8);
    assert_eq!(reader.load(511), 8);
}

#[test]
fn what_a_half_made_file_held_is_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    std::fs::write(&path, [0xff; 3 * PAGE as usize]).unwrap();
    let region = Region::create_file(&path, PAGE).unwrap();
    assert_eq!((region.bytes(), region.load(0)), (PAGE, 0));
}

#[test]
fn files_that_are_no_table_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    assert!(matches!(Region::open_file(&path), Err(RegionError::Io { .. })));
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(Region::open_file(&path), Err(RegionError::Size { bytes: 0 })));
    std::fs::write(&path, [0; 100]).unwrap();
    assert!(matches!(Region::open_file(&path), Err(RegionError::Size { bytes: 100 })));
}

#[test]
fn more_than_the_tmpfs_has_is_an_error() {
    let shm = Path::new("/dev/shm");
    let Ok(stat) = rustix::fs::statvfs(shm) else { return };
    let bytes = (stat.f_blocks * stat.f_frsize + PAGE).next_multiple_of(PAGE);
    // A tmpfs without a limit has no blocks by its own account.
    if stat.f_blocks == 0 || bytes > MAX_REGION_BYTES {
        return;
    }
    let folder = tempfile::tempdir_in(shm).unwrap();
    let region = Region::create_file(&folder.path().join("table"), bytes).unwrap();
    let error = region.allocate(0, bytes).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    region.allocate(0, PAGE).unwrap();
    region.store(0, 1);
}

/// Set in the child of the test below: the folder with 64 KiB of tmpfs.
const SMALL_TMPFS: &str = "SIDESTEP_TEST_SMALL_TMPFS";

#[test]
fn a_small_tmpfs_fills_up_without_a_signal() {
    if let Some(folder) = std::env::var_os(SMALL_TMPFS) {
        let region = Region::create_file(&Path::new(&folder).join("table"), 256 * PAGE).unwrap();
        let first = (0..256).position(|page| region.allocate(page * PAGE / 8, PAGE).is_err()).unwrap();
        assert!((1..=16).contains(&first), "page {first} was the first that failed");
        for page in 0..first as u64 {
            region.store(page * PAGE / 8, page);
        }
        let error = region.allocate(0, 256 * PAGE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        return;
    }
    // This very test again, in mount namespace of its own.
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=64k sidestep \"$0\" || exit 77; exec \"$@\"";
    let run = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "region::tests::a_small_tmpfs_fills_up_without_a_signal"])
        .env(SMALL_TMPFS, folder.path())
        .output();
    let Ok(run) = run else { return eprintln!("skipped: no unshare(1)") };
    let errors = String::from_utf8_lossy(&run.stderr);
    if run.status.code() == Some(77) || errors.starts_with("unshare:") {
        return eprintln!("skipped: no mount namespace for this user: {errors}");
    }
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && output.contains("1 passed"), "{output}{errors}");
}

#[test]
fn ranges_outside_are_errors_of_allocate_and_of_sockets() {
    let region = Region::memfd(PAGE).unwrap();
    let (a, _b) = UnixStream::pair().unwrap();
    for (offset, bytes) in [(0, PAGE + 1), (PAGE, 1), (PAGE + 1, 0), (u64::MAX, 2)] {
        let sent = region.send_to(a.as_fd(), b"p", offset, bytes as usize);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let received = region.receive_into(a.as_fd(), offset, bytes as usize);
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    for (word, bytes) in [(0, PAGE + 1), (PAGE / 8, 8), (u64::MAX, 8), (u64::MAX / 8, u64::MAX)] {
        assert_eq!(region.allocate(word, bytes).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    region.allocate(PAGE / 8, 0).unwrap();
    region.prefetch(u64::MAX, usize::MAX);
    region.prefetch(0, usize::MAX);
}

#[test]
fn words_outside_are_panics_and_never_accesses() {
    let region = Region::memfd(PAGE).unwrap();
    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| _ = region.load(512)));
    assert!(panics(&|| region.store(u64::MAX, 0)));
    assert!(panics(&|| _ = region.fetch_max(512, 0)));
    assert!(panics(&|| region.read(511, &mut [0; 16])));
    assert!(panics(&|| region.read(u64::MAX, &mut [0; 16])));
    assert!(panics(&|| region.read(0, &mut [0; 7])), "not whole words");
    assert!(panics(&|| region.write(511, &[0; 9])));
    region.read(512, &mut []);
}

#[test]
fn a_socket_is_served_straight_from_the_region() {
    let region = Region::memfd(PAGE).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"0123456789").unwrap();
    assert_eq!(region.receive_into(far.as_fd(), 13, 6).unwrap(), 6, "no more than asked for, at any byte");
    assert_eq!(region.receive_into(far.as_fd(), 19, 100).unwrap(), 4);
    assert_eq!(region.send_to(far.as_fd(), b"head ", 13, 10).unwrap(), 15);
    assert_eq!(region.send_to(far.as_fd(), b"", 14, 2).unwrap(), 2);
    let mut got = [0; 17];
    near.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"head 012345678912");
    far.set_nonblocking(true).unwrap();
    assert_eq!(region.receive_into(far.as_fd(), 0, 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    // Not by a drop: a child that another test starts has a copy of it for a moment.
    near.shutdown(Shutdown::Both).unwrap();
    assert_eq!(region.receive_into(far.as_fd(), 0, 8).unwrap(), 0, "end of stream");
    assert_eq!(region.send_to(far.as_fd(), b"", 0, 8).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn huge_pages_are_there_if_they_are_reported() {
    let region = Region::memfd(16 << 20).unwrap();
    let pages = region.advise_huge_pages();
    region.allocate(0, 1 << 20).unwrap();
    region.store(1, 1);
    // From the middle of one huge page to the middle of another.
    region.allocate(3 << 17, 9 << 20).unwrap();
    region.write(4 << 17, &[7; 4096]);
    region.allocate(0, 16 << 20).unwrap();
    let reader = ReadOnlyRegion::map(region.read_only_fd().unwrap(), 16 << 20).unwrap();
    let mut bytes = [0; 4096];
    reader.read(4 << 17, &mut bytes);
    assert_eq!((reader.load(1), bytes), (1, [7; 4096]), "joining pages keeps what is in them");
    match pages {
        HugePages::Granted(how) if how == "MADV_COLLAPSE" => {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let huge = |line: &str| line.starts_with("ShmemPmdMapped:") && !line.ends_with(" 0 kB");
            assert!(maps.lines().filter(|line| huge(line)).count() >= 2, "both mappings");
        }
        HugePages::Granted(_) => {}
        HugePages::Refused(reason) => assert!(!reason.is_empty()),
    }
    let small = Region::memfd(4096).unwrap();
    small.advise_huge_pages();
    small.allocate(0, 4096).unwrap();
}

#[test]
fn no_word_of_a_copy_is_torn() {
    let region = Region::memfd(PAGE).unwrap();
    let reader = ReadOnlyRegion::map(region.read_only_fd().unwrap(), PAGE).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut bytes = [0; 4088];
            for round in 0..20_000u64 {
                let word = round % 8;
                let len = (4096 - word as usize * 8).min(bytes.len());
                reader.read(word, &mut bytes[..len]);
                for word in bytes[..len].chunks_exact(8) {
                    assert!(word.iter().all(|byte| *byte == word[0]), "torn: {word:02x?}");
                }
            }
        });
        let mut fill = 0u8;
        while !reading.is_finished() {
            fill = fill.wrapping_add(1);
            region.write(u64::from(fill % 3), &[fill; 4072]);
        }
    });
}

proptest! {
    #[test]
    fn copies_agree_with_a_plain_model(
        steps in prop::collection::vec((0u64..600, prop::collection::vec(any::<u8>(), 0..2000), 0u64..600, 0usize..400, 0usize..16), 1..30)
    ) {
        let region = Region::memfd(2 * PAGE).unwrap();
        let mut model = vec![0u8; 2 * PAGE as usize];
        for (word, bytes, from, words, shift) in steps {
            region.write(word, &bytes);
            let start = word as usize * 8;
            model[start..start + bytes.len()].copy_from_slice(&bytes);
            model[start + bytes.len()..start + bytes.len().next_multiple_of(8)].fill(0);
            // Private buffers have any alignment.
            let mut got = vec![0xaa; shift + words * 8 + 1];
            region.read(from, &mut got[shift..shift + words * 8]);
            prop_assert_eq!(&got[shift..shift + words * 8], &model[from as usize * 8..][..words * 8]);
            prop_assert!(got[..shift].iter().chain(&got[shift + words * 8..]).all(|b| *b == 0xaa));
        }
    }
}
