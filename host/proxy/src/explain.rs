//! Why a request goes where it goes: for metrics always, for the client if it asks.

use hashbrown::HashSet;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use pointsman_core::{Failure, Refusal, TargetSpec, Ticket};
use std::rc::Rc;
use std::sync::Arc;

const ASK: HeaderName = HeaderName::from_static("x-pointsman-explain");
const TARGET: HeaderName = HeaderName::from_static("x-pointsman-target");
const POLICY: HeaderName = HeaderName::from_static("x-pointsman-policy");
const REASON: HeaderName = HeaderName::from_static("x-pointsman-reason");
const ATTEMPTS: HeaderName = HeaderName::from_static("x-pointsman-attempts");

/// A decision, in words.
#[derive(Clone, Debug)]
pub(crate) struct Explained {
    pub(crate) policy: Rc<str>,
    /// the policy's word, or `fallback:` and why
    pub(crate) reason: Rc<str>,
    /// kept only for a client that asks: its count is shared by all threads
    target: Option<Arc<TargetSpec>>,
    attempts: u32,
}

impl Explained {
    /// `attempt`: from 0. `asked`: see [`Explained::is_asked`].
    pub(crate) fn routed(
        words: &mut Words,
        ticket: &Ticket,
        attempt: u32,
        asked: bool,
    ) -> Explained {
        let verdict = ticket.verdict();
        Explained {
            policy: words.policy.clone(),
            reason: words.reason(
                verdict.reason.as_deref(),
                verdict.fallback,
                verdict.failure.as_ref(),
            ),
            target: ticket.spec().filter(|_| asked).cloned(),
            attempts: attempt.saturating_add(1),
        }
    }

    pub(crate) fn refused(words: &mut Words, refusal: &Refusal, attempt: u32) -> Explained {
        Explained {
            policy: words.policy.clone(),
            reason: words.reason(
                refusal.reason.as_deref(),
                refusal.fallback,
                refusal.failure.as_ref(),
            ),
            target: None,
            attempts: attempt.saturating_add(1),
        }
    }

    /// Whether a client asks for it.
    pub(crate) fn is_asked(headers: &HeaderMap) -> bool {
        let asked = headers.get(ASK).map(HeaderValue::as_bytes);
        asked.is_some_and(|value| value == b"1" || value.eq_ignore_ascii_case(b"true"))
    }

    /// Puts it on a response.
    pub(crate) fn put(&self, headers: &mut HeaderMap) {
        let mut say = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        if let Some(spec) = &self.target {
            say(TARGET, &spec.endpoint.name);
        }
        say(POLICY, &self.policy);
        say(REASON, &self.reason);
        if self.attempts > 1 {
            headers.insert(ATTEMPTS, HeaderValue::from(self.attempts));
        }
    }
}

/// A policy's name and reasons, each allocated once.
pub(crate) struct Words {
    pub(crate) policy: Rc<str>,
    /// a small set: the policy declares its reasons, and causes of failure are few
    reasons: HashSet<Rc<str>>,
}

impl Words {
    pub(crate) fn new(policy: &str) -> Words {
        Words {
            policy: Rc::from(policy),
            reasons: HashSet::new(),
        }
    }

    fn reason(&mut self, word: Option<&str>, fallback: bool, failure: Option<&Failure>) -> Rc<str> {
        match failure.filter(|_| fallback) {
            Some(failure) => self.known(&format!("fallback:{}", failure.cause())),
            // A policy that abstains has said why.
            None => self.known(word.unwrap_or("none")),
        }
    }

    fn known(&mut self, word: &str) -> Rc<str> {
        if let Some(known) = self.reasons.get(word) {
            return known.clone();
        }
        let new: Rc<str> = Rc::from(word);
        self.reasons.insert(new.clone());
        new
    }
}
