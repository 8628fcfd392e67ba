//! This host: library, kernel, devices, limits.

use serde_json::{Value, json};
use sidestep_fabric::rdma::{DeviceReport, FileSystem, Inventory, LockedMemory, OpenedDevice, PortReport};

use super::Args;
use super::report::Report;
use crate::failure::Failure;

/// What this host has, and what is in the way.
pub(super) fn look(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let host = Inventory::take();
    report.section("host");
    let library = if host.has_library { "libibverbs.so.1" } else { "not installed" };
    report.fact("library", "library", library, host.has_library);
    report.fact("kernel", "kernel", host.kernel.as_str(), host.kernel.as_str());
    report.fact("modules", "modules", or_none(&host.modules.join(", ")), json!(host.modules));
    report.fact("device_files", "device files", or_none(&host.nodes.join(", ")), json!(host.nodes));
    let devices = host.devices.as_deref().unwrap_or_default();
    let texts: Vec<String> = devices.iter().map(device_text).collect();
    report.fact("devices", "devices", or_none(&texts.join("\n")), devices.iter().map(device_value).collect::<Value>());
    let LockedMemory { limit, hard_limit, is_exempt } = host.locked_memory;
    report.fact(
        "locked_memory",
        "locked memory",
        locked_text(&host.locked_memory),
        json!({ "limit_bytes": limit, "hard_limit_bytes": hard_limit, "exempt": is_exempt }),
    );
    let (all, free) = host.huge_pages;
    let pool =
        format!("{free} free of {all} in the pool of 2 MiB pages (tables in memory and on tmpfs need none of it)");
    report.fact("huge_pages", "huge pages", pool, json!({ "total": all, "free": free }));
    let pins = match host.pins_no_files {
        true => "of memory, tmpfs and hugetlbfs; not of files on file systems with write-back (kernel 6.5 or later)",
        false => "of memory and of files on any file system (kernel before 6.5)",
    };
    report.fact("pins_files", "pinning", pins, !host.pins_no_files);
    for problem in host.problems() {
        report.problem(problem.what, problem.remedy, problem.is_fatal);
    }
    let Some(folder) = &args.data else { return Ok(()) };
    let file_system = FileSystem::of(folder).map_err(Failure::io(format!("look at {}", folder.display())))?;
    let text = format!("{} is on {}", file_system.folder.display(), file_system.kind);
    report.fact("data", "data folder", text, file_system.kind.as_str());
    if let Some(problem) = host.file_problem(&file_system) {
        report.problem(problem.what, problem.remedy, problem.is_fatal);
    }
    Ok(())
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { text.to_owned() }
}

fn locked_text(locked: &LockedMemory) -> String {
    match (locked.limit, locked.is_exempt) {
        (None, _) => "unlimited".to_owned(),
        (Some(limit), true) => format!("{limit} bytes, which does not count for this user (CAP_IPC_LOCK)"),
        (Some(limit), false) => {
            let most = locked.hard_limit.map_or("unlimited".to_owned(), |most| format!("{most} bytes"));
            format!("{limit} bytes (ulimit -l), at most {most}")
        }
    }
}

fn device_text(device: &DeviceReport) -> String {
    let OpenedDevice { driver, is_software, ports, registered } = match &device.opened {
        Ok(opened) => opened,
        Err(error) => return format!("{}: {error}", device.name),
    };
    let driver = driver.as_deref().unwrap_or("driver unknown");
    let kind = if *is_software { ", software RDMA: functional only" } else { "" };
    let trial = match registered {
        Ok(bytes) => format!("{bytes} bytes registered as a trial"),
        Err(error) => error.to_string(),
    };
    let mut lines = vec![format!("{}: {driver}{kind}; {trial}", device.name)];
    for port in ports {
        lines.push(format!("  port {}: {}", port.number, port_text(port)));
        lines.extend(port.gids.iter().map(|(gid, interface)| {
            let interface = interface.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            format!("    GID {}: {} {}{interface}", gid.index, gid.kind, gid.address())
        }));
    }
    lines.join("\n")
}

fn port_text(port: &PortReport) -> String {
    let (mtu, most) = port.mtu_bytes;
    let lid = if port.lid == 0 { String::new() } else { format!(", LID {}", port.lid) };
    let speed = match port.speed_mbps {
        0 => "speed unknown".to_owned(),
        mbps => format!("{} Gb/s", f64::from(mbps) / 1000.0),
    };
    format!("{}, {}{lid}, MTU {mtu} (at most {most}), {speed}", port.state, port.layer)
}

fn device_value(device: &DeviceReport) -> Value {
    let OpenedDevice { driver, is_software, ports, registered } = match &device.opened {
        Ok(opened) => opened,
        Err(error) => return json!({ "name": device.name, "error": error.to_string() }),
    };
    json!({
        "name": device.name,
        "driver": driver,
        "software": is_software,
        "registered_bytes": registered.as_ref().ok(),
        "ports": ports.iter().map(port_value).collect::<Value>(),
    })
}

fn port_value(port: &PortReport) -> Value {
    let gid = |(gid, interface): &(sidestep_fabric::rdma::GidEntry, Option<String>)| json!({ "index": gid.index, "type": gid.kind.to_string(), "address": gid.address().to_string(), "interface": interface });
    json!({
        "number": port.number,
        "state": port.state,
        "link_layer": port.layer.to_string(),
        "lid": port.lid,
        "mtu_bytes": port.mtu_bytes.0,
        "max_mtu_bytes": port.mtu_bytes.1,
        "speed_mbps": port.speed_mbps,
        "gids": port.gids.iter().map(gid).collect::<Value>(),
    })
}
