//! Who a request belongs to: session, parent, and whether the session ends.
//!
//! Defined for the odd cases: values are trimmed; empty is absent; a parent equal to the session is
//! dropped; a value of more than 256 bytes, one that is not UTF-8, and one header or cookie with two
//! different values are 400, because any guess would bind somebody else's session.

use crate::error::{BadIdentity, BadSetting};
use crate::json;
use crate::session::Session;
use http::header::{COOKIE, HeaderMap, HeaderName};
use pointsman_core::hash_text;
use std::borrow::Cow;
use std::collections::HashSet;

const MAX_BYTES: usize = 256;

/// Hashes of who a request belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// of the session's id
    pub session: Option<u64>,
    /// of its parent's
    pub parent: Option<u64>,
    /// the session ends with this request
    pub last: bool,
}

/// [`Session`] with its names checked.
#[derive(Debug)]
pub struct Identifier {
    harnesses: Vec<Harness>,
    finals: Vec<HeaderName>,
    cookies: Vec<String>,
    pointers: Vec<String>,
    held_back: HashSet<HeaderName>,
}

#[derive(Debug)]
struct Harness {
    session: Vec<HeaderName>,
    parent: Vec<HeaderName>,
}

impl Identifier {
    /// Checks the names.
    ///
    /// # Errors
    /// A header name or JSON pointer that is none.
    pub fn new(session: &Session) -> Result<Identifier, BadSetting> {
        let harnesses = (session.harnesses.iter())
            .map(|harness| {
                Ok(Harness {
                    session: names("session.headers", &harness.session)?,
                    parent: names("session.parent_headers", &harness.parent)?,
                })
            })
            .collect::<Result<Vec<_>, BadSetting>>()?;
        let finals = names("session.final_headers", &session.final_headers)?;
        if let Some(bad) = session.body.iter().find(|p| !p.starts_with('/')) {
            return Err(BadSetting::Pointer(bad.clone()));
        }
        let held_back = match &session.forward {
            None => HashSet::new(),
            Some(forward) => {
                let forward = names("session.forward", forward)?;
                (harnesses.iter())
                    .flat_map(|harness| harness.session.iter().chain(&harness.parent))
                    .chain(&finals)
                    .filter(|name| !forward.contains(name))
                    .cloned()
                    .collect()
            }
        };
        Ok(Identifier {
            harnesses,
            finals,
            cookies: session.cookies.clone(),
            pointers: session.body.clone(),
            held_back,
        })
    }

    /// Whether a header stays here instead of going on to the engine.
    pub fn holds_back(&self, name: &HeaderName) -> bool {
        !self.held_back.is_empty() && self.held_back.contains(name)
    }

    /// `body`: the JSON text, where it was inspected.
    ///
    /// # Errors
    /// An identity that is too long, no text, or given twice with different values.
    pub fn identify(
        &self,
        headers: &HeaderMap,
        body: Option<&str>,
    ) -> Result<Identity, BadIdentity> {
        let mut harness = self.harnesses.first();
        let mut session = None;
        for candidate in &self.harnesses {
            session = first(headers, &candidate.session)?;
            if session.is_some() {
                harness = Some(candidate);
                break;
            }
        }
        let session = match session.map(Cow::Borrowed) {
            Some(found) => Some(found),
            None => match self.cookie(headers)?.map(Cow::Borrowed) {
                Some(found) => Some(found),
                None => self.in_body(body)?,
            },
        };
        let parent = match harness {
            Some(harness) => first(headers, &harness.parent)?,
            None => None,
        };
        let parent = parent.filter(|&parent| session.as_deref() != Some(parent));
        let last = first(headers, &self.finals)?
            .is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
        Ok(Identity {
            session: session.as_deref().map(hash_text),
            parent: parent.map(hash_text),
            last,
        })
    }

    fn cookie<'h>(&self, headers: &'h HeaderMap) -> Result<Option<&'h str>, BadIdentity> {
        for name in &self.cookies {
            let values = (headers.get_all(COOKIE).iter())
                .flat_map(|line| line.as_bytes().split(|&byte| byte == b';'))
                .map(<[u8]>::trim_ascii)
                .filter_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            if let Some(value) = only(name, values)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn in_body<'b>(&self, body: Option<&'b str>) -> Result<Option<Cow<'b, str>>, BadIdentity> {
        let Some(body) = body else { return Ok(None) };
        for pointer in &self.pointers {
            let first_key = pointer.split('/').nth(1).unwrap_or_default();
            // Most bodies have none of it: a look for the word is cheaper than a parse.
            if memchr::memmem::find(body.as_bytes(), first_key.as_bytes()).is_none() {
                continue;
            }
            let found = json::at_pointer(body, pointer)
                .filter(|value| !value.starts_with(['{', '[']) && value != "null");
            if let Some(value) = found {
                let value = match value {
                    Cow::Borrowed(value) => Cow::Borrowed(value.trim()),
                    Cow::Owned(value) => Cow::Owned(value.trim().to_owned()),
                };
                check(pointer, value.as_bytes())?;
                if !value.is_empty() {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }
}

fn names(setting: &'static str, names: &[String]) -> Result<Vec<HeaderName>, BadSetting> {
    (names.iter())
        .map(|name| {
            HeaderName::try_from(name.as_str()).map_err(|_| BadSetting::HeaderName {
                setting,
                name: name.clone(),
            })
        })
        .collect()
}

/// The value of the first header that has one.
///
/// # Errors
/// As [`Identifier::identify`].
pub fn first<'h>(
    headers: &'h HeaderMap,
    names: &[HeaderName],
) -> Result<Option<&'h str>, BadIdentity> {
    for name in names {
        let values = headers.get_all(name).iter().map(|value| value.as_bytes());
        if let Some(value) = only(name.as_str(), values)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The one value among equals.
fn only<'h>(
    name: &str,
    values: impl Iterator<Item = &'h [u8]>,
) -> Result<Option<&'h str>, BadIdentity> {
    let mut found: Option<&str> = None;
    for value in values
        .map(<[u8]>::trim_ascii)
        .filter(|value| !value.is_empty())
    {
        let value = check(name, value)?;
        if found.is_some_and(|found| found != value) {
            return Err(BadIdentity(format!(
                "{name} is given twice with different values: send one"
            )));
        }
        found = Some(value);
    }
    Ok(found)
}

