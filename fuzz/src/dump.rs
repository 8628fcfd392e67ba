//! The file of `sidestep dump`, as `sidestep load` reads it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

// The command's own file, which is in no library.
#[allow(dead_code, missing_docs)]
#[path = "../../client/src/bin/sidestep/dump/file.rs"]
pub(crate) mod file;

const HEAD: usize = 24;
const HEADER: usize = 32;

/// A dump that decodes is written again and read again. The first byte says whether its checksums are set right
/// before, as somebody who means harm would.
pub(crate) fn dump(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if how % 2 == 1 {
        set_checksums(&mut bytes);
    }
    let Some(found) = read(&bytes) else { return };
    let mut writer = file::Writer::new(Vec::new(), 1).expect("memory");
    for (key, value, version, expires_ms) in &found {
        let record = sidestep_client::Record { key, value, version: *version, expires_ms: *expires_ms };
        writer.add(&record).expect("memory");
    }
    let written = writer.finish().expect("memory");
    assert_eq!(read(&written).as_ref(), Some(&found));
}

type Owned = (Vec<u8>, Vec<u8>, u64, u64);

/// All records, if the bytes are a whole dump.
fn read(bytes: &[u8]) -> Option<Vec<Owned>> {
    let mut reader = file::Reader::new(bytes).ok()?;
    let mut all = Vec::new();
    while let Some(records) = reader.next().ok()? {
        all.extend(records.iter().map(|r| (r.key.to_vec(), r.value.to_vec(), r.version, r.expires_ms)));
    }
    Some(all)
}

fn set_checksums(bytes: &mut [u8]) {
    let Some(header) = bytes.get_mut(..HEADER) else { return };
    seal(header, HEAD, 0);
    let (mut at, mut number) = (HEADER, 0);
    while let Some((header, rest)) = bytes.get_mut(at..).and_then(|rest| rest.split_at_mut_checked(HEADER)) {
        let length = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i]));
        if let Ok(length) = usize::try_from(length)
            && let Some(payload) = rest.get(..length)
        {
            header[16..24].copy_from_slice(&xxh3_64_with_seed(payload, number).to_le_bytes());
        }
        seal(header, HEAD, number);
        at = at.saturating_add(HEADER).saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        number += 1;
    }
}

/// Writes the checksum of the bytes before `end` there.
fn seal(header: &mut [u8], end: usize, seed: u64) {
    let checksum = xxh3_64_with_seed(&header[..end], seed);
    header[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
}
