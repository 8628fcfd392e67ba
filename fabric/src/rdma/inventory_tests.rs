use super::*;

fn inventory(devices: Result<Vec<DeviceReport>, RdmaError>) -> Inventory {
    Inventory {
        has_library: true,
        kernel: "6.1.0-31-amd64".to_owned(),
        modules: Vec::new(),
        nodes: Vec::new(),
        devices,
        locked_memory: LockedMemory { limit: None, hard_limit: None, is_exempt: false },
        huge_pages: (0, 0),
        pins_no_files: false,
    }
}

fn port(is_active: bool, kind: GidKind) -> PortReport {
    let gid = GidEntry { port: 1, index: 1, kind, gid: [1; 16] };
    PortReport {
        number: 1,
        state: if is_active { "active" } else { "down" },
        is_active,
        layer: LinkLayer::Ethernet,
        mtu_bytes: (1024, 4096),
        speed_mbps: 100_000,
        lid: 0,
        gids: vec![(gid, None)],
    }
}

fn device(name: &str, ports: Vec<PortReport>, registered: Result<usize, RdmaError>) -> DeviceReport {
    let opened = OpenedDevice { driver: None, is_software: false, ports, registered };
    DeviceReport { name: name.to_owned(), opened: Ok(opened) }
}

fn fatal(inventory: &Inventory) -> Vec<String> {
    inventory.problems().into_iter().filter(|problem| problem.is_fatal).map(|problem| problem.what).collect()
}

#[test]
fn a_host_without_anything_has_one_problem_with_its_remedy() {
    let problems = inventory(Err(RdmaError::NoKernelSupport)).problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].what.starts_with("no kernel support") && problems[0].is_fatal, "{problems:?}");
    assert!(problems[0].remedy.contains("modprobe") && !problems[0].what.contains("modprobe"), "{problems:?}");
}

#[test]
fn one_port_and_one_device_that_work_are_enough() {
    let down = || port(false, GidKind::RoceV2);
    let old = || port(true, GidKind::RoceV1);
    let good = || port(true, GidKind::RoceV2);
    let host = |devices| inventory(Ok(devices));
    let all = host(vec![device("a", vec![down()], Ok(1)), device("b", vec![old()], Ok(1))]);
    assert_eq!(fatal(&all), ["port a/1 is down", "port b/1 has no RoCE v2 GID"]);
    let half = host(vec![device("a", vec![down(), good()], Ok(1))]);
    assert!(fatal(&half).is_empty() && half.problems().len() == 1);
    let other = host(vec![device("a", vec![down()], Ok(1)), device("b", vec![good()], Ok(1))]);
    assert!(fatal(&other).is_empty() && other.problems().len() == 1);
    assert!(host(vec![device("a", vec![good()], Ok(1))]).problems().is_empty());
}

#[test]
fn memory_that_cannot_be_registered_is_fatal() {
    let error = RdmaError::LockedMemory { bytes: 1, limit: "64 bytes".to_owned() };
    let host = inventory(Ok(vec![device("a", vec![port(true, GidKind::RoceV2)], Err(error))]));
    let problems = host.problems();
    assert!(problems[0].is_fatal && problems[0].remedy.contains("ulimit -l"), "{problems:?}");
}

#[test]
fn a_limit_is_a_warning_unless_it_does_not_count() {
    let limited = LockedMemory { limit: Some(8 << 20), hard_limit: None, is_exempt: false };
    let mut host = inventory(Ok(vec![device("a", vec![port(true, GidKind::RoceV2)], Ok(1))]));
    host.locked_memory = limited;
    assert!(fatal(&host).is_empty() && host.problems()[0].what.contains("8388608 bytes"));
    host.locked_memory = LockedMemory { is_exempt: true, ..limited };
    assert!(host.problems().is_empty());
}

#[test]
fn files_with_write_back_are_not_pinned_by_newer_kernels() {
    assert_eq!(version("6.18.44-fc"), Some((6, 18)));
    assert_eq!(version("6.1.0-31-amd64"), Some((6, 1)));
    assert_eq!(version("what"), None);
    let on = |kind: &str, is_memory| FileSystem { folder: "/data".into(), kind: kind.to_owned(), is_memory };
    let mut host = inventory(Ok(Vec::new()));
    assert_eq!(host.file_problem(&on("ext4", false)), None);
    host.pins_no_files = true;
    assert_eq!(host.file_problem(&on("tmpfs", true)), None);
    let problem = host.file_problem(&on("ext4", false)).expect("a problem");
    assert!(problem.what.contains("/data is on ext4") && problem.remedy.contains("tmpfs"), "{problem:?}");
}

#[test]
fn file_systems_are_known_by_their_number() {
    let shm = FileSystem::of(Path::new("/dev/shm/not/there")).expect("statfs");
    assert_eq!((shm.folder.as_path(), shm.is_memory), (Path::new("/dev/shm"), true), "{shm:?}");
}
