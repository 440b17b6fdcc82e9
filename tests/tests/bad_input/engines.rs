//! Engines that misbehave: what their client gets, and whether it counts against them.

use crate::{PageRow, Report, SOON, config, response};
use anyhow::{Context, Result};
use pointsman_tests::{Host, Raw, Scripted, Step};

/// What a client gets.
enum Gets {
    /// the engine's answer, whole, with this status and body
    Answer(u16, &'static str),
    /// the proxy's own, with this status and code
    Error(u16, &'static str),
    /// the engine's head, and a body that breaks off after this
    Torn(&'static str),
}
use Gets::{Answer, Error, Torn};

struct Row {
    what: &'static str,
    /// after the request; "early": after its head
    does: Vec<Step>,
    early: bool,
    gets: Gets,
    /// it opens a breaker that opens at the first failure
    counts: bool,
}

fn table() -> Vec<Row> {
    let send = |text: &str| Step::Send(text.as_bytes().to_vec());
    let row = |what, does: Vec<Step>, gets, counts| Row {
        what,
        does,
        early: false,
        gets,
        counts,
    };
    let good = |status, lines| Step::Send(response(status, lines, "body"));
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let sse =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(4 << 20));
    let mut rows = vec![
        row(
            "is well",
            vec![good("200 OK", "")],
            Answer(200, "body"),
            false,
        ),
        row(
            "resets before its head",
            vec![Step::Reset],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "closes before its head",
            vec![Step::Close],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "closes in its head",
            vec![send("HTTP/1.1 200 OK\r\nco"), Step::Close],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "hangs before its head",
            vec![Step::Hang],
            Error(504, "engine_timeout"),
            true,
        ),
        row(
            "hangs in its head",
            vec![send("HTTP/1.1 200 OK\r\nco"), Step::Hang],
            Error(504, "engine_timeout"),
            true,
        ),
        row(
            "says what is no HTTP",
            vec![send("hello there, this is no HTTP\r\n\r\n")],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "sends a huge header",
            vec![send(&long)],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "sends too many headers",
            vec![send(&format!(
                "HTTP/1.1 200 OK\r\n{many}content-length: 0\r\n\r\n"
            ))],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "sends two lengths",
            vec![send(
                "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            )],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "sends a length that is none",
            vec![send("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nab")],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "switches protocols",
            vec![send(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nab",
            )],
            Error(502, "engine_unreachable"),
            true,
        ),
        row(
            "hangs in its body",
            vec![send(chunked), send("4\r\nbody\r\n"), Step::Hang],
            Torn("body"),
            true,
        ),
        row(
            "closes in its body",
            vec![send(chunked), send("4\r\nbody\r\n"), Step::Close],
            Torn("body"),
            true,
        ),
        row(
            "sends half a chunk",
            vec![send(chunked), send("8\r\nbody"), Step::Close],
            Torn("body"),
            true,
        ),
        row(
            "sends a chunk's size that is none",
            vec![send(chunked), send("4\r\nbody\r\nxyz\r\n")],
            Torn("body"),
            true,
        ),
        row(
            "sends a chunk's size beyond all numbers",
            vec![send(chunked), send("4\r\nbody\r\nfffffffffffffffff\r\n")],
            Torn("body"),
            true,
        ),
        row(
            "sends less than it said",
            vec![
                send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbody"),
                Step::Close,
            ],
            Torn("body"),
            true,
        ),
        row(
            "sends an error event in a 200",
            vec![
                send(sse),
                send("1b\r\ndata: {\"error\":{\"m\":\"x\"}}\n\n\r\n0\r\n\r\n"),
            ],
            Answer(200, "data: {\"error\":{\"m\":\"x\"}}\n\n"),
            true,
        ),
        row(
            "says 500",
            vec![good("500 Oh", "")],
            Answer(500, "body"),
            true,
        ),
        row(
            "says 503",
            vec![good("503 No", "")],
            Answer(503, "body"),
            true,
        ),
        row(
            "says 503 and when to come back",
            vec![good("503 No", "retry-after: 1\r\n")],
            Answer(503, "body"),
            false,
        ),
        row(
            "says 429",
            vec![good("429 No", "")],
            Answer(429, "body"),
            false,
        ),
        row(
            "says 400",
            vec![good("400 You", "")],
            Answer(400, "body"),
            false,
        ),
        row(
            "says 999",
            vec![good("999 What", "")],
            Answer(999, "body"),
            false,
        ),
        row(
            "says 100 and 103 first",
            vec![
                send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
                good("200 OK", ""),
            ],
            Answer(200, "body"),
            false,
        ),
        row(
            "sends a length and chunks",
            vec![send(
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
            )],
            Answer(200, "body"),
            false,
        ),
        row(
            "sends an answer that nobody asked for after it",
            vec![
                good("200 OK", ""),
                Step::Send(response("200 OK", "", "evil")),
            ],
            Answer(200, "body"),
            false,
        ),
        row(
            "sends no length and closes",
            vec![send("HTTP/1.1 200 OK\r\n\r\nbody"), Step::Close],
            Answer(200, "body"),
            false,
        ),
        row(
            "speaks HTTP/1.0",
            vec![send("HTTP/1.0 200 OK\r\n\r\nbody"), Step::Close],
            Answer(200, "body"),
            false,
        ),
        row(
            "says what only the proxy says",
            vec![good(
                "200 OK",
                "x-pointsman-error: overload\r\nx-pointsman-target: b/9\r\n",
            )],
            Answer(200, "body"),
            false,
        ),
    ];
    rows.push(Row {
        early: true,
        ..row(
            "answers before the body has come",
            vec![good("413 Large", ""), Step::Hang],
            Answer(413, "body"),
            false,
        )
    });
    rows
}

const LIMITS: &str = "[policy]\nuse = \"native:round-robin\"\n[retry]\nattempts = 1\n\
    [limits]\nfirst_byte = \"300ms\"\nidle = \"100ms\"";

#[tokio::test]
async fn each_misbehaviour_of_an_engine_ends_its_request_in_one_way() -> Result<()> {
    let mut report = Report::default();
    for row in table() {
        report.row(row.what, one(&row).await);
    }
    report.close();
    Ok(())
}

async fn one(row: &Row) -> Result<()> {
    let does = row.does.clone();
    let engine = Scripted::start(row.early, move |_| does.clone()).await?;
    let breaker = "breaker = { failures = 1, cooldown = \"1h\" }\n";
    let host = Host::start_config(&(config(&engine.url, 1, LIMITS) + breaker)).await?;
    let mut client = Raw::connect(&host.url).await?;
    // Of no use to look into, so that it goes on as it comes.
    let body = if row.early {
        "x".repeat(100_000)
    } else {
        "hello".to_owned()
    };
    let head = format!(
        "POST /v1 HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.send((head + &body).as_bytes()).await;
    let answer = tokio::time::timeout(SOON, client.answer(false)).await??;
    let answer = answer.context("no answer")?;
    match row.gets {
        Answer(status, text) => {
            anyhow::ensure!(answer.whole && answer.status() == status, "{answer:?}");
            anyhow::ensure!(answer.text() == text, "{answer:?}");
            anyhow::ensure!(!answer.head.contains("x-pointsman-"), "{answer:?}");
        }
        Error(status, code) => {
            let error: serde_json::Value = serde_json::from_slice(&answer.body)?;
            anyhow::ensure!(answer.status() == status, "{answer:?}");
            anyhow::ensure!(error["error"]["code"] == code, "{answer:?}");
            anyhow::ensure!(
                answer.header("x-pointsman-error") == Some(code),
                "{answer:?}"
            );
        }
        Torn(text) => {
            anyhow::ensure!(!answer.whole && answer.status() == 200, "{answer:?}");
            anyhow::ensure!(answer.text() == text, "{answer:?}");
        }
    }
    // A connection that is still open after an answer is nobody else's: nothing more comes on it.
    let metrics = host
        .metrics_until(SOON, |metrics| metrics.outstanding() == 0.0)
        .await?;
    let up = metrics.sum("pointsman_target_up", &[]);
    anyhow::ensure!(up == if row.counts { 0.0 } else { 1.0 }, "up: {up}");
    let again = host.chat("s", "hello").await;
    let status = again.map_or(0, |answer| answer.status);
    anyhow::ensure!(
        (status == 503) == (row.counts || matches!(row.gets, Answer(503, _))),
        "{status}"
    );
    Ok(())
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_502_and_counts() -> Result<()> {
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let breaker = "breaker = { failures = 2, cooldown = \"1h\" }\n";
    let host =
        Host::start_config(&(config(&format!("http://{free}"), 1, LIMITS) + breaker)).await?;
    for (status, code) in [
        (502, "engine_unreachable"),
        (502, "engine_unreachable"),
        (503, "not_routed"),
    ] {
        let answer = host.chat("s", "hello").await?;
        assert_eq!(
            (answer.status, answer.body["error"]["code"].as_str()),
            (status, Some(code))
        );
    }
    Ok(())
}

/// For the page.
pub(crate) fn rows() -> Vec<PageRow> {
    (table().iter())
        .map(|row| {
            let (answer, body) = match row.gets {
                Answer(status, _) => (format!("{status}, the engine's"), "as it came"),
                Error(status, code) => (format!("{status} `{code}`"), "the error"),
                Torn(_) => ("the engine's head".to_owned(), "breaks off after what came"),
            };
            let counts = if row.counts { "counts" } else { "" };
            [
                row.what.to_owned(),
                answer,
                body.to_owned(),
                counts.to_owned(),
            ]
        })
        .collect()
}
