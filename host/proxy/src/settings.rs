//! What the operator says. Plain data: the binary reads it from `pointsman.toml`.

use pointsman_core::{Fallback, Phase};
use pointsman_request::{Dialect, Session};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The whole data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// where clients come in; port 0 takes a free one
    pub listen: SocketAddr,
    /// where operators come in; port 0 takes a free one
    pub admin: SocketAddr,
    /// worker threads; 0: one per core
    pub threads: usize,
    /// the route's name: bindings of one route never meet those of another
    pub route: String,
    /// who a request belongs to
    pub session: Session,
    /// the header with which a client names its target ("a/0"); none: clients cannot
    pub explicit_header: Option<String>,
    /// whether `x-pointsman-explain: 1` is answered
    pub explain: bool,
    /// the engines; targets are numbered in this order
    pub pools: Vec<Pool>,
    /// who decides when the policy does not
    pub fallback: Fallback,
    /// how often a request is sent at most, the first time included
    pub attempts: u32,
    /// bounds
    pub limits: Limits,
    /// times
    pub timeouts: Timeouts,
    /// goes into the ids of requests that bring none; differs between starts
    pub nonce: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
            threads: 0,
            route: "default".to_owned(),
            session: Session::default(),
            explicit_header: Some("x-pointsman-target".to_owned()),
            explain: true,
            pools: Vec::new(),
            fallback: Fallback::default(),
            attempts: 3,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            nonce: 0,
        }
    }
}

/// Engines of one role.
#[derive(Clone, Debug)]
pub struct Pool {
    /// for messages
    pub name: String,
    /// the work they do
    pub role: Phase,
    /// how they are told the rank
    pub dialect: Dialect,
    /// the servers
    pub endpoints: Vec<Endpoint>,
    /// active health checks; none: engines count as healthy
    pub health: Option<Health>,
    /// what failures of requests do
    pub breaker: Breaker,
}

/// One engine server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// unique; its targets are "name/0", "name/1", …
    pub name: String,
    /// `http://host:port`, perhaps with a path that is put before every request's
    pub url: String,
    /// data-parallel ranks, at least 1
    pub ranks: u32,
    /// model names; none: every model
    pub models: Option<Vec<String>>,
    /// shown to policies
    pub labels: Vec<(String, String)>,
}

/// Active health checks of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// asked with GET; 2xx is healthy
    pub path: String,
    /// between the end of one and the beginning of the next
    pub interval: Duration,
    /// an answer after this is none
    pub timeout: Duration,
    /// failures in a row that make it unhealthy
    pub unhealthy_after: u32,
    /// successes in a row that make it healthy again
    pub healthy_after: u32,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            path: "/health".to_owned(),
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            unhealthy_after: 2,
            healthy_after: 1,
        }
    }
}

/// The passive breaker of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// failures in a row that open it; 0: off
    pub failures: u32,
    /// how long it stays open the first time; doubles up to 32 times as long
    pub cooldown: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker {
            failures: 5,
            cooldown: Duration::from_secs(2),
        }
    }
}

/// Bounds, so that no client and no engine can take more than its share.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// a JSON body up to this size is read before the decision, for identity, estimate, retries and a
    /// rank in the body; larger ones stream through, in bytes
    pub inspect_bytes: usize,
    /// memory of all bodies read at one time on one thread; beyond it bodies stream through, in bytes
    pub inspect_total_bytes: usize,
    /// body of a request, in bytes; a larger one gets 413, or breaks off where it turns out to be larger
    pub body_bytes: u64,
    /// head of a request, in bytes, at least 8 KiB; larger ones get 431, and so do more than 100 header
    /// lines of HTTP/1
    pub header_bytes: usize,
    /// requests in flight on one thread; more get 503 with `Retry-After`
    pub requests: usize,
    /// client connections on one thread; more get 503 with `Retry-After` and are closed
    pub connections: usize,
    /// idle upstream connections of one thread to one endpoint
    pub idle_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            inspect_bytes: 8 << 20,
            inspect_total_bytes: 512 << 20,
            body_bytes: 1 << 30,
            header_bytes: 64 << 10,
            requests: 8192,
            connections: 16_384,
            idle_connections: 256,
        }
    }
}

/// Times after which something is given up.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// to open an upstream connection
    pub connect: Duration,
    /// from the request to the engine's head; 0: none, a long prompt may take minutes
    pub first_byte: Duration,
    /// without a byte from the engine in mid-response; 0: none
    pub idle_stream: Duration,
    /// for a client to send a head, so also to stay idle; between two parts of its body; and without
    /// taking a byte of its answer
    pub client: Duration,
    /// idle upstream connections are closed after this: below the engines' own keep-alive (uvicorn: 5 s)
    pub idle_connection: Duration,
    /// for requests in flight when the proxy is told to stop
    pub shutdown: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(2),
            first_byte: Duration::ZERO,
            idle_stream: Duration::from_secs(300),
            client: Duration::from_secs(60),
            idle_connection: Duration::from_secs(3),
            shutdown: Duration::from_secs(30),
        }
    }
}
