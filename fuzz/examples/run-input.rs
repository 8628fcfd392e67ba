//! Runs a target on the bytes of files: `run-input TARGET FILE…`, as to look at what was found.

use std::io;

use sidestep_fuzz::Target;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().and_then(|name| Target::named(&name));
    let target = target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "expected TARGET FILE…"))?;
    arguments.try_for_each(|file| {
        target.check(&std::fs::read(file)?);
        Ok(())
    })
}
