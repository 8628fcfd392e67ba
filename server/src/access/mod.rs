//! Who may enter, and what they may do there.

mod tokens;
mod tries;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use sidestep_core::handshake::{Role, prove, verify};
use sidestep_core::message::Op;
use tracing::warn;

pub(crate) use tokens::exposed_mode;
pub use tokens::{Right, Token, TokenFileError, Tokens};
use tries::FailedTries;

/// The token that a client has proven to know; without one, the server had none when it came.
#[derive(Clone, Debug)]
pub(crate) struct Pass(Option<Arc<Token>>);

impl Pass {
    /// Of whoever has proven to know this token; of anyone, where none is asked for.
    pub(crate) fn of(token: Option<&Arc<Token>>) -> Self {
        Self(token.cloned())
    }

    /// Whether its holder may ask for this. What is not known here to be a read is a write.
    pub(crate) fn allows(&self, op: Op) -> bool {
        match &self.0 {
            Some(token) if token.right == Right::ReadOnly => {
                matches!(op, Op::Get | Op::Ping | Op::Stats | Op::Connect | Op::Scan | Op::Touch)
            }
            _ => true,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.0.as_ref().map_or("none", |token| &token.name)
    }

    /// Whether two are of the same holder: of one name, or of one secret under another name.
    pub(crate) fn is_of_same_holder(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => a.name == b.name || a.secret == b.secret,
            _ => false,
        }
    }
}

/// What there was to be proven, and the proof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) from: IpAddr,
    pub(crate) client_nonce: &'a [u8; 32],
    pub(crate) server_nonce: &'a [u8; 32],
    pub(crate) mac: &'a [u8; 32],
}

/// The tokens of a server, which may change while it runs, and who failed to know one.
pub(crate) struct Access {
    tokens: RwLock<Option<Tokens>>,
    /// Grows whenever a pass may have lost its worth.
    generation: AtomicU64,
    /// From when on the next token is worth nothing; `u64::MAX`: none ends by itself.
    next_end_ms: AtomicU64,
    tries: FailedTries,
    failed: AtomicU64,
    held_back: AtomicU64,
    sessions_ended: AtomicU64,
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn next_end_ms(tokens: Option<&Tokens>, now_ms: u64) -> u64 {
    let ends = tokens.into_iter().flat_map(Tokens::iter).filter_map(|token| token.expires_ms);
    ends.filter(|&ms| ms > now_ms).min().unwrap_or(u64::MAX)
}

impl Access {
    /// Without tokens everyone may do everything.
    pub(crate) fn new(tokens: Option<Tokens>) -> Self {
        Self {
            generation: AtomicU64::new(0),
            next_end_ms: AtomicU64::new(next_end_ms(tokens.as_ref(), now_ms())),
            tries: FailedTries::new(Instant::now()),
            failed: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
            sessions_ended: AtomicU64::new(0),
            tokens: RwLock::new(tokens),
        }
    }

    /// Whether clients must prove to know a token.
    pub(crate) fn asks_for_token(&self) -> bool {
        self.tokens.read().is_some()
    }

    /// What a proof gives: the pass, and the server's own proof of the same token.
    pub(crate) fn check(&self, attempt: Attempt<'_>) -> Result<(Pass, [u8; 32]), String> {
        let Attempt { from, client_nonce, server_nonce, mac } = attempt;
        let ours = |secret: &[u8]| prove(secret, Role::Server, client_nonce, server_nonce);
        let now = Instant::now();
        let tokens = self.tokens.read();
        let Some(tokens) = &*tokens else { return Ok((Pass::of(None), ours(b""))) };
        // Before the proof is looked at: a guess that happens to be right must not be told from a wrong one.
        if let Some(wait) = self.tries.wait(from, now) {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            let seconds = wait.as_millis().div_ceil(1000);
            return Err(format!("too many failed tries from {from}: the next one is taken in {seconds} s"));
        }
        // All of them, so that the time does not tell which one it was.
        let known = tokens.iter().fold(None, |known, token| {
            if verify(&token.secret, Role::Client, client_nonce, server_nonce, mac) { Some(token) } else { known }
        });
        let Some(token) = known else {
            self.tries.failed(from, now);
            self.failed.fetch_add(1, Ordering::Relaxed);
            warn!(%from, "a client does not know a token");
            return Err("expected a proof of one of this server's tokens, found another".into());
        };
        if token.has_expired(now_ms()) {
            warn!(%from, token = token.name, "a client has a token that has expired");
            return Err(format!("the token {} has expired", token.name));
        }
        Ok((Pass::of(Some(token)), ours(&token.secret)))
    }

