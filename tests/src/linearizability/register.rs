//! What one key does when operations come one after the other: the specification that histories are held against.
//!
//! A value that has a time to live is absent from some moment on, and one that may be evicted at any moment: the key
//! becomes absent without an operation. It does so in the operation that shows it.

use super::operation::{Did, Operation};

/// What the clocks of a host differ in, in nanoseconds: that by which operations are timed and that by which values
/// expire, and milliseconds that are cut off.
const CLOCKS_NS: u64 = 50_000_000;

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
        life: Life,
    },
}

/// How long a value is there by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    /// It neither expires nor is evicted.
    Ever,
    /// It expires between these times.
    Until(u64, u64),
    /// It may vanish at any time, or never.
    Any,
}

impl Life {
    /// Of the value that an operation writes.
    fn of(operation: &Operation, may_evict: bool) -> Self {
        match operation.ttl {
            _ if may_evict && operation.ttl.is_none() => Self::Any,
            None => Self::Ever,
            Some(ttl) => {
                let earliest = if may_evict { 0 } else { operation.start.saturating_add(ttl) };
                Self::Until(earliest, operation.end.saturating_add(ttl))
            }
        }
    }

    /// Whether an operation can have met the value.
    fn may_last(self, operation: &Operation) -> bool {
        match self {
            Self::Ever | Self::Any => true,
            Self::Until(_, latest) => operation.start <= latest.saturating_add(CLOCKS_NS),
        }
    }

    /// Whether it can have come after the value's end.
    fn may_be_over(self, operation: &Operation) -> bool {
        match self {
            Self::Ever => false,
            Self::Any => true,
            Self::Until(earliest, _) => {
                !operation.did.is_certain() || operation.end.saturating_add(CLOCKS_NS) >= earliest
            }
        }
    }
}

/// What the values of a key may do by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Vanishing {
    /// The server evicts.
    pub(crate) by_eviction: bool,
    /// Some are written with a time to live.
    pub(crate) by_expiry: bool,
}

/// The state of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    content: Content,
    /// No version up to this one is given again.
    newest: u64,
    vanishing: Vanishing,
}

impl State {
    /// A key that was never written.
    pub(crate) fn new(vanishing: Vanishing) -> Self {
        Self { content: Content::Absent, newest: 0, vanishing }
    }

    /// A key of which nothing is known.
    pub(crate) fn any(vanishing: Vanishing) -> Self {
        Self { content: Content::Unknown, newest: 0, vanishing }
    }

    fn absent(self) -> Self {
        Self { content: Content::Absent, ..self }
    }

    fn present(self, version: Version, value: Option<u64>, life: Life) -> Self {
        let at_least = match version {
            Version::Exactly(version) => version,
            Version::Above(version) => version + 1,
        };
        Self { content: Content::Present { version, value, life }, newest: self.newest.max(at_least), ..self }
    }

    /// The state after an operation, or none if its result is impossible in this one.
    pub(crate) fn after(self, operation: &Operation) -> Option<Self> {
        match operation.did {
            Did::Found { version, value } => self.found(version, Some(value), operation),
            Did::Absent | Did::DeletedNothing => self.found_absent(operation),
            Did::Mismatch { expect, found } if expect == found => None,
            Did::Mismatch { found: 0, .. } => self.found_absent(operation),
            Did::Mismatch { found, .. } => self.found(found, None, operation),
            Did::Put { value, expect, version } => self.put(value, expect, version, operation),
            Did::PutUnknown { value, expect } => self.put_unknown(value, expect, operation),
            Did::Deleted { expect } | Did::DeleteUnknown { expect } => self.deleted(expect, operation),
        }
    }

    /// Life of a value that was there before anything is known.
    fn unknown_life(self) -> Life {
        let Vanishing { by_eviction, by_expiry } = self.vanishing;
        if by_eviction || by_expiry { Life::Any } else { Life::Ever }
    }

