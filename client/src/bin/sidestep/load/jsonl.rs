//! Lines of JSON objects.

use std::io::BufRead;

use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::load::{Pair, Pairs};
use crate::operand::from_hex;

pub(super) fn pairs(lines: impl BufRead + 'static) -> Pairs {
    let pairs = lines.split(b'\n').enumerate().filter_map(|(i, line)| {
        let line = match line.map_err(Failure::io("read the lines")) {
            Ok(line) => line,
            Err(failure) => return Some(Err(failure)),
        };
        if line.trim_ascii().is_empty() {
            return None;
        }
        Some(pair(&line).map_err(|reason| Failure::Usage(format!("line {}: {reason}", i + 1))))
    });
    Box::new(pairs)
}

fn pair(line: &[u8]) -> Result<Pair, String> {
    let object: Map<String, Value> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let key = field(&object, "key", "key_hex", |_| Err("expected a string as the key".to_owned()))?;
    let value = field(&object, "value", "value_hex", |other| Ok(other.to_string().into_bytes()))?;
    Ok((key, value))
}

/// A field as text or in hexadecimal; `other` says what becomes of one that is no string.
fn field(
    object: &Map<String, Value>,
    plain: &str,
    hex: &str,
    other: impl FnOnce(&Value) -> Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    match (object.get(plain), object.get(hex)) {
        (Some(Value::String(text)), None) => Ok(text.clone().into_bytes()),
        (Some(value), None) => other(value),
        (None, Some(Value::String(digits))) => from_hex(digits.as_bytes()),
        (None, Some(_)) => Err(format!("expected a string as {hex:?}")),
        (None, None) => Err(format!("expected {plain:?} or {hex:?}, found neither")),
        (Some(_), Some(_)) => Err(format!("expected {plain:?} or {hex:?}, found both")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_become_pairs() {
        let ok = |line: &str| pair(line.as_bytes()).unwrap();
        assert_eq!(ok(r#"{"key": "a", "value": "b\n"}"#), (b"a".to_vec(), b"b\n".to_vec()));
        assert_eq!(ok(r#"{"key_hex": "00ff", "value_hex": ""}"#), (vec![0, 255], vec![]));
        assert_eq!(ok(r#"{"key": "a", "value": {"n": [1, null]}}"#).1, br#"{"n":[1,null]}"#);
    }

    #[test]
    fn faults_are_told() {
        for (line, part) in [
            ("[1]", "expected"),
            (r#"{"key": 1, "value": ""}"#, "string as the key"),
            (r#"{"key": "a"}"#, "neither"),
            (r#"{"key": "a", "key_hex": "00", "value": ""}"#, "both"),
            (r#"{"key_hex": "0", "value": ""}"#, "pairs"),
        ] {
            let error = pair(line.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let text: &[u8] = b"{\"key\": \"a\", \"value\": 1}\n\nnot json\n";
        let found: Vec<_> = pairs(text).map(|pair| pair.map_err(|failure| failure.to_string())).collect();
        assert!(found[0].is_ok() && found[1].as_ref().unwrap_err().starts_with("line 3: "));
    }
}
