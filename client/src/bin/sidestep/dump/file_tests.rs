//! Dumps that are whole, cut off, changed, and not dumps at all.

use proptest::prelude::*;
use sidestep_client::Record;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::file::*;

type Owned = (Vec<u8>, Vec<u8>, u64, u64);

fn write(records: &[Owned]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 7).unwrap();
    for (key, value, version, expires_ms) in records {
        writer.add(&Record { key, value, version: *version, expires_ms: *expires_ms }).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Vec<Owned>, DumpError> {
    let (mut reader, mut all) = (Reader::new(bytes)?, Vec::new());
    while let Some(records) = reader.next()? {
        all.extend(records.iter().map(|r| (r.key.to_vec(), r.value.to_vec(), r.version, r.expires_ms)));
    }
    Ok(all)
}

/// Several blocks.
fn some() -> Vec<Owned> {
    (0..5u8).map(|i| (vec![i; 3], vec![i; 400_000], u64::from(i) + 1, u64::from(i) * 1000)).collect()
}

#[test]
fn golden_bytes() {
    let bytes = write(&[(b"k".to_vec(), b"v".to_vec(), 2, 3)]);
    assert_eq!(bytes.len(), 32 + 32 + 24 + 2 + 32 + 8);
    assert_eq!(bytes[..24], *b"SIDEDUMP\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0");
    assert_eq!(bytes[32..48], [1, 0, 0, 0, 1, 0, 0, 0, 26, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[64..90], *b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0kv");
    assert_eq!(bytes[90..106], [2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[122..], 1u64.to_le_bytes());
    assert_eq!(xxh3_64_with_seed(&bytes[64..90], 0).to_le_bytes(), bytes[48..56]);
}

#[test]
fn what_was_written_is_read() {
    assert_eq!(read(&write(&some())).unwrap(), some());
    assert_eq!(read(&write(&[])).unwrap(), []);
}

#[test]
fn every_cut_and_every_changed_byte_is_found() {
    let small: Vec<Owned> = (0..3u8).map(|i| (vec![i + 1], vec![i; 4], 1, 0)).collect();
    let whole = write(&small);
    for at in 0..whole.len() {
        assert!(read(&whole[..at]).is_err(), "cut off at {at}");
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        assert!(read(&changed).is_err(), "changed at {at}");
    }
    assert!(matches!(read(&[&whole[..], b"x"].concat()), Err(DumpError::More)));
}

#[test]
fn errors_say_what_is_wrong() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert_eq!(error(b"key\tvalue\n"), "not a dump: expected it to begin with SIDEDUMP, found key\\tvalu");
    assert_eq!(error(b""), "not a dump: expected it to begin with SIDEDUMP, found ");
    assert_eq!(error(b"SIDEDUMP\x01"), "the dump is cut off in its header: expected 32 bytes, found 9");
    let whole = write(&some());
    assert_eq!(error(&whole[..40]), "the dump is cut off in block 0: expected 32 bytes, found 8");
    let mut newer = whole.clone();
    newer[8] = 2;
    let checksum = xxh3_64_with_seed(&newer[..24], 0).to_le_bytes();
    newer[24..32].copy_from_slice(&checksum);
    assert!(error(&newer).starts_with("expected a dump of version 1, found version 2"));
    let mut changed = whole;
    changed[100] ^= 1;
    assert_eq!(error(&changed), "block 0 of the dump is damaged: the checksum of its records is another");
}

/// A block that is missing, there twice, or in another's place.
#[test]
fn blocks_out_of_order_are_found() {
    let records = some();
    let whole = write(&records);
    let block = |at: usize| 32 + u64::from_le_bytes(whole[at + 8..at + 16].try_into().unwrap()) as usize;
    let first = 32;
    let second = first + block(first);
    let end = second + block(second);
    let (a, b, rest) = (&whole[first..second], &whole[second..end], &whole[end..]);
    for wrong in [vec![b, rest], vec![a, rest], vec![b, a, rest], vec![a, a, b, rest], vec![a, b]] {
        assert!(read(&[&whole[..32], &wrong.concat()].concat()).is_err());
    }
    assert!(read(&[&whole[..32], a, b, rest].concat()).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_borne(bytes in proptest::collection::vec(any::<u8>(), 0..300), with_magic: bool) {
        let bytes = if with_magic { [&MAGIC[..], &bytes].concat() } else { bytes };
        prop_assert!(read(&bytes).is_err());
    }
}
