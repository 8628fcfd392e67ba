//! What the numbers were measured on. No number goes out without it.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::devices::{interfaces, rdma_devices};

/// Readings of the clock that its cost is measured over.
const CLOCK_READINGS: u32 = 20_000;

/// The variable that glibc's allocator is told by.
pub const HEAP_TUNABLES: &str = "GLIBC_TUNABLES";
/// Makes glibc's allocator ask for huge pages.
pub const HEAP_ON_HUGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// What every output says where RDMA is Soft-RoCE or the like: each of its packets is the work of a CPU.
pub const SOFTWARE_RDMA: &str = "software RDMA: functional only";

/// The machine, the software, the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Seconds since the Unix epoch at the start.
    pub started_at_s: u64,
    /// Processor as the kernel names it.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Hypervisor, if the CPU says that there is one.
    pub virtual_machine: bool,
    /// Frequency governor, or why it is not known.
    pub governor: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel name, release, version.
    pub kernel: String,
    /// Huge pages of shared memory: the kernel's setting.
    pub shared_huge_pages: String,
    /// Huge pages of ordinary memory: the kernel's setting, and what glibc's allocator was told.
    pub heap_huge_pages: String,
    /// Nanoseconds that one reading of the clock takes; it is in every time that was taken.
    pub clock_ns: f64,
    /// Version of the bench and the compiler target.
    pub bench: String,
    /// Commit that was measured, as told; empty if not.
    pub commit: String,
    /// The command line.
    pub command: String,
    /// How client and server were connected.
    pub network: String,
    /// Interfaces of this machine that are up: driver, MTU, speed.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// RDMA devices of this machine: driver, firmware, ports.
    #[serde(default)]
    pub rdma_devices: Vec<String>,
    /// What must be said of every number: [`SOFTWARE_RDMA`] where this machine's RDMA devices are all software.
    #[serde(default)]
    pub stamp: Option<String>,
    /// Each store that was measured.
    pub stores: Vec<String>,
}

impl Environment {
    /// Looks around; `commit` is what the caller says.
    #[must_use]
    pub fn here(commit: &str, network: &str) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let (rdma_devices, are_software) = rdma_devices(Path::new("/sys/class/infiniband"));
        let release = |file: &str| read_line(&format!("/proc/sys/kernel/{file}"));
        Self {
            started_at_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            governor: match read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
                governor if governor.is_empty() => "not visible".into(),
                governor => governor,
            },
            memory_bytes: field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal")
                .and_then(|text| text.strip_suffix(" kB")?.trim().parse::<u64>().ok())
                .map_or(0, |kib| kib << 10),
            kernel: format!("{} {} {}", release("ostype"), release("osrelease"), release("version")),
            shared_huge_pages: read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            heap_huge_pages: format!(
                "{}, GLIBC_TUNABLES={}",
                read_line("/sys/kernel/mm/transparent_hugepage/enabled"),
                std::env::var(HEAP_TUNABLES).unwrap_or_default()
            ),
            clock_ns: clock_ns(),
            bench: format!("sidestep-bench {} for {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH),
            commit: commit.to_owned(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            network: network.to_owned(),
            interfaces: interfaces(Path::new("/sys/class/net")),
            rdma_devices,
            stamp: are_software.then(|| SOFTWARE_RDMA.to_owned()),
            stores: Vec::new(),
        }
    }

    /// Name and text of each line that is shown.
    #[must_use]
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let machine = if self.virtual_machine { ", virtual machine" } else { "" };
        let mut lines = vec![
            ("CPU", format!("{} ({} usable{machine}), governor {}", self.cpu, self.cpus, self.governor)),
            ("memory", format!("{:.1} GiB", self.memory_bytes as f64 / f64::from(1 << 30))),
            ("kernel", self.kernel.clone()),
            ("huge pages of shared memory", self.shared_huge_pages.clone()),
            ("huge pages of the heap", self.heap_huge_pages.clone()),
            ("network", self.network.clone()),
            ("interfaces", self.interfaces.join(", ")),
            ("clock", format!("{:.0} ns a reading, contained in the times", self.clock_ns)),
            ("software", self.bench.clone()),
            ("commit", self.commit.clone()),
            ("command", self.command.clone()),
        ];
        if !self.rdma_devices.is_empty() {
            let stamp = self.stamp.as_ref().map_or(String::new(), |stamp| format!(" ({stamp})"));
            lines.push(("RDMA devices", format!("{}{stamp}", self.rdma_devices.join(", "))));
        }
        lines.extend(self.stores.iter().map(|store| ("store", store.clone())));
        lines
    }
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn clock_ns() -> f64 {
    let start = Instant::now();
    for _ in 0..CLOCK_READINGS {
        black_box(Instant::now());
    }
    start.elapsed().as_nanos() as f64 / f64::from(CLOCK_READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_said() {
        let here = Environment::here("abc123", "loopback");
        assert!(here.cpus > 0 && here.memory_bytes > 0 && here.clock_ns > 0.0);
        assert!(here.kernel.starts_with("Linux "));
        let text: String = here.lines().iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        for part in ["governor", "abc123", "loopback", "GiB", "MTU"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
