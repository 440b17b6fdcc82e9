//! `tests/BAD_INPUT.md` is written from the tables: `BAD_INPUT=write` writes it anew.

use crate::{configuration, drivers, engines, policies, recordings, requests};
use anyhow::{Context, Result, ensure};
use pointsman_tests::root;

const HEAD: &str = "\
# What each bad input gets

Written from the tables in `tests/tests/bad_input/`, which check each row against the real binary
(`BAD_INPUT=write cargo test --release --workspace --test bad_input page` writes it anew). After
every row the host serves the next request, and no request, prefill token or lease is left over.

Errors of the host itself are JSON as OpenAI clients read it,
`{\"error\": {\"message\": …, \"type\": …, \"code\": …}}`, with `x-pointsman-error: CODE`, which no
answer of an engine carries. What is no HTTP is refused without a body, and the connection closes.
";

const LIMITS: &str = "\
| what is beyond | limit (default) | answer | effect |
|---|---|---|---|
| requests in flight on a thread | `requests_per_thread` (8192) | 503 `overload`, `retry-after: 1`, at once | no engine sees it |
| connections on a thread | `connections_per_thread` (16,384) | 503 `too_many_connections`, `retry-after: 1`, and closed; beyond 64 of these at one time closed without a word | no engine sees it |
| files, ports or memory of the system | `ulimit -n` and the like | 503 `exhausted`, `retry-after: 1`; new connections wait to be accepted | no breaker counts it, no binding moves |
| a request's head | `header_bytes` (64 KiB), 100 lines | 431 | no engine sees it |
| a request's body | `body_bytes` (1 GiB) | 413 `body_too_long` | no engine sees it whole |
| a JSON body that is looked into | `inspect_bytes` (8 MiB), all at one time `inspect_total_bytes` (512 MiB) | passes, uninspected: no session from the body, no retry | 1 GiB takes less than 1 MiB of memory |
| a client's silence: before or in its head, or idle | `client` (60 s) | closed (HTTP/2: told to go, then closed) | no engine sees it |
| a client's silence in its body | `client` (60 s) | 408 `slow_body` | the engine's half request is broken off |
| a client that does not read | `client` (60 s) | closed | the engine's answer is broken off, its load given back |
| opening a connection to an engine | `connect` (2 s) | another engine, else 502 `engine_unreachable` | counts |
| an engine's head | `first_byte` (none) | another engine, else 504 `engine_timeout` | counts |
| an engine's silence in its answer | `idle` (300 s) | breaks off | counts; the binding goes |
| requests in flight when the host stops | `shutdown` (30 s) | broken off | |
| bindings | `bindings.max` (65,536) | the least recently used goes; if all are in use, unbound or 429 (`when_full`) | |
";

fn page() -> String {
    let sections = [
        (
            "The configuration file",
            "`pointsman check` and `pointsman serve` say the same, with exit status 1, before anything starts.",
            ["what", "message", "", ""],
            configuration::rows(),
        ),
        (
            "Policies that cannot be used",
            "`pointsman policy check`, `pointsman check` and `serve`: exit status 1. In a running host the \
             old policy goes on.",
            ["what", "stage", "message", ""],
            policies::refused_rows(),
        ),
        (
            "Policies that misbehave in `route`",
            "The instance is dropped. With `fallback = \"reject\"` the answer is 503 `not_routed`.",
            [
                "guest of `tests/guests`",
                "answer",
                "counted as `cause`",
                "",
            ],
            policies::misbehaving_rows(),
        ),
        (
            "Recordings",
            "`pointsman policy check POLICY --recording FILE`.",
            ["what", "exit status", "message", ""],
            recordings::rows(),
        ),
        (
            "Drivers of engines",
            "With exit status 1, and the file's name. A driver is loaded in a process of its own first; in a \
             running host a call that fails costs whoever asked an error, and no request anything.",
            ["what", "who says so", "message", ""],
            drivers::rows(),
        ),
        (
            "Requests",
            "With `header_bytes = 16384` and `body_bytes = 2097152`.",
            ["what", "answer", "message", "engine"],
            requests::rows(),
        ),
        (
            "Engines",
            "After the last attempt; before it, a failure before the first byte asks the policy again. \
             *Counts*: the breaker counts it, and what was bound or charged for it is rolled back.",
            ["what the engine does", "answer", "body", "breaker"],
            engines::rows(),
        ),
    ];
    let mut page = HEAD.to_owned();
    for (title, about, columns, rows) in sections {
        let width = columns.iter().filter(|column| !column.is_empty()).count();
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().take(width).map(|cell| escaped(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        page += &format!("\n## {title}\n\n{about}\n\n");
        page += &line(&columns.map(str::to_owned));
        page += &format!("|{}\n", "---|".repeat(width));
        rows.iter().for_each(|row| page += &line(row));
    }
    page + "\n## Limits\n\nKeys of `[limits]` in `pointsman.toml`.\n\n" + LIMITS
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', "\\n")
}

#[test]
fn the_page_for_readers_says_what_the_tables_say() -> Result<()> {
    let path = root().join("tests/BAD_INPUT.md");
    let wanted = page();
    if std::env::var_os("BAD_INPUT").is_some_and(|what| what == "write") {
        std::fs::write(&path, &wanted)?;
    }
    let found = std::fs::read_to_string(&path).context("tests/BAD_INPUT.md")?;
    let differs = (found.lines().zip(wanted.lines())).find(|(found, wanted)| found != wanted);
    ensure!(
        found == wanted,
        "write it anew with BAD_INPUT=write: {differs:?}"
    );
    Ok(())
}
