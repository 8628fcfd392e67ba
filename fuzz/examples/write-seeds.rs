//! Writes the good inputs of a target into a folder: `write-seeds TARGET FOLDER`.

use std::io;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, folder] = &arguments[..] else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected TARGET FOLDER"));
    };
    std::fs::create_dir_all(folder)?;
    sidestep_fuzz::seeds(target)
        .iter()
        .enumerate()
        .try_for_each(|(i, bytes)| std::fs::write(format!("{folder}/seed-{i}"), bytes))
}
