//! A client's request, and what of its body is kept.

use crate::answer::Answer;
use crate::arriving::Arriving;
use crate::site::{Held, Site};
use crate::upstream::Outbound;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request, Uri, request};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use pointsman_core::Facts;
use pointsman_request::{Shape, is_json};
use std::rc::Rc;

/// What decisions and every attempt to send need of a request.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// the body, if it is an inspected JSON object; empty otherwise
    pub(crate) json: Bytes,
    pub(crate) shape: Shape,
    pub(crate) max_output_tokens: Option<u32>,
}

impl Received {
    /// With a body that is not inspected yet.
    pub(crate) fn new(parts: request::Parts) -> Received {
        Received {
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            json: Bytes::new(),
            shape: Shape::default(),
            max_output_tokens: None,
        }
    }

    /// What the client says its body's length is.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.headers
            .get(CONTENT_LENGTH)?
            .to_str()
            .ok()?
            .parse()
            .ok()
    }
}

impl Facts for Received {
    fn header(&self, name: &str) -> Option<String> {
        pointsman_request::header(&self.headers, name)
    }

    fn body(&self, pointer: &str) -> Option<String> {
        pointsman_request::body(&self.json, pointer)
    }

    fn max_output_tokens(&self) -> Option<u32> {
        self.max_output_tokens
    }

    fn held_bytes(&self) -> usize {
        self.json.len()
    }
}

/// A request's body.
#[derive(Debug)]
pub(crate) enum Payload {
    /// all of it: can be sent again
    Whole {
        /// empty: there is none
        bytes: Bytes,
        /// its account
        _held: Held,
    },
    /// too long to be kept, or nothing to look into: passes through, once
    Stream {
        /// what was read of it; none: none, or it went on
        read: Option<Bytes>,
        /// what comes; none: it went on
        rest: Option<Arriving>,
    },
}

impl Payload {
    /// Reads a JSON body up to the limit.
    pub(crate) async fn read(
        site: &Rc<Site>,
        request: Request<Incoming>,
    ) -> Result<(Received, Payload), Answer> {
        let (parts, body) = request.into_parts();
        let received = Received::new(parts);
        if body.is_end_stream() {
            let (bytes, _held) = (Bytes::new(), site.hold());
            return Ok((received, Payload::Whole { bytes, _held }));
        }
        let settings = &site.shared.settings;
        let (limit, longest) = (settings.limits.inspect_bytes, settings.limits.body_bytes);
        let said = received.content_length();
        if said.is_some_and(|bytes| bytes > longest) {
            return Err(Answer::too_long(longest));
        }
        let known = said.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let body = Arriving::new(body, settings);
        let payload = if is_json(&received.headers) && known.is_none_or(|n| n <= limit) {
            collect(site, body, limit, known).await?
        } else {
            Payload::Stream {
                read: None,
                rest: Some(body),
            }
        };
        Ok((received, payload))
    }

    /// Whether it can be sent: from the start, or again.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Payload::Whole { .. } => true,
            Payload::Stream { rest, .. } => rest.is_some(),
        }
    }

    /// To be sent; a stream only once.
    pub(crate) fn take(&mut self) -> Option<Outbound> {
        match self {
            Payload::Whole { bytes, .. } => Some(Outbound::Whole(bytes.clone())),
            Payload::Stream { read, rest } => Some(Outbound::Stream {
                read: read.take(),
                rest: rest.take()?,
            }),
        }
    }
}

async fn collect(
    site: &Rc<Site>,
    mut body: Arriving,
    limit: usize,
    known: Option<usize>,
) -> Result<Payload, Answer> {
    let mut held = site.hold();
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|why| why.answer())?.into_data() else {
            continue;
        };
        let fits = held.more(data.len()) && held.bytes() <= limit;
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.reserve(known.unwrap_or(0).min(limit).max(first.len() + data.len()));
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
        if !fits {
            return Ok(Payload::Stream {
                read: Some(whole(first, all)),
                rest: Some(body),
            });
        }
    }
    Ok(Payload::Whole {
        bytes: whole(first, all),
        _held: held,
    })
}

/// Most bodies come as one piece, which is not copied.
fn whole(first: Bytes, all: BytesMut) -> Bytes {
    if all.is_empty() { first } else { all.freeze() }
}
