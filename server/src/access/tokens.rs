//! Tokens and the file that they are kept in.
//!
//! One token a line: a name, `read-only` or `read-write`, the secret, and, if it is to end by itself, when. Fields are
//! separated by white space; empty lines and lines that begin with `#` say nothing. A file with nothing but one word
//! is that secret, for reading and writing.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use toml::value::{Datetime, Offset};

/// Every proof is compared with each of them.
const MAX_TOKENS: usize = 256;
const MAX_FILE_BYTES: u64 = 256 << 10;
const MAX_NAME_BYTES: usize = 64;
/// A shorter secret is taken, with a warning.
const LONG_ENOUGH_BYTES: usize = 16;
/// The name of a token that has none.
const BARE_NAME: &str = "token";
const DAY_MS: i64 = 86_400_000;

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Read every key.
    ReadOnly,
    /// Read and write every key.
    ReadWrite,
}

/// A secret that lets its holders in. The secret is not shown when printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// For logs and for a person.
    pub name: String,
    /// What it is good for.
    pub right: Right,
    /// What client and server share.
    pub secret: Vec<u8>,
    /// Milliseconds since the Unix epoch from which on it is worth nothing; None: it does not end by itself.
    pub expires_ms: Option<u64>,
}

impl Token {
    pub(crate) fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| now_ms >= expires_ms)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("right", &self.right)
            .field("expires_ms", &self.expires_ms)
            .finish_non_exhaustive()
    }
}

/// The tokens of a server; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens(Vec<Arc<Token>>);

/// Why a file gives no tokens. No part of a line is shown: it may be a secret.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read the token file {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read or change it.
    #[error(
        "expected the token file {} to be its owner's alone, found mode {mode:04o}: chmod 600 {}",
        path.display(), path.display()
    )]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not a list of tokens.
    #[error("{}, line {line}: expected {expected}, found {found}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// From 1 on; 0: the file as a whole.
        line: usize,
        /// What would be right.
        expected: String,
        /// What was there.
        found: String,
    },
}

impl Tokens {
    /// One secret, for reading and writing, that does not end by itself.
    pub fn bare(secret: impl Into<Vec<u8>>) -> Self {
        let token = Token { name: BARE_NAME.into(), right: Right::ReadWrite, secret: secret.into(), expires_ms: None };
        Self(vec![Arc::new(token)])
    }

    /// Those of a file, which nobody but its owner may be able to read.
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        let unreadable = |source| TokenFileError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        // Of the open file: what is at the path may be another one by now.
        if let Some(mode) = exposed_mode(&file.metadata().map_err(unreadable)?) {
            return Err(TokenFileError::Mode { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        let tokens = if text.len() as u64 > MAX_FILE_BYTES {
            Err((0, format!("at most {MAX_FILE_BYTES} bytes"), "more".to_owned()))
        } else {
            text.parse()
        };
        let tokens: Self = tokens.map_err(|(line, expected, found)| TokenFileError::Line {
            path: path.to_owned(),
            line,
            expected,
            found,
        })?;
        for token in tokens.iter().filter(|token| token.secret.len() < LONG_ENOUGH_BYTES) {
            tracing::warn!(
                token = token.name,
                "the secret is shorter than {LONG_ENOUGH_BYTES} bytes: who overhears a handshake can guess it"
            );
        }
        Ok(tokens)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Token>> {
        self.0.iter()
    }

    fn check(&self) -> Result<(), String> {
        for (index, token) in self.0.iter().enumerate() {
            for other in &self.0[..index] {
                if token.name == other.name {
                    return Err(format!("the name {} twice", token.name));
                }
                if token.secret == other.secret {
                    return Err(format!("{} and {} with the same secret", other.name, token.name));
                }
            }
        }
        Ok(())
    }
}

/// The mode of a secret file that is not out of others' reach. One of root's may be readable by the group: so secrets are handed to a
/// service that does not run as root.
pub(crate) fn exposed_mode(metadata: &Metadata) -> Option<u32> {
    let mode = metadata.permissions().mode() & 0o777;
    let handed_down = metadata.uid() == 0 && !rustix::process::geteuid().is_root();
    let forbidden = if handed_down { 0o037 } else { 0o077 };
    (mode & forbidden != 0).then_some(mode)
}

/// Line, what would be right, what was there.
type Fault = (usize, String, String);

impl FromStr for Tokens {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let lines: Vec<(usize, Vec<&str>)> = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim_start().starts_with('#'))
            .map(|(number, line)| (number, line.split_whitespace().collect::<Vec<_>>()))
            .filter(|(_, words)| !words.is_empty())
            .collect();
        let whole = |expected: String, found: String| (0, expected, found);
        let tokens = match &lines[..] {
            [] => return Err(whole("a token".into(), "none".into())),
            [(_, words)] if words.len() == 1 => return Ok(Self::bare(words[0])),
            lines if lines.len() > MAX_TOKENS => {
                return Err(whole(format!("at most {MAX_TOKENS} tokens"), lines.len().to_string()));
            }
            lines => lines.iter().map(|(number, words)| {
                token(words).map(Arc::new).map_err(|(expected, found)| (*number, expected, found))
            }),
        };
        let tokens = Self(tokens.collect::<Result<_, _>>()?);
        match tokens.check() {
            Ok(()) => Ok(tokens),
            Err(found) => Err(whole("names and secrets that differ".into(), found)),
        }
    }
}

fn token(words: &[&str]) -> Result<Token, (String, String)> {
    let (name, right, secret, expires) = match *words {
        [name, right, secret] => (name, right, secret, None),
        [name, right, secret, expires] => (name, right, secret, Some(expires)),
        _ => return Err(("NAME RIGHT SECRET [EXPIRES]".into(), format!("{} words", words.len()))),
    };
    if name.len() > MAX_NAME_BYTES {
        return Err((format!("a name of at most {MAX_NAME_BYTES} bytes"), name.len().to_string()));
    }
    let right = match right {
        "read-only" => Right::ReadOnly,
        "read-write" => Right::ReadWrite,
        _ => return Err(("read-only or read-write as the second word".into(), "another one".into())),
    };
    let expires_ms = expires.map(end_ms).transpose()?;
    Ok(Token { name: name.into(), right, secret: secret.into(), expires_ms })
}

/// The moment that is named; of a date alone, the end of that day, UTC.
fn end_ms(text: &str) -> Result<u64, (String, String)> {
    let expected = "a date (2027-01-31) or a time with its offset (2027-01-31T12:00:00Z) as the fourth word";
    let fault = |found: &str| (expected.to_owned(), found.to_owned());
    let at: Datetime = text.parse().map_err(|_| fault("something else"))?;
    let date = at.date.ok_or_else(|| fault("a time of day alone"))?;
    let midnight_ms = days_since_1970(date.year.into(), date.month.into(), date.day.into()) * DAY_MS;
    let ms = match (at.time, at.offset) {
        (None, _) => midnight_ms + DAY_MS,
        (Some(_), None) => return Err(fault("a time without an offset")),
        (Some(time), Some(offset)) => {
            let minutes = match offset {
                Offset::Z => 0,
                Offset::Custom { minutes } => i64::from(minutes),
            };
            let of_day_s = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second);
            midnight_ms + of_day_s * 1000 - minutes * 60_000
        }
    };
    u64::try_from(ms).map_err(|_| fault("a time before 1970"))
}

