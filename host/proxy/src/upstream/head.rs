//! Heads of messages: a request's, as it is written, and an answer's, as it is read.

use super::Malformed;
use super::framing::{Chunked, Framing};
use bytes::{Buf, BufMut, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, Response, StatusCode};
use httparse::{Header, ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use std::mem::MaybeUninit;

/// Of an answer's head.
pub(super) const HEAD_BYTES: usize = 64 << 10;
/// As hyper has it.
const HEADERS: usize = 100;
/// Most requests fit in, with their body.
const ROOM: usize = 4 << 10;

/// A request's head, but for what says where its body ends.
#[derive(Debug)]
pub(crate) struct Head {
    pub(super) text: BytesMut,
    pub(super) method: Method,
}

impl Head {
    /// `prefix` and `path` together are the target. Neither holds a blank: they are of a [`http::Uri`].
    pub(crate) fn new(method: &Method, prefix: &str, path: &str) -> Head {
        let mut text = BytesMut::with_capacity(ROOM);
        for part in [method.as_str(), " ", prefix, path, " HTTP/1.1\r\n"] {
            text.put_slice(part.as_bytes());
        }
        Head {
            text,
            method: method.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// A header. `value` holds no line's end: it is of a [`HeaderValue`].
    pub(crate) fn line(&mut self, name: &HeaderName, value: &[u8]) {
        let name = name.as_str().as_bytes();
        self.text.reserve(name.len() + value.len() + 4);
        for part in [name, b": ", value, b"\r\n"] {
            self.text.put_slice(part);
        }
    }
}

/// An answer's head, and how its body comes.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response<()>,
    pub(super) framing: Framing,
    /// whether its connection can be used after it
    pub(super) stays: bool,
}

impl Answer {
    /// Takes it from `buf`, once it is there. `bodiless`: to a HEAD.
    pub(super) fn take(buf: &mut BytesMut, bodiless: bool) -> Result<Option<Answer>, Malformed> {
        let mut lines = [const { MaybeUninit::uninit() }; HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let read = ParserConfig::default()
            .parse_response_with_uninit_headers(&mut parsed, buf, &mut lines)
            .map_err(Malformed::Head)?;
        let length = match read {
            Status::Complete(length) if length <= HEAD_BYTES => length,
            Status::Partial if buf.len() < HEAD_BYTES => return Ok(None),
            Status::Complete(_) | Status::Partial => return Err(Malformed::Long),
        };
        let status = StatusCode::from_u16(parsed.code.unwrap_or(0));
        let status = status.map_err(|_| Malformed::Head(httparse::Error::Status))?;
        let map = headers(parsed.headers);
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = map.ok_or(Malformed::Head(httparse::Error::HeaderValue))?;
        let reason = parsed
            .reason
            .filter(|&reason| status.canonical_reason() != Some(reason));
        if let Some(Ok(reason)) = reason.map(|reason| ReasonPhrase::try_from(reason.as_bytes())) {
            response.extensions_mut().insert(reason);
        }
        let modern = parsed.version == Some(1);
        let told = Told::by(parsed.headers, modern)?;
        if let (Some(length), 2..) = told.lengths {
            (response.headers_mut()).insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        buf.advance(length);
        let nothing = bodiless
            || status.is_informational()
            || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        let framing = match told.lengths {
            _ if nothing => Framing::Over,
            _ if told.chunked => Framing::Chunked(Chunked::default()),
            (Some(length), _) => Framing::length(length),
            (None, _) => Framing::Close,
        };
        // Two ends are told: others on the way may have obeyed the other one.
        let ambiguous = told.chunked && told.lengths.0.is_some();
        let stays = modern && !told.closes && !ambiguous && !matches!(framing, Framing::Close);
        Ok(Some(Answer {
            response,
            framing,
            stays,
        }))
    }
}

/// What a head tells of its body and its connection (RFC 9112 §6.3).
#[derive(Debug, Default)]
struct Told {
    chunked: bool,
    /// the content's, and how often it is said
    lengths: (Option<u64>, usize),
    closes: bool,
}

impl Told {
    fn by(lines: &[Header], modern: bool) -> Result<Told, Malformed> {
        let mut told = Told::default();
        for line in lines {
            let is = |name: HeaderName| line.name.eq_ignore_ascii_case(name.as_str());
            if is(CONTENT_LENGTH) {
                told.length(line.value)?;
            } else if is(TRANSFER_ENCODING) {
                let known = line.value.eq_ignore_ascii_case(b"chunked") && !told.chunked && modern;
                told.chunked = known.then_some(true).ok_or(Malformed::Coding)?;
            } else if is(CONNECTION) {
                told.closes |= words(line.value).any(|word| word.eq_ignore_ascii_case(b"close"));
            }
        }
        Ok(told)
    }

    /// Said more than once, it is the same.
    fn length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        for said in words(value) {
            let said = number(said).ok_or(Malformed::Length)?;
            match self.lengths {
                (Some(length), _) if length != said => return Err(Malformed::Length),
                (_, times) => self.lengths = (Some(said), times + 1),
            }
        }
        Ok(())
    }
}

/// Digits, and nothing else: no sign.
fn number(digits: &[u8]) -> Option<u64> {
    let clean = digits.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| clean)?;
    digits.parse().ok()
}

fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    (value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
}

/// Lines as a map. None: one is no header.
pub(super) fn headers(lines: &[Header]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(line.value).ok()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What becomes of an answer: how its body comes, and whether its connection stays.
    fn told(text: &str, bodiless: bool) -> (String, bool) {
        let mut buf = BytesMut::from(text.as_bytes());
        match Answer::take(&mut buf, bodiless) {
            Ok(Some(Answer { framing, stays, .. })) => {
                let framing = match framing {
                    Framing::Chunked(_) => "chunked".to_owned(),
                    Framing::Length(length) => length.to_string(),
                    Framing::Close => "close".to_owned(),
                    Framing::Over => "over".to_owned(),
                };
                (framing, stays)
            }
            Ok(None) => ("more".to_owned(), false),
            Err(why) => (format!("{why:?}"), false),
        }
    }

    #[test]
    fn where_a_body_ends_is_told_in_one_way() {
        for (version, lines, framing, stays) in [
            ("1.1", "content-length: 5\r\n", "5", true),
            ("1.1", "content-length: 0\r\n", "over", true),
            (
                "1.1",
                "content-length: 5\r\nContent-Length: 5\r\n",
                "5",
                true,
            ),
            ("1.1", "content-length: 5, 5\r\n", "5", true),
            ("1.1", "content-length: 5, 6\r\n", "Length", false),
            (
                "1.1",
                "content-length: 5\r\ncontent-length: 6\r\n",
                "Length",
                false,
            ),
            ("1.1", "content-length: +5\r\n", "Length", false),
            ("1.1", "content-length: -5\r\n", "Length", false),
            ("1.1", "content-length:\r\n", "Length", false),
            ("1.1", "content-length: 5,\r\n", "Length", false),
            (
                "1.1",
                "content-length: 99999999999999999999\r\n",
                "Length",
                false,
            ),
            ("1.1", "transfer-encoding: Chunked\r\n", "chunked", true),
            (
                "1.1",
                "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
                "chunked",
                false,
            ),
            (
                "1.1",
                "transfer-encoding: gzip, chunked\r\n",
                "Coding",
                false,
            ),
            (
                "1.1",
                "transfer-encoding: chunked, chunked\r\n",
                "Coding",
                false,
            ),
            (
                "1.1",
                "transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n",
                "Coding",
                false,
            ),
            ("1.1", "transfer-encoding: identity\r\n", "Coding", false),
            ("1.1", "transfer-encoding: xchunked\r\n", "Coding", false),
            ("1.0", "transfer-encoding: chunked\r\n", "Coding", false),
            ("1.1", "", "close", false),
            ("1.0", "", "close", false),
            (
                "1.0",
                "connection: keep-alive\r\ncontent-length: 5\r\n",
                "5",
                false,
            ),
            (
                "1.1",
                "connection: x, Close\r\ncontent-length: 5\r\n",
                "5",
                false,
            ),
            ("1.1", "x: 1\r\n folded\r\n", "Head(HeaderName)", false),
            ("1.1", "x : 1\r\n", "Head(HeaderName)", false),
        ] {
            let text = format!("HTTP/{version} 200 OK\r\n{lines}\r\n");
            assert_eq!(told(&text, false), (framing.to_owned(), stays), "{text}");
        }
        for (status, bodiless) in [(200, true), (204, false), (304, false)] {
            let text = format!("HTTP/1.1 {status} x\r\ncontent-length: 5\r\n\r\n");
            assert_eq!(told(&text, bodiless), ("over".to_owned(), true));
        }
    }

    #[test]
    fn a_head_is_bounded() {
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(HEAD_BYTES));
        assert_eq!(told(&endless, false).0, "Long");
        assert_eq!(told(&(endless + "\r\n\r\n"), false).0, "Long");
        let many: String = (0..=HEADERS).map(|n| format!("x-{n}: 1\r\n")).collect();
        let many = told(&format!("HTTP/1.1 200 OK\r\n{many}\r\n"), false).0;
        assert_eq!(many, "Head(TooManyHeaders)");
    }

    #[test]
    fn a_reason_of_its_own_and_a_length_said_twice_go_on_once() {
        let text = &b"HTTP/1.1 999 What\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok"[..];
        let mut buf = BytesMut::from(text);
        let answer = Answer::take(&mut buf, false).unwrap().unwrap();
        let reason = answer.response.extensions().get::<ReasonPhrase>().unwrap();
        assert_eq!(reason.as_bytes(), b"What");
        assert_eq!(
            answer
                .response
                .headers()
                .get_all(CONTENT_LENGTH)
                .iter()
                .count(),
            1
        );
        assert_eq!(buf, "ok");
    }

    const GOOD: &str = "HTTP/1.1 200 OK\r\nserver: x\r\ncontent-length: 5\r\n\r\n";

    #[test]
    fn a_head_is_read_once_all_of_it_is_there() {
        for cut in 0..GOOD.len() {
            assert_eq!(told(&GOOD[..cut], false).0, "more", "{cut}");
        }
        assert_eq!(told(GOOD, false).0, "5");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..200), at in 0..GOOD.len()) {
            let mut good = GOOD.as_bytes().to_vec();
            good.splice(at..at, text.iter().copied());
            for bytes in [text, good] {
                let mut buf = BytesMut::from(bytes.as_slice());
                let _ = Answer::take(&mut buf, false);
            }
        }
    }
}