fn check<'h>(name: &str, value: &'h [u8]) -> Result<&'h str, BadIdentity> {
    if value.len() > MAX_BYTES {
        return Err(BadIdentity(format!(
            "{name} has {} bytes: an identity has at most {MAX_BYTES}",
            value.len()
        )));
    }
    std::str::from_utf8(value)
        .map_err(|_| BadIdentity(format!("{name} is not UTF-8: an identity is text")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        (lines.iter())
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                )
            })
            .fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(name, value);
                map
            })
    }

    fn identify(lines: &[(&'static str, &str)]) -> (Option<u64>, Option<u64>) {
        let identifier = Identifier::new(&Session::default()).unwrap();
        let identity = identifier.identify(&headers(lines), None).unwrap();
        (identity.session, identity.parent)
    }

    fn id(text: &str) -> Option<u64> {
        Some(hash_text(text))
    }

    #[test]
    fn dynamos_headers_override_every_other() {
        let found = identify(&[
            ("x-session-id", "o"),
            ("x-parent-session-id", "op"),
            ("x-dynamo-session-id", " d "),
        ]);
        assert_eq!(found, (id("d"), None));
        let found = identify(&[("x-session-id", "o"), ("x-dynamo-parent-session-id", "dp")]);
        assert_eq!(found, (id("o"), id("dp")));
    }

    #[test]
    fn an_agent_of_claude_code_is_a_child_of_its_session_or_agent() {
        let session = ("x-claude-code-session-id", "s");
        let agent = ("x-claude-code-agent-id", "a");
        let parent = ("x-claude-code-parent-agent-id", "p");
        assert_eq!(identify(&[session]), (id("s"), None));
        assert_eq!(identify(&[session, parent]), (id("s"), None));
        assert_eq!(identify(&[session, agent]), (id("a"), id("s")));
        assert_eq!(identify(&[session, agent, parent]), (id("a"), id("p")));
    }

    #[test]
    fn codex_deepseek_and_opencode_name_parent_and_child() {
        for (session, parent) in [
            ("thread-id", "x-codex-parent-thread-id"),
            (
                "x-deepseek-harness-session-id",
                "x-deepseek-harness-parent-session-id",
            ),
            ("x-session-id", "x-parent-session-id"),
        ] {
            assert_eq!(
                identify(&[(session, "s"), (parent, "p")]),
                (id("s"), id("p"))
            );
        }
    }

    #[test]
    fn a_parent_equal_to_its_session_and_an_empty_session_are_absent() {
        let own = identify(&[("x-session-id", "s"), ("x-parent-session-id", " s")]);
        assert_eq!(own, (id("s"), None));
        assert_eq!(identify(&[("x-session-id", "  ")]), (None, None));
    }

    #[test]
    fn doubles_long_values_and_bytes_that_are_no_text_are_refused() {
        let identifier = Identifier::new(&Session::default()).unwrap();
        let refused =
            |lines: &[(&'static str, &str)]| identifier.identify(&headers(lines), None).is_err();
        assert!(refused(&[("x-session-id", "a"), ("x-session-id", "b")]));
        assert!(!refused(&[("x-session-id", "a"), ("x-session-id", "a ")]));
        assert!(refused(&[("x-session-id", &"x".repeat(257))]));
        assert!(!refused(&[("x-session-id", &"x".repeat(256))]));
        assert!(refused(&[
            ("x-parent-session-id", &"x".repeat(257)),
            ("x-session-id", "a")
        ]));
        let mut bytes = HeaderMap::new();
        bytes.insert("x-session-id", HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(identifier.identify(&bytes, None).is_err());
    }

    #[test]
    fn cookies_come_after_headers_and_the_body_last() {
        let session = Session {
            cookies: vec!["sid".to_owned()],
            body: vec!["/meta/id".to_owned()],
            ..Session::lists(vec!["x-a".to_owned()], vec![])
        };
        let identifier = Identifier::new(&session).unwrap();
        let body = Some(r#"{"meta":{"id":7}}"#);
        let of = |lines: &[(&'static str, &str)]| {
            identifier.identify(&headers(lines), body).unwrap().session
        };
        let cookie = ("cookie", "xsid=no; sid=c ;a=b");
        assert_eq!(of(&[("x-a", "h"), cookie]), id("h"));
        assert_eq!(of(&[cookie]), id("c"));
        assert_eq!(of(&[("x-session-id", "not in the list")]), id("7"));
    }

    #[test]
    fn a_final_header_ends_the_session_only_if_it_says_so() {
        let identifier = Identifier::new(&Session::default()).unwrap();
        for (value, last) in [("true", true), ("1", true), ("False", false), ("", false)] {
            let headers = headers(&[("x-dynamo-session-final", value)]);
            assert_eq!(identifier.identify(&headers, None).unwrap().last, last);
        }
    }
}
