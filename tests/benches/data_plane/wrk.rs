//! The load: wrk with a script that sends 64 sessions in turn.

use crate::upstream::Shape;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const BODY_BYTES: usize = 2048;

/// What a run came to.
pub struct Run {
    pub requests: u64,
    pub per_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// answers other than 2xx and 3xx, and socket errors
    pub bad: u64,
}

/// Writes the script.
pub fn script(folder: &Path, shape: Shape) -> Result<PathBuf> {
    let stream = shape != Shape::Whole;
    let body = |text: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"You are a helpful assistant."}},{{"role":"user","content":"{text}"}}],"max_tokens":64,"stream":{stream}}}"#
        )
    };
    let body = body(&"x".repeat(BODY_BYTES.saturating_sub(body("").len())));
    let script = format!(
        r#"local body = [[{body}]]
local requests = {{}}
local n = 0
init = function()
  for i = 0, 63 do
    local headers = {{["content-type"] = "application/json", ["x-session-id"] = "session-" .. i}}
    requests[i] = wrk.format("POST", "/v1/chat/completions", headers, body)
  end
end
request = function() n = n + 1; return requests[n % 64] end
done = function(s, l)
  local e = s.errors
  io.write(string.format("RESULT %d %f %f %f %d\n", s.requests, s.requests / (s.duration / 1e6),
    l:percentile(50) / 1000, l:percentile(99) / 1000, e.status + e.connect + e.read + e.write + e.timeout))
end
"#
    );
    let path = folder.join(format!("{}.lua", shape.name()));
    std::fs::write(&path, script)?;
    Ok(path)
}

/// Runs it from core 0.
pub fn run(script: &Path, port: u16, seconds: u32) -> Result<Run> {
    let output = Command::new("taskset")
        .args(["-c", "0", "wrk", "-t1", "-c32", "--timeout", "20s"])
        .arg(format!("-d{seconds}s"))
        .arg("-s")
        .arg(script)
        .arg(format!("http://127.0.0.1:{port}"))
        .output()
        .context("wrk is needed: apt-get install wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = (text.lines())
        .find_map(|line| line.strip_prefix("RESULT "))
        .with_context(|| format!("no result of wrk: {text}"))?;
    let numbers: Vec<f64> = (result.split(' ')).filter_map(|n| n.parse().ok()).collect();
    let [requests, per_s, p50_ms, p99_ms, bad] = numbers.as_slice() else {
        anyhow::bail!("no result of wrk: {result}");
    };
    Ok(Run {
        requests: *requests as u64,
        per_s: *per_s,
        p50_ms: *p50_ms,
        p99_ms: *p99_ms,
        bad: *bad as u64,
    })
}
