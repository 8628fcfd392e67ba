//! Why RDMA cannot be had, or failed.

use std::io;
use std::net::IpAddr;

use ibverbs_sys as ffi;
use thiserror::Error;

/// Why RDMA cannot be had, or failed. The first three are told apart because their remedies differ.
#[derive(Debug, Error)]
pub enum RdmaError {
    /// `libibverbs.so.1` is not on this machine.
    #[error("no library: libibverbs.so.1 is not installed ({})", self.remedy())]
    NoLibrary,
    /// The library is there, the kernel's part is not.
    #[error("no kernel support: libibverbs is installed but the kernel's ib_uverbs is not loaded ({})", self.remedy())]
    NoKernelSupport,
    /// Both are there, and no device.
    #[error("no device: {found} ({})", self.remedy())]
    NoDevice {
        /// What there is.
        found: String,
        /// Whether the kernel has a device for which the library has no driver.
        without_driver: bool,
    },
    /// Switched off by an option.
    #[error("switched off by the option that names the device")]
    SwitchedOff,
    /// A device that was named and is not there.
    #[error("expected a device {name}, found {found}")]
    NoSuchDevice {
        /// As given, `NAME` or `NAME/PORT`.
        name: String,
        /// What there is.
        found: String,
    },
    /// There are devices, and none can speak from the address.
    #[error("no device has the address {address} (InfiniBand would need none): {found}")]
    NotOwned {
        /// Of the control connection.
        address: IpAddr,
        /// What each port lacks.
        found: String,
    },
    /// Memory could not be pinned.
    #[error("cannot register {bytes} bytes of memory: the limit of locked memory is {limit} ({})", self.remedy())]
    LockedMemory {
        /// Bytes that were to be registered.
        bytes: usize,
        /// The limit found.
        limit: String,
    },
    /// A verb failed.
    #[error("cannot {attempt}: {source}")]
    Verb {
        /// What was attempted.
        attempt: String,
        /// Why it failed.
        source: io::Error,
    },
    /// What the peer sent makes no queue pair.
    #[error("expected {expected} of the peer's queue pair, found {found:#x}")]
    Peer {
        /// What would be right.
        expected: &'static str,
        /// What came.
        found: u64,
    },
    /// A request completed with an error; the queue pair is of no use any more.
    #[error("a request ended with status {status}: {meaning}")]
    Completion {
        /// `ibv_wc_status`.
        status: u32,
        /// For a person.
        meaning: &'static str,
    },
    /// Nothing completed for too long.
    #[error("no completion within {waited_ms} ms")]
    Silent {
        /// How long was waited.
        waited_ms: u64,
    },
}

impl RdmaError {
    pub(super) fn verb(attempt: impl Into<String>, source: io::Error) -> Self {
        Self::Verb { attempt: attempt.into(), source }
    }

    /// Of a verb that returns null and sets errno.
    pub(super) fn last(attempt: impl Into<String>) -> Self {
        Self::verb(attempt, io::Error::last_os_error())
    }

    /// Of a verb that returns the error's number.
    pub(super) fn check(attempt: &str, errno: i32) -> Result<(), Self> {
        if errno == 0 { Ok(()) } else { Err(Self::verb(attempt, io::Error::from_raw_os_error(errno.abs()))) }
    }

    pub(super) fn completion(status: ffi::ibv_wc_status::Type) -> Self {
        use ffi::ibv_wc_status as is;
        let meaning = match status {
            is::IBV_WC_LOC_LEN_ERR => "a local buffer is too short",
            is::IBV_WC_LOC_QP_OP_ERR => "the local queue pair is not consistent",
            is::IBV_WC_LOC_PROT_ERR => "a local buffer is not registered for this",
            is::IBV_WC_WR_FLUSH_ERR => "flushed: the queue pair had failed before",
            is::IBV_WC_REM_INV_REQ_ERR => "the peer's queue pair does not allow this",
            is::IBV_WC_REM_ACCESS_ERR => "the peer refused access: a wrong rkey or range, or its memory is gone",
            is::IBV_WC_REM_OP_ERR => "the peer could not do it",
            is::IBV_WC_RETRY_EXC_ERR => "the peer does not answer: it or the link is down",
            is::IBV_WC_RNR_RETRY_EXC_ERR => "the peer has posted no receive buffer",
            is::IBV_WC_REM_ABORT_ERR => "the peer aborted it",
            is::IBV_WC_FATAL_ERR => "the device failed",
            _ => "see ibv_poll_cq(3)",
        };
        Self::Completion { status, meaning }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoLibrary => "Debian: apt-get install libibverbs1 ibverbs-providers",
            Self::NoKernelSupport => {
                "modprobe ib_uverbs and the driver of the device, such as mlx5_ib or rdma_rxe; in a container: on its host"
            }
            Self::NoDevice { without_driver: true, .. } => "Debian: apt-get install ibverbs-providers",
            Self::NoDevice { .. } => {
                "load the driver of the NIC, or for Soft-RoCE: modprobe rdma_rxe and then \
                 rdma link add rxe0 type rxe netdev DEV"
            }
            Self::SwitchedOff | Self::NoSuchDevice { .. } => "name a device that is there, or none: auto",
            Self::NotOwned { .. } => {
                "reach the server by an address that belongs to a network interface of a device, or name the device"
            }
            Self::LockedMemory { .. } => {
                "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, or limits.conf"
            }
            Self::Verb { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "make /dev/infiniband/uverbs* readable and writable to this user"
            }
            Self::Verb { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "in a container: give it the devices /dev/infiniband/uverbs*"
            }
            _ => "see the kernel's log (dmesg)",
        }
    }

    /// Whether this host or its peer has no RDMA at all, rather than: it should work and does not.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoLibrary | Self::NoKernelSupport | Self::NoDevice { .. } | Self::SwitchedOff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_absences_are_told_apart_and_say_what_to_do() {
        let no_device = RdmaError::NoDevice { found: "the kernel knows none".to_owned(), without_driver: false };
        let all = [RdmaError::NoLibrary, RdmaError::NoKernelSupport, no_device];
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        for (text, remedy) in texts.iter().zip(["apt-get install", "modprobe ib_uverbs", "rdma link add"]) {
            assert!(text.contains(remedy), "{text}");
        }
        assert!(texts[0] != texts[1] && texts[1] != texts[2]);
        assert!(all.iter().all(RdmaError::is_absence));
        assert!(!RdmaError::Silent { waited_ms: 1 }.is_absence());
    }
}
