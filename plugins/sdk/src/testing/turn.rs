//! A request, as a test describes it.

use pointsman_core::{Facts, Phase};
use std::sync::Arc;

pub(super) const PHASE: Phase = Phase::Serve;
pub(super) const MODEL: &str = "m";

/// One request. Begin with [`session`] or [`anonymous`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `Bench::send`"]
pub struct Turn {
    pub(super) phase: Phase,
    pub(super) model: String,
    pub(super) session: Option<String>,
    pub(super) parent: Option<String>,
    pub(super) tokens: u32,
    pub(super) shared: u32,
    pub(super) explicit: Option<String>,
    pub(super) tried: Vec<String>,
    headers: Vec<(String, String)>,
    body: Vec<(String, String)>,
    max_output_tokens: Option<u32>,
}

/// A request of a session: 1000 prompt tokens, none of them shared.
pub fn session(id: &str) -> Turn {
    Turn {
        session: Some(id.to_owned()),
        ..anonymous()
    }
}

/// A request without a session id.
pub fn anonymous() -> Turn {
    Turn {
        phase: PHASE,
        model: MODEL.to_owned(),
        session: None,
        parent: None,
        tokens: 1000,
        shared: 0,
        explicit: None,
        tried: Vec::new(),
        headers: Vec::new(),
        body: Vec::new(),
        max_output_tokens: None,
    }
}

impl Turn {
    /// The session that spawned this one.
    pub fn parent(mut self, id: &str) -> Turn {
        self.parent = Some(id.to_owned());
        self
    }

    /// The estimate of the whole prompt.
    pub fn tokens(mut self, tokens: u32) -> Turn {
        self.tokens = tokens;
        self
    }

    /// Of those, in common with the session's previous prompt.
    pub fn shared(mut self, tokens: u32) -> Turn {
        self.shared = tokens;
        self
    }

    /// The client names this target.
    pub fn explicit(mut self, target: &str) -> Turn {
        self.explicit = Some(target.to_owned());
        self
    }

    /// Another attempt, after these targets failed.
    pub fn tried(mut self, target: &str) -> Turn {
        self.tried.push(target.to_owned());
        self
    }

    /// For the pool of another phase than `serve`.
    pub fn phase(mut self, phase: crate::Phase) -> Turn {
        self.phase = match phase {
            crate::Phase::Serve => Phase::Serve,
            crate::Phase::Prefill => Phase::Prefill,
            crate::Phase::Decode => Phase::Decode,
        };
        self
    }

    /// For another model than "m".
    pub fn model(mut self, name: &str) -> Turn {
        name.clone_into(&mut self.model);
        self
    }

    /// With a header.
    pub fn header(mut self, name: &str, value: &str) -> Turn {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a value in the JSON body.
    pub fn body(mut self, pointer: &str, value: &str) -> Turn {
        self.body.push((pointer.to_owned(), value.to_owned()));
        self
    }

    /// With the most tokens the client wants back.
    pub fn max_output_tokens(mut self, tokens: u32) -> Turn {
        self.max_output_tokens = Some(tokens);
        self
    }

    pub(super) fn facts(&self) -> Option<Arc<dyn Facts>> {
        Some(Arc::new(Raw(self.clone())))
    }
}

struct Raw(Turn);

impl Facts for Raw {
    fn header(&self, name: &str) -> Option<String> {
        let mut headers = self.0.headers.iter();
        let found = headers.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    }

    fn body(&self, pointer: &str) -> Option<String> {
        let found = self.0.body.iter().find(|(key, _)| key == pointer);
        found.map(|(_, value)| value.clone())
    }

    fn max_output_tokens(&self) -> Option<u32> {
        self.0.max_output_tokens
    }
}
