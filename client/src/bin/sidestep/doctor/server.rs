//! A server: what it offers, which ports would be used, and a READ to prove it.

use serde_json::json;
use sidestep_client::{Options, Path, PathMode, ServerInfo};

use super::Args;
use super::report::Report;
use crate::failure::Failure;
use crate::server::ServerArgs;

/// What a server offers to this host. Fails only if it cannot be reached.
pub(super) fn look(server: &ServerArgs, args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.section("server");
    report.fact("address", "address", server.address(), server.address());
    let options = || Options::default().device(args.device.as_str());
    let info = match server.connect_with(options().path(PathMode::Require(Path::Tcp))) {
        Ok(client) => client.server_info()?,
        Err(failure) => {
            report
                .fatal(failure.to_string(), "start sidestep-server there, let its port through, give the right token");
            return Err(failure);
        }
    };
    let local = info.local_address.map(|address| address.ip().to_string());
    let from = local.as_ref().map(|local| format!(" from {local}")).unwrap_or_default();
    let welcome = json!({ "local_address": local, "pid": info.pid, "table_id": info.table_id, "boot_id": info.boot_id,
        "memory_bytes": info.memory_bytes, "segment_bytes": info.segment_bytes, "durable": info.durable });
    let text = format!(
        "connected{from}; process {}, table {:#018x} of {} bytes in segments of {}",
        info.pid, info.table_id, info.memory_bytes, info.segment_bytes
    );
    report.fact("control", "control connection", text, welcome);
    offers(&info, report);
    ports(&info, args, report);
    let auto = server.connect_with(options())?.path()?;
    report.fact("auto", "auto reads by", auto.name(), auto.name());
    match (&info.rdma, report.first_fatal()) {
        // Where a port is missing on either side, the reason was told.
        (Ok(_), None) => prove(server, options(), report),
        _ => report.fact("proof", "proof", "none: see the problems", json!(null)),
    }
    Ok(())
}

fn offers(info: &ServerInfo, report: &mut Report) {
    let lines: Vec<String> = info
        .paths
        .iter()
        .map(|(path, state)| match state {
            Ok(()) => path.to_string(),
            Err(reason) => format!("not {path}: {reason}"),
        })
        .collect();
    let paths: serde_json::Map<_, _> =
        info.paths.iter().map(|(path, state)| (path.to_string(), json!(state.as_ref().err()))).collect();
    report.fact("paths", "offers", lines.join("\n"), paths);
    if let Err(reason) = &info.rdma {
        report.fatal(
            format!("the server does not offer rdma: {reason}"),
            "run `sidestep doctor` on its host; start it with --device NAME there",
        );
    }
}

/// Both ends of the queue pair that would be made.
#[cfg(feature = "rdma")]
fn ports(info: &ServerInfo, args: &Args, report: &mut Report) {
    use sidestep_fabric::rdma::{DeviceChoice, Port};

    if let Ok(port) = &info.rdma {
        report.fact("server_port", "its port", port.as_str(), port.as_str());
    }
    let Some(local) = info.local_address else { return };
    let found = args
        .device
        .parse::<DeviceChoice>()
        .map_err(|error| (error, "see --help"))
        .and_then(|choice| Port::find(&choice, local.ip()).map_err(|error| (error.to_string(), error.remedy())));
    match found {
        Ok(port) => {
            let why = match args.device.as_str() {
                "auto" => port.why(),
                _ => "it was named with --device",
            };
            let value = json!({ "port": port.to_string(), "why": why, "software": port.device().is_software() });
            report.fact("client_port", "this host's port", format!("{port}\nbecause {why}"), value);
        }
        // What is missing on this host altogether was told before.
        Err(_) if report.first_fatal().is_some() => {}
        Err((error, remedy)) => report.fatal(format!("no port of this host fits: {error}"), remedy),
    }
}

#[cfg(not(feature = "rdma"))]
fn ports(_: &ServerInfo, _: &Args, _: &mut Report) {}

/// Looks up a key that hardly anyone has, by READs and nothing else.
fn prove(server: &ServerArgs, options: Options, report: &mut Report) {
    let proven = || -> Result<(u64, u64, String), Failure> {
        let client = server.connect_with(options.path(PathMode::Require(Path::Rdma)))?;
        client.get("\0sidestep doctor")?;
        let stats = client.stats()?;
        let count = |name| stats.client(name).unwrap_or(0);
        let port = client.port().map_or("no port".to_owned(), |port| port.description);
        Ok((count("rdma_reads"), count("rdma_read_bytes"), port))
    };
    match proven() {
        Ok((reads, bytes, port)) if reads > 0 => {
            let text = format!("{reads} one-sided READs of {bytes} bytes in all, by {port}");
            report.fact("proof", "proof", text, json!({ "reads": reads, "bytes": bytes, "port": port }));
        }
        Ok(_) => report.fatal("the proof went over another path than rdma", "see the log: RUST_LOG=debug"),
        Err(failure) => report.fatal(
            format!("a READ does not reach the server: {failure}"),
            "let UDP port 4791 through (RoCE v2), and see that both ports are on one fabric",
        ),
    }
}
