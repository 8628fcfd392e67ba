//! `sidestep stats [--json]`

use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::operand::print;
use crate::server::ServerArgs;

/// Print the counters of the server
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let mut session = server.session()?;
    let (info, stats) = (session.server_info(), session.stats()?);
    let text = if args.json {
        let build: Map<String, Value> = stats.facts.into_iter().map(|(name, fact)| (name, fact.into())).collect();
        let counters: Map<String, Value> = stats.server.into_iter().map(|(name, n)| (name, n.into())).collect();
        let paths: Map<String, Value> = info
            .paths
            .iter()
            .map(|(path, state)| (path.to_string(), json!(state.as_ref().err().map_or("available", String::as_str))))
            .collect();
        let ids = json!({ "pid": info.pid, "table_id": info.table_id, "boot_id": info.boot_id,
            "memory_bytes": info.memory_bytes, "durable": info.durable });
        format!("{:#}", json!({ "server": ids, "build": build, "paths": paths, "counters": counters }))
    } else {
        let build: Vec<String> = stats.facts.iter().map(|(name, fact)| format!("{name} {fact}")).collect();
        let width = stats.server.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines = stats.server.iter().map(|(name, n)| format!("{name:width$}  {n}"));
        std::iter::once(build.join(", ")).chain(lines).collect::<Vec<_>>().join("\n")
    };
    print(&format!("{text}\n"))
}
