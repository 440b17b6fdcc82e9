//! Identify and estimate: from headers, and the body where it was read.

use crate::answer::Answer;
use crate::shared::Shared;
use crate::site::Site;
use http::header::{CONTENT_LENGTH, HeaderMap};
use pointsman_core::{Explicit, Facts, Incoming, Phase, Shared as SharedPart, hash_text};
use pointsman_request::{Estimate, RANK_HEADER, Ratio, Scan, Shape, first, is_json};
use std::sync::Arc;

const REQUEST_ID: &str = "x-request-id";
/// What only a test may say.
pub(crate) const TEST: &str = "x-pointsman-test-";
/// Headers of our own: none goes on.
const OURS: &str = "x-pointsman-";

/// A request's head, and its body where it was read.
#[derive(Debug)]
pub struct Received {
    headers: HeaderMap,
    /// empty: not read, or not JSON
    json: String,
    max_output_tokens: Option<u32>,
}

impl Facts for Received {
    fn header(&self, name: &str) -> Option<String> {
        pointsman_request::header(&self.headers, name)
    }

    fn body(&self, pointer: &str) -> Option<String> {
        pointsman_request::body(self.json.as_bytes(), pointer)
    }

    fn max_output_tokens(&self) -> Option<u32> {
        self.max_output_tokens
    }
}

/// A request, understood.
pub(crate) struct Understood {
    pub(crate) incoming: Incoming,
    /// its session ends with it
    pub(crate) last: bool,
    pub(crate) explain: bool,
    /// headers that end here
    pub(crate) strip: Vec<String>,
    pub(crate) json: String,
    pub(crate) shape: Option<Shape>,
}

/// Whether the body of a request is to be read, of its head.
pub fn wants_body<S: Shared>(site: &Site<S>, headers: &HeaderMap) -> bool {
    let length = length(headers);
    let fits = length.is_none_or(|n| n <= site.config.inspect_bytes as u64);
    site.config.read_body && is_json(headers) && fits
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `body`: as far as it was read; none: on the head alone.
pub(crate) fn understand<S: Shared>(
    site: &Site<S>,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
) -> Result<Understood, Answer> {
    let read = body.as_ref().map(Vec::len);
    let json = body.and_then(|body| String::from_utf8(body).ok());
    let json = json.unwrap_or_default();
    let scan = Scan::of(&json);
    let identity = (site.identifier).identify(&headers, scan.as_ref().map(|_| json.as_str()))?;
    let model = scan.as_ref().and_then(|scan| scan.model.as_deref());
    let model = model.map(hash_text).unwrap_or_default();
    // The engines' own counts are not learnt here.
    let ratio = Ratio::default();
    let estimate = match &scan {
        Some(scan) => Estimate::of(scan, ratio),
        None => Estimate::of_length(read.map(|n| n as u64).or(length(&headers)), ratio),
    };
    let (shape, max_output_tokens) = match &scan {
        Some(scan) => (Some(scan.shape), scan.max_output_tokens),
        None => (None, None),
    };
    let json = if shape.is_some() { json } else { String::new() };
    let id = headers.get(REQUEST_ID).map(|id| id.as_bytes());
    let seed = id.and_then(|id| std::str::from_utf8(id).ok());
    let mut incoming = Incoming {
        route: site.route,
        phase: Phase::Serve,
        model,
        seed: seed.map(hash_text).unwrap_or_default(),
        session: identity.session,
        parent: identity.parent,
        prompt_tokens: estimate.size.tokens,
        shared: SharedPart::Chain(estimate.chain),
        explicit: explicit(site, &headers)?,
        ..Incoming::default()
    };
    for_tests(site, &headers, &mut incoming)?;
    let strip = (headers.keys())
        .filter(|&name| {
            name.as_str().starts_with(OURS)
                || *name == RANK_HEADER
                || Some(name) == site.explicit.as_ref()
                || site.identifier.holds_back(name)
        })
        .map(|name| name.as_str().to_owned())
        .collect();
    let explain = site.config.explain && asks(&headers, "x-pointsman-explain");
    incoming.facts = Some(Arc::new(Received {
        headers,
        json: json.clone(),
        max_output_tokens,
    }));
    Ok(Understood {
        incoming,
        last: identity.last,
        explain,
        strip,
        json,
        shape,
    })
}

fn asks(headers: &HeaderMap, name: &str) -> bool {
    let value = headers.get(name).map(|value| value.as_bytes());
    value.is_some_and(|value| value == b"1" || value.eq_ignore_ascii_case(b"true"))
}

fn explicit<S: Shared>(site: &Site<S>, headers: &HeaderMap) -> Result<Explicit, Answer> {
    let header = site.explicit.as_slice();
    Ok(match first(headers, header)? {
        None => Explicit::None,
        Some(name) => {
            let fleet = site.core.fleet.snapshot();
            fleet.find(name).map_or(Explicit::Unknown, Explicit::Target)
        }
    })
}

/// What a test says in the place of the body.
fn for_tests<S: Shared>(
    site: &Site<S>,
    headers: &HeaderMap,
    incoming: &mut Incoming,
) -> Result<(), Answer> {
    let given = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().strip_prefix(TEST)?, value)));
    for (name, value) in given {
        if site.config.test.is_none() {
            return Err(Answer::bad_request(
                "test_header",
                format!("{TEST}{name}: headers of tests need the plugin's `test` setting"),
            ));
        }
        let value = value.to_str().unwrap_or_default();
        let number = || value.parse().unwrap_or_default();
        match name {
            "tokens" => incoming.prompt_tokens = number(),
            "shared" => incoming.shared = SharedPart::Given(number()),
            "model" => incoming.model = hash_text(value),
            "seed" => incoming.seed = hash_text(value),
            "attempt" => incoming.attempt = number(),
            "tried" => {
                let targets = value.split(',').filter_map(|target| target.parse().ok());
                incoming.tried = targets.collect();
            }
            "phase" => {
                let phase = Phase::ALL.into_iter().find(|phase| phase.as_str() == value);
                incoming.phase = phase.unwrap_or(Phase::Serve);
            }
            other => {
                return Err(Answer::bad_request(
                    "test_header",
                    format!("{TEST}{other} is unknown"),
                ));
            }
        }
    }
    Ok(())
}
