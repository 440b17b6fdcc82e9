//! Policies fused and serving in a real Envoy with two worker threads.

mod ends;
mod identity;
mod replaced;
mod serving;

use pointsman_tests::{Scripted, Seen, Step};

/// An answer as one piece.
fn whole(status: &str) -> Vec<Step> {
    let text = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
    vec![Step::Send(text.into_bytes())]
}

/// The head of a stream and its first token.
const BEGIN: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ntoken\r\n";

/// An engine that answers at once.
async fn engine() -> anyhow::Result<Scripted> {
    Scripted::start(false, |_| whole("200 OK")).await
}

/// A pool of engines with ranks each.
fn pool(dialect: &str, ranks: usize, engines: &[&Scripted]) -> String {
    let mut text = format!("[[pool]]\nname = \"p\"\ndialect = \"{dialect}\"\nendpoints = [\n");
    for (engine, name) in engines.iter().zip(["a", "b", "c"]) {
        text += &format!(
            "  {{ name = \"{name}\", url = \"{}\", ranks = {ranks} }},\n",
            engine.url
        );
    }
    text + "]\n"
}

/// The value of a request's header.
fn header<'a>(seen: &'a Seen, name: &str) -> Option<&'a str> {
    seen.head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
