//! What became of a request.

use pointsman_core::{Refusal, Ticket, Verdict};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// A request after its decision. Compares with a text: where it went and why, as in `"a/0 placed"`;
/// `"503 nobody"` for one that was refused; `"a/0 fallback"` where the fallback placed it, with the
/// policy's word before it if it abstained: `"a/0 nobody fallback"`.
///
/// Stays in flight until it is ended here, also when the handle is dropped.
#[derive(Clone)]
pub struct Sent {
    outcome: Rc<Outcome>,
}

struct Outcome {
    text: String,
    target: Option<String>,
    reason: Option<String>,
    verdict: Option<Verdict>,
    refusal: Option<Refusal>,
    ticket: RefCell<Option<Ticket>>,
}

impl Sent {
    pub(super) fn routed(ticket: Ticket) -> Sent {
        let target = ticket.spec().map(|spec| spec.endpoint.name.clone());
        let verdict = ticket.verdict().clone();
        let text = describe(
            target.as_deref().unwrap_or("?"),
            verdict.reason.as_deref(),
            verdict.fallback,
        );
        Sent::new(Outcome {
            text,
            target,
            reason: verdict.reason.clone(),
            verdict: Some(verdict),
            refusal: None,
            ticket: RefCell::new(Some(ticket)),
        })
    }

    pub(super) fn refused(refusal: Refusal) -> Sent {
        Sent::new(Outcome {
            text: describe(
                &refusal.status.to_string(),
                refusal.reason.as_deref(),
                refusal.fallback,
            ),
            target: None,
            reason: refusal.reason.clone(),
            verdict: None,
            refusal: Some(refusal),
            ticket: RefCell::new(None),
        })
    }

    fn new(outcome: Outcome) -> Sent {
        Sent {
            outcome: Rc::new(outcome),
        }
    }

    /// The name of the target; none: it was refused.
    pub fn target(&self) -> Option<&str> {
        self.outcome.target.as_deref()
    }

    /// The policy's word.
    pub fn reason(&self) -> Option<&str> {
        self.outcome.reason.as_deref()
    }

    /// What the host says of the decision.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.outcome.verdict.as_ref()
    }

    /// Why it goes nowhere.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.outcome.refusal.as_ref()
    }

    /// The engine took it: its bindings are confirmed.
    pub fn dispatched(&self) {
        if let Some(ticket) = self.outcome.ticket.borrow_mut().as_mut() {
            ticket.dispatched();
        }
    }

    /// The first output came: its prompt is prefilled.
    pub fn output(&self) {
        if let Some(ticket) = self.outcome.ticket.borrow_mut().as_mut() {
            ticket.output();
        }
    }

    /// The response ended.
    pub fn finish(&self) {
        self.end(Ticket::finish);
    }

    /// It failed. Before [`Sent::dispatched`] everything is rolled back.
    pub fn fail(&self) {
        self.end(Ticket::fail);
    }

    /// The client has gone.
    pub fn cancel(&self) {
        self.end(Ticket::cancel);
    }

    fn end(&self, end: impl FnOnce(Ticket)) {
        if let Some(ticket) = self.outcome.ticket.take() {
            end(ticket);
        }
    }
}

fn describe(at: &str, reason: Option<&str>, fallback: bool) -> String {
    let words = [Some(at), reason, fallback.then_some("fallback")];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

impl PartialEq<&str> for Sent {
    fn eq(&self, text: &&str) -> bool {
        self.outcome.text == *text
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.outcome.text)
    }
}
