//! Decisions, put together readably.

use crate::{Decision, Keys, Rejection, Route, Target};

impl Route {
    /// Send the request to `target`: nothing bound, the host's rule for the charge. `reason` is an
    /// index into [`crate::Policy::REASONS`].
    pub fn to(target: Target, reason: impl Into<u8>) -> Route {
        Route {
            target,
            bind: Keys::empty(),
            rebind: Keys::empty(),
            charge: None,
            reason: reason.into(),
        }
    }

    /// Bind these keys too, those that are unbound. If another request is first, its target wins.
    #[must_use]
    pub fn bind(mut self, keys: Keys) -> Route {
        self.bind |= keys;
        self
    }

    /// Replace these bindings too. Only keys that this decision looked at: the request's owner, or
    /// [`crate::Host::lookup`].
    #[must_use]
    pub fn rebind(mut self, keys: Keys) -> Route {
        self.rebind |= keys;
        self
    }

    /// Charge this many prefill tokens instead of what the host's rule says.
    #[must_use]
    pub fn charge(mut self, prefill_tokens: u32) -> Route {
        self.charge = Some(prefill_tokens);
        self
    }
}

impl Rejection {
    /// Refuse the request with an HTTP status, 400 to 599.
    pub fn with(status: u16, reason: impl Into<u8>) -> Rejection {
        Rejection {
            status,
            retry_after_ms: None,
            reason: reason.into(),
        }
    }
}

impl From<Route> for Decision {
    fn from(route: Route) -> Decision {
        Decision::To(route)
    }
}

impl From<Rejection> for Decision {
    fn from(rejection: Rejection) -> Decision {
        Decision::Reject(rejection)
    }
}