    fn found(self, found: u64, read: Option<u64>, operation: &Operation) -> Option<Self> {
        match self.content {
            Content::Unknown => Some(self.present(Version::Exactly(found), read, self.unknown_life())),
            Content::Absent => None,
            Content::Present { version, value, life } => {
                let fits = version.may_be(found) && (value.is_none() || read.is_none() || value == read);
                (fits && life.may_last(operation)).then(|| self.present(Version::Exactly(found), value.or(read), life))
            }
        }
    }

    /// Whether an operation can have found no value here.
    fn may_be_absent(self, operation: &Operation) -> bool {
        match self.content {
            Content::Unknown | Content::Absent => true,
            Content::Present { life, .. } => life.may_be_over(operation),
        }
    }

    fn found_absent(self, operation: &Operation) -> Option<Self> {
        self.may_be_absent(operation).then(|| self.absent())
    }

    /// Whether a condition can have held here, of a value that is there.
    fn meets(self, expect: u64, operation: &Operation) -> bool {
        match self.content {
            Content::Unknown => true,
            Content::Absent => false,
            Content::Present { version, life, .. } => expect != 0 && version.may_be(expect) && life.may_last(operation),
        }
    }

    fn put(self, value: u64, expect: Option<u64>, written: u64, operation: &Operation) -> Option<Self> {
        let inserts = written > self.newest && expect.unwrap_or(0) == 0 && self.may_be_absent(operation);
        let updates = match self.content {
            Content::Unknown => expect.is_none_or(|expect| expect == 0 || written == expect + 1),
            Content::Absent => false,
            Content::Present { version, life, .. } => {
                let follows = version.may_be(written.checked_sub(1)?) && life.may_last(operation);
                follows && expect.is_none_or(|expect| written == expect + 1 && self.meets(expect, operation))
            }
        };
        let life = Life::of(operation, self.vanishing.by_eviction);
        (inserts || updates).then(|| self.present(Version::Exactly(written), Some(value), life))
    }

    fn put_unknown(self, value: u64, expect: Option<u64>, operation: &Operation) -> Option<Self> {
        let above = || Version::Above(self.newest);
        let absent = self.may_be_absent(operation);
        let version = match (expect, self.content) {
            (Some(0), _) => absent.then(above)?,
            (Some(expect), _) => self.meets(expect, operation).then(|| Version::Exactly(expect + 1))?,
            (None, Content::Present { version, .. }) if !absent => version.next(),
            (None, _) => above(),
        };
        Some(self.present(version, Some(value), Life::of(operation, self.vanishing.by_eviction)))
    }