    /// Whether what was given at the door is still good: the token is there, means the same, and has not expired.
    pub(crate) fn holds(&self, pass: &Pass) -> bool {
        match (&*self.tokens.read(), &pass.0) {
            (None, None) => true,
            (Some(tokens), Some(held)) => {
                let same = |t: &Token| t.name == held.name && t.right == held.right && t.secret == held.secret;
                let now_ms = now_ms();
                tokens.iter().any(|token| same(token) && !token.has_expired(now_ms))
            }
            _ => false,
        }
    }

    /// From now on only these are good. Whoever serves sessions looks again at their passes when the generation grows.
    pub(crate) fn replace(&self, tokens: Tokens) {
        let mut current = self.tokens.write();
        self.next_end_ms.store(next_end_ms(Some(&tokens), now_ms()), Ordering::Relaxed);
        *current = Some(tokens);
        drop(current);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Notices that tokens have expired since the last call. True: the generation has grown.
    pub(crate) fn note_time(&self) -> bool {
        let now_ms = now_ms();
        if now_ms < self.next_end_ms.load(Ordering::Relaxed) {
            return false;
        }
        let tokens = self.tokens.write();
        self.next_end_ms.store(next_end_ms(tokens.as_ref(), now_ms), Ordering::Relaxed);
        drop(tokens);
        self.generation.fetch_add(1, Ordering::Release);
        true
    }

    /// Whether a token will expire: [`Access::note_time`] is to be called now and then.
    pub(crate) fn has_end(&self) -> bool {
        self.next_end_ms.load(Ordering::Relaxed) != u64::MAX
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A session whose pass had lost its worth was ended.
    pub(crate) fn session_ended(&self) {
        self.sessions_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Counters, by name.
    pub(crate) fn stats(&self) -> [(String, u64); 3] {
        [
            ("tries_failed", &self.failed),
            ("tries_held_back", &self.held_back),
            ("sessions_revoked", &self.sessions_ended),
        ]
        .map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("tokens", &*self.tokens.read()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn tokens(text: &str) -> Tokens {
        text.parse().unwrap()
    }

    fn enter(access: &Access, secret: &[u8]) -> Result<Pass, String> {
        let mac = prove(secret, Role::Client, &[1; 32], &[2; 32]);
        let attempt = Attempt { from: FROM, client_nonce: &[1; 32], server_nonce: &[2; 32], mac: &mac };
        let (pass, ours) = access.check(attempt)?;
        assert!(verify(secret, Role::Server, &[1; 32], &[2; 32], &ours));
        Ok(pass)
    }

    #[test]
    fn each_token_gives_its_right() {
        let access = Access::new(Some(tokens("a read-write one\nb read-only two\nc read-only three 2020-01-01")));
        let (a, b) = (enter(&access, b"one").unwrap(), enter(&access, b"two").unwrap());
        for op in [Op::Get, Op::Ping, Op::Stats, Op::Connect, Op::Scan, Op::Touch] {
            assert!(a.allows(op) && b.allows(op), "{op:?}");
        }
        for op in [Op::Put, Op::Delete, Op::Flush] {
            assert!(a.allows(op) && !b.allows(op), "{op:?}");
        }
        assert!(enter(&access, b"three").unwrap_err().contains("c has expired"));
        assert!(enter(&access, b"four").unwrap_err().contains("tokens"));
    }

    #[test]
    fn a_pass_holds_as_long_as_its_token_means_the_same() {
        let access = Access::new(Some(tokens("a read-write one\nb read-only two")));
        let (a, b) = (enter(&access, b"one").unwrap(), enter(&access, b"two").unwrap());
        let before = access.generation();
        access.replace(tokens("a read-write one\nb read-write two"));
        assert!(access.holds(&a) && !access.holds(&b), "the right is another");
        assert!(access.generation() > before);
        access.replace(tokens("a read-write other\nb read-only two"));
        assert!(!access.holds(&a) && access.holds(&b), "the secret is another");
        access.replace(tokens("b read-only two 2020-01-01\nx read-write one"));
        assert!(!access.holds(&a) && !access.holds(&b), "renamed, and expired");
        assert!(a.is_of_same_holder(&enter(&access, b"one").unwrap()));
        assert!(!a.is_of_same_holder(&b));
    }

    #[test]
    fn who_failed_too_often_is_held_back_whatever_the_proof() {
        let access = Access::new(Some(Tokens::bare("right")));
        while enter(&access, b"wrong").unwrap_err().contains("another") {}
        assert!(enter(&access, b"right").unwrap_err().contains("too many failed tries from 127.0.0.1"));
        let [failed, held_back, _] = access.stats();
        assert_eq!((failed.1, held_back.1), (10, 2));
    }
}
