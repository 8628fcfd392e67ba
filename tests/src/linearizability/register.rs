//! What one key does when operations come one after the other: the specification that histories are held against.

use super::operation::Did;

/// The version of what is there, as far as it is known: a write whose outcome is unknown tells none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Version {
    Exactly(u64),
    Above(u64),
}

impl Version {
    fn may_be(self, version: u64) -> bool {
        match self {
            Self::Exactly(exactly) => exactly == version,
            Self::Above(below) => below < version,
        }
    }

    /// That of the write that replaces it: an update's version is one more.
    fn next(self) -> Self {
        match self {
            Self::Exactly(version) => Self::Exactly(version + 1),
            Self::Above(version) => Self::Above(version + 1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    /// Anything at all.
    Unknown,
    Absent,
    Present {
        version: Version,
        value: Option<u64>,
    },
}

/// The state of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    content: Content,
    /// No version up to this one is given again.
    newest: u64,
}

impl State {
    /// A key that was never written.
    pub(crate) const NEW: Self = Self { content: Content::Absent, newest: 0 };
    /// A key of which nothing is known.
    pub(crate) const ANY: Self = Self { content: Content::Unknown, newest: 0 };

    fn absent(self) -> Self {
        Self { content: Content::Absent, ..self }
    }

    fn present(self, version: Version, value: Option<u64>) -> Self {
        let at_least = match version {
            Version::Exactly(version) => version,
            Version::Above(version) => version + 1,
        };
        Self { content: Content::Present { version, value }, newest: self.newest.max(at_least) }
    }

    /// The state after an operation, or none if its result is impossible in this one.
    pub(crate) fn after(self, did: &Did) -> Option<Self> {
        match *did {
            Did::Found { version, value } => self.found(version, Some(value)),
            Did::Absent | Did::DeletedNothing => self.found_absent(),
            Did::Mismatch { expect, found } if expect == found => None,
            Did::Mismatch { found: 0, .. } => self.found_absent(),
            Did::Mismatch { found, .. } => self.found(found, None),
            Did::Put { value, expect, version } => self.put(value, expect, version),
            Did::PutUnknown { value, expect } => self.put_unknown(value, expect),
            Did::Deleted { expect } | Did::DeleteUnknown { expect } => self.deleted(expect),
        }
    }

    fn found(self, found: u64, read: Option<u64>) -> Option<Self> {
        match self.content {
            Content::Unknown => Some(self.present(Version::Exactly(found), read)),
            Content::Absent => None,
            Content::Present { version, value } => {
                let fits = version.may_be(found) && (value.is_none() || read.is_none() || value == read);
                fits.then(|| self.present(Version::Exactly(found), value.or(read)))
            }
        }
    }

    fn found_absent(self) -> Option<Self> {
        match self.content {
            Content::Unknown | Content::Absent => Some(self.absent()),
            Content::Present { .. } => None,
        }
    }

    /// Whether a condition holds here.
    fn meets(self, expect: Option<u64>) -> bool {
        match (expect, self.content) {
            (None, _) | (_, Content::Unknown) => true,
            (Some(expect), Content::Absent) => expect == 0,
            (Some(expect), Content::Present { version, .. }) => expect != 0 && version.may_be(expect),
        }
    }

    fn put(self, value: u64, expect: Option<u64>, written: u64) -> Option<Self> {
        let follows = match self.content {
            Content::Unknown => true,
            Content::Absent => written > self.newest,
            Content::Present { version, .. } => version.may_be(written.checked_sub(1)?),
        };
        let follows = follows && expect.is_none_or(|expect| expect == 0 || written == expect + 1);
        (follows && self.meets(expect)).then(|| self.present(Version::Exactly(written), Some(value)))
    }

    fn put_unknown(self, value: u64, expect: Option<u64>) -> Option<Self> {
        if !self.meets(expect) {
            return None;
        }
        let version = match (expect, self.content) {
            (Some(expect), _) if expect > 0 => Version::Exactly(expect + 1),
            (_, Content::Present { version, .. }) => version.next(),
            (_, Content::Absent | Content::Unknown) => Version::Above(self.newest),
        };
        Some(self.present(version, Some(value)))
    }

    fn deleted(self, expect: Option<u64>) -> Option<Self> {
        let there = self.content != Content::Absent && expect != Some(0);
        let newest = self.newest.max(expect.unwrap_or(0));
        (there && self.meets(expect)).then(|| Self { newest, ..self.absent() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(version: u64, expect: Option<u64>) -> Did {
        Did::Put { value: version * 10, expect, version }
    }

    #[test]
    fn versions_follow_one_another() {
        let one = State::NEW.after(&put(5, Some(0))).unwrap();
        assert!(one.after(&put(6, Some(5))).is_some() && one.after(&put(6, None)).is_some());
        assert!(one.after(&put(7, None)).is_none(), "a write in between, or one applied twice");
        assert!(one.after(&put(6, Some(0))).is_none() && one.after(&put(6, Some(4))).is_none());
        let gone = one.after(&Did::Deleted { expect: Some(5) }).unwrap();
        assert!(gone.after(&put(5, None)).is_none(), "a version twice");
        assert!(gone.after(&put(9, None)).is_some());
        assert!(gone.after(&Did::Deleted { expect: None }).is_none());
    }

    #[test]
    fn observations_change_nothing() {
        let one = State::NEW.after(&put(5, None)).unwrap();
        assert_eq!(one.after(&Did::Found { version: 5, value: 50 }), Some(one));
        assert_eq!(one.after(&Did::Found { version: 5, value: 51 }), None);
        assert_eq!(one.after(&Did::Absent), None);
        assert_eq!(one.after(&Did::Mismatch { expect: 4, found: 5 }), Some(one));
        assert_eq!(one.after(&Did::Mismatch { expect: 5, found: 5 }), None);
        assert_eq!(State::NEW.after(&Did::Mismatch { expect: 4, found: 0 }), Some(State::NEW));
    }

    #[test]
    fn what_is_not_known_is_learnt() {
        let maybe = State::NEW.after(&Did::PutUnknown { value: 1, expect: None }).unwrap();
        assert!(maybe.after(&Did::Found { version: 3, value: 2 }).is_none());
        let seen = maybe.after(&Did::Found { version: 3, value: 1 }).unwrap();
        assert!(seen.after(&Did::Found { version: 4, value: 1 }).is_none());
        assert!(seen.after(&put(4, None)).is_some());
        assert!(maybe.after(&put(1, None)).is_none() && maybe.after(&put(2, None)).is_some());
        assert!(State::ANY.after(&Did::Absent).unwrap().after(&Did::Found { version: 1, value: 1 }).is_none());
    }
}
