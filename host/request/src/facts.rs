//! What a policy may read of the raw request.

use crate::json::at_pointer;
use http::HeaderMap;
use std::borrow::Cow;

/// A header's value; none: absent, or not UTF-8.
pub fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?;
    std::str::from_utf8(value.as_bytes())
        .ok()
        .map(str::to_owned)
}

/// A value in a JSON body: strings as they are, everything else as JSON text.
pub fn body(json: &[u8], pointer: &str) -> Option<String> {
    let json = std::str::from_utf8(json).ok()?;
    at_pointer(json, pointer).map(Cow::into_owned)
}
