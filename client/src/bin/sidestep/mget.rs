//! `sidestep mget KEY…`

use std::ffi::OsString;
use std::io::{BufWriter, Write, stdout};

use crate::failure::Failure;
use crate::operand::{bytes, shown, to_hex};
use crate::server::ServerArgs;

/// Print many keys, one line each: key, tab, value; use --hex where they may hold tabs or line ends
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The keys
    #[arg(required = true)]
    keys: Vec<OsString>,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let keys = args.keys.iter().map(|key| bytes(key, server.hex)).collect::<Result<Vec<_>, _>>()?;
    let values = server.session()?.multi_get(&keys)?;
    let mut out = BufWriter::new(stdout().lock());
    let mut absent = Vec::new();
    for (key, value) in keys.iter().zip(values) {
        let Some(value) = value else {
            absent.push(shown(key));
            continue;
        };
        if server.verbose {
            eprintln!("{}: version {}, {} bytes, by {}", shown(key), value.version(), value.len(), value.path());
        }
        let line = if server.hex {
            format!("{}\t{}\n", to_hex(key), to_hex(&value)).into_bytes()
        } else {
            [key.as_slice(), b"\t", &value, b"\n"].concat()
        };
        out.write_all(&line).map_err(Failure::io("write the values"))?;
    }
    out.flush().map_err(Failure::io("write the values"))?;
    if absent.is_empty() { Ok(()) } else { Err(Failure::NotFound(absent.join(", "))) }
}
