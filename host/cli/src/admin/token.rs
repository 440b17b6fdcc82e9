//! The bearer token of the admin API.

use super::refused::Refused;
use anyhow::{Context, Result, ensure};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A token beyond this is none, in bytes.
const MAX_TOKEN: u64 = 4096;
/// Others may do nothing with the file, and its group may read it at most: that is how container
/// platforms mount a secret.
const FORBIDDEN: u32 = 0o027;

/// What a token must hash to: the token itself is not kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl Token {
    pub fn new(token: &str) -> Token {
        Token(Sha256::digest(token).into())
    }

    /// Whether this is it, in a time that does not depend on where they differ.
    fn is(&self, other: &Token) -> bool {
        let differs = (self.0.iter().zip(&other.0)).fold(0, |differs, (a, b)| differs | (a ^ b));
        std::hint::black_box(differs) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Reads the token of a file.
///
/// # Errors
/// If there is none in it, or others may see it.
pub fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let file = File::open(path)
        .with_context(|| format!("the token file {shown} cannot be opened: make one with `(umask 077; openssl rand -hex 32 > {shown})`"))?;
    let mode = file.metadata().context("no metadata")?.mode() & 0o777;
    ensure!(
        mode & FORBIDDEN == 0,
        "the token file {shown} is open to others: wanted mode 600, found {mode:o}. Mend it with \
         `chmod 600 {shown}`, and make a new token if somebody may have read this one"
    );
    let mut text = String::new();
    (file.take(MAX_TOKEN).read_to_string(&mut text))
        .with_context(|| format!("the token file {shown} cannot be read as text"))?;
    let token = text.trim();
    ensure!(
        !token.is_empty(),
        "the token file {shown} is empty: wanted a token in it, for example of `openssl rand -hex 32`"
    );
    ensure!(
        token.chars().all(|c| c.is_ascii_graphic()),
        "the token file {shown} holds more than a token: wanted one line of visible ASCII \
         characters without spaces"
    );
    Ok(token.to_owned())
}

/// Lets a request pass that brings the token.
pub async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    let given = (request.headers().get(AUTHORIZATION))
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, given)| Token::new(given.trim()));
    if given.is_some_and(|given| token.is(&given)) {
        return next.run(request).await;
    }
    let cause = match given {
        Some(_) => "this is not the token of this host",
        None => "no token: wanted `authorization: Bearer TOKEN`",
    };
    let remedy = "send the token that is in the host's [admin] token_file";
    let refused = Refused::new(StatusCode::UNAUTHORIZED, "token", cause, remedy);
    let mut response = refused.into_response();
    let headers = response.headers_mut();
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        file.as_file().set_permissions(mode).unwrap();
        file
    }

    #[test]
    fn a_token_is_read_without_the_space_around_it() {
        for mode in [0o600, 0o400, 0o440] {
            assert_eq!(read(file(" abc\n", mode).path()).unwrap(), "abc");
        }
    }

    #[test]
    fn a_file_that_cannot_be_a_secret_is_refused_with_the_remedy() {
        for (text, mode, why) in [
            ("abc", 0o644, "open to others: wanted mode 600, found 644"),
            ("abc", 0o620, "open to others"),
            (" \n", 0o600, "is empty"),
            ("a b", 0o600, "more than a token"),
        ] {
            let error = format!("{:#}", read(file(text, mode).path()).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
        let error = format!("{:#}", read(Path::new("/nowhere/token")).unwrap_err());
        assert!(error.contains("openssl rand"), "{error}");
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::new("abc");
        assert!(token.is(&Token::new("abc")));
        for other in ["", "ab", "abcd", "abd", "ABC"] {
            assert!(!token.is(&Token::new(other)), "{other}");
        }
    }
}
