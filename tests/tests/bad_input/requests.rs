//! Requests as bytes: what comes back, and what of them an engine sees.

use crate::{PageRow, Report, SOON, config, good_engine, is_well};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Host, Raw, Scripted, Seen};

/// What comes back.
#[derive(Clone, Copy)]
enum Gets {
    /// the engine's 200
    Served,
    /// the proxy's own error: status, code, part of the message
    Error(u16, &'static str, &'static str),
    /// a status without a body: hyper refuses what is no HTTP
    Refused(u16),
    /// nothing: the connection is closed
    Closed,
}
use Gets::{Closed, Error, Refused, Served};

struct Row {
    what: &'static str,
    send: Vec<u8>,
    gets: Gets,
    /// what the engine sees must have, if it sees the request
    has: &'static [&'static str],
    /// and must not have
    lacks: &'static [&'static str],
}

fn row(what: &'static str, send: impl Into<Vec<u8>>, gets: Gets) -> Row {
    Row {
        what,
        send: send.into(),
        gets,
        has: &[],
        lacks: &[],
    }
}

impl Row {
    fn has(mut self, has: &'static [&'static str]) -> Row {
        self.has = has;
        self
    }

    fn lacks(mut self, lacks: &'static [&'static str]) -> Row {
        self.lacks = lacks;
        self
    }
}

/// A GET with these header lines.
fn get(lines: &str) -> String {
    format!("GET /v1/models HTTP/1.1\r\nhost: h\r\n{lines}\r\n")
}

/// A POST of JSON with a length and these header lines.
fn post(lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\
         {lines}content-length: {length}\r\n\r\n{body}"
    )
}

/// A POST with these header lines in place of a length, and these bytes after its head.
fn framed(lines: &str, rest: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n{lines}\r\n{rest}")
}

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";

