//! Devices and their ports.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::RdmaError;
use super::gid::{GidEntry, GidKind};
use super::shim;

/// Which device to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The one that owns the address that is spoken from.
    #[default]
    Auto,
    /// This one.
    Named {
        /// As in `/sys/class/infiniband`.
        name: String,
        /// Port, from 1 on; none: the first that fits.
        port: Option<u8>,
    },
    /// None: no RDMA.
    Off,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = match text.split_once('/') {
            None => (text, None),
            Some((name, port)) => (name, Some(port.parse().ok().filter(|&port: &u8| port > 0))),
        };
        match (name, port) {
            ("none", None) => Ok(Self::Off),
            ("auto", None) => Ok(Self::Auto),
            ("", _) | (_, Some(None)) => Err(format!("expected NAME, NAME/PORT, auto or none, found {text:?}")),
            (name, port) => Ok(Self::Named { name: name.to_owned(), port: port.flatten() }),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("none"),
            Self::Named { name, port: None } => f.write_str(name),
            Self::Named { name, port: Some(port) } => write!(f, "{name}/{port}"),
        }
    }
}

/// What a device can do at most, as it says itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) send_requests: u32,
    pub(super) completions: u32,
    /// READs of a peer that one queue pair serves at once.
    pub(super) reads_served: u8,
    /// READs that one queue pair has under way at once.
    pub(super) reads_issued: u8,
    pub(super) region_bytes: u64,
    /// Receives in one shared queue; 0: it has no such queues.
    pub(super) shared_receives: u32,
}

/// An open device. Cheap to clone; closed with its last clone, and everything made on it holds one.
#[derive(Clone)]
pub struct Device(Arc<Open>);

struct Open {
    context: NonNull<ffi::ibv_context>,
    name: String,
    limits: Limits,
    vendor_id: u32,
}

// SAFETY: libibverbs is thread safe (ibverbs(7)), and a context is closed once, by its owner's drop.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: everything made on the context held a clone, so all of it is gone.
        let failed = unsafe { ffi::ibv_close_device(self.context.as_ptr()) };
        if failed != 0 {
            tracing::warn!(device = self.name, "cannot close an RDMA device");
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.name).finish()
    }
}

/// Names of the devices of this machine, or which of library, kernel support and device is missing.
pub fn device_names() -> Result<Vec<String>, RdmaError> {
    if !shim::is_library_present() {
        return Err(RdmaError::NoLibrary);
    }
    let list = match ibverbs::devices() {
        Ok(list) => list,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Err(RdmaError::NoKernelSupport),
        Err(source) => return Err(RdmaError::verb("list the RDMA devices", source)),
    };
    let names: Vec<String> =
        list.iter().filter_map(|device| Some(device.name()?.to_string_lossy().into_owned())).collect();
    if names.is_empty() { Err(no_device()) } else { Ok(names) }
}

/// The kernel may well have devices for which the library has no driver.
fn no_device() -> RdmaError {
    let known: Vec<String> = std::fs::read_dir("/sys/class/infiniband")
        .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let without_driver = !known.is_empty();
    let found = if without_driver {
        format!("the kernel has {}, but libibverbs has no driver for it", known.join(", "))
    } else {
        "the kernel knows none".to_owned()
    };
    RdmaError::NoDevice { found, without_driver }
}

