//! What is learnt from an answer, and what the policy is told of it.

use crate::site::{Listener, Site};
use crate::usage::UsageScanner;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use pointsman_core::{Event, Target, Usage};
use pointsman_request::PromptSize;

/// The request that an answer is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subject {
    /// hash of the model's name; 0: none
    pub(crate) model: u64,
    pub(crate) size: PromptSize,
    pub(crate) listener: Listener,
    /// none: nobody wants to know
    pub(crate) arrived_ms: Option<u64>,
}

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// server-sent events
    Stream,
    /// one JSON text
    Json,
    /// audio and the like: says nothing of tokens
    Other,
}

impl Kind {
    pub(crate) fn of(headers: &HeaderMap) -> Kind {
        let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match kind.unwrap_or_default() {
            kind if kind.starts_with(b"text/event-stream") => Kind::Stream,
            kind if kind.starts_with(b"application/json") => Kind::Json,
            _ => Kind::Other,
        }
    }
}

/// See the module. Of an answer that is an error nothing is reported.
#[derive(Debug)]
pub(crate) struct Report {
    subject: Subject,
    kind: Kind,
    /// none: it cannot be read
    usage: Option<UsageScanner>,
    /// bytes, of a stream lines; only for a policy that wants to know the end
    length: u64,
    begun: bool,
    first_output_ms: u32,
}

impl Report {
    pub(crate) fn new(subject: Subject, kind: Kind, headers: &HeaderMap) -> Report {
        let readable = kind != Kind::Other && !headers.contains_key(CONTENT_ENCODING);
        Report {
            subject,
            kind,
            usage: readable.then(UsageScanner::default),
            length: 0,
            begun: false,
            first_output_ms: 0,
        }
    }

    /// The next bytes of the answer.
    pub(crate) fn pass(&mut self, site: &Site, target: Target, data: &[u8]) {
        let wants = self.subject.listener.wants;
        if !self.begun {
            self.begun = true;
            if wants.finished {
                self.first_output_ms = self.since_arrival(site);
            }
            if wants.first_output {
                site.tell(self.subject.listener, Event::FirstOutput(target));
            }
        }
        if let Some(usage) = &mut self.usage {
            usage.pass(data);
        }
        if wants.finished {
            self.length += match self.kind {
                Kind::Stream => memchr::memchr_iter(b'\n', data).count() as u64,
                Kind::Json | Kind::Other => data.len() as u64,
            };
        }
    }

    /// The answer ended well.
    pub(crate) fn finish(self, site: &Site, target: Target) {
        let Subject {
            model,
            size,
            listener,
            ..
        } = self.subject;
        let counted = self.usage.as_ref().map(UsageScanner::counted);
        let counted = counted.unwrap_or_default();
        if size.bytes > 0 && self.kind != Kind::Other {
            match counted.prompt_tokens {
                Some(tokens) => site.shared.learner.learn(model, size.bytes, tokens),
                None => site.tally.usage_missing(),
            }
        }
        if listener.wants.finished {
            let output = || match self.kind {
                // an event of two lines brings about one token
                Kind::Stream => self.length / 2,
                Kind::Json => site.shared.learner.ratio(model).tokens(self.length),
                Kind::Other => 0,
            };
            let output = || u32::try_from(output()).unwrap_or(u32::MAX);
            let usage = Usage {
                target,
                prompt_tokens: counted.prompt_tokens.unwrap_or(size.tokens),
                cached_tokens: counted.cached_tokens.unwrap_or(0),
                output_tokens: counted.output_tokens.unwrap_or_else(output),
                first_output_ms: self.first_output_ms,
                total_ms: self.since_arrival(site),
            };
            site.tell(listener, Event::Finished(usage));
        }
    }

    /// The answer broke off, or was an error after all.
    pub(crate) fn fail(self, site: &Site, target: Target) {
        failed(site, self.subject.listener, target);
    }

    fn since_arrival(&self, site: &Site) -> u32 {
        let now = site.shared.core.now_ms();
        let since = now.saturating_sub(self.subject.arrived_ms.unwrap_or(now));
        u32::try_from(since).unwrap_or(u32::MAX)
    }
}

/// An attempt failed, or the answer to it.
pub(crate) fn failed(site: &Site, listener: Listener, target: Target) {
    if listener.wants.failed {
        site.tell(listener, Event::Failed(target));
    }
}
