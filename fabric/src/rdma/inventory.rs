//! What this host has of all that RDMA needs, and what is wrong with it.

use std::fs;
use std::path::{Path, PathBuf};

use ibverbs_sys as ffi;
use rustix::process::{Resource, getrlimit};

use super::device::{Device, device_names};
use super::gid::{GidEntry, GidKind, LinkLayer};
use super::port::{link_layer, speed_mbps};
use super::{BufferPool, Domain, RdmaError};

/// Modules of the kernel without which there is no device, and drivers of devices.
const MODULES: [&str; 18] = [
    "ib_core",
    "ib_uverbs",
    "rdma_rxe",
    "siw",
    "mlx5_ib",
    "mlx4_ib",
    "bnxt_re",
    "irdma",
    "qedr",
    "hns_roce_hw_v2",
    "efa",
    "erdma",
    "mana_ib",
    "hfi1",
    "ib_mthca",
    "iw_cxgb4",
    "ocrdma",
    "vmw_pvrdma",
];
/// Registered on each device as a trial: what a session keeps for values by default.
const TRIAL_BYTES: usize = 4 << 20;
/// From this kernel on a writable mapping of a file whose pages are written back is not pinned for long.
const PINS_NO_FILES_FROM: (u32, u32) = (6, 5);

/// Something that is in the way, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
    /// Whether RDMA does not work because of it.
    pub is_fatal: bool,
}

impl Problem {
    /// One because of which RDMA does not work.
    pub fn fatal(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), is_fatal: true }
    }

    fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { is_fatal: false, ..Self::fatal(what, remedy) }
    }
}

/// What this host has. See [`Inventory::take`].
#[derive(Debug)]
pub struct Inventory {
    /// Whether libibverbs can be loaded.
    pub has_library: bool,
    /// Release of the kernel.
    pub kernel: String,
    /// Of the kernel's modules for RDMA those that are there, loaded or built in.
    pub modules: Vec<&'static str>,
    /// `/dev/infiniband/uverbs*`: by these a process reaches the devices.
    pub nodes: Vec<String>,
    /// The devices, or which of library, kernel support and device is missing.
    pub devices: Result<Vec<DeviceReport>, RdmaError>,
    /// How much memory a process may pin.
    pub locked_memory: LockedMemory,
    /// Pages of 2 MiB in the pool for hugetlbfs: all and free.
    pub huge_pages: (u64, u64),
    /// Whether files on file systems with write-back cannot be pinned.
    pub pins_no_files: bool,
}

/// A device.
#[derive(Debug)]
pub struct DeviceReport {
    /// As in `/sys/class/infiniband`.
    pub name: String,
    /// The rest, or why it cannot be opened.
    pub opened: Result<OpenedDevice, RdmaError>,
}

/// A device that could be opened.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The kernel's driver.
    pub driver: Option<String>,
    /// Whether a CPU does its work.
    pub is_software: bool,
    /// Its ports.
    pub ports: Vec<PortReport>,
    /// Bytes that could be registered as a trial, or why not.
    pub registered: Result<usize, RdmaError>,
}

/// A port.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// From 1 on.
    pub number: u8,
    /// As `ibv_devinfo` names it: active, down, …
    pub state: &'static str,
    /// Whether it is active.
    pub is_active: bool,
    /// InfiniBand or Ethernet.
    pub layer: LinkLayer,
    /// Path MTU in bytes: now, and at most.
    pub mtu_bytes: (u32, u32),
    /// Mb/s; 0 = unknown.
    pub speed_mbps: u32,
    /// LID; 0 on Ethernet.
    pub lid: u16,
    /// Its GIDs, each with the network interface that it comes from.
    pub gids: Vec<(GidEntry, Option<String>)>,
}

/// Limits of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// Of this process in bytes; none: unlimited.
    pub limit: Option<u64>,
    /// To which a process may raise it itself.
    pub hard_limit: Option<u64>,
    /// The limit does not count for this process (CAP_IPC_LOCK).
    pub is_exempt: bool,
}

