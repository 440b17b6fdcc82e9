//! A client that sends bytes as they are, and reads HTTP/1 answers.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// For an answer, or the end of the connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection.
pub struct Raw {
    /// the socket
    pub stream: TcpStream,
    read: Vec<u8>,
}

/// An answer, read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAnswer {
    /// its first line and header lines
    pub head: String,
    /// its body, without chunk sizes
    pub body: Vec<u8>,
    /// its body ended as its head said
    pub whole: bool,
}

impl RawAnswer {
    /// The status; 0: there is none.
    pub fn status(&self) -> u16 {
        let word = self.head.split(' ').nth(1);
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// A header's first value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Raw {
    /// To `http://address`.
    ///
    /// # Errors
    /// If nobody listens.
    pub async fn connect(url: &str) -> Result<Raw> {
        let address: SocketAddr = url.trim_start_matches("http://").parse()?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let read = Vec::new();
        Ok(Raw { stream, read })
    }

    /// Sends bytes. A connection that the other side closed is no error: its answer says why.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next answer; none: the connection ended before there was one.
    ///
    /// # Errors
    /// If what came is no HTTP/1 answer, or nothing came for long.
    pub async fn answer(&mut self, to_head: bool) -> Result<Option<RawAnswer>> {
        let answer = tokio::time::timeout(PATIENCE, self.read_answer(to_head));
        answer.await.context("neither an answer nor an end")?
    }

    async fn read_answer(&mut self, to_head: bool) -> Result<Option<RawAnswer>> {
        let end = loop {
            if let Some(at) = find(&self.read, b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more().await {
                ensure!(
                    self.read.is_empty(),
                    "half a head: {:?}",
                    String::from_utf8_lossy(&self.read)
                );
                return Ok(None);
            }
        };
        let head = String::from_utf8_lossy(&self.cut(end)).into_owned();
        let mut answer = RawAnswer {
            head,
            body: Vec::new(),
            whole: true,
        };
        let no_body = to_head || matches!(answer.status(), 100..=199 | 204 | 304);
        if no_body {
            return Ok(Some(answer));
        }
        let chunked = answer.header("transfer-encoding") == Some("chunked");
        let length = answer.header("content-length").map(str::parse::<usize>);
        match (chunked, length) {
            (true, None) => answer.whole = self.chunks(&mut answer.body).await?,
            (false, Some(length)) => {
                let length = length.context("content-length")?;
                while self.read.len() < length && self.more().await {}
                answer.whole = self.read.len() >= length;
                answer.body = self.cut(length);
            }
            (false, None) => {
                while self.more().await {}
                answer.body = std::mem::take(&mut self.read);
            }
            (true, Some(_)) => bail!("both lengths at once: {}", answer.head),
        }
        Ok(Some(answer))
    }

    /// False: it broke off.
    async fn chunks(&mut self, body: &mut Vec<u8>) -> Result<bool> {
        loop {
            let Some(line) = find(&self.read, b"\r\n") else {
                if self.more().await {
                    continue;
                }
                return Ok(false);
            };
            let size = String::from_utf8_lossy(&self.cut(line + 2)).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).with_context(|| size)?;
            while self.read.len() < size + 2 {
                if !self.more().await {
                    body.append(&mut self.read);
                    return Ok(false);
                }
            }
            body.extend(self.cut(size));
            self.cut(2);
            if size == 0 {
                return Ok(true);
            }
        }
    }

    /// Takes what was read first.
    fn cut(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.read.split_off(bytes.min(self.read.len()));
        std::mem::replace(&mut self.read, rest)
    }

    /// Waits for the end of the connection; says how many bytes came before it.
    pub async fn end(&mut self) -> usize {
        while self.more().await {}
        std::mem::take(&mut self.read).len()
    }

    async fn more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.read).await, Ok(1..))
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
