//! An engine that answers with bytes as they are written in a script, however wrong they are.

use anyhow::Result;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What it does after it has read a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// sends these bytes
    Send(Vec<u8>),
    /// does nothing more, until the other side closes
    Hang,
    /// closes the connection
    Close,
    /// resets the connection
    Reset,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// its first line and header lines
    pub head: String,
    /// how long its body was
    pub length: u64,
    /// the body, if it is short
    pub body: Vec<u8>,
}

/// See the module. Its `/health` is always well.
pub struct Scripted {
    /// where it listens
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

/// Of a body, in bytes.
const KEPT: usize = 64 << 10;

impl Scripted {
    /// On a free port. `script`: what it does after a request; `early`: already after its head.
    ///
    /// # Errors
    /// If there is no port.
    pub async fn start(
        early: bool,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Result<Scripted> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (script, log) = (Arc::new(script), seen.clone());
        let task = tokio::spawn(async move {
            // Its connections end with it.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log) = (script.clone(), log.clone());
                connections.spawn(async move { serve(stream, early, script.as_ref(), &log).await });
            }
        });
        Ok(Scripted { url, seen, task })
    }

    /// The requests that came whole since the last call.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    early: bool,
    script: &(dyn Fn(&Seen) -> Vec<Step> + Send + Sync),
    log: &Mutex<Vec<Seen>>,
) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let mut seen = head(&mut stream, &mut read).await?;
        if seen.head.starts_with("GET /health ") {
            let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(ok).await.ok()?;
            return None;
        }
        if !early {
            body(&mut stream, &mut read, &mut seen).await?;
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(seen.clone());
        }
        for step in script(&seen) {
            match step {
                Step::Send(bytes) => stream.write_all(&bytes).await.ok()?,
                Step::Hang => while more(&mut stream, &mut read).await.is_some() {},
                Step::Close => return None,
                Step::Reset => {
                    stream.set_zero_linger().ok()?;
                    return None;
                }
            }
        }
    }
}

async fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<()> {
    matches!(stream.read_buf(read).await, Ok(1..)).then_some(())
}

async fn head(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<Seen> {
    loop {
        if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = read.split_off(at + 4);
            let head = std::mem::replace(read, rest);
            return Some(Seen {
                head: String::from_utf8_lossy(&head).into_owned(),
                length: 0,
                body: Vec::new(),
            });
        }
        more(stream, read).await?;
    }
}

async fn body(stream: &mut TcpStream, read: &mut Vec<u8>, seen: &mut Seen) -> Option<()> {
    let head = seen.head.to_ascii_lowercase();
    let line = |name| head.lines().find_map(|line| line.strip_prefix(name));
    if let Some(length) = line("content-length: ").and_then(|length| length.parse().ok()) {
        return take(stream, read, seen, length).await;
    }
    if line("transfer-encoding: chunked").is_none() {
        return Some(());
    }
    loop {
        let end = loop {
            match read.windows(2).position(|window| window == b"\r\n") {
                Some(end) => break end,
                None => more(stream, read).await?,
            }
        };
        let rest = read.split_off(end + 2);
        let line = std::mem::replace(read, rest);
        let size = std::str::from_utf8(line.get(..end)?).ok()?;
        let size = u64::from_str_radix(size, 16).ok()?;
        take(stream, read, seen, size).await?;
        let mut crlf = Seen {
            head: String::new(),
            length: 0,
            body: Vec::new(),
        };
        take(stream, read, &mut crlf, 2).await?;
        if size == 0 {
            return Some(());
        }
    }
}

async fn take(
    stream: &mut TcpStream,
    read: &mut Vec<u8>,
    seen: &mut Seen,
    length: u64,
) -> Option<()> {
    let mut left = length;
    while left > 0 {
        if read.is_empty() {
            more(stream, read).await?;
        }
        let here = read.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let rest = read.split_off(here);
        let part = std::mem::replace(read, rest);
        let kept = here.min(KEPT.saturating_sub(seen.body.len()));
        seen.body.extend_from_slice(part.get(..kept)?);
        seen.length += here as u64;
        left -= here as u64;
    }
    Some(())
}
