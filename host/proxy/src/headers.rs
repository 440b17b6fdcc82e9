//! Which headers go on. Hop-by-hop ones end here (RFC 9110 §7.6.1), and so do those that the proxy
//! itself is addressed with.

use crate::dialect::RANK_HEADER;
use crate::identify::Identifier;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use smallvec::SmallVec;

/// Headers of the proxy's own.
pub(crate) const OURS: &str = "x-pointsman-";

const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    TE,
    TRAILER,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The names that a `Connection` header adds to the hop-by-hop ones.
type Named = SmallVec<[HeaderName; 2]>;

fn named_by_connection(headers: &HeaderMap) -> Named {
    (headers.get_all(CONNECTION).iter())
        .flat_map(|line| line.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| name != "close")
        .collect()
}

/// The headers of a request as an engine gets them, but for `Host` and the rank.
pub(crate) fn to_engine(
    headers: &HeaderMap,
    identifier: &Identifier,
    explicit: Option<&HeaderName>,
) -> HeaderMap {
    let named = named_by_connection(headers);
    // Both at once is how requests are smuggled: the one that hyper obeyed is gone with the hop.
    let chunked = headers.contains_key(TRANSFER_ENCODING);
    let stays = |name: &HeaderName| {
        HOP_BY_HOP.contains(name)
            || name == HOST
            || name == EXPECT // was answered here
            || name == RANK_HEADER
            || (chunked && name == CONTENT_LENGTH)
            || name.as_str().starts_with(OURS)
            || explicit == Some(name)
            || named.contains(name)
            || identifier.holds_back(name)
    };
    let mut out = HeaderMap::with_capacity(headers.len() + 4);
    for name in headers.keys().filter(|name| !stays(name)) {
        let mut values = headers.get_all(name).iter();
        if name == COOKIE && headers.get_all(COOKIE).iter().nth(1).is_some() {
            // HTTP/2 splits them; HTTP/1 has one (RFC 9113 §8.2.3).
            let lines: Vec<&[u8]> = values.by_ref().map(HeaderValue::as_bytes).collect();
            if let Ok(line) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
                out.insert(COOKIE, line);
            }
        }
        for value in values {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

/// Takes from an engine's answer what is not for the client, and what only the proxy says.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH); // as above: hyper obeyed the other one
    }
    let ours: SmallVec<[HeaderName; 0]> = (headers.keys())
        .filter(|name| name.as_str().starts_with(OURS))
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Session;

    #[test]
    fn what_connection_names_ends_here_and_cookies_become_one() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("x-end", "1"),
            ("x-end", "2"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("x-pointsman-explain", "1"),
            ("x-data-parallel-rank", "9"),
            ("te", "trailers"),
            ("keep-alive", "1"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let identifier = Identifier::new(&Session::default()).unwrap();
        let sent = to_engine(&headers, &identifier, None);
        let mut lines: Vec<_> = (sent.iter())
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [("cookie", "a=1; b=2"), ("x-end", "1"), ("x-end", "2")]
        );
    }
}
