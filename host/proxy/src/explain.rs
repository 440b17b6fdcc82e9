//! Why a request goes where it goes: for metrics always, for the client if it asks.

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
    pub(crate) reason: String,
    target: Option<Arc<TargetSpec>>,
    attempts: u32,
}

impl Explained {
    /// `attempt`: from 0.
    pub(crate) fn routed(policy: Rc<str>, ticket: &Ticket, attempt: u32) -> Explained {
        let verdict = ticket.verdict();
        Explained {
            policy,
            reason: reason(
                verdict.reason.as_deref(),
                verdict.fallback,
                verdict.failure.as_ref(),
            ),
            target: ticket.spec().cloned(),
            attempts: attempt.saturating_add(1),
        }
    }

    pub(crate) fn refused(policy: Rc<str>, refusal: &Refusal, attempt: u32) -> Explained {
        Explained {
            policy,
            reason: reason(
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

fn reason(word: Option<&str>, fallback: bool, failure: Option<&Failure>) -> String {
    match (fallback, failure, word) {
        (true, Some(failure), _) => format!("fallback:{}", failure.cause()),
        (true, None, word) => format!("fallback:{}", word.unwrap_or("abstained")),
        (false, _, word) => word.unwrap_or("none").to_owned(),
    }
}
