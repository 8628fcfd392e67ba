//! This machine's network: RDMA devices and interfaces, as the kernel tells of them in sysfs.

use std::fs;
use std::path::{Path, PathBuf};

/// Entries of a folder of sysfs, by name.
fn entries(class: &Path) -> Vec<(String, PathBuf)> {
    let mut entries: Vec<_> = fs::read_dir(class)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .collect();
    entries.sort();
    entries
}

/// An attribute, if there is one and it says anything.
fn attribute(path: PathBuf) -> Option<String> {
    // Some cannot be read of a device that is down.
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn driver(device: &Path) -> Option<String> {
    let link = fs::read_link(device.join("device/driver")).ok()?;
    Some(format!("driver {}", link.file_name()?.to_string_lossy()))
}

fn described(name: &str, parts: impl IntoIterator<Item = Option<String>>) -> String {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { name.to_owned() } else { format!("{name} ({})", parts.join(", ")) }
}

/// RDMA devices with driver, firmware and ports, and whether there are some and all of them software: those are no
/// hardware's in sysfs. `class` is `/sys/class/infiniband`.
pub(crate) fn rdma_devices(class: &Path) -> (Vec<String>, bool) {
    let devices = entries(class);
    let is_virtual = |path: &PathBuf| {
        fs::canonicalize(path).is_ok_and(|path| path.components().any(|part| part.as_os_str() == "virtual"))
    };
    let are_software = !devices.is_empty() && devices.iter().all(|(_, path)| is_virtual(path));
    let describe = |(name, path): &(String, PathBuf)| {
        let firmware = attribute(path.join("fw_ver")).map(|version| format!("firmware {version}"));
        let ports = entries(&path.join("ports")).into_iter().map(|(number, port)| {
            let said = ["link_layer", "state", "rate"].into_iter().filter_map(|what| attribute(port.join(what)));
            Some(format!("port {number}: {}", said.collect::<Vec<_>>().join(" ")))
        });
        described(name, [driver(path), firmware].into_iter().chain(ports))
    };
    (devices.iter().map(describe).collect(), are_software)
}

/// Interfaces that are up, with driver, MTU and speed where they have one. `class` is `/sys/class/net`.
pub(crate) fn interfaces(class: &Path) -> Vec<String> {
    let is_up = |path: &Path| attribute(path.join("operstate")).is_some_and(|state| state != "down");
    let describe = |(name, path): (String, PathBuf)| {
        let mtu = attribute(path.join("mtu")).map(|mtu| format!("MTU {mtu}"));
        let speed = attribute(path.join("speed")).filter(|speed| !speed.starts_with('-'));
        described(&name, [driver(&path), mtu, speed.map(|speed| format!("{speed} Mb/s"))])
    };
    entries(class).into_iter().filter(|(_, path)| is_up(path)).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, format!("{text}\n")).expect("written");
        }
    }

    #[test]
    fn software_devices_are_told_from_hardware() {
        let folder = tempfile::tempdir().expect("a folder");
        let class = folder.path().join("class");
        fs::create_dir(&class).expect("a folder");
        assert_eq!(rdma_devices(&class), (vec![], false));
        assert_eq!(rdma_devices(&folder.path().join("none")), (vec![], false));
        let add = |name: &str, kind: &str| {
            let device = folder.path().join("devices").join(kind).join(name);
            fs::create_dir_all(&device).expect("a folder");
            std::os::unix::fs::symlink(&device, class.join(name)).expect("a link");
            device
        };
        add("rxe0", "virtual");
        assert_eq!(rdma_devices(&class), (vec!["rxe0".into()], true));
        let device = add("mlx5_0", "pci0000:00");
        let port = [("ports/1/link_layer", "Ethernet"), ("ports/1/state", "4: ACTIVE"), ("ports/1/rate", "100 Gb/sec")];
        write(&device, &[&[("fw_ver", "22.36.1010")], &port[..]].concat());
        fs::create_dir(device.join("device")).expect("a folder");
        std::os::unix::fs::symlink("../drivers/mlx5_core", device.join("device/driver")).expect("a link");
        let hardware = "mlx5_0 (driver mlx5_core, firmware 22.36.1010, port 1: Ethernet 4: ACTIVE 100 Gb/sec)";
        assert_eq!(rdma_devices(&class), (vec![hardware.into(), "rxe0".into()], false));
    }

    #[test]
    fn interfaces_that_are_up_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        write(&folder.path().join("eth0"), &[("operstate", "up"), ("mtu", "9000"), ("speed", "25000")]);
        write(&folder.path().join("eth1"), &[("operstate", "down"), ("mtu", "1500")]);
        write(&folder.path().join("lo"), &[("operstate", "unknown"), ("mtu", "65536"), ("speed", "-1")]);
        assert_eq!(interfaces(folder.path()), ["eth0 (MTU 9000, 25000 Mb/s)", "lo (MTU 65536)"]);
    }
}