/// In the Gregorian calendar (Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`).
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last one of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        text.parse::<Tokens>().unwrap().iter().map(|token| Token::clone(token)).collect()
    }

    fn fault(text: &str) -> String {
        let (line, expected, found) = text.parse::<Tokens>().unwrap_err();
        format!("{line}: {expected}; {found}")
    }

    #[test]
    fn one_word_is_a_secret_for_everything() {
        for text in ["hunter2", "  hunter2\n\n", "# ours\nhunter2\n"] {
            let tokens = tokens(text);
            assert_eq!((tokens.len(), &tokens[0].secret[..], tokens[0].right), (1, &b"hunter2"[..], Right::ReadWrite));
        }
    }

    #[test]
    fn a_list_gives_names_rights_and_ends() {
        let tokens = tokens(
            "# who\napp read-write s3cret#1\n\n  probe\tread-only x 2027-01-31 \nold read-only y 2026-01-01T00:00:00+01:00\n",
        );
        let summary: Vec<_> = tokens.iter().map(|t| (&t.name[..], t.right, &t.secret[..], t.expires_ms)).collect();
        assert_eq!(
            summary,
            [
                ("app", Right::ReadWrite, &b"s3cret#1"[..], None),
                ("probe", Right::ReadOnly, b"x", Some(1_801_440_000_000)),
                ("old", Right::ReadOnly, b"y", Some(1_767_222_000_000)),
            ]
        );
        assert!(!tokens[1].has_expired(1_801_439_999_999) && tokens[1].has_expired(1_801_440_000_000));
    }

    #[test]
    fn days_are_counted_over_leap_years() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(1969, 12, 31), -1);
        assert_eq!(days_since_1970(2000, 2, 29) + 1, days_since_1970(2000, 3, 1));
        assert_eq!(days_since_1970(2100, 2, 28) + 1, days_since_1970(2100, 3, 1));
        assert_eq!(days_since_1970(2026, 12, 2), 20_789);
    }

    #[test]
    fn faults_name_the_line_and_no_secret() {
        for (text, why) in [
            ("", "none"),
            ("# nothing\n \n", "none"),
            ("two words", "1: NAME RIGHT SECRET"),
            ("app read-write hunter2\nhunter2", "2: NAME RIGHT SECRET"),
            ("app hunter2 read-write", "1: read-only or read-write"),
            ("app read-write hunter2 2027-02-30", "1: a date"),
            ("app read-write hunter2 2027-02-03T10:00:00", "without an offset"),
            ("app read-write hunter2 10:00:00", "a time of day"),
            ("app read-write hunter2 1969-01-01", "before 1970"),
            ("app read-write hunter2 2027-01-01 more", "5 words"),
            ("app read-write a\napp read-only hunter2", "the name app twice"),
            ("a read-write hunter2\nb read-only hunter2", "a and b with the same"),
        ] {
            let fault = fault(text);
            assert!(fault.contains(why) && !fault.contains("hunter2"), "{text:?}: {fault}");
        }
        let many: String = (0..=MAX_TOKENS).map(|i| format!("n{i} read-only s{i}\n")).collect();
        assert!(fault(&many).contains("at most 256"));
        let name = "n".repeat(65);
        assert!(fault(&format!("{name} read-only s\n")).contains("at most 64"));
    }

    #[test]
    fn printing_keeps_the_secret() {
        assert!(!format!("{:?}", Tokens::bare("hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_file_that_others_can_read_or_change_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter2").unwrap();
        for (mode, good) in
            [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false), (0o602, false)]
        {
            file.as_file().set_permissions(PermissionsExt::from_mode(mode)).unwrap();
            match Tokens::read(file.path()) {
                Ok(_) => assert!(good, "{mode:o}"),
                Err(error) => {
                    assert!(!good, "{mode:o}: {error}");
                    assert!(error.to_string().contains(&format!("{mode:04o}")), "{error}");
                }
            }
        }
        assert!(matches!(Tokens::read(Path::new("/no/such/file")), Err(TokenFileError::Read { .. })));
    }
}