/// The file system of a folder, and whether a table in it can be pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The folder, or the nearest above it that is there.
    pub folder: PathBuf,
    /// Its kind, `0x…` where it has no name here.
    pub kind: String,
    /// Whether its pages are memory and nothing else.
    pub is_memory: bool,
}

impl Inventory {
    /// Looks around: opens every device, registers some memory on each. Some hundred system calls.
    pub fn take() -> Self {
        let devices = device_names();
        let kernel = read("/proc/sys/kernel/osrelease");
        Self {
            has_library: !matches!(devices, Err(RdmaError::NoLibrary)),
            pins_no_files: version(&kernel).is_some_and(|version| version >= PINS_NO_FILES_FROM),
            kernel,
            modules: MODULES.into_iter().filter(|name| Path::new("/sys/module").join(name).exists()).collect(),
            nodes: names_in("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs")).collect(),
            devices: devices.map(|names| names.into_iter().map(DeviceReport::of).collect()),
            locked_memory: LockedMemory::here(),
            huge_pages: (
                number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
                number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
            ),
        }
    }

    /// What is in the way of RDMA on this host.
    pub fn problems(&self) -> Vec<Problem> {
        let devices = match &self.devices {
            Ok(devices) => devices,
            Err(error) => return vec![of_error(error)],
        };
        let each: Vec<Vec<Problem>> = devices.iter().map(DeviceReport::problems).collect();
        // One device that works is enough: what is wrong with the others is told, and no more.
        let works = each.iter().any(|problems| !problems.iter().any(|problem| problem.is_fatal));
        let mut problems: Vec<Problem> = each.into_iter().flatten().collect();
        problems.iter_mut().for_each(|problem| problem.is_fatal &= !works);
        problems.extend(self.locked_memory.problem());
        problems
    }

    /// Whether a server's table in this folder can be pinned here.
    pub fn file_problem(&self, file_system: &FileSystem) -> Option<Problem> {
        let FileSystem { folder, kind, is_memory } = file_system;
        if *is_memory || !self.pins_no_files {
            return None;
        }
        let what =
            format!("{} is on {kind}, of which kernel {} may refuse to pin files", folder.display(), self.kernel);
        Some(Problem::warning(what, "keep the table on a tmpfs or hugetlbfs (--data), or in memory (no --data)"))
    }
}

/// An error with its remedy; the text of those that have one of their own ends with it in parentheses.
fn of_error(error: &RdmaError) -> Problem {
    let (text, remedy) = (error.to_string(), error.remedy());
    let what = text.strip_suffix(&format!(" ({remedy})")).unwrap_or(&text);
    Problem::fatal(what, remedy)
}

impl DeviceReport {
    fn of(name: String) -> Self {
        let opened = Device::open(&name).and_then(|device| OpenedDevice::of(&device));
        Self { name, opened }
    }

    fn problems(&self) -> Vec<Problem> {
        let name = &self.name;
        let opened = match &self.opened {
            Ok(opened) => opened,
            Err(error) => return vec![of_error(error)],
        };
        let mut problems: Vec<Problem> =
            opened.ports.iter().filter_map(|port| port.problem(&format!("{name}/{}", port.number))).collect();
        // As of devices: one port is enough.
        let works = opened.ports.len() > problems.len();
        problems.iter_mut().for_each(|problem| problem.is_fatal &= !works);
        if let Err(error) = &opened.registered {
            problems.push(of_error(error));
        }
        problems
    }
}

impl OpenedDevice {
    fn of(device: &Device) -> Result<Self, RdmaError> {
        let gids = device.gids()?;
        let ports =
            (1..=device.port_count()?).map(|port| PortReport::of(device, port, &gids)).collect::<Result<_, _>>()?;
        let registered = Domain::new(device)
            .and_then(|domain| BufferPool::new(&domain, TRIAL_BYTES).take_alone(TRIAL_BYTES))
            .map(|buffer| buffer.len());
        Ok(Self { driver: device.driver(), is_software: device.is_software(), ports, registered })
    }
}

