//! Where an engine server is.

use crate::error::Error;
use crate::settings::Endpoint;
use crate::upstream::Head;
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Uri};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// for `Host`
    authority: HeaderValue,
    host: Host,
    port: u16,
    /// put before every path; no '/' at its end
    prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Address {
    pub(crate) fn of(endpoint: &Endpoint) -> Result<Address, Error> {
        let bad = |problem| Error::Url {
            endpoint: endpoint.name.clone(),
            url: endpoint.url.clone(),
            problem,
        };
        let url: Uri =
            (endpoint.url.parse()).map_err(|_| bad("is none: write http://host:port"))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(bad(
                    "is https, which is not supported: put a TLS sidecar before the engine, or use http",
                ));
            }
            Some(_) | None => return Err(bad("does not begin with http://")),
        }
        if url.query().is_some() {
            return Err(bad(
                "has a query, which no request could keep: leave it out",
            ));
        }
        let authority = url.authority().ok_or_else(|| bad("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("holds a user name: send credentials as a header"));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        Ok(Address {
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| bad("has a host that fits no header"))?,
            host: match host.parse() {
                Ok(address) => Host::Address(address),
                Err(_) => Host::Name(host.to_owned()),
            },
            port: authority.port_u16().unwrap_or(80),
            prefix: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// A new connection, ready to be used.
    pub(crate) async fn connect(&self, limit: Duration) -> std::io::Result<TcpStream> {
        let connecting = async {
            match &self.host {
                Host::Address(ip) => TcpStream::connect(SocketAddr::new(*ip, self.port)).await,
                Host::Name(name) => TcpStream::connect((name.as_str(), self.port)).await,
            }
        };
        let stream = tokio::time::timeout(limit, connecting).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The head of a request for `path`, as far as this server makes it up.
    pub(crate) fn head(&self, method: &Method, path: &PathAndQuery) -> Head {
        // '*' of OPTIONS has no path to be put before
        let rest = match path.as_str() {
            "*" if !self.prefix.is_empty() => "",
            rest => rest,
        };
        let prefix = match self.prefix.as_str() {
            "" if rest.starts_with('?') => "/",
            prefix => prefix,
        };
        let mut head = Head::new(method, prefix, rest);
        head.line(&HOST, self.authority.as_bytes());
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address, Error> {
        Address::of(&Endpoint {
            name: "a".to_owned(),
            url: url.to_owned(),
            ranks: 1,
            models: None,
            labels: Vec::new(),
        })
    }

    fn asks(url: &str, path: &'static str) -> String {
        let path = PathAndQuery::from_static(path);
        let head = address(url).unwrap().head(&Method::GET, &path);
        let text = std::str::from_utf8(head.text()).unwrap();
        text.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn the_path_of_the_base_url_comes_before_that_of_the_request() {
        assert_eq!(asks("http://h:1", "/v1/models?x=1"), "/v1/models?x=1");
        assert_eq!(asks("http://h:1/", "/v1/models"), "/v1/models");
        assert_eq!(asks("http://h:1/engine/a/", "/v1?x"), "/engine/a/v1?x");
        assert_eq!(asks("http://h:1/engine", "*"), "/engine");
        assert_eq!(asks("http://h:1", "*"), "*");
        assert_eq!(asks("http://h:1", "?x"), "/?x");
    }

    #[test]
    fn a_url_that_cannot_be_asked_is_refused() {
        for url in [
            "https://h",
            "h:1",
            "ftp://h",
            "http://u@h",
            "http://h/?q",
            "",
            "/a",
        ] {
            assert!(address(url).is_err(), "{url}");
        }
    }

    #[test]
    fn two_ways_to_write_a_url_are_one_address() {
        assert_eq!(
            address("http://h:1").unwrap(),
            address("http://h:1/").unwrap()
        );
        assert_ne!(
            address("http://h:1").unwrap(),
            address("http://h:2").unwrap()
        );
    }
}
