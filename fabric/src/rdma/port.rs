//! Ports, and which of them to speak from.

use std::fmt;
use std::net::IpAddr;

use ibverbs_sys as ffi;

use super::RdmaError;
use super::device::{Device, DeviceChoice, device_names};
use super::gid::{self, Fit, GidEntry, LinkLayer};

impl Device {
    /// The port to speak from, or what is wrong with it.
    fn port(&self, number: u8, gids: &[GidEntry], local: IpAddr) -> Result<(Port, Fit), String> {
        let attr = self.port_attr(number).map_err(|error| error.to_string())?;
        let layer = link_layer(&attr);
        if attr.state != ffi::ibv_port_state::IBV_PORT_ACTIVE {
            return Err(format!("{}/{number} is not active", self.name()));
        }
        let Some((gid, fit)) = gid::choose(gids, u32::from(number), layer, local) else {
            let has: Vec<String> =
                gids.iter().filter(|gid| gid.port == u32::from(number)).map(ToString::to_string).collect();
            return Err(format!("{}/{number} has {}", self.name(), or_nothing(&has)));
        };
        let gid_index = u8::try_from(gid.index).map_err(|_| format!("GID index {} is beyond 255", gid.index))?;
        const GRH_REQUIRED: u8 = 1;
        let port = Port {
            device: self.clone(),
            number,
            layer,
            gid: gid.gid,
            gid_index,
            lid: attr.lid,
            mtu: attr.active_mtu,
            is_routed: layer == LinkLayer::Ethernet || attr.flags & GRH_REQUIRED != 0,
            message_bytes: attr.max_msg_sz,
            speed_mbps: speed_mbps(attr.active_width, attr.active_speed),
            fit,
        };
        Ok((port, fit))
    }
}

pub(super) fn link_layer(attr: &ffi::ibv_port_attr) -> LinkLayer {
    match u32::from(attr.link_layer) {
        ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
        _ => LinkLayer::InfiniBand,
    }
}

fn or_nothing(texts: &[String]) -> String {
    if texts.is_empty() { "no GID (give its network interface an address)".to_owned() } else { texts.join(", ") }
}

/// Lanes times the rate of one, as `ibv_devinfo` names them; 0 = unknown.
pub(super) fn speed_mbps(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let of_lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * of_lane
}

/// A port of an open device and the address that queue pairs on it speak from.
#[derive(Clone, Debug)]
pub struct Port {
    pub(super) device: Device,
    pub(super) number: u8,
    pub(super) layer: LinkLayer,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    pub(super) lid: u16,
    pub(super) mtu: ffi::ibv_mtu,
    /// Packets carry a global route header.
    pub(super) is_routed: bool,
    /// Longest message of one request.
    pub(super) message_bytes: u32,
    speed_mbps: u32,
    fit: Fit,
}

impl Port {
    /// The port that `choice` asks for when the control connection's address on this host is `local`.
    ///
    /// Opens devices until one fits; some system calls for each.
    pub fn find(choice: &DeviceChoice, local: IpAddr) -> Result<Self, RdmaError> {
        let (wanted, wanted_port) = match choice {
            DeviceChoice::Off => return Err(RdmaError::SwitchedOff),
            DeviceChoice::Auto => (None, None),
            DeviceChoice::Named { name, port } => (Some(name), *port),
        };
        let names = device_names()?;
        if let Some(name) = wanted
            && !names.contains(name)
        {
            return Err(RdmaError::NoSuchDevice { name: choice.to_string(), found: names.join(", ") });
        }
        let mut best: Option<(Self, Fit)> = None;
        let mut lacks = Vec::new();
        for name in names.iter().filter(|name| wanted.is_none_or(|wanted| wanted == *name)) {
            let found = Device::open(name).and_then(|device| Ok((device.port_count()?, device.gids()?, device)));
            let (ports, gids, device) = match found {
                Ok(found) => found,
                Err(error) => {
                    lacks.push(error.to_string());
                    continue;
                }
            };
            for number in (1..=ports).filter(|number| wanted_port.is_none_or(|wanted| wanted == *number)) {
                match device.port(number, &gids, local) {
                    Ok((port, fit)) if best.as_ref().is_none_or(|(_, before)| fit > *before) => {
                        best = Some((port, fit));
                    }
                    Ok(_) => {}
                    Err(lack) => lacks.push(lack),
                }
            }
        }
        match best {
            Some((port, _)) => Ok(port),
            None if lacks.is_empty() => {
                Err(RdmaError::NoSuchDevice { name: choice.to_string(), found: "no such port".to_owned() })
            }
            None => Err(RdmaError::NotOwned { address: local, found: lacks.join("; ") }),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Why this one.
    pub fn why(&self) -> &'static str {
        match self.fit {
            Fit::InfiniBand => "InfiniBand is addressed by LID, whatever the address of the control connection",
            Fit::Exact => "its RoCE v2 GID is this host's address of the control connection",
            Fit::V4 | Fit::V6 => "the control connection stays on this host, so that any address of it will do",
            Fit::LinkLocal => "the control connection stays on this host, and there is no better than a link-local GID",
        }
    }

    /// Path MTU in bytes.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu
    }
}

/// Device, port, link layer, GID, MTU, speed: one line for people.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, layer, gid_index, lid, .. } = self;
        write!(f, "{}/{number}, {layer}", self.device.name())?;
        match layer {
            LinkLayer::Ethernet => {
                let address = std::net::Ipv6Addr::from(self.gid).to_canonical();
                write!(f, ", RoCE v2 GID {gid_index} ({address})")?;
            }
            LinkLayer::InfiniBand => write!(f, ", LID {lid}, GID {gid_index}")?,
        }
        write!(f, ", MTU {}", self.mtu_bytes())?;
        if self.speed_mbps > 0 {
            write!(f, ", {} Gb/s", f64::from(self.speed_mbps) / 1000.0)?;
        }
        if self.device.is_software() {
            f.write_str(", software")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_is_off_whatever_there_is() {
        let local = IpAddr::from([127, 0, 0, 1]);
        assert!(matches!(Port::find(&DeviceChoice::Off, local), Err(RdmaError::SwitchedOff)));
    }

    #[test]
    fn speeds() {
        assert_eq!(speed_mbps(2, 32), 100_000);
        assert_eq!(speed_mbps(1, 1), 2_500);
        assert_eq!(speed_mbps(0, 1), 0);
    }
}
