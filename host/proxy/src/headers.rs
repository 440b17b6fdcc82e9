//! Which headers go on. Hop-by-hop ones end here (RFC 9110 §7.6.1), and so do those that the proxy
//! itself is addressed with.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use pointsman_request::{Identifier, RANK_HEADER};
use smallvec::SmallVec;

/// A request's own name.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

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

/// Those that the proxy writes itself, or (`Expect`) was the one to answer.
const WRITTEN: [HeaderName; 5] = [CONTENT_LENGTH, HOST, REQUEST_ID, RANK_HEADER, EXPECT];

/// The names that a `Connection` header adds to the hop-by-hop ones.
type Named = SmallVec<[HeaderName; 2]>;

fn named_by_connection(headers: &HeaderMap) -> Named {
    (headers.get_all(CONNECTION).iter())
        .flat_map(|line| line.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| name != "close")
        .collect()
}

/// Gives `line` the headers of a request as an engine gets them, but for those that the proxy writes.
pub(crate) fn to_engine(
    headers: &HeaderMap,
    identifier: &Identifier,
    explicit: Option<&HeaderName>,
    mut line: impl FnMut(&HeaderName, &[u8]),
) {
    let named = named_by_connection(headers);
    let stays = |name: &HeaderName| {
        WRITTEN.contains(name)
            || HOP_BY_HOP.contains(name)
            || name.as_str().starts_with(OURS)
            || explicit == Some(name)
            || named.contains(name)
            || identifier.holds_back(name)
    };
    // HTTP/2 splits them; HTTP/1 has one (RFC 9113 §8.2.3).
    let mut cookies = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let split = cookies.next().is_some() && cookies.next().is_some();
    for (name, value) in headers.iter().filter(|(name, _)| !stays(name)) {
        if !(split && name == COOKIE) {
            line(name, value.as_bytes());
        }
    }
    if split && !stays(&COOKIE) {
        let cookies: Vec<&[u8]> = (headers.get_all(COOKIE).iter())
            .map(HeaderValue::as_bytes)
            .collect();
        line(&COOKIE, &cookies.join(&b"; "[..]));
    }
}

/// Takes from an engine's answer what is not for the client, and what only the proxy says.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    let named = named_by_connection(headers);
    let chunked = headers.contains_key(TRANSFER_ENCODING);
    let ends_here = |name: &HeaderName| {
        HOP_BY_HOP.contains(name)
            || name.as_str().starts_with(OURS)
            || (chunked && name == CONTENT_LENGTH) // the other one was obeyed
            || named.contains(name)
    };
    let gone: Named = (headers.keys())
        .filter(|&name| ends_here(name))
        .cloned()
        .collect();
    for name in gone {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_request::Session;

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
        let mut lines = Vec::new();
        to_engine(&headers, &identifier, None, |name, value| {
            let value = std::str::from_utf8(value).unwrap();
            lines.push(format!("{name}: {value}"));
        });
        lines.sort_unstable();
        assert_eq!(lines, ["cookie: a=1; b=2", "x-end: 1", "x-end: 2"]);
    }
}
