//! Keys and values among the arguments, and how bytes are shown.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::os::unix::ffi::OsStrExt;

use crate::failure::Failure;

/// The bytes of an argument, in hexadecimal if so said.
pub(crate) fn bytes(argument: &OsStr, hex: bool) -> Result<Vec<u8>, Failure> {
    if hex { from_hex(argument.as_bytes()).map_err(Failure::Usage) } else { Ok(argument.as_bytes().to_vec()) }
}

/// The value of `VALUE`, `-` (standard input) or `@FILE`. What comes from a file or standard input is taken as it is.
pub(crate) fn value(argument: Option<&OsStr>, hex: bool) -> Result<Vec<u8>, Failure> {
    match argument.map(OsStrExt::as_bytes) {
        None | Some(b"-") => {
            let mut value = Vec::new();
            stdin().lock().read_to_end(&mut value).map_err(Failure::io("read standard input"))?;
            Ok(value)
        }
        Some([b'@', file @ ..]) => {
            let file = OsStr::from_bytes(file);
            std::fs::read(file).map_err(Failure::io(format!("read {}", file.display())))
        }
        Some(literal) => bytes(OsStr::from_bytes(literal), hex),
    }
}

/// Pairs of hexadecimal digits.
pub(crate) fn from_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .map(|digit| digit as u8)
            .ok_or_else(|| format!("expected hexadecimal digits, found {:?}", char::from(byte)))
    };
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!("expected pairs of hexadecimal digits, found {} digits", text.len()));
    }
    pairs.iter().map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Lower-case hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key for a person: printable as it is, or escaped.
pub(crate) fn shown(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

/// Writes text of ours to standard output, which a reader that has had enough may have closed.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::io("write to standard output"))
}

/// Writes one value: as it is (with a line end on a terminal, where there is none), or in hexadecimal.
pub(crate) fn print_value(value: &[u8], hex: bool) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let written = if hex {
        writeln!(out, "{}", to_hex(value))
    } else {
        let end: &[u8] = if out.is_terminal() && value.last() != Some(&b'\n') { b"\n" } else { b"" };
        out.write_all(value).and_then(|()| out.write_all(end))
    };
    written.and_then(|()| out.flush()).map_err(Failure::io("write the value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(to_hex(&all).as_bytes()).unwrap(), all);
        assert_eq!(from_hex(b"0aF0").unwrap(), [0x0a, 0xf0]);
        assert!(from_hex(b"abc").is_err());
        assert!(from_hex(b"0g").is_err());
        assert!(from_hex("é".as_bytes()).is_err());
    }

    #[test]
    fn keys_are_shown_without_control_characters() {
        assert_eq!(shown("schlüssel".as_bytes()), "schlüssel");
        assert_eq!(shown(b"a\x1b\xff"), "a\\x1b\\xff");
    }
}
