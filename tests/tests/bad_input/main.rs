//! What each bad input gets: one table for each kind of input. `tests/BAD_INPUT.md` is the same for
//! readers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod configuration;
mod drivers;
mod engines;
mod limits;
mod page;
mod policies;
mod recordings;
mod requests;

use anyhow::Result;
use pointsman_tests::{Host, Scripted, Step, pointsman};
use std::time::Duration;
use tokio::process::Command;

/// For what must happen and takes no time to speak of.
const SOON: Duration = Duration::from_secs(20);

/// A configuration before one engine at `url`, with more lines.
fn config(url: &str, ranks: u32, more: &str) -> String {
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\nthreads = 1\n[admin]\naddress = \"127.0.0.1:0\"\n\
         {more}\n[[pool]]\nname = \"main\"\ndialect = \"vllm\"\n\
         endpoints = [{{ name = \"a\", url = \"{url}\", ranks = {ranks} }}]\n"
    )
}

/// A response with a length.
fn response(status: &str, lines: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{lines}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// An engine that is always well.
async fn good_engine() -> Result<Scripted> {
    Scripted::start(false, |_| vec![Step::Send(response("200 OK", "", "good"))]).await
}

/// Nothing is outstanding, and requests are served.
async fn is_well(host: &Host) -> Result<()> {
    host.metrics_until(SOON, |metrics| metrics.outstanding() == 0.0)
        .await?;
    let answer = host.request("good", "hello").send().await?;
    anyhow::ensure!(answer.status() == 200, "{}", answer.status());
    host.metrics_until(SOON, |metrics| metrics.outstanding() == 0.0)
        .await?;
    Ok(())
}

/// A row of the page for readers.
type PageRow = [String; 4];

/// Says of all rows at once what is wrong with them.
#[derive(Default)]
struct Report(Vec<String>);

impl Report {
    fn row(&mut self, what: &str, result: Result<()>) {
        if let Err(error) = result {
            // Without the backtrace that `{:?}` has.
            self.0.push(format!("{what}: {error:#}"));
        }
    }

    fn close(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
    }
}

/// Runs the binary to its end: exit status, and all that it said.
async fn run(args: &[&str]) -> Result<(i32, String)> {
    let run = Command::new(pointsman())
        .args(args)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(SOON, run).await??;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said += &String::from_utf8_lossy(&output.stderr);
    Ok((output.status.code().unwrap_or(-1), said))
}
