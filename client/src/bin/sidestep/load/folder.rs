//! The files of a folder: path in the folder → content.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::load::progress::Progress;
use crate::load::{Pair, Pairs};

pub(super) fn pairs(root: &Path, progress: &Progress) -> Result<Pairs, Failure> {
    let mut files = Vec::new();
    list(root, &mut files)?;
    progress.expect_bytes(files.iter().map(|(_, bytes)| bytes).sum());
    let (root, progress) = (root.to_owned(), progress.clone());
    Ok(Box::new(files.into_iter().map(move |(file, bytes)| {
        let pair = pair(&root, &file);
        progress.read(bytes);
        pair
    })))
}

fn pair(root: &Path, file: &Path) -> Result<Pair, Failure> {
    let value = fs::read(file).map_err(Failure::io(format!("read {}", file.display())))?;
    let key = file.strip_prefix(root).unwrap_or(file);
    Ok((key.as_os_str().as_bytes().to_vec(), value))
}

/// Files and their lengths, in the order of their names. Links to folders are not followed: they may lead back.
fn list(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<(), Failure> {
    let list_error = || Failure::io(format!("list {}", folder.display()));
    let mut entries =
        fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()).map_err(list_error())?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(list_error())?.is_dir() {
            list(&path, files)?;
            continue;
        }
        let meta = fs::metadata(&path).map_err(Failure::io(format!("look at {}", path.display())))?;
        if meta.is_file() {
            files.push((path, meta.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_keys() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("b/c")).unwrap();
        fs::write(folder.path().join("b/c/d"), b"deep").unwrap();
        fs::write(folder.path().join("a"), b"").unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
        let found: Vec<Pair> =
            pairs(folder.path(), &Progress::default()).unwrap().map(|pair| pair.ok().unwrap()).collect();
        assert_eq!(found, [(b"a".to_vec(), vec![]), (b"b/c/d".to_vec(), b"deep".to_vec())]);
    }
}
