//! Huge pages: a table is read at random, and without them every cold line costs a page walk too.
//!
//! madvise(MADV_HUGEPAGE) says yes also where the policy for shared memory then ignores it, which
//! is the default. MADV_COLLAPSE (Linux 6.1) joins pages that exist whatever the policy, if they are
//! mapped where file offset and address agree modulo the huge page: so mappings are placed that way.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Of x86-64, and of 64-bit Arm with pages of 4 KiB. Elsewhere nothing comes of it.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// `<linux/mman.h>`; neither memmap2 nor rustix has it.
const MADV_COLLAPSE: c_int = 25;
/// Mappings tried before one in the wrong place is taken.
const PLACEMENTS: usize = 4;

// Of the C library that std is linked to; signature as in madvise(2).
unsafe extern "C" {
    fn madvise(addr: *mut c_void, length: usize, advice: c_int) -> c_int;
}

/// Makes a mapping of a file from its start, at an address that huge pages need.
///
/// The kernel puts a new mapping right below the last one where it can. So the mapping is made, undone,
/// and made again below a filler of the bytes by which it was off.
pub(super) fn place(map: impl Fn() -> io::Result<MmapRaw>) -> io::Result<MmapRaw> {
    let mut placed = map()?;
    let mut fillers = Vec::new();
    while fillers.len() < PLACEMENTS {
        let off = placed.as_ptr().addr() % HUGE_PAGE_BYTES;
        if off == 0 || placed.len() < HUGE_PAGE_BYTES {
            break;
        }
        drop(placed);
        fillers.push(MmapOptions::new().len(off).map_anon()?);
        placed = map()?;
    }
    Ok(placed)
}

/// Joins the pages of the whole huge pages within a range. They must exist in part, not be in use, or be in
/// use by readers and writers who can wait.
pub(super) fn collapse(map: &MmapRaw, offset: usize, bytes: usize) -> io::Result<()> {
    let end = offset.saturating_add(bytes).min(map.len()) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    let start = offset.next_multiple_of(HUGE_PAGE_BYTES);
    if start >= end {
        return Ok(());
    }
    let address = map.as_mut_ptr().wrapping_add(start);
    // SAFETY: the range is inside the mapping; collapsing changes which pages hold the bytes and
    // neither the bytes nor the mapping.
    match unsafe { madvise(address.cast(), end - start, MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a mapping has room for a huge page, in the right place.
pub(super) fn can_hold(map: &MmapRaw) -> bool {
    map.len() >= HUGE_PAGE_BYTES && map.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES)
}

/// Whether the first huge page, some of which exists, can be one.
pub(super) fn try_first(map: &MmapRaw) -> io::Result<()> {
    collapse(map, 0, HUGE_PAGE_BYTES)
}

/// What asking for huge pages has come to. `Display` gives one phrase for a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// The kernel gives them where it has them: how.
    Granted(String),
    /// It does not: why.
    Refused(String),
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(policy) => write!(f, "huge pages ({policy})"),
            Self::Refused(reason) => write!(f, "no huge pages ({reason})"),
        }
    }
}

const SHMEM_POLICY: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// `TMPFS_MAGIC` of `<linux/magic.h>`; a memfd is on a tmpfs too.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC` of the same.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Kernel documentation: admin-guide/mm/transhuge.
pub(super) fn advise(map: &MmapRaw, fd: BorrowedFd<'_>) -> HugePages {
    let file_system = rustix::fs::fstatfs(fd).map_or(0, |stat| stat.f_type as u64 & 0xffff_ffff);
    if file_system == HUGETLBFS_MAGIC {
        return HugePages::Granted("hugetlbfs".into());
    }
    if let Err(error) = map.advise(Advice::HugePage) {
        return HugePages::Refused(format!("madvise: {error}"));
    }
    if file_system != TMPFS_MAGIC {
        return HugePages::Refused("the file is not on a tmpfs".into());
    }
    let all = match fs::read_to_string(SHMEM_POLICY) {
        Ok(all) => all,
        Err(error) => return HugePages::Refused(format!("{SHMEM_POLICY}: {error}")),
    };
    let shmem = selected(&all);
    match (shmem, mount_policy(fd)) {
        // These two are over every mount.
        ("force", _) => HugePages::Granted("shmem_enabled is force".into()),
        ("deny", _) => HugePages::Refused("shmem_enabled is deny".into()),
        (_, Some(mount)) => by_policy(&mount, format!("the tmpfs is mounted with huge={mount}")),
        // On no mount of ours: a memfd.
        (shmem, None) => by_policy(shmem, format!("shmem_enabled is {shmem}")),
    }
}

fn by_policy(policy: &str, text: String) -> HugePages {
    match policy {
        "always" | "within_size" | "advise" => HugePages::Granted(text),
        _ => HugePages::Refused(text),
    }
}

/// The choice in brackets, as in `always [advise] never`.
fn selected(choices: &str) -> &str {
    choices.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("unknown", |(choice, _)| choice)
}

/// The `huge=` option of the mount that a file is on, `never` if it has none; None for a memfd.
fn mount_policy(fd: BorrowedFd<'_>) -> Option<String> {
    let device = rustix::fs::fstat(fd).ok()?.st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // proc_pid_mountinfo(5): the device is the third field, the super block's options the last.
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_option(&mounts, &device)
}

fn mount_option(mounts: &str, device: &str) -> Option<String> {
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let options = mount.rsplit(' ').next()?;
    Some(options.split(',').find_map(|option| option.strip_prefix("huge=")).unwrap_or("never").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_the_one_in_brackets() {
        assert_eq!(selected("always within_size [advise] never deny force\n"), "advise");
        assert_eq!(selected("garbage"), "unknown");
    }

    #[test]
    fn a_mount_without_the_option_never_gives_huge_pages() {
        let mounts = "23 28 0:21 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=1k\n\
                      24 28 0:22 / /huge rw - tmpfs tmpfs rw,huge=within_size,size=1k\n";
        assert_eq!(mount_option(mounts, "0:21").as_deref(), Some("never"));
        assert_eq!(mount_option(mounts, "0:22").as_deref(), Some("within_size"));
        assert_eq!(mount_option(mounts, "0:1"), None);
    }
}