/// The list of devices as the sys crate has it, freed when dropped.
struct RawList {
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl RawList {
    fn get() -> Result<Self, RdmaError> {
        let mut count = 0;
        // SAFETY: `count` is a place for an int.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(|| RdmaError::last("list the RDMA devices"))?;
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn find(&self, name: &str) -> Option<*mut ffi::ibv_device> {
        (0..self.count).find_map(|i| {
            // SAFETY: the list has `count` entries.
            let at = unsafe { self.list.add(i) };
            // SAFETY: as above.
            let device = unsafe { *at.as_ptr() };
            // SAFETY: the device is one of the list, which is not freed yet.
            let its_name = unsafe { ffi::ibv_get_device_name(device) };
            if its_name.is_null() {
                return None;
            }
            // SAFETY: a C string that lives as long as the list.
            let its_name = unsafe { CStr::from_ptr(its_name) };
            (its_name.to_bytes() == name.as_bytes()).then_some(device)
        })
    }
}

impl Drop for RawList {
    fn drop(&mut self) {
        // SAFETY: the list is ours and freed once; devices that were opened stay.
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// The kernel's two software devices have vendor ids of their own (`RXE_VENDOR_ID`, `SIW_VENDOR_ID`), which no IEEE OUI is.
fn software_driver(vendor_id: u32) -> Option<&'static str> {
    match vendor_id {
        0x00ff_ffff => Some("rdma_rxe"),
        0x0062_6d74 => Some("siw"),
        _ => None,
    }
}

fn clamp_to_u8(limit: i32) -> u8 {
    u8::try_from(limit.max(0)).unwrap_or(u8::MAX)
}

impl Device {
    /// Opens a device and asks it for its limits.
    pub fn open(name: &str) -> Result<Self, RdmaError> {
        let list = RawList::get()?;
        let device = list.find(name).ok_or_else(|| RdmaError::NoSuchDevice {
            name: name.to_owned(),
            found: "no such one any more".to_owned(),
        })?;
        // SAFETY: the device is one of the list, which is not freed yet.
        let context = unsafe { ffi::ibv_open_device(device) };
        let context = NonNull::new(context).ok_or_else(|| RdmaError::last(format!("open the RDMA device {name}")))?;
        let unknown = Limits {
            send_requests: 1,
            completions: 1,
            reads_served: 1,
            reads_issued: 1,
            region_bytes: 0,
            shared_receives: 0,
        };
        // Owned from here on, so that it is closed if the query fails.
        let mut open = Open { context, name: name.to_owned(), limits: unknown, vendor_id: 0 };
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: the context is open and `attr` is a place for what is answered.
        let failed = unsafe { ffi::ibv_query_device(context.as_ptr(), &raw mut attr) };
        RdmaError::check("query an RDMA device", failed)?;
        open.limits = Limits {
            send_requests: attr.max_qp_wr.max(1) as u32,
            completions: attr.max_cqe.max(1) as u32,
            reads_served: clamp_to_u8(attr.max_qp_rd_atom),
            reads_issued: clamp_to_u8(attr.max_qp_init_rd_atom),
            region_bytes: attr.max_mr_size,
            shared_receives: attr.max_srq_wr.max(0) as u32,
        };
        open.vendor_id = attr.vendor_id;
        Ok(Self(Arc::new(open)))
    }

    /// Its name, as in `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The kernel's driver: of hardware the one that its bus device is bound to.
    pub fn driver(&self) -> Option<String> {
        let software = software_driver(self.0.vendor_id).map(str::to_owned);
        software.or_else(|| {
            let link = std::fs::read_link(format!("/sys/class/infiniband/{}/device/driver", self.name())).ok()?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        })
    }

    /// Whether a CPU does the device's work: it shows function, and no speed of RDMA.
    pub fn is_software(&self) -> bool {
        software_driver(self.0.vendor_id).is_some()
    }

    pub(super) fn limits(&self) -> Limits {
        self.0.limits
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.0.context.as_ptr()
    }

    pub(super) fn port_attr(&self, port: u8) -> Result<ffi::ibv_port_attr, RdmaError> {
        let mut attr = ffi::ibv_port_attr::default();
        let into = (&raw mut attr).cast::<ffi::_compat_ibv_port_attr>();
        // SAFETY: the library fills the fields that both structs share, from the first on; the rest stays zero.
        let failed = unsafe { ffi::ibv_query_port(self.context(), port, into) };
        RdmaError::check("query a port of an RDMA device", failed)?;
        Ok(attr)
    }

    pub(super) fn port_count(&self) -> Result<u8, RdmaError> {
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: as in `open`.
        let failed = unsafe { ffi::ibv_query_device(self.context(), &raw mut attr) };
        RdmaError::check("query an RDMA device", failed)?;
        Ok(attr.phys_port_cnt)
    }

    /// The valid entries of the GID tables of all ports.
    pub fn gids(&self) -> Result<Vec<GidEntry>, RdmaError> {
        let mut most = 0;
        for port in 1..=self.port_count()? {
            most += usize::try_from(self.port_attr(port)?.gid_tbl_len).unwrap_or(0);
        }
        let mut entries = vec![ffi::ibv_gid_entry::default(); most.max(1)];
        // SAFETY: there is room for as many entries as are told of, each of the size told.
        let count = unsafe {
            ffi::_ibv_query_gid_table(
                self.context(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).map_err(|_| {
            let source = io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EIO));
            RdmaError::verb(format!("read the GID table of {}", self.name()), source)
        })?;
        entries.truncate(count);
        Ok(entries.into_iter().map(|entry| entry_of(&entry.into())).collect())
    }
}

fn entry_of(entry: &ibverbs::GidEntry) -> GidEntry {
    let kind = match entry.gid_type {
        ffi::IBV_GID_TYPE_IB => GidKind::InfiniBand,
        ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        other => GidKind::Other(other),
    };
    let (high, low) = (entry.gid.subnet_prefix(), entry.gid.interface_id());
    let gid = ((u128::from(high) << 64) | u128::from(low)).to_be_bytes();
    GidEntry { port: entry.port_num, index: entry.gid_index, kind, gid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_what_it_prints() {
        let named = |port| DeviceChoice::Named { name: "mlx5_0".to_owned(), port };
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("none", DeviceChoice::Off),
            ("mlx5_0", named(None)),
            ("mlx5_0/2", named(Some(2))),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().as_ref(), Ok(&choice));
            assert_eq!(choice.to_string(), text);
        }
        for text in ["", "/1", "mlx5_0/", "mlx5_0/0", "mlx5_0/x", "mlx5_0/300"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }
}