impl PortReport {
    fn of(device: &Device, number: u8, gids: &[GidEntry]) -> Result<Self, RdmaError> {
        let attr = device.port_attr(number)?;
        let of_port = gids.iter().filter(|gid| gid.port == u32::from(number));
        let folder = format!("/sys/class/infiniband/{}/ports/{number}/gid_attrs/ndevs", device.name());
        let interface = |gid: &GidEntry| Some(read(&format!("{folder}/{}", gid.index))).filter(|name| !name.is_empty());
        Ok(Self {
            number,
            state: state_name(attr.state),
            is_active: attr.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            layer: link_layer(&attr),
            mtu_bytes: (128 << attr.active_mtu, 128 << attr.max_mtu),
            speed_mbps: speed_mbps(attr.active_width, attr.active_speed),
            lid: attr.lid,
            gids: of_port.map(|gid| (*gid, interface(gid))).collect(),
        })
    }

    fn problem(&self, name: &str) -> Option<Problem> {
        let (what, remedy) = if !self.is_active {
            let remedy = match self.layer {
                LinkLayer::Ethernet => "check the cable; ip link set DEV up",
                LinkLayer::InfiniBand => "check the cable; a subnet manager must run (opensm)",
            };
            (format!("port {name} is {}", self.state), remedy)
        } else if self.layer == LinkLayer::Ethernet && !self.gids.iter().any(|(gid, _)| gid.kind == GidKind::RoceV2) {
            (format!("port {name} has no RoCE v2 GID"), "give its network interface an address (ip addr add)")
        } else {
            return None;
        };
        Some(Problem::fatal(what, remedy))
    }
}

fn state_name(state: ffi::ibv_port_state::Type) -> &'static str {
    use ffi::ibv_port_state as is;
    match state {
        is::IBV_PORT_DOWN => "down",
        is::IBV_PORT_INIT => "initializing",
        is::IBV_PORT_ARMED => "armed",
        is::IBV_PORT_ACTIVE => "active",
        is::IBV_PORT_ACTIVE_DEFER => "deferred",
        _ => "in an unknown state",
    }
}

impl LockedMemory {
    fn here() -> Self {
        const CAP_IPC_LOCK: u64 = 14;
        let limits = getrlimit(Resource::Memlock);
        let status = read("/proc/self/status");
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        let is_exempt = capabilities >> CAP_IPC_LOCK & 1 == 1;
        Self { limit: limits.current, hard_limit: limits.maximum, is_exempt }
    }

    /// A session needs a few MiB, a server its memory.
    fn problem(&self) -> Option<Problem> {
        let limit = self.limit.filter(|_| !self.is_exempt)?;
        let what = format!("locked memory is limited to {limit} bytes: a server pins as much as its --memory");
        Some(Problem::warning(what, RdmaError::LockedMemory { bytes: 0, limit: String::new() }.remedy()))
    }
}

impl FileSystem {
    /// Of a folder, or where it is not there yet, of the nearest above it.
    pub fn of(folder: &Path) -> std::io::Result<Self> {
        let above = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
        let magic = rustix::fs::statfs(above)?.f_type as u64 & 0xffff_ffff;
        // <linux/magic.h>
        let (kind, is_memory) = match magic {
            0x0102_1994 => ("tmpfs", true),
            0x8584_58f6 => ("ramfs", true),
            0x9584_58f6 => ("hugetlbfs", true),
            0xef53 => ("ext4", false),
            0x5846_5342 => ("xfs", false),
            0x9123_683e => ("btrfs", false),
            0x794c_7630 => ("overlayfs", false),
            0x6969 => ("nfs", false),
            _ => ("", false),
        };
        let kind = if kind.is_empty() { format!("{magic:#x}") } else { kind.to_owned() };
        Ok(Self { folder: above.to_owned(), kind, is_memory })
    }
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What a file of the kernel's says; nothing where it is not there.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number(path: &str) -> u64 {
    read(path).parse().unwrap_or(0)
}

fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
