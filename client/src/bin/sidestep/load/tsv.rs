//! Lines of key, tab, value.

use std::io::BufRead;

use crate::failure::Failure;
use crate::load::{Pair, Pairs};
use crate::operand::from_hex;

pub(super) fn pairs(lines: impl BufRead + 'static, hex: bool) -> Pairs {
    let pairs = lines.split(b'\n').enumerate().filter_map(move |(i, line)| {
        let line = match line.map_err(Failure::io("read the lines")) {
            Ok(line) => line,
            Err(failure) => return Some(Err(failure)),
        };
        if line.is_empty() {
            return None;
        }
        Some(pair(&line, hex).map_err(|reason| Failure::Usage(format!("line {}: {reason}", i + 1))))
    });
    Box::new(pairs)
}

/// The first tab parts key from value; further tabs are the value's.
fn pair(line: &[u8], hex: bool) -> Result<Pair, String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let tab = line.iter().position(|byte| *byte == b'\t').ok_or("expected key, tab, value, found no tab")?;
    let (key, value) = (&line[..tab], &line[tab + 1..]);
    let field = if hex { from_hex } else { unescape };
    Ok((field(key)?, field(value)?))
}

fn unescape(field: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'\\') => b'\\',
                Some(other) => return Err(format!("expected \\t, \\n, \\r or \\\\, found \\{}", other.escape_ascii())),
                None => return Err("expected \\t, \\n, \\r or \\\\, found a backslash at the end".to_owned()),
            },
            other => *other,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &'static [u8], hex: bool) -> Vec<Result<Pair, String>> {
        pairs(text, hex).map(|pair| pair.map_err(|failure| failure.to_string())).collect()
    }

    #[test]
    fn lines_become_pairs() {
        let found = all(b"a\t1\n\nb\\t\tx\ty\\n\r\nc\t", false);
        let expected: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"b\t", b"x\ty\n"), (b"c", b"")];
        assert_eq!(found.len(), 3);
        for (found, (key, value)) in found.into_iter().zip(expected) {
            assert_eq!(found.unwrap(), (key.to_vec(), value.to_vec()));
        }
        assert_eq!(all(b"00ff\t0a", true)[0], Ok((vec![0, 255], vec![10])));
    }

    #[test]
    fn faults_name_their_line() {
        assert_eq!(all(b"a\t1\nno tab", false)[1], Err("line 2: expected key, tab, value, found no tab".to_owned()));
        assert!(all(b"a\t\\q", false)[0].as_ref().unwrap_err().contains("\\q"));
        assert!(all(b"a\t\\", false)[0].is_err());
        assert!(all(b"0\t00", true)[0].is_err());
    }
}