    fn deleted(self, expect: Option<u64>, operation: &Operation) -> Option<Self> {
        let meets = match (expect, self.content) {
            (Some(0), _) | (_, Content::Absent) => false,
            (None, Content::Unknown) => true,
            (None, Content::Present { life, .. }) => life.may_last(operation),
            (Some(expect), _) => self.meets(expect, operation),
        };
        let newest = self.newest.max(expect.unwrap_or(0));
        meets.then(|| Self { newest, ..self.absent() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: State =
        State { content: Content::Absent, newest: 0, vanishing: Vanishing { by_eviction: false, by_expiry: false } };

    fn at(start: u64, end: u64, did: Did) -> Operation {
        Operation { client: 0, key: 0, start, end, did, ttl: None }
    }

    impl State {
        fn done(self, did: &Did) -> Option<Self> {
            self.after(&at(0, 0, *did))
        }
    }

    fn put(version: u64, expect: Option<u64>) -> Did {
        Did::Put { value: version * 10, expect, version }
    }

    #[test]
    fn versions_follow_one_another() {
        let one = NEW.done(&put(5, Some(0))).unwrap();
        assert!(one.done(&put(6, Some(5))).is_some() && one.done(&put(6, None)).is_some());
        assert!(one.done(&put(7, None)).is_none(), "a write in between, or one applied twice");
        assert!(one.done(&put(6, Some(0))).is_none() && one.done(&put(6, Some(4))).is_none());
        let gone = one.done(&Did::Deleted { expect: Some(5) }).unwrap();
        assert!(gone.done(&put(5, None)).is_none(), "a version twice");
        assert!(gone.done(&put(9, None)).is_some());
        assert!(gone.done(&Did::Deleted { expect: None }).is_none());
    }

    #[test]
    fn observations_change_nothing() {
        let one = NEW.done(&put(5, None)).unwrap();
        assert_eq!(one.done(&Did::Found { version: 5, value: 50 }), Some(one));
        assert_eq!(one.done(&Did::Found { version: 5, value: 51 }), None);
        assert_eq!(one.done(&Did::Absent), None);
        assert_eq!(one.done(&Did::Mismatch { expect: 4, found: 5 }), Some(one));
        assert_eq!(one.done(&Did::Mismatch { expect: 5, found: 5 }), None);
        assert_eq!(NEW.done(&Did::Mismatch { expect: 4, found: 0 }), Some(NEW));
    }

    #[test]
    fn what_is_not_known_is_learnt() {
        let maybe = NEW.done(&Did::PutUnknown { value: 1, expect: None }).unwrap();
        assert!(maybe.done(&Did::Found { version: 3, value: 2 }).is_none());
        let seen = maybe.done(&Did::Found { version: 3, value: 1 }).unwrap();
        assert!(seen.done(&Did::Found { version: 4, value: 1 }).is_none());
        assert!(seen.done(&put(4, None)).is_some());
        assert!(maybe.done(&put(1, None)).is_none() && maybe.done(&put(2, None)).is_some());
        assert!(
            State::any(Vanishing::default())
                .done(&Did::Absent)
                .unwrap()
                .done(&Did::Found { version: 1, value: 1 })
                .is_none()
        );
    }

    #[test]
    fn what_expires_is_there_until_then_and_never_again() {
        const TTL: u64 = 1_000_000_000;
        let write = Operation { ttl: Some(TTL), ..at(0, 10, put(5, None)) };
        let found = Did::Found { version: 5, value: 50 };
        let one = State::new(Vanishing { by_expiry: true, ..Vanishing::default() }).after(&write).unwrap();
        assert_eq!(one.after(&at(20, 30, found)), Some(one));
        assert_eq!(one.after(&at(20, 30, Did::Absent)), None, "too early");
        let late = TTL + 2 * CLOCKS_NS;
        assert_eq!(one.after(&at(late, late + 1, found)), None, "too late");
        assert_eq!(one.after(&at(late, late, Did::Deleted { expect: None })), None);
        assert_eq!(one.after(&at(late, late, put(6, Some(5)))), None);
        let gone = one.after(&at(20, late, Did::Absent)).unwrap();
        assert_eq!(gone.after(&at(20, late, found)), None, "an old value comes back");
        assert_eq!(gone.after(&at(late, late, put(5, None))), None, "a version twice");
        // The next write may be the first to find it gone.
        assert!(one.after(&at(late, late, put(9, Some(0)))).is_some());
        assert!(one.after(&at(20, 30, put(9, Some(0)))).is_none());
    }

    #[test]
    fn what_is_evicted_does_not_come_back() {
        let new = State::new(Vanishing { by_eviction: true, ..Vanishing::default() });
        let one = new.done(&put(5, None)).unwrap();
        let gone = one.done(&Did::Absent).unwrap();
        assert_eq!(gone.done(&Did::Found { version: 5, value: 50 }), None);
        assert!(gone.done(&put(5, None)).is_none() && gone.done(&put(6, None)).is_some());
        assert!(one.done(&put(5, None)).is_none() && one.done(&put(8, None)).is_some());
        assert!(one.done(&put(8, Some(5))).is_none() && one.done(&put(6, Some(5))).is_some());
        assert!(one.done(&Did::Mismatch { expect: 5, found: 0 }).is_some());
        assert!(one.done(&Did::Found { version: 4, value: 40 }).is_none());
    }
}