fn identities() -> Vec<Row> {
    let long = "x".repeat(300);
    let bad = "bad_session_identity";
    let id = |lines: String, gets| (lines, gets);
    let cases = [
        (
            "a session of 300 bytes",
            id(
                format!("x-session-id: {long}\r\n"),
                Error(
                    400,
                    bad,
                    "x-session-id has 300 bytes: an identity has at most 256",
                ),
            ),
        ),
        (
            "a parent of 300 bytes",
            id(
                format!("x-session-id: s\r\nx-parent-session-id: {long}\r\n"),
                Error(400, bad, "x-parent-session-id has 300 bytes"),
            ),
        ),
        (
            "a session of 256 bytes",
            id(format!("x-session-id: {}\r\n", &long[..256]), Served),
        ),
        (
            "two different sessions",
            id(
                "x-session-id: a\r\nx-session-id: b\r\n".into(),
                Error(
                    400,
                    bad,
                    "x-session-id is given twice with different values: send one",
                ),
            ),
        ),
        (
            "one session twice",
            id("x-session-id: a\r\nx-session-id: a\r\n".into(), Served),
        ),
        ("an empty session", id("x-session-id:\r\n".into(), Served)),
        (
            "a session of blanks",
            id("x-session-id:   \t \r\n".into(), Served),
        ),
        (
            "a parent equal to its session",
            id(
                "x-session-id: a\r\nx-parent-session-id: a\r\n".into(),
                Served,
            ),
        ),
        (
            "two different parents",
            id(
                "x-session-id: a\r\nx-parent-session-id: a\r\nx-parent-session-id: b\r\n".into(),
                Error(400, bad, "x-parent-session-id is given twice"),
            ),
        ),
        (
            "two words on the end of a session",
            id(
                "x-dynamo-session-final: 1\r\nx-dynamo-session-final: 0\r\n".into(),
                Error(400, bad, "x-dynamo-session-final is given twice"),
            ),
        ),
        (
            "a target that is not there",
            id(
                "x-pointsman-target: b/7\r\n".into(),
                Error(400, "unknown_target", ""),
            ),
        ),
        (
            "two different targets",
            id(
                "x-pointsman-target: a/0\r\nx-pointsman-target: a/1\r\n".into(),
                Error(400, bad, "x-pointsman-target is given twice"),
            ),
        ),
        (
            "an empty target",
            id("x-pointsman-target:\r\n".into(), Served),
        ),
    ];
    let mut rows: Vec<Row> = (cases.into_iter())
        .map(|(what, (lines, gets))| row(what, get(&lines), gets))
        .collect();
    let bytes = |name: &str| {
        [
            b"GET / HTTP/1.1\r\nhost: h\r\n",
            name.as_bytes(),
            b": \xff\xfe\r\n\r\n",
        ]
        .concat()
    };
    let body = format!("{{\"nvext\":{{\"session_control\":{{\"session_id\":\"{long}\"}}}}}}");
    rows.extend([
        row(
            "a session that is no text",
            bytes("x-session-id"),
            Error(400, bad, "x-session-id is not UTF-8: an identity is text"),
        ),
        row(
            "a target that is no text",
            bytes("x-pointsman-target"),
            Error(400, bad, "x-pointsman-target is not UTF-8"),
        ),
        row(
            "a session of 300 bytes in the body",
            post("", &body),
            Error(400, bad, "has 300 bytes"),
        ),
        row(
            "a session that is a list",
            post("", r#"{"nvext":{"session_control":{"session_id":[1]}}}"#),
            Served,
        ),
    ]);
    rows
}

fn internal_headers() -> Vec<Row> {
    vec![
        row("copies of the proxy's own headers", get("x-pointsman-reason: owner\r\nx-pointsman-policy: p\r\nX-Pointsman-Anything: 1\r\n"), Served)
            .lacks(&["x-pointsman-"]),
        row("a rank of the client's", get("x-data-parallel-rank: 77\r\n"), Served)
            .has(&["x-data-parallel-rank: "])
            .lacks(&["x-data-parallel-rank: 77"]),
        row("headers of this hop", get("connection: x-hop, close\r\nx-hop: 1\r\nkeep-alive: 5\r\nproxy-authorization: p\r\nte: trailers\r\n"), Served)
            .lacks(&["x-hop", "keep-alive", "proxy-authorization", "te: trailers", "close"]),
        row("an upgrade", get("connection: upgrade\r\nupgrade: websocket\r\n"), Served).lacks(&["upgrade"]),
        row("a length that connection names", framed("connection: content-length\r\ncontent-length: 4\r\n", "body"), Served)
            .has(&["body"]),
        row("no host, or two", "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", Served).lacks(&["host: a", "host: b"]),
    ]
}

fn bodies() -> Vec<Row> {
    let deep = "[".repeat(100_000);
    let megabytes = |n: usize| "x".repeat(n << 20);
    let chunk = |body: &str| format!("{:x}\r\n{body}\r\n", body.len());
    let json = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let plain = "transfer-encoding: chunked\r\n";
    let too_long = Error(413, "body_too_long", "at most 2097152 bytes");
    vec![
        row("garbage for JSON", post("", "{\"model\": }]["), Served).has(&["{\"model\": }]["]),
        row("JSON that is no object", post("", "[1, 2]"), Served),
        row(
            "JSON 100,000 deep",
            post("", &format!("{{\"a\":{deep}")),
            Served,
        ),
        row(
            "messages 100,000 deep",
            post("", &format!("{{\"messages\":{deep}")),
            Served,
        ),
        row(
            "JSON with bytes that are no text",
            [
                post("", "").replace("length: 0", "length: 10").as_bytes(),
                b"{\"a\":\"\xff\"} ",
            ]
            .concat(),
            Served,
        ),
        row(
            "no body",
            framed("content-type: application/json\r\n", ""),
            Served,
        )
        .has(&["content-length: 0"]),
        row(
            "10 MB beyond the limit, said before",
            framed("content-length: 10485760\r\n", ""),
            too_long,
        ),
        row(
            "10 MB beyond the limit, sent whole",
            post("", &megabytes(10)),
            too_long,
        ),
        row(
            "3 MB in chunks beyond the limit",
            framed(json, &format!("{}0\r\n\r\n", chunk(&megabytes(3)))),
            too_long,
        ),
        row(
            "3 MB in chunks that pass through",
            framed(plain, &format!("{}0\r\n\r\n", chunk(&megabytes(3)))),
            too_long,
        ),
        row(
            "2 MB at the limit",
            framed(plain, &format!("{}0\r\n\r\n", chunk(&megabytes(2)))),
            Served,
        ),
        row(
            "a body that stops",
            framed(
                "content-type: application/json\r\ncontent-length: 100\r\n",
                "{",
            ),
            Error(408, "slow_body", "stopped coming"),
        ),
        row(
            "a body that stops while it passes through",
            framed("content-length: 100\r\n", "{"),
            Error(408, "slow_body", "stopped coming"),
        ),
        row(
            "chunks that stop",
            framed(json, "5\r\n{"),
            Error(408, "slow_body", "stopped coming"),
        ),
        row(
            "a chunk's size that is none",
            framed(json, "xyz\r\n{}\r\n0\r\n\r\n"),
            Error(400, "bad_body", "the request's body"),
        ),
        row(
            "a chunk's size beyond all numbers",
            framed(json, "fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
            Error(400, "bad_body", "the request's body"),
        ),
        row(
            "a negative chunk's size",
            framed(plain, "-1\r\n{}\r\n0\r\n\r\n"),
            Error(400, "bad_body", "the request's body"),
        ),
        row(
            "a chunk longer than its size",
            framed(json, "1\r\n{}{}\r\n0\r\n\r\n"),
            Error(400, "bad_body", "the request's body"),
        ),
        row(
            "a chunk extension without end",
            framed(json, &format!("1;{}\r\n", "x".repeat(100_000))),
            Error(400, "bad_body", "the request's body"),
        ),
    ]
}

fn smuggling() -> Vec<Row> {
    let chunked = format!("0\r\n\r\n{SMUGGLED}");
    vec![
        row(
            "a length, then chunks",
            framed(
                "content-length: 6\r\ntransfer-encoding: chunked\r\n",
                &chunked,
            ),
            Served,
        )
        .lacks(&["content-length: 6", "smuggled"]),
        row(
            "chunks, then a length",
            framed(
                "transfer-encoding: chunked\r\ncontent-length: 6\r\n",
                &chunked,
            ),
            Served,
        )
        .lacks(&["content-length: 6", "smuggled"]),
        row(
            "two different lengths",
            framed("content-length: 0\r\ncontent-length: 38\r\n", SMUGGLED),
            Refused(400),
        ),
        row(
            "two equal lengths",
            framed("content-length: 4\r\ncontent-length: 4\r\n", "body"),
            Served,
        )
        .has(&["content-length: 4", "body"]),
        row(
            "a list of lengths",
            framed("content-length: 4, 4\r\n", "body"),
            Refused(400),
        ),
        row(
            "a length with a sign",
            framed("content-length: +4\r\n", "body"),
            Refused(400),
        ),
        row(
            "a length in hexadecimal",
            framed("content-length: 0x4\r\n", "body"),
            Refused(400),
        ),
        row(
            "a length beyond all numbers",
            framed("content-length: 99999999999999999999\r\n", "body"),
            Refused(400),
        ),
        row(
            "an unknown transfer encoding",
            framed("transfer-encoding: xchunked\r\n", &chunked),
            Refused(400),
        ),
        row(
            "chunks that are not the last encoding",
            framed("transfer-encoding: chunked, identity\r\n", &chunked),
            Refused(400),
        ),
        row(
            "an encoding behind a tab",
            framed("transfer-encoding:\x0bchunked\r\n", &chunked),
            Refused(400),
        ),
        row(
            "chunks of HTTP/1.0",
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            Refused(400),
        ),
        row("a folded line", get("x-a: 1\r\n 2\r\n"), Refused(400)),
        row(
            "a folded encoding",
            framed("transfer-encoding:\r\n chunked\r\n", &chunked),
            Refused(400),
        ),
        row(
            "a blank before the colon",
            framed("content-length : 4\r\n", "body"),
            Refused(400),
        ),
        row("a line without colon", get("x-a\r\n"), Refused(400)),
        row(
            "a bare CR in a value",
            get("x-a: 1\rcontent-length: 4\r\n"),
            Refused(400),
        ),
        row("a NUL in a value", get("x-a: 1\0\r\n"), Refused(400)),
        row("a blank in a name", get("x a: 1\r\n"), Refused(400)),
        row(
            "an absolute address",
            "GET http://evil.example:80/v1/models?x HTTP/1.1\r\nhost: h\r\n\r\n",
            Served,
        )
        .has(&["GET /v1/models?x HTTP/1.1", "host: 127.0.0.1:"])
        .lacks(&["evil"]),
        row(
            "a tunnel",
            "CONNECT evil.example:443 HTTP/1.1\r\nhost: h\r\n\r\n",
            Error(405, "no_tunnel", "CONNECT is not routed"),
        ),
        row(
            "two slashes",
            "GET //evil.example/ HTTP/1.1\r\nhost: h\r\n\r\n",
            Served,
        )
        .has(&["GET //evil.example/ HTTP/1.1"]),
        row(
            "the whole server",
            "OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n",
            Served,
        )
        .has(&["OPTIONS * HTTP/1.1"]),
        row(
            "no path at all",
            "GET h HTTP/1.1\r\nhost: h\r\n\r\n",
            Error(400, "no_path", "it begins with '/'"),
        ),
        row("HTTP/0.9", "GET /\r\n\r\n", Refused(400)),
        row("HTTP/9.9", "GET / HTTP/9.9\r\n\r\n", Refused(400)),
        row(
            "TLS",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            Refused(400),
        ),
        row(
            "bytes of no protocol",
            b"\xff\xfe\xfd\xfc\r\n\r\n".to_vec(),
            Refused(400),
        ),
    ]
}

fn heads() -> Vec<Row> {
    let lines = |n: usize| (0..n).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
    let x = |n| "x".repeat(n);
    vec![
        row(
            "a head beyond 16 KiB",
            get(&format!("x: {}\r\n", x(20_000))),
            Refused(431),
        ),
        row(
            "a head that never ends",
            format!("GET / HTTP/1.1\r\nx: {}", x(20_000)),
            Refused(431),
        ),
        row(
            "a path beyond 16 KiB",
            format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", x(20_000)),
            Refused(431),
        ),
        row("100 header lines", get(&lines(99)), Served),
        row("101 header lines", get(&lines(100)), Refused(431)),
        row(
            "a path of 8,000 bytes",
            format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", x(8000)),
            Served,
        ),
        row("nothing", "", Closed),
        row("the first byte of a POST or of HTTP/2", "P", Closed),
        row("half of HTTP/2's preface", "PRI * HTTP/2.0\r\n", Closed),
        row("half a line", "GET / HT", Closed),
        row("half a head", "GET / HTTP/1.1\r\nhost: h\r\nx", Closed),
    ]
}

const LIMITS: &str = "[policy]\nuse = \"session-affinity\"\n[limits]\nclient = \"200ms\"\n\
    header_bytes = 16384\ninspect_bytes = 65536\nbody_bytes = 2097152\n";

#[tokio::test]
async fn each_bad_request_gets_its_answer_and_never_becomes_two() -> Result<()> {
    let engine = good_engine().await?;
    let host = Host::start_config(&config(&engine.url, 4, LIMITS)).await?;
    let mut report = Report::default();
    for row in &table() {
        report.row(row.what, one(row, &host, &engine).await);
    }
    report.close();
    is_well(&host).await
}

async fn one(row: &Row, host: &Host, engine: &Scripted) -> Result<()> {
    let mut client = Raw::connect(&host.url).await?;
    client.send(&row.send).await;
    let answer = tokio::time::timeout(SOON, client.answer(false)).await??;
    match (row.gets, &answer) {
        (Closed, None) => {}
        (Served, Some(answer)) => {
            ensure!(
                (answer.status(), answer.text().as_str()) == (200, "good"),
                "{answer:?}"
            );
        }
        (Refused(status), Some(answer)) => {
            ensure!(
                answer.status() == status && answer.body.is_empty(),
                "{answer:?}"
            );
            ensure!(client.end().await == 0, "more than one answer");
        }
        (Error(status, code, text), Some(answer)) => {
            ensure!(answer.status() == status, "{answer:?}");
            let body: serde_json::Value = serde_json::from_slice(&answer.body)?;
            let (found, message) = (&body["error"]["code"], &body["error"]["message"]);
            ensure!(
                found == code && message.as_str().unwrap_or_default().contains(text),
                "{body}"
            );
        }
        (_, answer) => anyhow::bail!("{answer:?}"),
    }
    drop(client);
    // The host has one thread: what it had sent on before this is there when this is.
    host.chat("probe", "probe").await?;
    let mut seen = engine.take();
    let probe = seen.pop().context("no probe")?;
    ensure!(probe.head.contains("probe"), "{probe:?}");
    let wanted = usize::from(matches!(row.gets, Served));
    ensure!(seen.len() == wanted, "the engine saw {seen:#?}");
    for Seen { head, body, .. } in &seen {
        let text = format!("{head}{}", String::from_utf8_lossy(body));
        let missing = row.has.iter().find(|has| !text.contains(**has));
        let extra = row
            .lacks
            .iter()
            .find(|lacks| text.to_lowercase().contains(**lacks));
        ensure!(
            missing.is_none() && extra.is_none(),
            "{missing:?} {extra:?} {text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn requests_in_a_row_on_one_connection_are_answered_in_order_and_then_it_closes() -> Result<()>
{
    let engine = good_engine().await?;
    let host = Host::start_config(&config(&engine.url, 4, LIMITS)).await?;
    let mut client = Raw::connect(&host.url).await?;
    client
        .send((get("") + &post("", "{}") + SMUGGLED).as_bytes())
        .await;
    for _ in 0..3 {
        let answer = client.answer(false).await?.context("no answer")?;
        assert_eq!((answer.status(), answer.text().as_str()), (200, "good"));
    }
    let paths: Vec<String> = (engine.take().iter())
        .map(|seen| seen.head.split(' ').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(paths, ["/v1/models", "/v1/chat/completions", "/smuggled"]);
    // Idle for too long.
    assert_eq!(tokio::time::timeout(SOON, client.end()).await?, 0);
    is_well(&host).await
}

#[tokio::test]
async fn a_client_that_asks_whether_to_go_on_is_told_so() -> Result<()> {
    let engine = good_engine().await?;
    let host = Host::start_config(&config(&engine.url, 4, LIMITS)).await?;
    let mut client = Raw::connect(&host.url).await?;
    client
        .send(framed("expect: 100-continue\r\ncontent-length: 4\r\n", "").as_bytes())
        .await;
    let first = client.answer(false).await?.context("no answer")?;
    assert_eq!(first.status(), 100);
    client.send(b"body").await;
    let answer = client.answer(false).await?.context("no answer")?;
    assert_eq!(answer.status(), 200);
    assert!(!engine.take()[0].head.contains("expect"));
    // And not, if it is too long anyway.
    let mut client = Raw::connect(&host.url).await?;
    client
        .send(framed("expect: 100-continue\r\ncontent-length: 99999999\r\n", "").as_bytes())
        .await;
    assert_eq!(
        client.answer(false).await?.context("no answer")?.status(),
        413
    );
    is_well(&host).await
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_body_leaves_nothing() -> Result<()> {
    let engine = good_engine().await?;
    let host = Host::start_config(&config(&engine.url, 4, LIMITS)).await?;
    for lines in ["content-type: application/json\r\n", ""] {
        let mut client = Raw::connect(&host.url).await?;
        client
            .send(framed(&format!("{lines}content-length: 100\r\n"), "{").as_bytes())
            .await;
        drop(client);
        is_well(&host).await?;
        let seen = engine.take();
        assert!(seen.iter().all(|seen| seen.length != 100), "{seen:?}");
    }
    Ok(())
}

fn table() -> Vec<Row> {
    let parts = [
        identities(),
        internal_headers(),
        bodies(),
        smuggling(),
        heads(),
    ];
    parts.into_iter().flatten().collect()
}

/// For the page.
pub(crate) fn rows() -> Vec<PageRow> {
    (table().iter())
        .map(|row| {
            let (answer, message) = match row.gets {
                Served => ("200".to_owned(), String::new()),
                Error(status, code, "") => {
                    (format!("{status} `{code}`"), "names the target".to_owned())
                }
                Error(status, code, text) => (format!("{status} `{code}`"), format!("… {text} …")),
                Refused(status) => (status.to_string(), "no body; closed".to_owned()),
                Closed => ("none".to_owned(), "closed".to_owned()),
            };
            let mut engine = match row.gets {
                Served => "one request".to_owned(),
                _ => "none".to_owned(),
            };
            let list = |words: &[&str]| {
                words
                    .iter()
                    .map(|word| format!("`{word}`"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            if !row.has.is_empty() {
                engine += &format!(", with {}", list(row.has));
            }
            if !row.lacks.is_empty() {
                engine += &format!(", without {}", list(row.lacks));
            }
            [row.what.to_owned(), answer, message, engine]
        })
        .collect()
}
